"""What our own layers do to their scores, and how their blocks are made: on paper, against real steps and the calls."""

import inspect
from collections import Counter
from itertools import product

import pytest
import torch
from torch import nn

import headwise
from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.model import OutputHead
from headwise.cost.memory import predict_ledger, predict_step
from headwise.cost.running.flop_counter import FlopCounter
from headwise.cost.running.measure import measure_training_step
from headwise.cost.step.own_attention import plan_kernel
from headwise.cost.step_flops import step_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.nn.build import build
from headwise.ops.attention import choose_impl
from headwise.positions import bias
from headwise.positions.bias import ALiBiBias, T5RelativeBias

VOCAB, HEADS = 97, 3
SHORT, LONG = 67, 523  # primes: above the 64 tokens whose angles layers share without gradients, and where blocks begin
IMPLS = {"eager": "reference", "sdpa": "auto"}
ONE_SIDED = T5Bias(is_bidirectional=False)

SCORES = {
    "softcap": {"softcap": 5.0},
    "softcap, grouped": {"softcap": 5.0, "mask": Causal(), "num_kv_heads": 1},
    "alibi": {"position": ALiBi()},
    "alibi, grouped": {"position": ALiBi(), "mask": Causal(), "num_kv_heads": 1},
    "alibi, idle slots": {"position": ALiBi(), "mask": SlidingWindow(7) & ~SlidingWindow(1)},
    "alibi, narrow values": {"position": ALiBi(), "v_head_dim": 5},
    "t5": {"position": T5Bias()},
    "t5, one-sided": {"position": ONE_SIDED, "mask": Causal(), "num_kv_heads": 1},
    "sink": {"sink": True},
    "sink, causal": {"sink": True, "mask": Causal()},
    "sink, window, grouped": {"sink": True, "mask": SlidingWindow(7), "num_kv_heads": 1},
    "sink, narrow values": {"sink": True, "v_head_dim": 5},
    "sink and alibi": {"sink": True, "position": ALiBi(), "mask": Causal(), "num_kv_heads": 1},
    "sink and t5": {"sink": True, "position": T5Bias()},
    "sink, turned in part": {"sink": True, "mask": Causal(), "position": Rotary(rotary_dim=4), "qk_norm": True},
    "all": {"sink": True, "softcap": 5.0, "mask": Causal(), "position": T5Bias(), "num_kv_heads": 1},
    "dropout and alibi": {"dropout_p": 0.1, "position": ALiBi()},
    "dropout and a sink": {"dropout_p": 0.1, "sink": True, "mask": Causal()},
    "a scale below 0": {"scale": -0.2, "mask": Causal(), "softcap": None},
}
FORMS = {
    "turned in part": {"position": Rotary(rotary_dim=4)},
    "turned in part, interleaved": {"position": Rotary(rotary_dim=6, pairing="interleaved"), "qk_norm": True},
    "parallel": {"parallel": True, "dropout_p": 0.1},
    "one norm": {"parallel": True, "shared_norm": True, "norm": "rmsnorm"},
    "norms on both sides": {"placement": "both", "norm": "rmsnorm"},
    "norms of outputs": {"placement": "output"},
    "classes of texts": {"head": OutputHead(kind="classifier", num_outputs=7, per_token=False)},
    "classes of tokens": {"head": OutputHead(kind="classifier", num_outputs=7, bias=True, dropout_p=0.1)},
    "capped scores": {"head": OutputHead(kind="language_model", num_outputs=VOCAB, tied=True, softcap=5.0)},
}
VARIANTS = SCORES | FORMS


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch):
    """Tests alone check annotations, in a frame that holds the arguments: distances, while buckets are made of them."""
    monkeypatch.setattr(bias, "t5_buckets", inspect.unwrap(bias.t5_buckets))


def make(config, workload):
    module = build(config, impl=IMPLS[workload.attention], checkpoint=workload.checkpoint)
    module.train(workload.phase == "train")
    return module.bfloat16() if workload.precision == "bf16" else module


def track(module, ids, workload):
    """Track a step; by blocks the second one, whose plans and idle slots are remembered from the first."""

    def run():
        if workload.phase == "train":
            module(ids).float().sum().backward()
            return
        with torch.no_grad():
            module(ids)

    if workload.seq == LONG:
        run()
        module.zero_grad(set_to_none=True)
    with headwise.track(module) as ledger:
        run()
    return ledger


def work(*, batch, seq=SHORT, **settings):
    return Workload(batch=batch, seq=seq, device="cpu", optimizer="sgd", **settings)


