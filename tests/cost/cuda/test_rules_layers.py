"""Whole layers against formulas of the literature, counted by hand: bytes kept for backward, parameters excluded.

Letters: b texts, s tokens, h width, a heads, k key/value heads, d size of a head, A = a d, r = k / a, f width of the
feed-forward layer, e bytes per number.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.cost.cuda.rules import device_rules

FLASH_STATE = 24


def saved_bytes(run, module):
    excluded = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    result.sum().backward()
    return sum(storage.nbytes() for storage in storages.values())


class GptLayer(nn.Module):
    """A layer of GPT-2, as plain as can be: norm, attention, dropout; norm, GELU of four times the width, dropout."""

    def __init__(self, width, num_heads, dropout_p, *, fused):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.num_heads, self.dropout_p, self.fused = num_heads, dropout_p, fused

    def forward(self, x):
        x = x + functional.dropout(self.out(self.attend(self.norm_1(x))), self.dropout_p)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))), self.dropout_p)

    def attend(self, x):
        q, k, v = (y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if self.fused:
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            weights = functional.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
            attended = functional.dropout(weights, self.dropout_p) @ v
        return attended.transpose(1, 2).flatten(2)


def build(make, dtype):
    torch.set_default_dtype(dtype)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def gpt_layer_bytes(*, b, s, h, a, dtype, dropout_p, fused, device="cuda", autocast=False):
    with FakeTensorMode(), device_rules(device):
        layer = build(lambda: GptLayer(h, a, dropout_p, fused=fused), torch.float32 if autocast else dtype)
        x = torch.empty(b, s, h, dtype=torch.float32 if autocast else dtype, requires_grad=True)

        def run():
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                return layer(x)

        return saved_bytes(run, layer)


GPT = {"b": 4, "s": 1024, "h": 768, "a": 12}
STATISTICS = 2 * 2 * 4 * 1024 * 4  # two norms, mean and deviation of each token in float32


def test_a_gpt_layer_in_float16_keeps_what_korthikanti_counts():
    # "Reducing Activation Recomputation in Large Transformer Models", equation 1: sbh (34 + 5 a s / h), "where the
    # statistics of the norms are left out".
    b, s, h, a = GPT.values()
    counted = gpt_layer_bytes(**GPT, dtype=torch.float16, dropout_p=0.1, fused=False)
    assert counted == 34 * s * b * h + 5 * a * s * s * b + STATISTICS


@pytest.mark.parametrize(("dtype", "e"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_gpt_layer_with_fused_attention_keeps_sixteen_activations(dtype, e):
    b, s, h, a = GPT.values()
    # 16 of width h: two norms' inputs, two norms' outputs, q, k, v, attention's output, and 4 + 4 around the GELU.
    state = 16 if dtype == torch.float32 else FLASH_STATE  # float32 takes the memory-efficient kernel
    without = 16 * e * s * b * h + 4 * a * s * b + state + STATISTICS
    assert gpt_layer_bytes(**GPT, dtype=dtype, dropout_p=0.0, fused=True) == without
    # Two residual dropouts: a byte a number each.
    assert gpt_layer_bytes(**GPT, dtype=dtype, dropout_p=0.1, fused=True) == without + 2 * s * b * h


def test_the_same_layer_on_a_cpu_keeps_dropout_masks_as_numbers_and_fewer_extras():
    b, s, h, a = GPT.values()
    without = gpt_layer_bytes(**GPT, dtype=torch.float32, dropout_p=0.0, fused=True, device="cpu")
    assert without == 16 * 4 * s * b * h + 4 * a * s * b + STATISTICS
    dropped = gpt_layer_bytes(**GPT, dtype=torch.float32, dropout_p=0.1, fused=True, device="cpu")
    assert dropped == without + 2 * 4 * s * b * h


def test_a_gpt_layer_under_autocast_keeps_wide_norms_and_residuals_and_narrow_weights():
    b, s, h, a = GPT.values()
    counted = gpt_layer_bytes(**GPT, dtype=torch.bfloat16, dropout_p=0.0, fused=True, autocast=True)
    # Norms keep their float32 inputs (4 + 4); the casts of their outputs (2 + 2) are what products keep; q, k, v and
    # attention's output (2 each), the GELU's input and output (8 each). Every weight of a product once in bfloat16.
    activations = (4 + 2) * 2 + 2 * 4 + 8 * 2
    weights = 2 * 12 * h * h
    assert counted == activations * s * b * h + 4 * a * s * b + FLASH_STATE + STATISTICS + weights


@dataclass(frozen=True)
class Model:
    """A published decoder: its class in transformers, its sizes, and sbh's coefficient with fused attention."""

    name: str
    h: int
    a: int
    k: int
    d: int
    f: int
    coefficient: float


MODELS = [
    Model("llama", 4096, 32, 8, 128, 14336, 49.03),  # Llama-3-8B
    Model("qwen3", 2560, 32, 8, 128, 9728, 66.5),  # Qwen3-4B
    Model("gemma", 2048, 8, 1, 256, 16384, 88.55),  # Gemma-2B
    Model("llama", 960, 15, 5, 64, 2560, 42.74),  # SmolLM2-360M
]


