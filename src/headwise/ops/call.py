"""One call of attention: its arguments, which every implementation reads."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.kernels import traced_device
from headwise.masks.patterns import Mask
from headwise.masks.rows import Sizes
from headwise.masks.visits import Known
from headwise.ops.bias import Bias


class Call(NamedTuple):
    """The arguments of `attention`, which says what they are."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    query_index: Tensor | None = None
    key_index: Tensor | None = None
    query_positions: Tensor | None = None
    key_positions: Tensor | None = None
    scale: int | float | None = None
    softcap: int | float | None = None
    sink: Tensor | None = None
    dropout_p: int | float = 0.0
    dropout_seed: int | Tensor | None = None
    return_weights: bool = False
    return_logsumexp: bool = False
    known: Known | None = None
    """What has been planned for this call, not an argument."""

    @property
    def device_type(self) -> str:
        """The kind of device whose kernels serve the call: that of its tensors, or the one a trace stands for."""
        own = self.query.device.type
        return own if torch.compiler.is_compiling() else traced_device.get() or own  # a graph cannot read a context

    @property
    def score_scale(self) -> int | float:
        """The factor on the scores."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    @property
    def sizes(self) -> Sizes:
        """B, H, K, T and S."""
        batch, num_heads, query_len, _ = self.query.shape
        return Sizes(batch, num_heads, self.key.shape[1], query_len, self.key.shape[2])

    @property
    def has_indices(self) -> bool:
        """Whether the call brings indices of its own, of which nothing is known before they are read."""
        return self.query_index is not None or self.key_index is not None

    @property
    def bias_tensors(self) -> tuple[Tensor, ...]:
        """What the bias reads and may learn: itself, or the tensors of its function."""
        if self.bias is None:
            return ()
        return (self.bias,) if isinstance(self.bias, Tensor) else tuple(self.bias.tensors)

    @property
    def learned(self) -> tuple[Tensor, ...]:
        """Every tensor of the call that a gradient may be wanted for: query, key, value, bias and sink."""
        return (*self[:3], *self.bias_tensors, *(() if self.sink is None else (self.sink,)))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the call but those of its mask."""
        places = (self.query_index, self.key_index, self.query_positions, self.key_positions)
        return (*self.learned, *(one for one in places if one is not None))

    @property
    def needs_gradient(self) -> bool:
        """Whether the result will be differentiated."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.learned)
