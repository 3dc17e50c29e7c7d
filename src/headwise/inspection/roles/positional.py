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

from headwise.inspection.roles.keys import OneKey, RoleKeys, other_than, visible_choices

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
    separators: Bool[Tensor, "batch seq_len"],
) -> RoleWeights:
    """Read off the weight that the queries `start`, `start + 1`, ... put on the key of every role.

    Args:
        weights: (B, H, R, S), 0 on keys that are not visible.
        visible: which real keys each query may read.
        start: index of the first query.
        first_token: index of each text's first real token.
        separators: which tokens are separators, of the whole text.
    """
    rows = torch.arange(start, start + weights.shape[2], device=weights.device).unsqueeze(0)
    first = first_token.unsqueeze(-1)
    found: list[RoleKeys] = [
        OneKey(rows - 1),
        OneKey(rows + 1),
        OneKey(torch.where(rows == first, -1, first)),
        OneKey(rows),
        other_than(separators, rows[0]),
    ]
    has_choice = visible_choices(visible)
    return RoleWeights(
        torch.stack([keys.weight(weights) for keys in found]),
        torch.stack([keys.applies(visible) & has_choice for keys in found]),
    )
