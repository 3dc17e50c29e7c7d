"""The linear maps around an attention: how they start, and how their tokens split into heads."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from headwise.ops.obstacles import has_forward_derivatives, is_traced


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
            return torch.split(super().forward(query), self.sizes, dim=-1)
        weights = torch.split(self.weight, self.sizes)
        biases = (None,) * 3 if self.bias is None else torch.split(self.bias, self.sizes)
        tokens = (query, key, value)
        return tuple(functional.linear(*three) for three in zip(tokens, weights, biases, strict=True))

    def first(self, query: Float[Tensor, "batch query_len in_dim"]) -> Float[Tensor, "batch query_len out_dim"]:
        """Return the queries alone."""
        size = self.sizes[0]
        return functional.linear(query, self.weight[:size], None if self.bias is None else self.bias[:size])


def make_projection(in_dim: int, out_dim: int, *, bias: bool) -> nn.Linear:
    """Make a linear map with Xavier-uniform weights and no bias yet (zeros), as attention layers start.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    projection = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(projection.weight)
    if bias:
        nn.init.zeros_(projection.bias)
    return projection


THIN_ROWS = 8  # tokens, up to which a product reads the weight and does little else
LEAST_NUMBERS = 2**18  # of a weight, from which on its reading takes longer than to share it out


def project(linear: nn.Module, tokens: Float[Tensor, "*batch in_dim"]) -> Float[Tensor, "*batch out_dim"]:
    """Apply a linear map, by `multiply_thin` where that serves and nobody listens to the module."""
    found = None
    if type(linear) is nn.Linear and not (linear._forward_hooks or linear._forward_pre_hooks):
        found = multiply_thin(tokens, linear.weight, linear.bias)
    output: Tensor = linear(tokens) if found is None else found
    return output


def multiply_thin(
    tokens: Float[Tensor, "*batch in_dim"],
    weight: Float[Tensor, "out_dim in_dim"],
    bias: Float[Tensor, " out_dim"] | None,
) -> Float[Tensor, "*batch out_dim"] | None:
    """Return `tokens weight^T + bias` of few tokens, without gradients, on a CPU; None where another way is as good.

    torch multiplies a few rows on one thread, at a quarter of the rate at which memory is read. Here each thread reads
    its share of the weight's rows, where they lie.
    """
    if torch.is_grad_enabled() or is_traced() or has_forward_derivatives():
        return None
    num_rows, num_threads = tokens.numel() // max(1, tokens.shape[-1]), torch.get_num_threads()
    out_dim, in_dim = weight.shape
    if not 0 < num_rows <= THIN_ROWS or num_threads == 1 or weight.numel() < LEAST_NUMBERS or out_dim % num_threads:
        return None
    is_plain = type(tokens) is Tensor and type(weight) is nn.Parameter and weight.is_contiguous()
    is_float32 = tokens.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if not is_plain or not is_float32 or weight.device.type != "cpu":
        return None
    rows = tokens.reshape(1, num_rows, in_dim).expand(num_threads, -1, -1)
    output = torch.bmm(rows, weight.detach().view(num_threads, -1, in_dim).mT)  # (threads, rows, out / threads)
    output = output.transpose(0, 1).reshape(*tokens.shape[:-1], out_dim)
    return output if bias is None else output + bias


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
