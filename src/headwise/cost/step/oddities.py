"""find_oddity: the first part of a config that the known forward pass of its family does not have.

What a family plays is listed, and all else is refused: a part that no forward pass reads would cost nothing, and be
wrong in silence.
"""

from collections.abc import Iterator

from headwise.config.attention import AttentionConfig
from headwise.config.block import AnyAttention, BlockConfig, FeedForwardConfig
from headwise.config.head import OutputHead
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import EncoderConfig, ModelConfig
from headwise.config.position import Rotary, T5Bias
from headwise.cost.step.run import Family, Part
from headwise.masks.patterns import Causal, Full, SlidingWindow

Oddities = Iterator[tuple[bool, str]]
"""(whether a config has a part that its family has not, the part in words)."""


def find_oddity(config: ModelConfig, family: Family) -> str | None:
    """Return in words what a config has that models of its family, as they are known, have not."""
    blocks = [block for block, _ in config.block_groups]
    if config.encoder is not None:
        blocks += [block for block, _ in config.encoder.block_groups]
    for block in blocks:
        if oddity := _first(_of_block(block, family)):
            return oddity
    return _first(_of_model(config, family, blocks))


def _first(oddities: Oddities) -> str | None:
    return next((text for is_odd, text in oddities if is_odd), None)


def _of_model(config: ModelConfig, family: Family, blocks: list[BlockConfig]) -> Oddities:
    names = ("position_table_size", "sinusoid_scale", "num_token_types", "embedding_norm", "pooler", "patches")
    for name in names:
        is_played = name in family.tables or name in family.parts
        yield bool(getattr(config, name)) and not is_played, f"{name} {getattr(config, name)!r}"
    if config.patches is not None:
        yield config.vocab_size > 0, f"patches and vocab_size {config.vocab_size}"
        rows = config.position_table_size
        yield rows != config.patches.num_tokens, f"a position table of {rows} rows for {config.patches.num_tokens}"
    yield from _of_encoder(config.encoder)
    if family.has_plain_head and config.head is not None:
        yield from _of_plain_head(config.head)
    if "own positions" in family.parts:
        return
    widths = {_rotary_dim(block.attention) for block in blocks} - {0}  # SmolLM3 has layers that turn nothing
    yield len(widths) > 1, "layers of several rotary widths"
    for stack in (config.blocks, config.encoder.blocks if config.encoder is not None else ()):
        positions = [block.attention.position for block in stack]
        owners = [isinstance(position, T5Bias) and position.owns_table for position in positions]
        if any(isinstance(position, T5Bias) for position in positions):
            yield owners != [True] + [False] * (len(owners) - 1), "a table of biases in another layer than the first"
            yield len({block.attention.num_heads for block in stack}) > 1, "layers of several numbers of heads"


def _of_encoder(encoder: EncoderConfig | None) -> Oddities:
    if encoder is not None:
        yield not encoder.final_norm, "an encoder without a final norm"
        yield encoder.embedding_norm, "an encoder with an embedding norm"
        yield encoder.position_table_size > 0, "an encoder with a position table"


def _of_plain_head(head: OutputHead) -> Oddities:
    yield head.transform, "a head with a transform"
    yield head.tied and head.bias, "a tied head with a bias"
    is_classifier = head.kind == "classifier"
    yield is_classifier and (head.tied or head.softcap is not None), "a classifier that is tied or capped"
    yield not is_classifier and head.dropout_p > 0, f"dropout_p {head.dropout_p} before the scores"


