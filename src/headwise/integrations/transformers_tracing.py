"""Running Hugging Face models on fake tensors as they run on real ones.

transformers looks into position ids for several texts packed in one row. It cannot in fake ones, and then builds a mask
for the case; where positions are the default ones, real tensors never get that mask.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def whole_texts() -> Iterator[None]:
    """Let transformers find one text in each row, inside; it holds for the whole process.

    Nothing happens where transformers is not imported: then no model of it is at hand.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    if masks is None:
        yield
        return
    find = masks.find_packed_sequence_indices

    def find_none(position_ids: Tensor) -> None:
        find(position_ids)  # it takes its memory all the same

    masks.find_packed_sequence_indices = find_none
    try:
        yield
    finally:
        masks.find_packed_sequence_indices = find
