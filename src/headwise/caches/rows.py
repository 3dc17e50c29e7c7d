"""The rows of a batch whose streams differ in length: which slots they fill, and how tokens get there."""

from collections.abc import Sequence

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def are_equal(lengths: Sequence[int]) -> bool:
    """Tell whether all rows have as many tokens. (A graph that serves any length can compare, and hash nothing.)"""
    return all(length == lengths[0] for length in lengths[1:])


def longest_of(lengths: Sequence[int]) -> int:
    """Return the length of the longest row, 0 where there is none."""
    if not lengths:
        return 0
    return lengths[0] if are_equal(lengths) else max(lengths)


def in_words(lengths: Sequence[int]) -> str:
    """Return how many rows there are, of how many tokens."""
    if not lengths:
        return "empty"
    rows, least, longest = len(lengths), min(lengths), max(lengths)
    tokens = str(longest) if are_equal(lengths) else f"{least} to {longest}"
    return f"{rows} row{'' if rows == 1 else 's'} of {tokens} token{'' if longest == 1 else 's'}"


def index_of_slots(lengths: Sequence[int], num_slots: int, device: torch.device) -> Int[Tensor, "batch num_slots"]:
    """Return the index of each slot where slot i holds token i, -1 behind each row's last."""
    slots = torch.arange(num_slots, device=device)
    return torch.where(slots < torch.tensor(lengths, device=device).unsqueeze(1), slots, -1)


def write_tokens(
    target: Shaped[Tensor, "batch num_kv_heads num_slots _"],
    tokens: Shaped[Tensor, "batch num_kv_heads num_tokens _"],
    slots: Int[Tensor, "batch num_tokens"],
) -> None:
    """Write each token into its slot, those with slot -1 nowhere, in place."""
    rows, places = (slots >= 0).nonzero(as_tuple=True)
    target[rows, :, slots[rows, places]] = tokens[rows, :, places]


def longer(buffer: Shaped[Tensor, "*rows _ width"], num_slots: int) -> Tensor:
    """Return a new buffer of at least so many slots that begins with what is in this one."""
    num_held = buffer.shape[-2]
    new = buffer.new_empty(*buffer.shape[:-2], max(num_slots, num_held), buffer.shape[-1])
    new[..., :num_held, :] = buffer
    return new
