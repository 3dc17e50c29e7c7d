"""A mask as the user writes it: "causal", "window:256", "causal & documents:256", made for any length."""

from collections.abc import Callable
from typing import NamedTuple

from headwise.config.checks import shown
from headwise.errors import ConfigError
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided

MaskOfLength = Callable[[int], Mask]


class _Kind(NamedTuple):
    numbers: tuple[str, ...]
    make: Callable[..., Mask]  # of the length, then the numbers


def _documents(seq: int, length: int) -> Mask:
    """Documents of one length, side by side; the last may be shorter."""
    import torch

    from headwise.masks.tables import Documents

    if length < 1:
        raise ConfigError(f"documents must have at least 1 token each; got {length}")
    return Documents(torch.tensor([min(length, seq - start) for start in range(0, seq, length)], dtype=torch.long))


def _bigbird(seq: int, block_size: int) -> Mask:
    return BigBird(num_blocks=max(1, -(-seq // max(block_size, 1))), block_size=block_size)


def _longformer(seq: int, window: int, num_global: int) -> Mask:
    return LocalWindow(window // 2, window // 2) | GlobalTokens(num_global)


KINDS = {
    "full": _Kind((), lambda seq: Full()),
    "causal": _Kind((), lambda seq: Causal()),
    "window": _Kind(("SIZE",), lambda seq, size: SlidingWindow(size)),
    "local": _Kind(("LEFT", "RIGHT"), lambda seq, left, right: LocalWindow(left, right)),
    "dilated": _Kind(("SIZE", "DILATION"), lambda seq, size, dilation: Dilated(size, dilation)),
    "strided": _Kind(("STRIDE",), lambda seq, stride: Strided(stride)),
    "global": _Kind(("TOKENS",), lambda seq, tokens: GlobalTokens(tokens)),
    "prefix": _Kind(("TOKENS",), lambda seq, tokens: PrefixLM(tokens)),
    "longformer": _Kind(("WINDOW", "GLOBAL"), _longformer),
    "bigbird": _Kind(("BLOCK",), _bigbird),
    "documents": _Kind(("LENGTH",), _documents),
}
"""Kinds of masks by name. `longformer:512:16` sees 256 tokens to each side; documents are all of one length."""


def read_mask(text: str) -> MaskOfLength:
    """Return what makes the mask of a length from a text: kinds with their numbers, joined by `&` before `|`.

    Raises:
        ConfigError: there is no such kind, or it needs other numbers; the text names what there is.
    """
    alternatives = [[_read_kind(word) for word in part.split("&")] for part in text.split("|")]

    def make(seq: int) -> Mask:
        joined = None
        for kinds in alternatives:
            mask: Mask = Full()
            for kind in kinds:
                mask = mask & kind(seq)
            joined = mask if joined is None else joined | mask
        assert joined is not None
        return joined

    make(1)  # numbers that a kind refuses are refused now
    return make


def _read_kind(word: str) -> MaskOfLength:
    name, *numbers = (part.strip() for part in word.strip().split(":"))
    kind = KINDS.get(name.lower())
    if kind is None:
        raise ConfigError(f"mask must be {', '.join(map(_usage, KINDS))}, joined by & and |; got {shown(word.strip())}")
    if len(numbers) != len(kind.numbers) or not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise ConfigError(f"mask {name.lower()} must be written {_usage(name.lower())}; got {shown(word.strip())}")
    return lambda seq: kind.make(seq, *map(int, numbers))


def _usage(name: str) -> str:
    return ":".join((name, *KINDS[name].numbers))