def saved(ledger):
    return Counter(entry.bytes for entry in ledger.entries if entry.kind == "saved")


def peak(ledger):
    return ledger.bytes_at(ledger.peak)


def compare(config, workload):
    """Check a step on paper against a real one: the peak to the design's hundredth, and every saved tensor.

    By blocks not the latter: they keep tensors that are remembered from the first step, and some of a few numbers.
    """
    ids = torch.randint(0, VOCAB, (workload.batch, workload.seq))
    tracked, predicted = track(make(config, workload), ids, workload), predict_ledger(config, workload)
    assert peak(predicted) == pytest.approx(peak(tracked), rel=0.01)
    assert predicted.kind_bytes("parameter") == tracked.kind_bytes("parameter")
    if workload.phase == "train" and workload.checkpoint == "none" and workload.seq == SHORT:
        assert saved(predicted) == saved(tracked)


@pytest.mark.parametrize("attention", IMPLS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_on_paper_is_a_real_one(name, attention, own_models):
    config = own_models.describe(**VARIANTS[name])
    is_eager = attention == "eager"
    compare(config, work(batch=1, attention=attention, precision="bf16", phase="train" if is_eager else "prefill"))
    compare(config, work(batch=2, attention=attention, phase="prefill" if is_eager else "train"))


@pytest.mark.parametrize("checkpoint", ["selective", "full"])
@pytest.mark.parametrize("name", ["all", "sink and alibi", "one norm", "turned in part", "classes of texts"])
def test_checkpoints_on_paper_are_real_ones(name, checkpoint, own_models):
    for attention in IMPLS:
        compare(own_models.describe(**VARIANTS[name]), work(batch=2, attention=attention, checkpoint=checkpoint))


BY_BLOCKS = ["softcap, grouped", "t5, one-sided", "sink, narrow values", "sink and t5", "all"]


@pytest.mark.parametrize("name", [*BY_BLOCKS, "alibi, idle slots", "dropout and a sink"])
def test_blocks_of_such_scores_on_paper_are_real_ones(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    batch = 2 if name == "sink and t5" else 1  # many texts take time
    workload = work(batch=batch, seq=LONG, precision="bf16" if name == "all" else "fp32")
    assert plan_kernel(config.blocks[0].attention, workload)[1].name == "blocked"
    compare(config, workload)


@pytest.mark.parametrize("name", ["sink, narrow values", "all", "alibi, idle slots"])
def test_blocks_of_such_scores_keep_what_they_keep_on_paper(name, own_models):
    config, workload = own_models.describe(**VARIANTS[name]), work(batch=1, seq=LONG)
    ids = torch.randint(0, VOCAB, (1, LONG))
    measured = measure_training_step(make(config, workload), (ids,), workload=workload)
    assert predict_step(config, workload).saved_bytes == measured.saved_bytes


@pytest.mark.parametrize("name", ["softcap", "t5, one-sided"])
def test_a_trace_sees_what_a_tracked_step_does(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    for seq in (SHORT, LONG):
        workload = work(batch=1, seq=seq)
        module, ids = make(config, workload), torch.randint(0, VOCAB, (1, seq))
        tracked = track(module, ids, workload)
        assert step_memory(trace_step(module, (ids,), workload)).peak_bytes == pytest.approx(peak(tracked), rel=0.01)


def test_adapters_leave_a_table_of_biases_as_it_is_so_that_a_fused_kernel_serves():
    config = AttentionConfig(embed_dim=24, num_heads=HEADS, position=T5Bias())
    assert plan_kernel(config, work(batch=1))[1].name == "math"
    assert plan_kernel(config, work(batch=1, lora=headwise.Lora(rank=2)))[1].name == "flash_cpu"
    assert plan_kernel(config, work(batch=1, phase="prefill"))[1].name == "flash_cpu"


SETTINGS = list(product((None, ALiBi(), T5Bias()), (False, True), (None, 5.0), (3, 1), (8, 5)))


@pytest.mark.parametrize("mask", [Full(), Causal(), SlidingWindow(64)], ids=str)
@pytest.mark.parametrize("seq", [31, LONG])
@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_the_choice_on_paper_is_that_of_the_call(mask, seq, phase):
    learns = phase == "train"
    for position, sink, softcap, num_kv_heads, v_head_dim in SETTINGS:
        config = AttentionConfig(
            embed_dim=24,
            num_heads=HEADS,
            num_kv_heads=num_kv_heads,
            v_head_dim=v_head_dim,
            mask=mask,
            position=position,
            sink=sink,
            softcap=softcap,
        )
        sizes = ((HEADS, 8), (num_kv_heads, 8), (num_kv_heads, v_head_dim))
        tensors = [torch.empty(2, heads, seq, dim, requires_grad=learns) for heads, dim in sizes]
        term = {ALiBi: lambda: ALiBiBias(HEADS), T5Bias: lambda: T5RelativeBias(T5Bias(), HEADS)}.get(type(position))
        with torch.set_grad_enabled(learns):
            choice = choose_impl(
                *tensors,
                mask=mask,
                bias=term and term(),
                sink=nn.Parameter(torch.zeros(HEADS)) if sink else None,
                softcap=softcap,
            )
        on_paper = plan_kernel(config, work(batch=2, seq=seq, phase=phase))[1].name
        assert on_paper == (choice.kernel if choice.impl == "sdpa" else choice.impl), config


def test_on_cuda_a_cap_takes_plain_operations_and_says_why():
    config = AttentionConfig(embed_dim=24, num_heads=HEADS, softcap=5.0)
    kernel = plan_kernel(config, Workload(batch=1, seq=LONG, device="cuda", precision="bf16"))[1]
    assert kernel.name == "reference" and kernel.is_quadratic and not kernel.is_fused
    assert kernel.reasons == ("sdpa is not taken: torch's fused kernels do not cap scores (softcap)",)
    assert kernel.memory.endswith("in float32 even for half precision")


def test_on_cuda_a_sink_gives_heads_the_room_that_kernels_ask_for():
    settings = {"embed_dim": 18, "num_heads": HEADS, "mask": SlidingWindow(5)}  # heads of 6: no multiple of 8
    workload = Workload(batch=1, seq=SHORT, device="cuda", precision="bf16")
    assert plan_kernel(AttentionConfig(**settings), workload)[1].name == "math"
    assert plan_kernel(AttentionConfig(**settings, sink=True), workload)[1].name == "efficient"


ON_CUDA = ["alibi, grouped", "t5", "sink, causal", "sink, window, grouped", "softcap"]


@pytest.mark.parametrize("name", ON_CUDA)
def test_a_trace_for_cuda_agrees_with_the_paper(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    workload = Workload(batch=2, seq=64, device="cuda", optimizer="sgd", precision="bf16")
    ids = torch.zeros(2, 64, dtype=torch.int64)
    traced = step_memory(trace_step(build(config).bfloat16(), (ids,), workload))
    predicted = predict_step(config, workload)
    assert predicted.saved_bytes == traced.saved_bytes
    assert predicted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.01)


@pytest.mark.parametrize("name", ["softcap", "alibi, grouped", "t5", "sink", "one norm"])
def test_products_on_paper_are_counted_ones(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    module = build(config, impl="reference")
    with FlopCounter() as counter:
        output = module(torch.randint(0, VOCAB, (2, SHORT)))
    counted = step_flops(config, work(batch=2, attention="eager"))
    assert counter.count.dense == counted.forward.dense
    with FlopCounter() as counter:
        output.sum().backward()
    assert counter.count.dense == counted.backward.dense


@pytest.mark.parametrize("name", ["alibi", "sink, causal"])
def test_a_kernel_that_serves_such_scores_multiplies_queries_with_keys_again(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    eager, fused = (step_flops(config, work(batch=2, attention=attention)) for attention in ("eager", "sdpa"))
    assert fused.backward.dense - eager.backward.dense == len(config.blocks) * 2 * 2 * SHORT**2 * 24


@pytest.mark.parametrize("name", ["alibi", "sink, causal"])
def test_texts_with_such_scores_are_not_cut_for_context_parallelism(name, own_models):
    config = own_models.describe(**VARIANTS[name])
    with pytest.raises(
        UnsupportedError, match=r"needs scores of keys alone, with no bias; got (a sink|position ALiBi)"
    ):
        headwise.fit(config, batch=2, seq=64, gpu="a100-40gb", shard="context", num_gpus=2)


def test_fit_names_the_kernel_of_our_own_layers(own_models):
    planned = headwise.fit(own_models.describe(softcap=5.0), batch=2, seq=64, gpu="a100-40gb")
    assert planned.kernel.name == "reference"
    assert any("attention runs as plain tensor operations" in note for note in planned.notes)
    biased = headwise.fit(own_models.describe(position=ALiBi()), batch=2, seq=64, gpu="a100-40gb")
    assert biased.kernel.name == "efficient"
