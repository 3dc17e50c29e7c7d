"""Mask and its structural kinds: which keys a query may read, as a predicate on indices."""

from dataclasses import dataclass


class Mask:
    """Which keys a query may read; True = may attend."""

    is_structural: bool = True


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""


@dataclass(frozen=True)
class Causal(Mask):
    """Each query sees itself and all keys before it."""


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """Each query sees itself and the `window_size - 1` keys just before it."""

    window_size: int
