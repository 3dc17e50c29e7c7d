"""Numbers of heads as short texts for a page: bytes, deflated and in base64; the heaviest keys in three bytes each."""

import base64
import math
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

from headwise.inspection.results import AttentionMap, TopKeys

NO_KEY = 0xFFFF  # stands where a query has no more keys; so a page holds at most 65,535 keys


def pack(content: bytes) -> str:
    """Return bytes as a zlib stream (RFC 1950) in base64; the page's `unpack` turns them back."""
    return base64.b64encode(zlib.compress(content, 6)).decode("ascii")


def pack_map(map_: AttentionMap) -> dict[str, object]:
    """Return a map with its weights packed."""
    return {
        "layer": map_.layer,
        "head": map_.head,
        "num_queries": map_.num_queries,
        "num_keys": map_.num_keys,
        "tile": map_.tile,
        "weights": pack(map_.weights),
    }


def crop_map(map_: AttentionMap, num_tokens: int) -> AttentionMap:
    """Return the first rows and columns of a map, at most `num_tokens` of each."""
    num_queries, num_keys = min(map_.num_queries, num_tokens), min(map_.num_keys, num_tokens)
    if (num_queries, num_keys) == (map_.num_queries, map_.num_keys):
        return map_
    starts = range(0, num_queries * map_.num_keys, map_.num_keys)
    weights = b"".join(map_.weights[start : start + num_keys] for start in starts)
    return AttentionMap(
        layer=map_.layer, head=map_.head, num_queries=num_queries, num_keys=num_keys, weights=weights, tile=map_.tile
    )


def pack_top_keys(top: TopKeys, num_ranks: int) -> dict[str, object]:
    """Return the heaviest `num_ranks` keys of each query, packed rank by rank, and the weight of all its other keys.

    A key takes 2 bytes, little-endian, a weight one: its square root in 255 steps, as in a map; so does the rest.
    """
    ranks = min(num_ranks, top.num_keys)
    keys, weights = _read("i", top.keys), _read("f", top.weights)
    planes = [slice(rank, None, top.num_keys) for rank in range(ranks)]
    kept_keys = array("H", (NO_KEY if key < 0 else key for plane in planes for key in keys[plane]))
    # what is no key weighs nothing, whatever stands there
    kept = [[w if key >= 0 else 0.0 for key, w in zip(keys[plane], weights[plane], strict=True)] for plane in planes]
    rests = [max(0.0, 1.0 - sum(row)) for row in zip(*kept, strict=True)]
    return {
        "layer": top.layer,
        "head": top.head,
        "num_queries": top.num_queries,
        "num_keys": ranks,
        "keys": pack(_swapped(kept_keys).tobytes()),
        "weights": pack(b"".join(map(_roots, kept))),
        "rests": pack(_roots(rests)),
    }


def _roots(weights: Sequence[float]) -> bytes:
    # a weight that is not a number (a broken model's) is drawn as nothing
    return bytes(round(255 * math.sqrt(min(1.0, weight))) if weight > 0 else 0 for weight in weights)


def _read(kind: str, content: bytes) -> "array[Any]":
    return _swapped(array(kind, content))


def _swapped(numbers: "array[Any]") -> "array[Any]":
    """Turn numbers from this machine's order of bytes to the little-endian one, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
