"""Bytes that a model keeps between calls (keys, values, states) and bytes of a score matrix, from the config alone."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig
from headwise.config.checks import require_choice, require_size
from headwise.config.dtypes import DTYPE_BYTES, require_dtype
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import ModelConfig
from headwise.cost.results import KvLayer

DEFAULT_DTYPE = "bfloat16"
# States of linear layers are float32 whatever the model's dtype, as sums over all tokens must be.
_STATE_NUMBER_BYTES = 4
_SCALE_BYTES = 4


def dtype_bytes(name: str) -> int:
    """Return the bytes of one number of a dtype, as torch spells it.

    Raises:
        ConfigError: there is no such dtype in `DTYPE_BYTES`.
    """
    require_dtype("dtype", name)
    return DTYPE_BYTES[name]


def kv_cache_bytes(
    config: ModelConfig, *, batch: int, seq: int, dtype: str | None = None, kv_cache: str = "model"
) -> int | None:
    """Return the bytes that a decoder keeps after `seq` tokens, or None for an encoder: the sum over `kv_layers`.

    Each layer keeps `batch * min(seq, window) * K * (D + V)` numbers: no more tokens than its mask can look back on;
    latent, shared, linear and cross layers keep what `kv_layers` says. These are the logical bytes, while a token is
    computed: between calls transformers keeps one token less of a full window. An engine that allocates in pages or for
    a longest length reserves more.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text that are cached; of an encoder-decoder, of source and of target each.
        dtype: of the cache. Default: the config's own, else bfloat16.
        kv_cache: "model", numbers of that dtype, or "int8", bytes with scales, as of `kv_layers`.

    Raises:
        ConfigError: a number is out of range, or there is no such dtype or kind of cache.
    """
    _require(batch, seq, kv_cache)
    numbers = _Numbers(dtype_bytes(_cache_dtype(config, dtype)), kv_cache == "int8")
    if config.kind == "encoder":
        return None
    return sum(
        num_layers * batch * _bytes_of(part, part.tokens)
        for block, num_layers in config.block_groups
        for part in _parts(block, seq, numbers)
    )


def kv_cache_bytes_per_token(config: ModelConfig, dtype: str | None = None) -> int | None:
    """Return the bytes that one more token adds to the cache while no window is full, or None for an encoder.

    Args:
        config: the model.
        dtype: of the cache. Default: the config's own, else bfloat16.

    Raises:
        ConfigError: there is no such dtype.
    """
    number_bytes = dtype_bytes(_cache_dtype(config, dtype))
    if config.kind == "encoder":
        return None
    return sum(
        num_layers * part.bytes_per_token
        for block, num_layers in config.block_groups
        for part in _parts(block, 1, _Numbers(number_bytes))
        if part.kind != "cross"
    )


def kv_layers(
    config: ModelConfig,
    *,
    batch: int,
    seq: int,
    dtype: str | None = None,
    page_tokens: int | None = None,
    kv_cache: str = "model",
) -> tuple[KvLayer, ...]:
    """Return what each layer of a decoder keeps after `seq` tokens, first to last; nothing for an encoder.

    A layer of an encoder-decoder has two entries, its own keys and the encoder's.

    Args:
        config: the model.
        batch: number of texts.
        seq: tokens per text that are cached; of an encoder-decoder, of source and of target each.
        dtype: of the cache. Default: the config's own, else bfloat16. States of linear layers are float32.
        page_tokens: tokens in a page of an engine that allocates in pages, each text in its own. Default: no pages.
        kv_cache: "model", numbers of that dtype; or "int8", a byte for each number of keys, values and latent vectors,
            and a float32 scale for each token and head of keys and of values (latent vectors and their rotary keys: one
            each). States of linear layers are as they were.

    Raises:
        ConfigError: a number is out of range, or there is no such dtype or kind of cache.

    Source: pages: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention".
    """
    _require(batch, seq, kv_cache)
    if page_tokens is not None:
        require_size("page_tokens", page_tokens)
    numbers, page = _Numbers(dtype_bytes(_cache_dtype(config, dtype)), kv_cache == "int8"), page_tokens or 1
    if config.kind == "encoder":
        return ()
    parts = {id(block): tuple(_parts(block, seq, numbers)) for block, _ in config.block_groups}
    return tuple(
        _entry(index, part, batch=batch, seq=seq, page=page)
        for index, block in enumerate(config.blocks)
        for part in parts[id(block)]
    )


def score_matrix_bytes(*, batch: int, num_heads: int, query_len: int, key_len: int, dtype: str) -> int:
    """Return the bytes of the scores of one layer, one for each query, key and head: what eager attention writes.

    Args:
        batch: number of texts.
        num_heads: number H of query heads; key/value heads do not matter.
        query_len: number T of queries.
        key_len: number S of keys.
        dtype: of a score.

    Raises:
        ConfigError: a number is out of range, or there is no such dtype.
    """
    for name, value in (("batch", batch), ("num_heads", num_heads), ("query_len", query_len), ("key_len", key_len)):
        require_size(name, value)
    return batch * num_heads * query_len * key_len * dtype_bytes(dtype)


class _Part(NamedTuple):
    """What a layer keeps of one text."""

    kind: Literal["full", "window", "latent", "shared", "linear", "cross"]
    tokens: int
    bytes_per_token: int
    state_bytes: int = 0


class _Numbers(NamedTuple):
    """How numbers of keys and values are held: in so many bytes, or in one each with scales beside them."""

    number_bytes: int
    is_8_bit: bool = False

    def bytes(self, numbers: int, *, heads: int) -> int:
        """Return the bytes of a token's numbers in heads of keys and values."""
        return numbers + _SCALE_BYTES * heads if self.is_8_bit else numbers * self.number_bytes


