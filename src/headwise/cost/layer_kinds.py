"""layer_kinds: the layers of a model that are alike, and what one of each kind has and does."""

from collections.abc import Iterator

from headwise.config.attention import AttentionConfig, T5Bias
from headwise.config.block import BlockConfig
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.flops import require_lengths
from headwise.cost.kv import kv_layers
from headwise.cost.layer_flops import Lengths, block_work
from headwise.cost.parameters import block_parameters
from headwise.cost.results import LayerKind
from headwise.masks.patterns import Causal, Full, SlidingWindow


def layer_kinds(config: ModelConfig, *, batch: int, seq: int, dtype: str | None = None) -> tuple[LayerKind, ...]:
    """Return each kind of layer, in order of appearance, an encoder's kinds before a decoder's.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text.
        dtype: of the KV cache. Default: the config's own, else bfloat16.

    Raises:
        ConfigError: a number is out of range, or is not an image's number of tokens; there is no such dtype.
    """
    require_lengths(config, batch=batch, seq=seq)
    cached: dict[int, int] = {}
    for entry in kv_layers(config, batch=batch, seq=seq, dtype=dtype):
        cached[entry.layer] = cached.get(entry.layer, 0) + entry.bytes
    places = {id(block): index for index, block in reversed(list(enumerate(config.blocks)))}
    lengths = Lengths(batch=batch, query_len=seq, key_len=seq, source_len=seq)
    kinds: dict[LayerKind, int] = {}
    for name, block, num_layers in _groups(config):
        kind = LayerKind(
            name=name,
            num_layers=1,
            parameters=block_parameters(block),
            forward=block_work(block, lengths).total,
            kv_cache_bytes=cached.get(places[id(block)], 0) if id(block) in places and cached else None,
        )
        kinds[kind] = kinds.get(kind, 0) + num_layers
    return tuple(_times(kind, num_layers) for kind, num_layers in kinds.items())


def _groups(config: ModelConfig) -> Iterator[tuple[str, BlockConfig, int]]:
    for block, num_layers in config.encoder.block_groups if config.encoder else ():
        yield f"encoder, {describe_block(block)}", block, num_layers
    prefix = "decoder, " if config.encoder else ""
    for block, num_layers in config.block_groups:
        yield prefix + describe_block(block), block, num_layers


def _times(kind: LayerKind, num_layers: int) -> LayerKind:
    return LayerKind(
        name=kind.name,
        num_layers=num_layers,
        parameters=kind.parameters,
        forward=kind.forward,
        kv_cache_bytes=kind.kv_cache_bytes,
    )


def describe_block(block: BlockConfig) -> str:
    """Say in a few words how a layer mixes tokens, and whether it has experts."""
    words = _describe_attention(block)
    experts = block.feed_forward.num_experts
    return f"{words}, {experts} experts" if experts > 1 else words


def _describe_attention(block: BlockConfig) -> str:
    attention = block.attention
    if isinstance(attention, LatentAttentionConfig):
        return "latent"
    if not isinstance(attention, AttentionConfig):
        return "linear"
    mask = attention.mask
    if isinstance(mask, SlidingWindow):
        words = f"window of {mask.window_size:,}"
    else:
        words = "full" if isinstance(mask, Full) else "causal" if isinstance(mask, Causal) else repr(mask)
    if isinstance(attention.position, T5Bias) and attention.position.owns_table:
        words += ", bias"
    if attention.kv_layer is not None:
        words += ", keys of another layer"
    return words if block.cross_attention is None else f"{words}, cross"
