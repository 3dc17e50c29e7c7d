"""Tensors of common shapes: what is tried where no model is given, or one whose steps have no closed form."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.model import ModelConfig
from headwise.config.presets import PRESETS, preset
from headwise.cost.oom.births import Birth, MomentKind
from headwise.cost.oom.patterns import ZERO, Dim, Pattern
from headwise.cost.oom.steps import has_bfloat16
from headwise.cost.parameters import count_parameters

MAX_SIZES = 8  # of each kind, of one model

BATCH = Dim(1, 1, has_batch=True)
SEQ = Dim(1, 1, has_seq=True)
ONE = Dim(1)

# Judgement, not measurement: how often a tensor of each kind is the one that fails, and in which dtype. Before Ampere
# the narrow one is float16, and fewer train in it alone.
_KINDS = {"scores": 0.4, "logits": 0.3, "hidden": 0.08, "feed-forward": 0.08, "cache": 0.06, "mask": 0.06, "flat": 0.02}
_DTYPES = {"float32": 0.5, "bfloat16": 0.5}
_DTYPES_BEFORE_AMPERE = {"float32": 0.6, "float16": 0.4}
_DTYPES_OF: dict[str, tuple[str, ...]] = {"fp32": ("float32",), "bf16": ("bfloat16",), "fp16": ("float16",)}
_DTYPES_OF |= {"amp-bf16": ("float32", "bfloat16"), "amp-fp16": ("float32", "float16")}

# Where no model is given: sizes of many models, beside those of the presets.
_HEADS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 71, 80, 96, 128)
_VOCABULARIES = (30_522, 32_000, 32_768, 50_257, 50_304, 64_000, 100_352, 128_256, 151_936, 152_064, 256_000, 262_144)
_WIDTHS = (768, 1024, 1280, 2048, 2560, 3072, 4096, 5120, 8192)
_HEAD_DIMS = (64, 80, 96, 128, 256)
_KV_HEADS = (1, 2, 4, 8, 16, 32)


class Common(NamedTuple):
    """A tensor of a common shape: how likely it is the one, and the models that have it."""

    birth: Birth
    prior: float
    models: tuple[str, ...]


def common_tensors(
    config: ModelConfig | None, *, precision: str | None = None, capability: tuple[int, int] = (8, 0)
) -> Sequence[Common]:
    """Return the tensors that are tried without a step.

    Args:
        config: the model that has them; None = any.
        precision: of the step, which gives the dtypes. Default: not known.
        capability: compute capability of the device, which says what it can be.
    """
    dtypes = _DTYPES if has_bfloat16(capability) else _DTYPES_BEFORE_AMPERE
    if precision is not None:
        dtypes = dict.fromkeys(_DTYPES_OF[precision], 1 / len(_DTYPES_OF[precision]))
    return _of_many(*dtypes.items()) if config is None else tuple(_list_tensors(_sizes_of(config), {}, dtypes))


@cache
def _of_many(*dtypes: tuple[str, float]) -> Sequence[Common]:
    sizes: dict[str, dict[object, list[str]]] = {
        "scores": {size: [] for size in _HEADS},
        "logits": {size: [] for size in _VOCABULARIES},
        "hidden": {size: [] for size in _WIDTHS},
        "feed-forward": {4 * size: [] for size in _WIDTHS},
        "cache": {(heads, width): [] for heads in _KV_HEADS for width in _HEAD_DIMS},
        "mask": {1: []},
    }
    for name in PRESETS:
        for kind, values in _sizes_of(preset(name)).items():
            for value in values if kind != "flat" else ():
                sizes[kind].setdefault(value, []).append(name)
    return tuple(_list_tensors({kind: tuple(values) for kind, values in sizes.items()}, sizes, dict(dtypes)))


def _sizes_of(config: ModelConfig) -> dict[str, tuple[object, ...]]:
    """Return by kind what the shapes of a model's tensors are made of."""
    layers = [block.attention for block, _ in config.block_groups]
    heads = [layer for layer in layers if isinstance(layer, AttentionConfig)]
    outputs = [] if config.head is None else [config.head.num_outputs]
    values: dict[str, list[int] | list[tuple[int, int]]] = {
        "scores": [layer.num_heads for layer in layers if hasattr(layer, "num_heads")],
        "logits": [size for size in (*outputs, config.vocab_size) if size],
        "hidden": [config.embed_dim],
        "feed-forward": [block.feed_forward.hidden_dim for block, _ in config.block_groups],
        "cache": [(layer.num_kv_heads, layer.head_dim) for layer in heads],
        "mask": [1],
        "flat": [count_parameters(config).total],
    }
    return {kind: tuple(dict.fromkeys([*several]))[:MAX_SIZES] for kind, several in values.items()}


def _list_tensors(
    sizes: Mapping[str, Sequence[object]],
    models: Mapping[str, Mapping[object, list[str]]],
    dtypes: Mapping[str, float],
) -> Iterator[Common]:
    for kind, values in sizes.items():
        for value in values:
            name, owner, moment, dims = _shape(kind, value)
            known = tuple(models.get(kind, {}).get(value, ()))
            prior = _KINDS[kind] * (1.0 + len(known)) / (len(values) + sum(map(len, models.get(kind, {}).values())))
            for dtype, share in dtypes.items():
                pattern = Pattern(dims, dtype)
                yield Common(
                    Birth(name, "temporary", owner, None, moment, pattern, ZERO, ZERO, "never", 1),
                    prior * share,
                    known,
                )


def _shape(kind: str, value: object) -> tuple[str, str, MomentKind, tuple[Dim, ...]]:
    """Return the name, the owner, the moment and the dimensions of a tensor of a kind."""
    if isinstance(value, tuple):
        heads, width = value
        return "cached keys", "attention", "forward", (BATCH, Dim(heads), SEQ, Dim(width))
    assert isinstance(value, int)
    shapes: dict[str, tuple[str, str, MomentKind, tuple[Dim, ...]]] = {
        "scores": ("attention scores", "attention", "forward", (BATCH, Dim(value), SEQ, SEQ)),
        "logits": ("output scores", "head", "forward", (BATCH, SEQ, Dim(value))),
        "hidden": ("hidden states", "", "forward", (BATCH, SEQ, Dim(value))),
        "feed-forward": ("feed-forward hidden", "feed-forward", "forward", (BATCH, SEQ, Dim(value))),
        "mask": ("attention mask", "attention", "forward", (BATCH, ONE, SEQ, SEQ)),
        "flat": ("all weights in one buffer", "", "loading", (Dim(value),)),
    }
    return shapes[kind]
