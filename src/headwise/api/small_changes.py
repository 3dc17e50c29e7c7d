"""The changes of a plan that alter the model, as a small model's config.json with them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.planning.model_changes import WINDOW_SHARE, WINDOWED_TYPES
from headwise.cost.planning.option import Made
from headwise.masks.patterns import SlidingWindow

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = "num_key_value_heads"
HEAD_DIM = "head_dim"


class ModelChange(NamedTuple):
    """A change of the model: what a plan calls it, the config.json that has it, and the layers that it should give."""

    key: str
    words: str
    content: Mapping[str, Any]
    blocks: tuple[BlockConfig, ...]


def change_model(
    config: ModelConfig, content: Mapping[str, Any], made: Mapping[str, Made], *, seq: int
) -> Iterator[ModelChange]:
    """Give the changes of a model's heads and windows.

    Args:
        config: the model.
        content: its config.json.
        made: what a plan makes of it, by its keys.
        seq: of the texts. A plan's windows are for longer ones, so here a window has its share of this length.
    """
    if "heads" in made:
        yield _changed(made, "heads", halve_heads(content))
    if "kv-heads" in made:
        attention = _blocks_of(made["kv-heads"])[0].attention
        assert isinstance(attention, AttentionConfig)  # of others no plan makes the change
        yield _changed(made, "kv-heads", {**content, KV_HEADS: attention.num_kv_heads})
    window_size = max(seq // WINDOW_SHARE, 1)
    blocks = tuple(_windowed(block, window_size) for block in config.blocks)
    if config.model_type in WINDOWED_TYPES and blocks != config.blocks:
        words = f"a sliding window of {window_size} tokens in every layer"
        yield ModelChange("window", words, with_window(content, window_size, len(blocks)), blocks)


def halve_heads(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with half the heads, each twice as wide; a width that it does not state follows by itself."""
    halved = {key: max(content[key] // 2, 1) for key in (*HEADS, KV_HEADS) if _is_count(content.get(key))}
    widened = {HEAD_DIM: 2 * content[HEAD_DIM]} if _is_count(content.get(HEAD_DIM)) else {}
    return {**content, **halved, **widened}


def with_window(content: Mapping[str, Any], window_size: int, num_layers: int) -> dict[str, Any]:
    """Return a config with a sliding window in every layer, in all the words that families have for it."""
    return {
        **content,
        "sliding_window": window_size,
        "use_sliding_window": True,
        "max_window_layers": 0,  # the first layer with a window
        "layer_types": ["sliding_attention"] * num_layers,
    }


def _changed(made: Mapping[str, Made], key: str, content: Mapping[str, Any]) -> ModelChange:
    return ModelChange(key, made[key].words, content, _blocks_of(made[key]))


def _blocks_of(made: Made) -> tuple[BlockConfig, ...]:
    assert made.setup.config is not None
    return made.setup.config.blocks


def _windowed(block: BlockConfig, window_size: int) -> BlockConfig:
    """Return a layer with a window, or as it is where it is no plain attention."""
    if not isinstance(block.attention, AttentionConfig):
        return block
    return replace(block, attention=replace(block.attention, mask=SlidingWindow(window_size)))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
