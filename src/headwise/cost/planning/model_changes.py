"""Changes of the model or of what of it learns: heads, windows, adapters, frozen layers, dropout, an 8-bit cache."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import isclose

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.config.vision_model import GrowingPatches
from headwise.cost.adapters import projections_of, require_targets
from headwise.cost.planning.option import Made, Option, Place
from headwise.cost.planning.setup import Setup
from headwise.cost.workload import Lora
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, SlidingWindow

LORA_RANK = 16
LORA_TARGETS = ("q_proj", "v_proj")
SHORT_NAMES = {"q_proj": "q", "v_proj": "v", "qkv_proj": "fused q, k and v"}
SMALLEST_WINDOW = 128
WINDOW_SHARE = 8
"""A window is tried of an eighth of the length, and of no fewer than `SMALLEST_WINDOW` tokens."""
KV_SHARE = 4
"""A quarter of the key/value heads is tried; one, where their number is no multiple of four."""

NO_CONFIG = "the model is a module without a config that was read: its layers cannot be changed on paper"

WINDOWED_TYPES = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "gpt_oss",
        "headwise",
        "mistral",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "starcoder2",
    }
)
"""Implementations that can give a layer a window: transformers' with a `sliding_window` in their config, and ours."""

Changer = Callable[[AttentionConfig], AttentionConfig | str]
"""From a layer's attention, the changed one, or why it cannot be changed."""


def list_model_changes() -> Iterator[Option]:
    """Give every change of the model, and of what of it learns."""
    yield Option(key="heads", topic="heads", words="half the heads at the same width", list="alters", make=_widen_heads)
    yield Option(key="kv-heads", topic="kv heads", words="fewer key/value heads", list="alters", make=_group_heads)
    yield Option(key="window", topic="window", words="a sliding window", list="alters", make=_window)
    yield Option(
        key="freeze", topic="what learns", words="freeze the first half of the layers", list="alters", make=_freeze
    )
    yield Option(
        key="lora", topic="what learns", words=f"LoRA of rank {LORA_RANK} on q and v", list="alters", make=_adapt
    )
    yield Option(key="dropout", topic="dropout", words="no dropout", list="alters", make=_stop_dropout)
    yield Option(key="kv-int8", topic="cache", words="8-bit KV cache", list="alters", make=_shrink_cache)


def _widen_heads(setup: Setup, place: Place) -> Made | str:
    def widen(attention: AttentionConfig) -> AttentionConfig | str:
        if attention.num_heads % 2:
            return f"{attention.num_heads} heads cannot be halved"
        kv_heads = attention.num_kv_heads // 2 or 1
        if attention.num_kv_heads % 2 and attention.num_kv_heads > 1:
            return f"{attention.num_kv_heads} key/value heads cannot be halved"
        return replace(
            attention,
            num_heads=attention.num_heads // 2,
            num_kv_heads=kv_heads,
            head_dim=2 * attention.head_dim,
            v_head_dim=2 * attention.v_head_dim,
            scale=_scale_of(attention, 2 * attention.head_dim),
        )

    return _change_layers(setup, widen, "half the heads, each twice as wide")


def _scale_of(attention: AttentionConfig, head_dim: int) -> float:
    """Return the scale with another head_dim: as usual where it is usual, a model's own (T5, Gemma) as it is."""
    return head_dim**-0.5 if isclose(attention.scale, attention.head_dim**-0.5) else attention.scale


def _group_heads(setup: Setup, place: Place) -> Made | str:
    def group(attention: AttentionConfig) -> AttentionConfig | str:
        before = attention.num_kv_heads
        if before == 1:
            return "there is one key/value head as it is"
        return replace(attention, num_kv_heads=_fewer_kv_heads(before))

    if setup.config is not None and isinstance(setup.config.patches, GrowingPatches):
        return "its module has key/value heads for every head"
    attention = _first_attention(setup.config)
    before = attention.num_kv_heads if attention else 0
    after = _fewer_kv_heads(before)
    return _change_layers(setup, group, f"{after} key/value head{'s' if after > 1 else ''} in place of {before}")


def _fewer_kv_heads(number: int) -> int:
    return number // KV_SHARE if number % KV_SHARE == 0 else 1


