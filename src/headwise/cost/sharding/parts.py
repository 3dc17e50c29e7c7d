"""part_of_config: the part of a model whose heads and hidden units are shared out that one device has."""

from dataclasses import replace

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig, FeedForwardConfig
from headwise.config.model import ModelConfig
from headwise.cost.sharding.results import Sharding
from headwise.errors import UnsupportedError


def part_of_config(config: ModelConfig, sharding: Sharding) -> ModelConfig:
    """Return a model with the heads and hidden units of one of `num_devices` equal devices.

    Of `num_heads` query heads it has `num_heads / N`, of the hidden units of each feed-forward `hidden_dim / N`, of the
    key/value heads `num_kv_heads / N`, or one where there are fewer than devices; the rest is as it was.

    Raises:
        UnsupportedError: N does not divide a layer's heads or hidden units, or the layer has another form than those
            that are shared out so.

    Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
    """
    if config.encoder is not None or config.patches is not None:
        what = "an encoder beside a decoder" if config.encoder is not None else "patches"
        raise UnsupportedError(f"{_needs(sharding)} a model of texts in one stack; {config.name} has {what}")
    parts = {id(block): _part_of_block(block, sharding) for block, _ in config.block_groups}
    return replace(config, blocks=tuple(parts[id(block)] for block in config.blocks))


def splits_head(config: ModelConfig, sharding: Sharding) -> bool:
    """Say whether "tensor" or "sequence" splits a head along the vocabulary, and the token table with it.

    A head of words is split; one that is tied to the token table only where the tokens are shared out too.
    """
    head = config.head
    return head is not None and head.kind == "language_model" and (sharding.kind == "sequence" or not head.tied)


def _part_of_block(block: BlockConfig, sharding: Sharding) -> BlockConfig:
    attention = block.attention
    if not isinstance(attention, AttentionConfig):
        raise UnsupportedError(f"{_needs(sharding)} plain attention; got a layer with {type(attention).__name__}")
    if attention.qk_norm and attention.qk_norm_over == "projection":
        raise UnsupportedError(f"{_needs(sharding)} norms of single heads; got one norm over all queries of a layer")
    if block.feed_forward.num_experts > 1:
        raise UnsupportedError(
            f"{_needs(sharding)} dense feed-forwards; got {block.feed_forward.num_experts} experts: take "
            "sharding 'zero3'"
        )
    return replace(
        block,
        attention=_part_of_attention(attention, sharding),
        feed_forward=_part_of_feed_forward(block.feed_forward, sharding),
    )


def _part_of_attention(attention: AttentionConfig, sharding: Sharding) -> AttentionConfig:
    devices, kv_heads = sharding.num_devices, attention.num_kv_heads
    _require_divisible("number of heads", attention.num_heads, sharding)
    if kv_heads % devices and devices % kv_heads:
        raise UnsupportedError(
            f"{_needs(sharding)} a number of key/value heads that divides the number of devices, or is divided by it; "
            f"got {kv_heads} and {devices}"
        )
    return replace(attention, num_heads=attention.num_heads // devices, num_kv_heads=max(1, kv_heads // devices))


def _part_of_feed_forward(config: FeedForwardConfig, sharding: Sharding) -> FeedForwardConfig:
    _require_divisible("feed-forward width", config.hidden_dim, sharding)
    return replace(config, hidden_dim=config.hidden_dim // sharding.num_devices)


def _require_divisible(name: str, value: int, sharding: Sharding) -> None:
    if value % sharding.num_devices:
        raise UnsupportedError(
            f"{_needs(sharding)} a {name} that the number of devices divides; got {value} and {sharding.num_devices}: "
            "take another number of devices, or sharding 'zero3'"
        )


def _needs(sharding: Sharding) -> str:
    return f"sharding {sharding.kind!r} needs"
