"""How likely a batch and a length are before any message is read: people take round numbers.

Both are mixtures of log-uniform shares over the multiples of a step: a number n that the step divides gets
`share / (n * log(limit / step))` times the step, so that every octave weighs the same. The shares are judgement, not
measurement; they decide only between pairs that give the same size.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from math import log

MAX_BATCH = 2**20
MAX_SEQ = 2**22
MAX_TOKENS = 2**26  # in one step on one device

_USUAL_SEQ = 2**17
_USUAL_BATCH = 2**12
_USUAL_TOKENS = 2**17

# step -> share; a number that several steps divide gets the share of each
_SEQ_SHARES: Mapping[int, float] = {1024: 0.12, 128: 0.18, 64: 0.2, 8: 0.08, 1: 0.1}
_SEQ_POWER_SHARE = 0.32
_BATCH_SHARES: Mapping[int, float] = {50: 0.04, 25: 0.02, 10: 0.06, 8: 0.08, 2: 0.05, 1: 0.15}
_BATCH_POWER_SHARE = 0.6
_MOST_USUAL = 64
_LONGEST_SHARE = 0.1  # of the model's own longest length
_BEYOND = 0.08  # how much less likely a length beyond it is


@lru_cache(maxsize=65_536)
def seq_prior(seq: int, longest: int | None = None) -> float:
    """Return the prior of a length: powers of two, multiples of 128 and 64, the model's longest, then any.

    Args:
        seq: tokens per text.
        longest: the model's longest length, or None.
    """
    usual = _mixture(seq, _SEQ_SHARES, _USUAL_SEQ)
    if seq & (seq - 1) == 0:
        usual += _SEQ_POWER_SHARE / 12 * (1 if 64 <= seq <= _USUAL_SEQ else 0.1)
    if longest is None:
        return usual
    if seq == longest:
        return usual + _LONGEST_SHARE
    return usual if seq < longest else _BEYOND * usual


@cache
def batch_prior(batch: int) -> float:
    """Return the prior of a batch: powers of two, then small numbers and multiples of 50, 25, 10 and 8."""
    usual = _mixture(batch, _BATCH_SHARES, _USUAL_BATCH)
    if batch & (batch - 1) == 0:
        usual += _BATCH_POWER_SHARE / 7 * (1 if batch <= _MOST_USUAL else (_MOST_USUAL / batch) ** 1.5)
    return usual


@cache
def likely_batches() -> tuple[int, ...]:
    """Return the batches that are tried at any length: all up to 64, round ones up to 512 and 5000, powers of two."""
    powers = (2**power for power in range(7, MAX_BATCH.bit_length()))
    round_ones = (*range(72, 513, 8), *range(70, 513, 10), *range(75, 513, 25), *range(550, 1001, 50))
    return tuple(sorted({*range(1, 65), *round_ones, *range(1100, 2001, 100), *range(2500, 5001, 500), *powers}))


@cache
def other_batches() -> tuple[int, ...]:
    """Return the batches up to 512 that are not tried at any length: where few lengths have a size, they are."""
    return tuple(sorted({*range(1, 513)} - {*likely_batches()}))


@cache
def likely_seqs(longest: int | None) -> tuple[int, ...]:
    """Return the lengths at which any batch is tried: powers of two, round ones, and the model's longest."""
    powers = (2**power for power in range(4, MAX_SEQ.bit_length()))
    round_ones = (*range(64, 1025, 64), *range(1280, 4097, 256), *range(50, 1001, 50), *range(1500, 8001, 500))
    return tuple(sorted({*powers, *round_ones, *(() if longest is None else (longest,))}))


def tokens_prior(tokens: int) -> float:
    """Return by how much a step of so many tokens is rarer than a usual one: few steps have more than 128k."""
    return min(1.0, _USUAL_TOKENS / tokens)


@cache
def usual_batches() -> tuple[int, ...]:
    """Return the batches at which a tensor is tried whose size does not depend on it."""
    return (1, 2, 4, 8, 16, 32, 64, 128)


@cache
def usual_seqs(longest: int | None) -> tuple[int, ...]:
    """Return the lengths at which a tensor is tried whose size does not depend on it."""
    usual = (512, 1024, 2048, 128, 256, 4096, 8192, 32768)
    return usual if longest is None else tuple(one for one in {longest: 0, **dict.fromkeys(usual)} if one <= longest)


def roundest(low: int, high: int, *others: int | None, limit: int = 3) -> list[int]:
    """Return a few whole numbers between two bounds, those first that a large power of two divides.

    Args:
        low, high: the bounds, both included.
        others: numbers that count too where they are within.
        limit: how many.
    """
    if low > high:
        return []
    if high - low < limit:
        return list(range(low, high + 1))
    found = [number for number in others if number is not None and low <= number <= high]
    # the largest power of two that divides a number within is the highest bit in which the bounds differ
    step = 1 << (((low - 1) ^ high).bit_length() - 1)
    while len(found) < limit + len(others):
        first = -(-low // step) * step
        for number in range(first, min(high, first + (limit - 1) * step) + 1, step):
            if number not in found:
                found.append(number)
        if step == 1:
            break
        step //= 2
    return found[: limit + len(others)]


def _mixture(number: int, shares: Mapping[int, float], limit: int) -> float:
    density = sum(share * step / log(limit / step) for step, share in shares.items() if number % step == 0) / number
    return density if number <= limit else density * limit / number
