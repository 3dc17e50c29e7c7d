"""simplest_form: how little a mask needs in a call, from the lengths alone."""

from typing import Literal, NamedTuple

from headwise.masks.patterns import Mask


class MaskForm(NamedTuple):
    """How little a mask needs for given lengths.

    `kind`: "none" (every pair is allowed), "causal" (square, the triangle), or "bool". `has_idle`: whether a key may be
    read by no query, or a query may read no key.
    """

    kind: Literal["none", "causal", "bool"]
    has_idle: bool


def simplest_form(mask: Mask | None, query_len: int, key_len: int) -> MaskForm:
    """Return the simplest form of a mask, None for no mask, for queries that stand at the end of the keys."""
    if query_len == 0 or key_len == 0:
        return MaskForm("bool", has_idle=True)
    if mask is None:
        return MaskForm("none", has_idle=False)
    distances = mask.distances()
    if distances is None:
        return MaskForm("bool", has_idle=True)
    intervals = distances.within(query_len, key_len).intervals
    if intervals == ((1 - query_len, key_len),):
        return MaskForm("none", has_idle=False)
    if query_len == key_len and intervals == ((0, key_len),):
        return MaskForm("causal", has_idle=False)
    return MaskForm("bool", distances.longest_gap(query_len, key_len) >= min(query_len, key_len))
