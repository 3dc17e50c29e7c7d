"""Bytes of the KV cache and of a score matrix, from the config alone."""

from headwise.config.checks import require_size
from headwise.config.model import DTYPE_BYTES, BlockConfig, ModelConfig, require_dtype

DEFAULT_DTYPE = "bfloat16"


def dtype_bytes(name: str) -> int:
    """Return the bytes of one number of a dtype, as torch spells it.

    Raises:
        ConfigError: there is no such dtype in `DTYPE_BYTES`.
    """
    require_dtype("dtype", name)
    return DTYPE_BYTES[name]


def kv_cache_bytes(config: ModelConfig, *, batch: int, seq: int, dtype: str | None = None) -> int | None:
    """Return the bytes of keys and values that a decoder keeps after `seq` tokens, or None for an encoder.

    Each layer keeps `batch * min(seq, window) * K * (D + V)` numbers: no more tokens than its mask can look back on.
    These are the logical bytes; an engine that allocates in pages or for a longest length reserves more.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text that are cached.
        dtype: of the cache. Default: the config's own, else bfloat16.
    """
    require_size("batch", batch)
    require_size("seq", seq)
    number_bytes = dtype_bytes(_cache_dtype(config, dtype))
    if config.kind == "encoder":
        return None
    return number_bytes * sum(
        num_layers * batch * min(seq, _window(block) or seq) * _numbers_per_token(block)
        for block, num_layers in config.block_groups
    )


def kv_cache_bytes_per_token(config: ModelConfig, dtype: str | None = None) -> int | None:
    """Return the bytes that one more token adds to the cache while no window is full, or None for an encoder."""
    return kv_cache_bytes(config, batch=1, seq=1, dtype=dtype)


def score_matrix_bytes(*, batch: int, num_heads: int, query_len: int, key_len: int, dtype: str) -> int:
    """Return the bytes of the scores of one layer, one for each query, key and head: what eager attention writes.

    Args:
        batch: number of texts.
        num_heads: number H of query heads; key/value heads do not matter.
        query_len: number T of queries.
        key_len: number S of keys.
        dtype: of a score.
    """
    for name, value in (("batch", batch), ("num_heads", num_heads), ("query_len", query_len), ("key_len", key_len)):
        require_size(name, value)
    return batch * num_heads * query_len * key_len * dtype_bytes(dtype)


def _cache_dtype(config: ModelConfig, dtype: str | None) -> str:
    return dtype or config.dtype or DEFAULT_DTYPE


def _numbers_per_token(block: BlockConfig) -> int:
    attention = block.attention
    return attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)


def _window(block: BlockConfig) -> int | None:
    """Return how many of the latest tokens the layer can look back on, itself included; None: all of them."""
    distances = block.attention.mask.distances()
    if distances is None or not distances.intervals:
        return None
    farthest = distances.intervals[-1][1]  # one past the largest distance that is allowed
    return max(int(farthest), 1) if farthest != float("inf") else None
