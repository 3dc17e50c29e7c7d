"""The linear maps around an attention: how they start, and how their tokens split into heads."""

from jaxtyping import Float
from torch import Tensor, nn


def make_projection(in_dim: int, out_dim: int, *, bias: bool) -> nn.Linear:
    """Make a linear map with Xavier-uniform weights and no bias yet (zeros), as attention layers start.

    Source: Glorot and Bengio 2010, "Understanding the difficulty of training deep feedforward neural networks", eq. 16.
    """
    projection = nn.Linear(in_dim, out_dim, bias=bias)
    nn.init.xavier_uniform_(projection.weight)
    if bias:
        nn.init.zeros_(projection.bias)
    return projection


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
