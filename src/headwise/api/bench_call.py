"""The calls that `bench` measures: attention on tensors of a shape, forward alone or with its backward."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.api.bench_request import BenchRequest
from headwise.masks.patterns import Mask
from headwise.ops.attention import attention, choose_impl
from headwise.ops.results import Choice

SEED = 0


class AttentionCall(NamedTuple):
    """Inputs of one length, and what is done with them. `output_gradient`: None in a forward pass alone."""

    query: Tensor
    key: Tensor
    value: Tensor
    output_gradient: Tensor | None
    mask: Mask

    def choose(self, impl: str) -> Choice:
        """Return which implementation serves the call, and why.

        Raises:
            HeadwiseError: this one cannot.
        """
        with torch.set_grad_enabled(self.output_gradient is not None):
            return choose_impl(*self[:3], mask=self.mask, impl=impl)

    def runner(self, impl: str) -> Callable[[], object]:
        """Return a function without arguments that makes the call with an implementation."""

        def forward() -> Tensor:
            with torch.no_grad():
                return attention(*self[:3], mask=self.mask, impl=impl).output

        def train() -> tuple[Tensor, ...]:
            output = attention(*self[:3], mask=self.mask, impl=impl).output
            return torch.autograd.grad(output, self[:3], self.output_gradient)

        return forward if self.output_gradient is None else train


def make_call(request: BenchRequest, seq: int, mask: Mask) -> AttentionCall:
    """Return a call on normally distributed numbers, the same in every run."""
    case = request.case
    is_training = case.phase == "train"
    generator = torch.Generator(device=request.device).manual_seed(SEED)

    def make(num_heads: int, *, needs_gradient: bool = is_training) -> Tensor:
        return torch.randn(
            (case.batch, num_heads, seq, case.head_dim),
            generator=generator,
            dtype=request.dtype,
            device=request.device,
            requires_grad=needs_gradient,
        )

    return AttentionCall(
        query=make(case.num_heads),
        key=make(case.num_kv_heads),
        value=make(case.num_kv_heads),
        output_gradient=make(case.num_heads, needs_gradient=False) if is_training else None,
        mask=mask,
    )
