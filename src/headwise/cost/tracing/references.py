"""What torch does with memory where no dispatch mode watches: it adds in place, and copies what BLAS cannot read."""

import sys
from typing import Any

import torch
from torch import Tensor

# How often a tensor that only C++ holds is held while the mode sees it: its Python object, the tensor, its storage.
_SOLE_REFERENCES = (3, 4, 2)


def find_reused(args: tuple[Any, ...]) -> Tensor | None:
    """Return the term of a sum that torch adds to in place when nothing watches: one that only C++ holds, once."""
    if len(args) != 2 or not isinstance(args[1], Tensor):
        return None
    num_terms = 1 if torch._C._current_autograd_node() is None else 2
    for place in range(num_terms):
        references = (sys.getrefcount(args[place]), args[place]._use_count())
        term: Tensor = args[place]
        storage = term.untyped_storage()
        uses = torch._C._storage_Use_Count(storage._cdata)
        if (*references, uses) == _SOLE_REFERENCES and storage.nbytes() == term.numel() * term.element_size():
            return term
    return None


def is_readable_by_blas(matrix: Tensor) -> bool:
    """Tell whether rows or columns of a matrix lie in memory one after the other."""
    (rows, columns), (row_stride, column_stride) = matrix.shape[-2:], matrix.stride()[-2:]
    return (column_stride == 1 and row_stride >= max(1, columns)) or (row_stride == 1 and column_stride >= max(1, rows))
