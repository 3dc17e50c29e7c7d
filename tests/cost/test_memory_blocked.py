"""Attention by blocks: its memory on paper and traced without numbers, against real steps that are tracked."""

from dataclasses import dataclass

import pytest
import torch

import headwise
from headwise.config.attention import AttentionConfig, Rotary
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.measure import measure_training_step
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Lora, Workload
from headwise.kernels import traced_device
from headwise.masks.bigbird import BigBird
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided
from headwise.nn.multihead import MultiHeadAttention
from headwise.ops.attention import choose_impl

VOCAB = 97
SEQ = 523  # a prime beyond the length from which on blocks are taken
BIG_BIRD = BigBird(num_blocks=66, block_size=8, num_random=2)

# The layer's settings, batch, dropout, precision.
CASES = {
    "window": ({"mask": SlidingWindow(64)}, 3, 0.0, "fp32"),
    "one text": ({"mask": SlidingWindow(64)}, 1, 0.0, "fp32"),
    "grouped": ({"mask": SlidingWindow(64), "num_kv_heads": 1}, 3, 0.0, "fp32"),
    "half precision": ({"mask": SlidingWindow(64)}, 2, 0.0, "bf16"),
    "longformer": ({"mask": LocalWindow(64, 64) | GlobalTokens(4)}, 3, 0.0, "fp32"),
    "dilated": ({"mask": Dilated(16, 4)}, 3, 0.0, "fp32"),
    "big bird": ({"mask": BIG_BIRD}, 2, 0.0, "fp32"),
    "nobody reads itself": ({"mask": SlidingWindow(64) & ~SlidingWindow(1)}, 3, 0.0, "fp32"),
    "dropout": ({"mask": Causal()}, 2, 0.1, "fp32"),
    "dropout, grouped": ({"mask": Causal(), "num_kv_heads": 1}, 2, 0.1, "fp32"),
    "dropout, half precision": ({"mask": Causal()}, 1, 0.1, "bf16"),
    "narrow values": ({"v_head_dim": 5}, 2, 0.0, "fp32"),
    "rotary": ({"mask": SlidingWindow(64), "position": Rotary()}, 2, 0.0, "fp32"),
    "normed": ({"mask": SlidingWindow(64), "qk_norm": True, "num_kv_heads": 1}, 2, 0.0, "bf16"),
    "big bird, half precision": ({"mask": BIG_BIRD}, 4, 0.0, "bf16"),
    "grouped, half precision": ({"mask": SlidingWindow(41), "num_kv_heads": 1, "head_dim": 32}, 2, 0.0, "bf16"),
    "dropout, one matrix": ({"mask": Causal(), "num_kv_heads": 1}, 1, 0.1, "fp32"),
}


@pytest.fixture
def make(own_models):
    """Return a function that gives the config, the workload, the module and its input of a case."""

    def make_case(name):
        attention, batch, dropout_p, precision = CASES[name]
        config = own_models.describe(dropout_p=dropout_p, **attention)
        workload = Workload(batch=batch, seq=SEQ, device="cpu", optimizer="sgd", precision=precision)
        module = own_models.make(config, "auto").train()
        return config, workload, module, torch.randint(0, VOCAB, (batch, SEQ))

    return make_case


def tracked_peak(module, ids):
    """Track the second step, whose plans and idle slots are remembered from the first."""

    def run():
        module(ids).float().sum().backward()

    run()
    module.zero_grad(set_to_none=True)
    with headwise.track(module) as ledger:
        run()
    return ledger.bytes_at(ledger.peak)


@pytest.mark.parametrize("name", CASES)
def test_predicted_and_tracked_peak_agree(name, make):
    config, workload, module, ids = make(name)
    assert plan_kernel(config.blocks[0].attention, workload)[1].name == "blocked"
    predicted = predict_step(config, workload)
    if workload.precision == "bf16":
        module = module.bfloat16()
    assert predicted.peak_bytes == pytest.approx(tracked_peak(module, ids), rel=0.01)  # the target of the design
    assert predicted.saved_bytes == measure_training_step(module, (ids,), workload=workload).saved_bytes


@pytest.mark.parametrize("name", ["window", "grouped", "big bird", "dropout, one matrix", "rotary"])
def test_a_trace_runs_the_blocks_and_sees_what_a_tracked_step_does(name, make):
    _, workload, module, ids = make(name)
    traced = step_memory(trace_step(module, (ids,), workload))
    assert traced.peak_bytes == tracked_peak(module, ids)


