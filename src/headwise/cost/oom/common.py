"""Tensors of common shapes: what is tried where no model is given, or one whose steps have no closed form."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.model import ModelConfig
from headwise.config.presets import PRESETS, preset
from headwise.cost.oom.births import Birth, MomentKind
from headwise.cost.oom.patterns import ZERO, Dim, Pattern
from headwise.cost.parameters import count_parameters

MAX_SIZES = 8  # of each kind, of one model

BATCH = Dim(1, 1, has_batch=True)
SEQ = Dim(1, 1, has_seq=True)
ONE = Dim(1)

# Judgement, not measurement: how often a tensor of each kind is the one that fails, and in which dtype.
_KINDS = {"scores": 0.4, "logits": 0.3, "hidden": 0.08, "feed-forward": 0.08, "cache": 0.06, "mask": 0.06, "flat": 0.02}
_DTYPES = {"float32": 0.5, "bfloat16": 0.5}

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


def common_tensors(config: ModelConfig | None) -> Sequence[Common]:
    """Return the tensors that are tried without a step: of one model, or of many where it is None."""
    return _of_many() if config is None else list(_list_tensors(_sizes_of(config), {}))


@cache
def _of_many() -> Sequence[Common]:
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
    return tuple(_list_tensors({kind: tuple(values) for kind, values in sizes.items()}, sizes))


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
    sizes: Mapping[str, Sequence[object]], models: Mapping[str, Mapping[object, list[str]]]
) -> Iterator[Common]:
    for kind, values in sizes.items():
        for value in values:
            name, owner, moment, dims = _shape(kind, value)
            known = tuple(models.get(kind, {}).get(value, ()))
            prior = _KINDS[kind] * (1.0 + len(known)) / (len(values) + sum(map(len, models.get(kind, {}).values())))
            for dtype, share in _DTYPES.items():
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
