"""The linear maps around an attention: how they start, and how their tokens split into heads."""

from collections.abc import Sequence
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from headwise.ops.products import find_faster_linear, linear


class FusedProjection(nn.Linear):
    """Queries, keys and values by one product: their weights stacked, each part as it would start by itself.

    Args:
        in_dim: width of the tokens.
        sizes: widths of queries, keys and values, over all heads.
        bias: whether there is one.
    """

    def __init__(self, in_dim: int, sizes: Sequence[int], *, bias: bool):
        super().__init__(in_dim, sum(sizes), bias=bias)
        self.sizes = list(sizes)
        for part in torch.split(self.weight.detach(), self.sizes):
            nn.init.xavier_uniform_(part)
        if bias:
            nn.init.zeros_(self.bias)

    def forward(  # type: ignore[override]
        self,
        query: Float[Tensor, "batch query_len in_dim"],
        key: Float[Tensor, "batch key_len in_dim"],
        value: Float[Tensor, "batch key_len in_dim"],
    ) -> tuple[Tensor, ...]:
        """Return queries, keys and values: of one text at once, else each by its part of the weight."""
        if query is key is value:
            return torch.split(linear(query, self.weight, self.bias), self.sizes, dim=-1)
        weights = torch.split(self.weight, self.sizes)
        biases = (None,) * 3 if self.bias is None else torch.split(self.bias, self.sizes)
        tokens = (query, key, value)
        return tuple(linear(*three) for three in zip(tokens, weights, biases, strict=True))

    def first(self, query: Float[Tensor, "batch query_len in_dim"]) -> Float[Tensor, "batch query_len out_dim"]:
        """Return the queries alone."""
        size = self.sizes[0]
        return linear(query, self.weight[:size], None if self.bias is None else self.bias[:size])


def make_projection(in_dim: int, out_dim: int, *, bias: bool) -> nn.Linear:
    """Make a linear map with Xavier-uniform weights and no bias yet (zeros), as attention layers start.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    projection = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(projection.weight)
    if bias:
        nn.init.zeros_(projection.bias)
    return projection


def project(module: nn.Module, tokens: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
    """Apply a linear map: by a faster product than the module's own, where nobody listens to the module."""
    if is_plain(module):
        faster = find_faster_linear(tokens, module.weight, module.bias)
        if faster is not None:
            return faster(tokens, module.weight, module.bias)
    output: Tensor = module(tokens)
    return output


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Tell whether a module is a linear map and nothing else: a call of it comes to its weight and bias."""
    if type(module) is not nn.Linear or "forward" in vars(module) or module._compiled_call_impl is not None:
        return False
    hooks = module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook()  # type: ignore[no-untyped-call]
    return not hooks


def split_heads(
    tokens: Float[Tensor, "batch seq_len width"], num_heads: int
) -> Float[Tensor, "batch {num_heads} seq_len head_dim"]:
    """Cut each token's vector into one piece a head: head h gets the h-th piece."""
    batch_size, seq_len, width = tokens.shape
    return tokens.reshape(batch_size, seq_len, num_heads, width // num_heads).transpose(1, 2)  # (B, H, T, D)


def merge_heads(
    heads: Float[Tensor, "batch num_heads seq_len head_dim"],
) -> Float[Tensor, "batch seq_len num_heads*head_dim"]:
    """Lay the heads of each token side by side: the inverse of `split_heads`."""
    return heads.transpose(1, 2).flatten(2)  # (B, T, H * D)
