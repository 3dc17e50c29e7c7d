"""Dropout as a pure function: which weights are kept follows from a seed and the place of the pair, and nothing else.

So every implementation, cut into blocks of any size, keeps the same weights, and a backward pass that recomputes them
needs no table of what was kept.
"""

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

SEED_BITS = 63  # a seed is an int64 that is not negative

# Factors of the mixer "lowbias32", found by a search for the least bias: github.com/skeeto/hash-prospector.
_FACTORS = (0x7FEB352D, 0x846CA68B - 2**32)
_SHIFT = 15


def keep_mask(
    seed: int | Int[Tensor, ""],
    dropout_p: int | float,
    batch: Int[Tensor, "..."],
    head: Int[Tensor, "..."],
    query_index: Int[Tensor, "..."],
    key_index: Int[Tensor, "..."],
) -> Bool[Tensor, "..."]:
    """Say which weights are kept, each with probability `1 - dropout_p`.

    A number of 32 bits is drawn for each query and one for each key; the pair's own is their exclusive or, mixed. Who
    works on many blocks draws the first two once (`query_states`, `key_states`) and joins them in each (`keep_pairs`),
    at the cost of a few passes over 32-bit integers.

    Args:
        seed: from 0 to 2^63 - 1.
        dropout_p: probability with which a weight is dropped, from 0 to below 1.
        batch: row of the batch; an integer tensor, as the next three, which broadcast together.
        head: query head.
        query_index: place of the query in its stream.
        key_index: place of the key in its stream.

    Returns:
        True = kept, of the broadcast shape.
    """
    return keep_pairs(query_states(seed, batch, head, query_index), key_states(seed, key_index), dropout_p)


def query_states(
    seed: int | Int[Tensor, ""],
    batch: Int[Tensor, "..."],
    head: Int[Tensor, "..."],
    query_index: Int[Tensor, "..."],
) -> Int32[Tensor, "..."]:
    """Draw the number of each query, from its batch row, head and index."""
    state = _start(seed, query_index.device)
    for place in (batch, head, query_index):
        state = _absorb(state, place)
    return state


def key_states(seed: int | Int[Tensor, ""], key_index: Int[Tensor, "..."]) -> Int32[Tensor, "..."]:
    """Draw the number of each key, from its index: the same for all batch rows and heads."""
    return _absorb(_start(seed, key_index.device), key_index)


def keep_pairs(
    queries: Int32[Tensor, "..."], keys: Int32[Tensor, "..."], dropout_p: int | float
) -> Bool[Tensor, "..."]:
    """Say which weights of pairs are kept, from the numbers of the queries and keys, which broadcast together."""
    threshold = int(dropout_p * 2**32) - 2**31  # of the 2^32 values of an int32 the lowest are dropped
    return _mix(queries ^ keys) >= threshold


def draw_seed(device: torch.device) -> Int[Tensor, ""]:
    """Draw a seed from torch's default generator of a device, without waiting for the device."""
    return torch.randint(2**SEED_BITS - 1, (), dtype=torch.int64, device=device)


def drop(weights: Float[Tensor, "..."], kept: Bool[Tensor, "..."], dropout_p: int | float) -> Float[Tensor, "..."]:
    """Return the weights with those that are not kept at 0, and the others divided by `1 - dropout_p`."""
    return (weights / (1 - dropout_p)).masked_fill(~kept, 0.0)


def _start(seed: int | Tensor, device: torch.device) -> Tensor:
    """Return the state that both halves of a seed lead to."""
    seed = torch.full((), seed, dtype=torch.int64, device=device) if isinstance(seed, int) else seed.to(device)
    return _absorb(_absorb(torch.zeros((), dtype=torch.int32, device=device), seed), seed >> 32)


def _absorb(state: Tensor, number: Tensor) -> Tensor:
    """Mix a number into a state, so well that neighbouring numbers lead to states that have nothing in common."""
    state = _mix(state ^ number.to(torch.int32))
    return _mix(state + 0x3C6EF372)  # any number: the mixer leaves 0 as it is


def _mix(state: Tensor) -> Tensor:
    """Let every bit act on those below it (a shift) and above it (a product), twice; in place.

    The shift copies the sign, so that a state and its complement come to the same: 2^31 states are left, enough here,
    for one operation less.
    """
    for factor in _FACTORS:
        state ^= state >> _SHIFT
        state *= factor
    return state
