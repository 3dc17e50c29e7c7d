"""What a page shows beside one another, and how much of each it holds: a page stays small whatever was looked at."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.results import AttentionMap, Inspection, PatchGrid, TopKeys
from headwise.report.packing import crop_map, pack_map, pack_top_keys

SMALL_PAGE_BYTES, SMALL_PAGE_TOKENS = 4_500_000, 512
BYTES_PER_TOKEN = 2_600  # beyond the small page's tokens: 13.8 MB for 4,096
LARGEST_PAGE_BYTES = 13_800_000
TOP_KEYS_SHARE = 0.6  # of the bytes that maps and top keys share, where both want more
SAMPLE = 8  # heads that tell how large all will be

One = TypeVar("One", AttentionMap, TopKeys)


@dataclass(frozen=True, kw_only=True)
class PagePart:
    """One of the things that a page shows beside one another.

    Args:
        name: what it is called; None where it stands alone.
        comparable: whether its heads are those of the first part.
        inspection: what its heads do.
    """

    name: str | None
    comparable: bool
    inspection: Inspection


def parts_of(inspection: Inspection) -> tuple[PagePart, ...]:
    """Return the parts of a page: what was looked at first, then what else was."""
    others = inspection.others if isinstance(inspection, InspectedModel) else ()
    name = inspection.part if isinstance(inspection, InspectedModel) else None
    if name is None:
        name = inspection.stack or ("main" if others else None)
    first = PagePart(name=name, comparable=True, inspection=inspection)
    rest = (PagePart(name=one.name, comparable=one.comparable, inspection=one.inspection) for one in others)
    return (first, *rest)


def most_bytes(parts: Sequence[PagePart]) -> int:
    """Return how many bytes the maps and keys of each part may take: a page of a longer text may be larger."""
    longest = max(max(len(part.inspection.tokens), len(part.inspection.key_tokens or ())) for part in parts)
    allowed = SMALL_PAGE_BYTES + BYTES_PER_TOKEN * max(0, longest - SMALL_PAGE_TOKENS)
    return min(LARGEST_PAGE_BYTES, allowed) // len(parts)


def drawn(inspection: Inspection, allowed_bytes: int) -> dict[str, Any]:
    """Return what a part draws, with as many top keys and as much of its maps as `allowed_bytes` have room for.

    Overviews stay whole. Where they are, the whole text is seen in them and exact maps may be cut to its first tokens;
    where they are not, maps stay whole too. Of top keys, the lightest are left out first: the rest is then larger.
    """
    overviews = [pack_map(one) for one in inspection.overviews]
    allowed = max(0, allowed_bytes - _size_of(overviews))
    top_keys = _packed_top_keys(inspection.top_keys, int(allowed * (TOP_KEYS_SHARE if inspection.maps else 1)))
    allowed = max(0, allowed - _size_of(top_keys))
    maps = _packed_maps(inspection.maps, allowed if overviews else None)
    return {
        "maps": maps,
        "overviews": overviews,
        "top_keys": top_keys,
        "tokens": inspection.tokens,
        "key_tokens": inspection.key_tokens,
        "num_prompt_tokens": inspection.num_prompt_tokens,
        "patches": None if inspection.patches is None else _packed_patches(inspection.patches),
    }


def _packed_maps(maps: Sequence[AttentionMap], allowed: int | None) -> list[dict[str, object]]:
    if allowed is None:
        return [pack_map(one) for one in maps]
    side = max((max(one.num_queries, one.num_keys) for one in maps), default=0)
    return _fitted(maps, side, lambda one, size: pack_map(crop_map(one, size)), allowed, exponent=2)


def _packed_top_keys(tops: Sequence[TopKeys], allowed: int) -> list[dict[str, object]]:
    num_ranks = max((top.num_keys for top in tops), default=0)
    return _fitted(tops, num_ranks, pack_top_keys, allowed, exponent=1)


def _fitted(
    ones: Sequence[One],
    size: int,
    pack_one: Callable[[One, int], dict[str, object]],
    allowed: int,
    *,
    exponent: int,
) -> list[dict[str, object]]:
    """Pack all with the largest size, at least 1, at which they take no more than `allowed` bytes, nearly.

    Bytes grow about as `size ** exponent`; a few of them tell how far, so that packing all is seldom done twice.
    """
    for few in (ones[:: max(1, len(ones) // SAMPLE)], ones):
        packed = [pack_one(one, size) for one in few]
        room = allowed * len(few) / max(1, len(ones))
        while _size_of(packed) > room and size > 1:
            size = max(1, min(size - 1, int(size * (room / _size_of(packed)) ** (1 / exponent))))
            packed = [pack_one(one, size) for one in few]
    return packed


def _packed_patches(patches: PatchGrid) -> dict[str, object]:
    picture = base64.b64encode(patches.picture).decode("ascii")
    return {"rows": patches.rows, "columns": patches.columns, "first": patches.first, "picture": picture}


def _size_of(packed: Sequence[dict[str, object]]) -> int:
    """Return the bytes that packed objects take in a page, nearly: names and numbers are some hundred each."""
    return sum(120 + sum(len(value) for value in one.values() if isinstance(value, str)) for one in packed)