def decoder_layer_bytes(model, attention, *, b, s):
    transformers = pytest.importorskip("transformers")
    kind = {"llama": "Llama", "qwen3": "Qwen3", "gemma": "Gemma"}[model.name]
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=model.h,
        num_attention_heads=model.a,
        num_key_value_heads=model.k,
        head_dim=model.d,
        intermediate_size=model.f,
        attn_implementation=attention,
    )
    modeling = getattr(transformers.models, model.name)
    layer_class = getattr(getattr(modeling, f"modeling_{model.name}"), f"{kind}DecoderLayer")
    with FakeTensorMode(), device_rules("cuda"):
        layer = build(lambda: layer_class(config, 0), torch.bfloat16)
        x = torch.empty(b, s, model.h, dtype=torch.bfloat16, requires_grad=True)
        cosine, sine = (torch.empty(b, s, model.d, dtype=torch.bfloat16) for _ in range(2))
        mask = torch.empty(b, 1, s, s, dtype=torch.bfloat16) if attention == "eager" else None
        return saved_bytes(lambda: layer(x, attention_mask=mask, position_embeddings=(cosine, sine)), layer)


def around_attention_bytes(model, b, s):
    """Bytes of everything but attention's core: norms, projections, feed-forward, rotary tables."""
    r, big_a = model.k / model.a, model.a * model.d
    # A norm keeps its input in float32 and the result before its weight in bfloat16 (6), its output is kept by the
    # product that reads it (2). Gemma adds 1 to its weight, keeps the sum, and multiplies in float32: 4 + 4 + 2.
    norms = (20 if model.name == "gemma" else 16) * model.h + 2 * 4
    if model.name == "qwen3":
        norms += 6 * (1 + r) * big_a + 4 * (model.a + model.k)  # norms of queries and keys; their outputs are not kept
    weights = 2 * 4 * model.h if model.name == "gemma" else 0
    return (norms + 2 * 4 * model.f + 2 * 2 * model.d) * s * b + weights


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.h}")
def test_a_published_decoder_layer_keeps_the_predicted_bytes_with_fused_attention(model):
    b, s = 2, 4096
    big_a, r = model.a * model.d, model.k / model.a
    attention = 2 * (2 + 2 * r) * big_a * s * b + 4 * model.a * s * b + FLASH_STATE
    assert decoder_layer_bytes(model, "sdpa", b=b, s=s) == around_attention_bytes(model, b, s) + attention


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.h}")
def test_the_known_coefficients_leave_out_the_rotary_tables_and_the_rows_of_statistics_only(model):
    b, s = 2, 4096
    rows = 2 * 4 + (4 * (model.a + model.k) if model.name == "qwen3" else 0)
    saved = decoder_layer_bytes(model, "sdpa", b=b, s=s) - FLASH_STATE - s * b * (rows + 2 * 2 * model.d)
    if model.name == "llama" and model.h == 4096:
        assert round(saved / (s * b * model.h), 2) == model.coefficient
    else:
        assert saved / (s * b * model.h) == pytest.approx(model.coefficient, rel=2e-3)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.h}")
def test_the_same_layers_with_eager_attention_keep_wide_weights_and_repeated_heads(model):
    b, s = 2, 256
    big_a = model.a * model.d
    # Query, repeated keys and values, output; the softmax in float32, and its cast.
    attention = 2 * 4 * big_a * s * b + 6 * model.a * s * s * b
    assert decoder_layer_bytes(model, "eager", b=b, s=s) == around_attention_bytes(model, b, s) + attention


# Optimizers need no rule: what torch allocates does not depend on the device.


class TrackPeak(TorchDispatchMode):
    """Follow the bytes of what operations return, as long as it lives."""

    def __init__(self):
        super().__init__()
        self.live, self.peak, self.known = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in torch.utils._pytree.tree_leaves((args, kwargs)) if is_tensor(t)}
        for tensor in filter(is_tensor, torch.utils._pytree.tree_leaves(results)):
            storage = tensor.untyped_storage()
            if storage._cdata not in inputs:
                self.known[storage._cdata] = (
                    torch.multiprocessing.reductions.StorageWeakRef(storage),
                    storage.nbytes(),
                )
        self.known = {key: value for key, value in self.known.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self.known.values()))
        return results


def is_tensor(value):
    return isinstance(value, torch.Tensor)


@pytest.mark.parametrize(("how", "copies"), [("foreach", 1), ("fused", 0)])
def test_an_adamw_step_takes_one_more_copy_of_the_weights_unless_fused(how, copies):
    with FakeTensorMode(), device_rules("cuda"):
        weights = [nn.Parameter(torch.empty(1024, 512)) for _ in range(3)]
        optimizer = torch.optim.AdamW(weights, **{how: True})
        for _ in range(2):  # the first step makes the states
            for weight in weights:
                weight.grad = torch.empty_like(weight)
            with TrackPeak() as track:
                optimizer.step()
    weight_bytes = sum(weight.nbytes for weight in weights)
    assert copies * weight_bytes <= track.peak <= copies * weight_bytes + 1024
