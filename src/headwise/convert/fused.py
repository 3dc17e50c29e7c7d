"""One matrix for query, key and value, as many libraries store them, and its three parts."""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from headwise.config.checks import shown
from headwise.errors import ConfigError


def split_fused(
    fused: Shaped[Tensor, "rows ..."], sizes: Sequence[int] | None = None
) -> tuple[Shaped[Tensor, "query_rows ..."], Shaped[Tensor, "key_rows ..."], Shaped[Tensor, "value_rows ..."]]:
    """Cut the weight or the bias of a fused projection into those of query, key and value.

    Args:
        fused: (rows, embed_dim) weight or (rows,) bias, the query's rows first, then the key's, then the value's.
        sizes: how many rows each has. Default: the same number, as without grouped heads.

    Returns:
        The three parts, views of `fused`: what is written into them is written into it.

    Raises:
        ConfigError: the rows cannot be cut so.
    """
    if not fused.dim():
        raise ConfigError("a fused weight must have rows to be cut; got a single number")
    if sizes is None and fused.shape[0] % 3:
        raise ConfigError(
            f"a fused weight must have a third of its rows for each of query, key and value; got {fused.shape[0]} rows "
            "(give sizes where they have different numbers)"
        )
    sizes = [fused.shape[0] // 3] * 3 if sizes is None else sizes
    is_whole = isinstance(sizes, Sequence) and all(type(size) is int for size in sizes)
    if not is_whole or len(sizes) != 3 or min(sizes) < 0 or sum(sizes) != fused.shape[0]:
        raise ConfigError(
            "sizes must be three whole numbers that add up to the rows of the fused weight, "
            f"{fused.shape[0]}; got {shown(sizes)}"
        )
    query, key, value = torch.split(fused, list(sizes))
    return query, key, value


def fuse(
    query: Shaped[Tensor, "query_rows ..."],
    key: Shaped[Tensor, "key_rows ..."],
    value: Shaped[Tensor, "value_rows ..."],
) -> Shaped[Tensor, "rows ..."]:
    """Stack the weights or the biases of query, key and value: the inverse of `split_fused`.

    Args:
        query, key, value: (rows, embed_dim) weights, or (rows,) biases.

    Returns:
        (sum of rows, embed_dim) or (sum of rows,), a copy.

    Raises:
        ConfigError: they read tokens of different widths, or have different dtypes.
    """
    dtypes = [part.dtype for part in (query, key, value)]
    if len(set(dtypes)) > 1:
        raise ConfigError(f"query, key and value must have one dtype to be fused; got {dtypes}")
    if not query.shape[1:] == key.shape[1:] == value.shape[1:]:
        widths = [tuple(part.shape[1:]) for part in (query, key, value)]
        raise ConfigError(f"query, key and value must read tokens of one width to be fused; got {widths}")
    return torch.cat([query, key, value])