def _parts(block: BlockConfig, seq: int, numbers: _Numbers) -> Iterator[_Part]:
    """Yield what a layer keeps of a text of `seq` tokens."""
    attention = block.attention
    if isinstance(attention, LinearAttentionConfig):
        conv = numbers.number_bytes * attention.conv_width * attention.conv_kernel_size
        state = _STATE_NUMBER_BYTES * attention.num_value_heads * attention.key_head_dim * attention.value_head_dim
        yield _Part("linear", 0, 0, conv + state)
    elif isinstance(attention, LatentAttentionConfig):
        yield _Part("latent", min(seq, attention.mask.look_back or seq), numbers.bytes(attention.cached_dim, heads=2))
    elif attention.kv_layer is not None:
        yield _Part("shared", 0, 0)
    else:
        window = attention.mask.look_back
        tokens = min(seq, window or seq)
        yield _Part("full" if window is None else "window", tokens, _bytes_per_token(attention, numbers))
    if block.cross_attention is not None:
        yield _Part("cross", seq, _bytes_per_token(block.cross_attention, numbers))


def _entry(index: int, part: _Part, *, batch: int, seq: int, page: int) -> KvLayer:
    return KvLayer(
        layer=index,
        kind=part.kind,
        tokens=part.tokens,
        bytes_per_token=part.bytes_per_token,
        state_bytes=part.state_bytes,
        bytes=batch * _bytes_of(part, part.tokens),
        reserved_bytes=batch * _bytes_of(part, _round_up(part.tokens, page)),
        unified_bytes=batch * _bytes_of(part, _round_up(seq, page)),
    )


def _bytes_of(part: _Part, tokens: int) -> int:
    return tokens * part.bytes_per_token + part.state_bytes


def _round_up(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def _require(batch: int, seq: int, kv_cache: str) -> None:
    require_size("batch", batch)
    require_size("seq", seq)
    require_choice("kv_cache", kv_cache, ("model", "int8"))


def _cache_dtype(config: ModelConfig, dtype: str | None) -> str:
    return dtype or config.dtype or DEFAULT_DTYPE


def _bytes_per_token(attention: AttentionConfig, numbers: _Numbers) -> int:
    heads = attention.num_kv_heads
    return numbers.bytes(heads * (attention.head_dim + attention.v_head_dim), heads=2 * heads)
