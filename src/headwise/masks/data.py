"""Data masks: kinds of Mask that hold tensors, and so belong to one batch."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.errors import ConfigError
from headwise.masks.patterns import Mask, require_whole_number


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """Every query sees the real keys of its own batch row, and no padding.

    Padded *queries* are not masked: what they compute is well defined, and nobody reads it.

    Args:
        lengths: (batch,) whole numbers, on the device of the call: how many real keys each row has; 0 is allowed.
        side: where the padding stands: "right" (after the text) or "left" (before it).
        padded_len: length to which the rows were padded; needed for left padding alone, where the first real key of a
            row has index `padded_len - length`. Default: the longest length, as tokenizers pad by default. Keys with
            an index from `padded_len` on, as a cache appends them, are real.

    Raises:
        ConfigError: lengths are no whole numbers, negative (checked on CPU), or not one a row; another side.
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
        # Elsewhere the check would make the host wait for the device.
        if lengths.device.type == "cpu" and bool((lengths < 0).any()):
            raise ConfigError(f"lengths must not be negative; got {lengths.tolist()}")
        if self.side not in ("right", "left"):
            raise ConfigError(f'side must be "right" or "left"; got {self.side!r}')
        if self.padded_len is not None:
            require_whole_number("padded_len", self.padded_len, minimum=0)
        if self.side == "left":
            longest = lengths.max() if lengths.numel() else lengths.new_zeros(())
            # The index of each row's first real key, once, so that `allows` stays a single comparison.
            padded_len = longest if self.padded_len is None else self.padded_len
            object.__setattr__(self, "_first_real", padded_len - lengths)

    @property
    def is_structural(self) -> bool:
        """False: the lengths belong to one batch."""
        return False

    @property
    def batch_size(self) -> int:
        """Number of rows that have a length."""
        return self.lengths.shape[0]

    def allows(self, batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        """Return whether the key is a real one of the row."""
        if self.side == "left":
            first_real: Tensor = self._first_real  # type: ignore[attr-defined]
            return key_index >= first_real[batch]
        return key_index < self.lengths[batch]

    def __repr__(self) -> str:
        return f"KeyPadding(<{self.batch_size} lengths>, side={self.side!r})"
