"""One matrix for query, key and value, as many libraries store them, and its three parts."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.errors import ConfigError


def split_fused(
    fused: Float[Tensor, "rows ..."], sizes: Sequence[int] | None = None
) -> tuple[Float[Tensor, "query_rows ..."], Float[Tensor, "key_rows ..."], Float[Tensor, "value_rows ..."]]:
    """Cut the weight or the bias of a fused projection into those of query, key and value.

    Args:
        fused: (rows, embed_dim) weight or (rows,) bias, the query's rows first, then the key's, then the value's.
        sizes: how many rows each has. Default: the same number, as without grouped heads.

    Returns:
        The three parts, views of `fused`: what is written into them is written into it.

    Raises:
        ConfigError: the rows cannot be cut so.
    """
    if sizes is None and fused.shape[0] % 3:
        raise ConfigError(
            f"a fused weight must have a third of its rows for each of query, key and value; got {fused.shape[0]} rows "
            "(give sizes where they have different numbers)"
        )
    sizes = [fused.shape[0] // 3] * 3 if sizes is None else list(sizes)
    if len(sizes) != 3 or min(sizes) < 0 or sum(sizes) != fused.shape[0]:
        raise ConfigError(
            f"sizes must be three numbers that add up to the rows of the fused weight, {fused.shape[0]}; got {sizes}"
        )
    query, key, value = torch.split(fused, sizes)
    return query, key, value


def fuse(
    query: Float[Tensor, "query_rows ..."],
    key: Float[Tensor, "key_rows ..."],
    value: Float[Tensor, "value_rows ..."],
) -> Float[Tensor, "rows ..."]:
    """Stack the weights or the biases of query, key and value: the inverse of `split_fused`.

    Args:
        query, key, value: (rows, embed_dim) weights, or (rows,) biases.

    Returns:
        (sum of rows, embed_dim) or (sum of rows,), a copy.

    Raises:
        ConfigError: they read tokens of different widths.
    """
    if not query.shape[1:] == key.shape[1:] == value.shape[1:]:
        widths = [tuple(part.shape[1:]) for part in (query, key, value)]
        raise ConfigError(f"query, key and value must read tokens of one width to be fused; got {widths}")
    return torch.cat([query, key, value])