def _of_block(block: BlockConfig, family: Family) -> Oddities:
    parts = family.parts
    attention, cross = block.attention, block.cross_attention
    yield not isinstance(attention, family.attention), type(attention).__name__
    position = getattr(attention, "position", None)
    needs_position = not isinstance(attention, LinearAttentionConfig)  # there the order is in the state
    yield needs_position and not isinstance(position, family.positions), f"position {position!r}"
    yield from _of_attention(attention, parts)
    if cross is not None:
        yield "cross_attention" not in parts, "a cross_attention"
        yield cross.position is not None, f"a cross_attention with position {cross.position!r}"
        yield not isinstance(cross.mask, Full), f"a cross_attention with mask {cross.mask!r}"
        yield from _of_attention(cross, parts)
    yield block.norm_placement not in family.norm_placements, f"norm_placement {block.norm_placement!r}"
    yield block.parallel and "parallel" not in parts, "attention and feed-forward in parallel"
    yield block.shared_norm and "shared_norm" not in parts, "one norm for two branches"
    yield block.dropout_p > 0 and "dropout_p" not in parts, f"dropout_p {block.dropout_p} of a layer"
    yield from _of_feed_forward(block.feed_forward, family)


def _of_attention(attention: AnyAttention, parts: frozenset[Part]) -> Oddities:
    is_known_mask = isinstance(attention.mask, Full | Causal | SlidingWindow) or "any mask" in parts
    yield not is_known_mask, f"mask {attention.mask!r}"
    position = attention.position
    if isinstance(position, Rotary):
        yield position.pairing != "half" and "interleaved" not in parts, f"pairing {position.pairing!r}"
        is_partial = position.rotary_dim is not None and position.rotary_dim != _rotated_width(attention)
        yield is_partial and "rotary_dim" not in parts, f"rotary_dim {position.rotary_dim}"
    if isinstance(position, T5Bias):
        yield "own positions" in parts and not position.owns_table, "a table of biases in another layer"
    if not isinstance(attention, AttentionConfig):
        return
    yield attention.sink and not parts & {"sink", "any sink"}, "a sink"
    yield not attention.sink and "sink" in parts, "no sink"
    has_gate = "output_gate" in parts
    yield attention.output_gate != has_gate, "no output gate" if has_gate else "an output gate"
    yield attention.kv_layer is not None, "keys of an earlier layer"
    width = attention.embed_dim
    yield attention.key_dim != width or attention.value_dim != width, "keys or values of tokens of another width"
    yield attention.softcap is not None and "softcap" not in parts, f"softcap {attention.softcap}"
    norm = f"qk_norm over {attention.qk_norm_over}"
    yield attention.qk_norm and norm not in parts, norm
    yield has_gate and not attention.qk_norm, "no qk_norm"  # the one family with gates has both
    is_grouped = attention.num_kv_heads != attention.num_heads
    yield is_grouped and "num_kv_heads" not in parts, f"num_kv_heads {attention.num_kv_heads}"
    is_even = attention.num_heads * attention.head_dim == width
    yield not is_even and "head_dim" not in parts, f"head_dim {attention.head_dim}"
    is_square = attention.v_head_dim == attention.head_dim
    yield not is_square and "v_head_dim" not in parts, f"v_head_dim {attention.v_head_dim}"


def _of_feed_forward(config: FeedForwardConfig, family: Family) -> Oddities:
    parts = family.parts
    yield ("gated" if config.gated else "plain") not in parts, f"feed-forwards with gated {config.gated}"
    yield config.dropout_p > 0 and "feed-forward dropout_p" not in parts, "dropout in feed-forwards"
    has_biases = "biases of experts" in parts
    if config.num_experts > 1:
        yield not family.has_experts, "experts"
        yield (config.bias and not has_biases) or not config.gated, "experts with biases or without a gate"
        yield config.router_bias != has_biases, f"router_bias {config.router_bias}"
        yield config.shared_gate != ("shared_gate" in parts), f"shared_gate {config.shared_gate}"
        yield config.shared_bias, "biases of a shared expert"
        yield config.shared_hidden_dim > 0 and "shared expert" not in parts, "a shared expert"
    yield has_biases and not (config.num_experts > 1 and config.bias), "no experts with biases"


def _rotated_width(attention: AnyAttention) -> int:
    """Return how many numbers of a head are turned where all that can be are."""
    return int(getattr(attention, "qk_rope_head_dim", attention.head_dim))


def _rotary_dim(attention: AnyAttention) -> int:
    position = attention.position
    return (position.rotary_dim or _rotated_width(attention)) if isinstance(position, Rotary) else 0
