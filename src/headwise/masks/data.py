"""Data masks: kinds of Mask that hold tensors, and so belong to one batch."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.cover import Blocks, Cover
from headwise.masks.patterns import Mask, require_whole_number


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """Every query sees the real keys of its own batch row, and no padding.

    Padded *queries* are not masked: what they compute is well defined, and nobody reads it.

    Args:
        lengths: (batch,) whole numbers, on the device of the call: how many real keys each row has; 0 is allowed.
        side: where the padding stands: "right" (after the text) or "left" (before it).
        padded_len: length to which the rows were padded. Left padding needs it: the first real key of a row has index
            `padded_len - length`. Keys with an index from `padded_len` on, as a cache appends them, are real. With
            right padding it does nothing but bound the lengths.

    Raises:
        ConfigError: lengths are no whole numbers, or not one a row; negative or above `padded_len` (checked where a
            look at them is free: on CPU, outside of compiled graphs); another side; left padding without `padded_len`.
    """

    lengths: Tensor
    side: Literal["right", "left"] = "right"
    padded_len: int | None = None

    def __post_init__(self) -> None:
        lengths = self.lengths
        if not isinstance(lengths, Tensor):
            raise ConfigError(f"lengths must be a tensor of shape (batch,); got {type(lengths).__name__}: {lengths!r}")
        if lengths.ndim != 1 or lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise ConfigError(
                "lengths must be one whole number a batch row, shape (batch,); "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        # In a narrow dtype `padded_len - lengths` would wrap around.
        object.__setattr__(self, "lengths", lengths.long())
        if self.side not in ("right", "left"):
            raise ConfigError(f'side must be "right" or "left"; got {self.side!r}')
        if self.padded_len is not None:
            require_whole_number("padded_len", self.padded_len, minimum=0)
        elif self.side == "left":
            raise ConfigError(
                "padded_len must be given for left padding, whose texts end at that index; got None "
                "(it is the number of keys, where no cache has appended any)"
            )
        if may_look(lengths):
            if bool((lengths < 0).any()):
                raise ConfigError(f"lengths must not be negative; got {lengths.tolist()}")
            if self.padded_len is not None and bool((lengths > self.padded_len).any()):
                raise ConfigError(
                    f"lengths must be at most padded_len, to which the rows were padded; "
                    f"got {lengths.tolist()} and padded_len {self.padded_len}"
                )

    @property
    def batch_size(self) -> int:
        """Number of rows that have a length."""
        return self.lengths.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the lengths are."""
        return self.lengths.device

    @property
    def typical_lens(self) -> tuple[int, int]:
        """The padded length, or the longest."""
        length = max([1, *self.lengths.tolist()]) if self.padded_len is None else self.padded_len
        return length, length

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key is a real one of the row."""
        if self.padded_len is not None and self.side == "left":
            return key_index >= self.padded_len - self.lengths[batch]
        return key_index < self.lengths[batch]

    def cover(self, blocks: Blocks) -> Cover:
        """Look at the two ends: the real keys stand together, at the beginning or from some key on."""
        first, last = (self.allows(blocks.batch, 0, 0, key) for key in (blocks.first_key, blocks.last_key))
        return blocks.known(first | last, first & last)

    def __repr__(self) -> str:
        return f"KeyPadding(<{self.batch_size} lengths>, side={self.side!r})"


def may_look(tensor: Tensor) -> bool:
    """Whether a look at the numbers is possible and free: it stops compilation, and a host waits for its device."""
    return not torch.compiler.is_compiling() and type(tensor) is Tensor and tensor.device.type == "cpu"
