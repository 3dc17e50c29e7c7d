"""Positional roles: which key, known from positions alone, a head spends its weight on.

A role gives each query one key (the separator role: all separators of the text). A head's score is the mean weight that
real queries put there, over the queries that have such a key and at least one other to choose from. The first-token
role leaves out the first token itself, and the separator role the separators themselves: for them it would be the self
role. A role that no query of a text has (the next token in a causal model) has no score.

A role holds from a mean weight of one half on: then the head gives that key more than all others together, so no other
key can be called its role. It is a demand on every part of the text at once; in random models the positional roles
score about the uniform weight, one over the number of visible keys. Voita et al. ask instead that the largest weight
falls on one offset for at least 90 % of the tokens, however large it is: a count of winners, that a head which spreads
its weight can pass as well.

Source: Clark et al. 2019, "What Does BERT Look At?", section 3 (weight on offsets and separators);
Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.2 (positional heads).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ROLE_NAMES = ("previous token", "next token", "first token", "self", "separator")
HOLDS_FROM = 0.5


class RoleWeights(NamedTuple):
    """The weight of each query on each role's key, in the order of ROLE_NAMES, and whether the query has such a key."""

    weights: Float[Tensor, "num_roles batch num_heads rows"]
    applies: Bool[Tensor, "num_roles batch mask_heads rows"]


def role_weights(
    weights: Float[Tensor, "batch num_heads rows key_len"],
    visible: Bool[Tensor, "batch mask_heads rows key_len"],
    *,
    start: int,
    first_token: Int[Tensor, " batch"],
    separators: Bool[Tensor, "batch key_len"],
) -> RoleWeights:
    """Read off the weight that the queries `start`, `start + 1`, ... put on the key of every role.

    Args:
        weights: (B, H, R, S), 0 on keys that are not visible.
        visible: which real keys each query may read.
        start: index of the first query.
        first_token: index of each text's first real token.
        separators: which tokens are separators.
    """
    rows = torch.arange(start, start + weights.shape[2], device=weights.device)
    first = first_token.view(-1, 1)
    is_first = rows == first
    is_separator = separators[:, rows]
    separator_keys = separators[:, None, None, :]
    found = [
        _weight_on(rows - 1, weights, visible),
        _weight_on(rows + 1, weights, visible),
        _weight_on(first, weights, visible, but_not=is_first),
        _weight_on(rows, weights, visible),
        (
            (weights * separator_keys).sum(dim=-1),
            (visible & separator_keys).any(dim=-1) & ~is_separator[:, None, :],
        ),
    ]
    has_choice = visible.sum(dim=-1) >= 2
    return RoleWeights(
        torch.stack([weight for weight, _ in found]),
        torch.stack([applies & has_choice for _, applies in found]),
    )


def _weight_on(
    key_index: Tensor, weights: Tensor, visible: Tensor, *, but_not: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return each query's weight on one key, and whether that key exists, is visible, and is not left out."""
    batch, _, num_rows, key_len = weights.shape
    key_index = key_index.expand(batch, num_rows)
    exists = (key_index >= 0) & (key_index < key_len)
    if but_not is not None:
        exists = exists & ~but_not
    index = key_index.clamp(0, key_len - 1)[:, None, :, None]
    weight = weights.gather(-1, index.expand(-1, weights.shape[1], -1, -1)).squeeze(-1)
    is_visible = visible.gather(-1, index.expand(-1, visible.shape[1], -1, -1)).squeeze(-1)
    return weight, is_visible & exists[:, None, :]
