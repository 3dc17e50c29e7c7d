"""How much of a text's maps a page keeps, so that it stays small: exact maps, a whole overview, the heaviest keys.

A page writes bytes as base64, 4 characters for 3 bytes: a weight of a map or overview takes 4 / 3 characters, and each
of a query's heaviest keys, 2 bytes of number and 1 of weight, takes 4. With 144 heads (12 layers of 12):

- maps: isqrt(2 MiB / 144) = 120 tokens, 120^2 * 144 * 4 / 3 = 2.8 MB;
- overview: isqrt(384 KiB / 144) = 52 cells on a side, 52^2 * 144 * 4 / 3 = 0.5 MB;
- heaviest keys, 4 of each query: of 512 tokens 4 * 4 * 512 * 144 = 1.2 MB, of 4,096 tokens 9.4 MB.

That is 4.5 MB of 5 for 512 tokens and 12.7 MB of 15 for 4,096; what is left is for words, statistics and the page
itself (about 0.3 MB). Longer texts keep fewer keys, and none beyond 4,096 * 4 tokens.
"""

from dataclasses import dataclass, replace
from math import isqrt

from headwise.errors import ConfigError
from headwise.inspection.detail import Detail
from headwise.loading.module import LoadedModule
from headwise.results import BYTES_PER_KIB, BYTES_PER_MIB

MAP_BYTES = 2 * BYTES_PER_MIB  # exact maps of a page, all parts together
OVERVIEW_BYTES = 384 * BYTES_PER_KIB
TOP_KEYS = 4
TOP_KEY_CHARS = 9_500_000  # heaviest keys of a page, as they are written
CHARS_PER_KEY = 4
MAX_MAP_BYTES = 2**30  # of exact maps, whatever is asked for
UNKNOWN_MAP_TOKENS = 128  # of a module that does not say how many heads it has
UNKNOWN_HEADS = MAP_BYTES // UNKNOWN_MAP_TOKENS**2


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is kept of a text's maps.

    Args:
        map_tokens: first tokens that exact maps cover.
        detail: what else is kept, beside what the caller wants to know.
    """

    map_tokens: int
    detail: Detail


def keep(num_heads: int, num_tokens: int, *, map_tokens: int | None, detail: Detail) -> Kept:
    """Return what a page has room for.

    A text that the exact maps cover needs nothing else; a longer one keeps an overview and each query's heaviest keys.
    What the caller asks for is kept as it is asked for.

    Args:
        num_heads: heads of all parts of the page together.
        num_tokens: of the shown text.
        map_tokens: what the caller asks for; None = what there is room for.
        detail: the same.

    Raises:
        ConfigError: the maps that the caller asks for would take more than 1 GiB.
    """
    if map_tokens is not None and (size := num_heads * min(map_tokens, num_tokens) ** 2) > MAX_MAP_BYTES:
        raise ConfigError(
            f"maps hold a byte for each head, query and key and must fit into 1 GiB; {num_heads} heads and "
            f"{min(map_tokens, num_tokens):,} tokens are {size / MAX_MAP_BYTES:.1f} GiB: ask for map_tokens up to "
            f"{isqrt(MAX_MAP_BYTES // num_heads):,}"
        )
    covered = max(1, isqrt(MAP_BYTES // num_heads)) if map_tokens is None else map_tokens
    if map_tokens == 0 or num_tokens <= covered:
        return Kept(map_tokens=covered, detail=detail)
    cells = detail.overview_cells or max(1, isqrt(OVERVIEW_BYTES // num_heads))
    top_keys = detail.top_keys or min(TOP_KEYS, TOP_KEY_CHARS // (CHARS_PER_KEY * num_heads * num_tokens))
    return Kept(map_tokens=covered, detail=replace(detail, overview_cells=cells, top_keys=top_keys))


def count_heads(loaded: LoadedModule) -> int:
    """Return how many heads all stacks of a model have together; a guess where the model does not say."""
    config = loaded.config
    if config is not None:
        encoder = config.encoder.blocks if config.encoder is not None else ()
        # a layer of a decoder that reads an encoder has as many heads again, in cross-attention
        parts = (*encoder, *config.blocks, *(config.blocks if encoder else ()))
        return max(1, sum(block.attention.num_heads for block in parts))
    told = getattr(loaded.module, "config", None)
    layers, heads = (getattr(told, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if isinstance(layers, int) and isinstance(heads, int) and layers * heads > 0:
        # of an encoder-decoder these are the encoder's: its other two stacks are taken to be as large
        return layers * heads * (3 if getattr(told, "is_encoder_decoder", False) else 1)
    return UNKNOWN_HEADS