@pytest.mark.parametrize(
    "changes",
    [{"phase": "prefill"}, {"checkpoint": "full"}, {"checkpoint": "selective"}, {"lora": Lora(rank=2)}],
    ids=str,
)
def test_other_steps_are_foretold_too(changes, own_models):
    """Against a trace, which sees what a tracked step does."""
    config = own_models.describe(mask=SlidingWindow(64))
    workload = Workload(batch=2, seq=SEQ, device="cpu", optimizer="sgd", **changes)
    ledger = trace_step(own_models.make(config, "auto"), (torch.randint(0, VOCAB, (2, SEQ)),), workload)
    foretold = predict_ledger(config, workload)
    assert foretold.bytes_at(foretold.peak) == pytest.approx(ledger.bytes_at(ledger.peak), rel=0.01)


@pytest.mark.parametrize(
    "mask", [Causal() & ~SlidingWindow(3), SlidingWindow(64) & ~SlidingWindow(1), ~Causal()], ids=str
)
def test_a_trace_leaves_nothing_behind_that_a_real_call_would_read(mask):
    layer, x = MultiHeadAttention(24, 3, mask=mask), torch.randn(1, SEQ, 24)
    trace_step(layer, (x,), Workload(batch=1, seq=SEQ, device="cpu", optimizer="sgd"))
    with torch.no_grad():
        output = layer(x)
        layer.impl = "reference"
        torch.testing.assert_close(output, layer(x), rtol=0, atol=1e-5)  # float32 sums of some hundred terms of size 1
    assert traced_device.get() is None


@dataclass(frozen=True)
class Near(Mask):
    """A mask of somebody's own, by what it says of a pair alone; heads differ, and some do not read themselves."""

    is_structural = True

    def allows(self, batch, head, query_index, key_index):
        distance = abs(query_index - key_index)
        is_near = (distance < 20 * (head + 1)) & (distance >= head) & (-key_index <= 0)
        return is_near & (key_index <= query_index)


def test_a_mask_of_somebodys_own_is_foretold(own_models):
    config = own_models.describe(mask=Near())
    workload = Workload(batch=2, seq=SEQ, device="cpu", optimizer="sgd")
    predicted = predict_step(config, workload)
    ids = torch.randint(0, VOCAB, (2, SEQ))
    measured = measure_training_step(own_models.make(config, "auto"), (ids,), workload=workload)
    assert predicted.saved_bytes == measured.saved_bytes


def test_a_trace_for_cuda_takes_torchs_kernels(make):
    _, _, module, ids = make("window")
    peaks = {}
    for device in ("cpu", "cuda"):
        workload = Workload(batch=3, seq=SEQ, device=device, optimizer="sgd")
        ledger = trace_step(module, (ids,), workload)
        peaks[device] = any(entry.shape[-2:] == (SEQ, SEQ) for entry in ledger.entries)
    assert peaks == {"cpu": False, "cuda": True}  # a mask tensor of all pairs


def test_a_mask_with_tensors_is_traced_by_torchs_kernel():
    layer = MultiHeadAttention(24, 3)
    padding = KeyPadding(torch.tensor([100]))

    class Padded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, mask=padding)

    workload = Workload(batch=1, seq=SEQ, device="cpu", optimizer="sgd")
    ledger = trace_step(Padded(), (torch.zeros(1, SEQ, 24),), workload)
    assert any("flash_attention" in entry.name for entry in ledger.entries)


MASKS = [
    Full(),
    Causal(),
    SlidingWindow(64),
    SlidingWindow(400),
    LocalWindow(30, 60),
    Strided(9),
    PrefixLM(100),
    BIG_BIRD,
    Causal() & ~SlidingWindow(30) | SlidingWindow(1),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("seq", [31, 63, 257, 511, 512, 523])
@pytest.mark.parametrize("settings", [{}, {"num_kv_heads": 1}, {"v_head_dim": 5}, {"dropout_p": 0.1}], ids=str)
def test_the_choice_on_paper_is_that_of_the_call(mask, seq, settings):
    config = AttentionConfig(embed_dim=24, num_heads=3, mask=mask, **settings)
    workload = Workload(batch=2, seq=seq, device="cpu")
    shapes = [(3, config.head_dim), *((config.num_kv_heads, dim) for dim in (config.head_dim, config.v_head_dim))]
    tensors = [torch.empty(2, heads, seq, dim, requires_grad=True) for heads, dim in shapes]
    choice = choose_impl(*tensors, mask=mask, dropout_p=config.dropout_p)
    on_paper = plan_kernel(config, workload)[1].name
    assert (on_paper == "blocked") == (choice.impl == "blocked")
    assert plan_kernel(config, Workload(batch=2, seq=seq, device="cuda"))[1].name != "blocked"
