"""A ModelSummary of whatever was loaded, and the workload that a verb assumes unless told."""

from collections.abc import Mapping

from headwise.api.results import ModelSummary
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.config.vision_model import GrowingPatches
from headwise.errors import HeadwiseError

DEFAULT_SEQ = 512


def summarise(config: ModelConfig | None, *, name: str, source: str) -> ModelSummary:
    """Say which model this is in the words of its config; None without one.

    Heads are those of the first layer that attends; a layer that keeps a state in place of keys is another thing.
    """
    layers = [block.attention for block in config.blocks] if config else []
    attending = [layer for layer in layers if not isinstance(layer, LinearAttentionConfig)]
    first = next(iter(attending or layers), None)
    has_limit = config is not None and not isinstance(config.patches, GrowingPatches)
    return ModelSummary(
        name=config.name if config else name,
        source=source,
        model_type=config.model_type if config else None,
        num_layers=config.num_layers if config else None,
        num_heads=first.num_heads if first else None,
        num_kv_heads=first.num_kv_heads if first else None,
        embed_dim=config.embed_dim if config else None,
        head_dim=first.head_dim if first else None,
        max_positions=config.max_positions if config and has_limit else None,
    )


def default_seq(content: Mapping[str, object]) -> int:
    """Return the smaller of 512 and the positions that a config.json of any family tells, if it tells them."""
    told = (content.get(key) for key in ("max_position_embeddings", "n_positions", "max_target_positions"))
    positions = next((size for size in told if isinstance(size, int) and size > 0), DEFAULT_SEQ)
    return min(DEFAULT_SEQ, positions)


def resolve_seq(config: ModelConfig | None, seq: int | None) -> int:
    """Return the length to reckon with: `seq`, else an image's tokens, else the smaller of 512 and the positions.

    Raises:
        HeadwiseError: `seq` is longer than a learned position table.
    """
    if seq is not None and (isinstance(seq, bool) or not isinstance(seq, int)):
        raise HeadwiseError(f"seq must be a whole number; got {seq!r}")
    if seq is None and config and config.patches:
        return config.patches.num_tokens
    if seq is None:
        return min(DEFAULT_SEQ, config.max_positions) if config else DEFAULT_SEQ
    if config and config.position_table_size and seq > config.position_table_size:
        raise HeadwiseError(
            f"seq must be at most {config.position_table_size}, the rows of {config.name}'s position table; got {seq}"
        )
    return seq
