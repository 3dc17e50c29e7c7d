"""Sizes as allocators print them, and the bytes that print so."""

import re

from headwise.results import BYTES_PER_GIB, BYTES_PER_KIB, BYTES_PER_MIB

# A size in a text without blanks, in small letters. Where MPS writes GB, it means GiB.
SIZE = r"(\d{1,20}(?:\.\d{1,6})?)(bytes|[kmgt]i?b)"

_ONE = re.compile(r"1(?:\.0{1,6})? ([KMG])i?B")

_UNITS = {
    "bytes": (1, "bytes"),
    **{
        letter + ending: (factor, letter.upper() + ending.replace("b", "B"))
        for letter, factor in (("k", BYTES_PER_KIB), ("m", BYTES_PER_MIB), ("g", BYTES_PER_GIB), ("t", 2**40))
        for ending in ("ib", "b")
    },
}


def size_text(number: str, unit: str) -> str:
    """Write a size as the message has it: "20.00 MiB"."""
    return f"{number} {_UNITS[unit][1]}"


def nearest_bytes(number: str, unit: str) -> int:
    """Return the whole number of bytes nearest to what is printed."""
    count, scale = _digits(number)
    return (2 * count * _UNITS[unit][0] + scale) // (2 * scale)


def printed_range(number: str, unit: str, *, is_float32: bool = False) -> tuple[int, int]:
    """Return the least and the most bytes that print as a number in a unit.

    torch prints sizes up to 1024 of a unit in that unit, with two decimals from KiB on. A size just between two texts
    counts for both, for C libraries round such ties differently.

    Args:
        number: digits as printed.
        unit: in small letters, "mib" say; "mb" means the same.
        is_float32: whether the size passed through single precision before it was printed, as it does for MPS.

    Source: pytorch, format_size of each allocator (now in c10/core/CachingDeviceAllocator.h).
    """
    factor = _UNITS[unit][0]
    count, scale = _digits(number)
    if factor == 1 and scale == 1:
        return count, count
    low = max(0, -(-(2 * count - 1) * factor // (2 * scale)))
    high = (2 * count + 1) * factor // (2 * scale)
    if is_float32:  # 24 bits of it are kept: a relative error of 2**-24 at most, the half of which is allowed twice
        low, high = low - (low >> 23), high + (high >> 23)
    first, last = factor + 1, factor * 1024 if factor < BYTES_PER_GIB else high
    if first <= high and low <= last:  # else another program wrote it, with a choice of units of its own
        low, high = max(low, first), min(high, last)
    return low, high


def rounded_by_hand(text: str | None) -> tuple[int, str] | None:
    """Return the size of "1.00 GiB" taken to the byte, and how torch prints that one; None for any other text.

    torch goes on to the next unit only above 1024 of one: 1 GiB is "1024.00 MiB", and "1.00 GiB" a little more.
    """
    match = _ONE.fullmatch(text or "")
    if match is None:
        return None
    smaller = {"K": "1024 bytes", "M": "1024.00 KiB", "G": "1024.00 MiB"}[match[1]]
    return _UNITS[f"{match[1].lower()}ib"][0], smaller


def cut_range(gibibytes: str) -> tuple[int, int]:
    """Return the bytes that torch 1.0 printed as a whole number of "GB", the rest of the division cut off."""
    count = int(gibibytes)
    return max(1, count * BYTES_PER_GIB), (count + 1) * BYTES_PER_GIB - 1


def _digits(number: str) -> tuple[int, int]:
    """Return the digits of a decimal number as a whole one, and what to divide it by."""
    whole, _, decimals = number.partition(".")
    return int(whole + decimals), 10 ** len(decimals)