def _window(setup: Setup, place: Place) -> Made | str:
    seq, config = setup.workload.seq, setup.config
    if config is not None and config.model_type not in WINDOWED_TYPES:
        return f"transformers' {config.model_type!r} has no sliding windows; it takes a model that has them"
    window_size = max(SMALLEST_WINDOW, seq // WINDOW_SHARE)
    if seq <= window_size:
        return f"a window of {window_size} tokens holds all {seq} of a text"

    def cut(attention: AttentionConfig) -> AttentionConfig | str:
        if isinstance(attention.mask, SlidingWindow):
            narrower = min(attention.mask.window_size, window_size)
            return replace(attention, mask=SlidingWindow(narrower))
        if not isinstance(attention.mask, Causal):
            return "its queries see keys on both sides; a sliding window is causal"
        return replace(attention, mask=SlidingWindow(window_size))

    return _change_layers(setup, cut, f"a sliding window of {window_size} tokens in every layer")


def _change_layers(setup: Setup, change: Changer, words: str) -> Made | str:
    """Change the attention of every layer, once for each kind."""
    config = setup.config
    if config is None:
        return NO_CONFIG
    if config.encoder is not None:
        return "the layers of an encoder-decoder read one another's heads: not tried"
    changed: dict[int, BlockConfig] = {}
    for block, _ in config.block_groups:
        attention = block.attention
        if not isinstance(attention, AttentionConfig):
            return f"not every layer is plain attention; got {type(attention).__name__.removesuffix('Config')}"
        result = change(attention)
        if isinstance(result, str):
            return result
        changed[id(block)] = replace(block, attention=result)
    blocks = tuple(changed[id(block)] for block in config.blocks)
    if blocks == config.blocks:
        return f"already so: every layer has {words.removesuffix(' in every layer')}"
    return Made(replace(setup, config=replace(config, blocks=blocks)), words, "alters")


def _first_attention(config: ModelConfig | None) -> AttentionConfig | None:
    attention = config.blocks[0].attention if config else None
    return attention if isinstance(attention, AttentionConfig) else None


def _freeze(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"nothing learns in a {workload.phase}"
    if workload.lora is not None:
        return "LoRA freezes every weight as it is"
    if setup.config is None:
        return NO_CONFIG
    num_frozen = setup.config.num_layers // 2
    if num_frozen == 0:
        return "the model has one layer, of which there is no first half"
    if workload.frozen_layers >= num_frozen:
        return f"already so: {workload.frozen_layers} of {setup.config.num_layers} layers are frozen"
    changed = replace(workload, frozen_layers=num_frozen)
    layers = "layer" if num_frozen == 1 else f"{num_frozen} layers"
    return Made(replace(setup, workload=changed), f"freeze the embeddings and the first {layers}", "alters")


def _adapt(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"nothing learns in a {workload.phase}"
    if workload.lora is not None:
        return f"already so: LoRA of rank {workload.lora.rank}"
    if workload.frozen_layers:
        return f"the first {workload.frozen_layers} layers are frozen, and LoRA freezes all: give one of them"
    lora = Lora(rank=LORA_RANK, targets=LORA_TARGETS)
    adapted = _adapted(setup.config, lora)
    if not adapted:
        return "the model has no projections of queries and values from its tokens to adapt"
    changed = replace(workload, lora=lora)
    return Made(replace(setup, workload=changed), f"LoRA of rank {LORA_RANK} on {adapted}", "alters")


def _adapted(config: ModelConfig | None, lora: Lora) -> str:
    """Name the projections that get an adapter; "" where a target is none of the model's."""
    if config is None:
        return "q and v, or what they are fused in"
    try:
        require_targets(config, lora)
    except ConfigError:
        return ""
    names = {
        name
        for block, _ in config.block_groups
        for branch in projections_of(block, model_type=config.model_type)
        for name, projection in branch.items()
        if projection.is_target(lora)
    }
    return " and ".join(SHORT_NAMES.get(name, name) for name in sorted(names))


def _stop_dropout(setup: Setup, place: Place) -> Made | str:
    """Drop nothing: masks go, and a fused kernel may serve that takes no dropout."""
    workload = setup.workload
    if workload.phase != "train":
        return f"a {workload.phase} drops nothing"
    if not workload.dropout:
        return "already so: dropout is off"
    if setup.config is None:
        return NO_CONFIG
    if not _drops(setup.config):
        return "the model has no dropout"
    return Made(replace(setup, workload=replace(workload, dropout=False)), "no dropout", "alters")


def _drops(config: ModelConfig) -> bool:
    blocks = (*(config.encoder.blocks if config.encoder else ()), *config.blocks)
    parts = [part for block in blocks for part in (block, block.attention, block.cross_attention, block.feed_forward)]
    probabilities = [part.dropout_p for part in (*parts, config.head) if part is not None]
    return any(probability > 0 for probability in (config.embedding_dropout_p, *probabilities))


def _shrink_cache(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase == "train":
        return "a training step keeps no KV cache"
    if workload.kv_cache == "int8":
        return "already so: the cache has 8 bits"
    if setup.config is not None and setup.config.kind == "encoder":
        return "an encoder has no KV cache"
    return Made(replace(setup, workload=replace(workload, kv_cache="int8")), "8-bit KV cache", "alters")
