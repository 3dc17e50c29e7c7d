"""The stable rank of a head's map, from a few products with it: no map is ever held."""

import torch
from jaxtyping import Float
from torch import Tensor

from headwise.inspection.statistics.kinds import TokenKinds
from headwise.integrations.layer_weights import LayerWeights

SKETCH_VECTORS = 4  # vectors that a map is multiplied with at once
SKETCH_PASSES = 6  # times that a layer's weights are read for it; maps of up to 4 * 6 tokens come out exact
SKETCH_SEED = 0
SEED_ROWS = 1024  # tokens whose numbers are drawn at once
DEPENDENT = 1e-6  # share of a direction that is new: below it there is nothing but rounding


def stable_ranks(layer: LayerWeights, kinds: TokenKinds) -> Float[Tensor, "batch num_heads"]:
    """Estimate the stable rank ||A||_F^2 / ||A||_2^2 of every text's map A (real queries x real keys), per head.

    It lies between 1 (all queries read the same distribution, up to a factor) and the rank of A. ||A||_2^2 is the
    largest Ritz value of A^T A on a block Krylov space: the text's vector of ones and 3 seeded random vectors, then
    what A^T A makes of them, in 6 passes over the layer. A Ritz value is never above the largest eigenvalue, so the
    estimate is never below the stable rank, but for rounding. A map without weight has 0.

    Args:
        layer: the weights of a layer; its blocks are computed anew in each pass.
        kinds: which tokens are padding, on the layer's device; a token's random numbers depend on its place in its own
            text, so that padding changes nothing.

    Source: Rudelson and Vershynin 2007, "Sampling from large matrices", section 1 (stable, there numerical, rank);
    Musco and Musco 2015, "Randomized Block Krylov Methods", algorithm 2.
    """
    num_heads = layer.shape[1]
    start = _seeded_vectors(kinds).unsqueeze(1).expand(-1, num_heads, -1, -1)
    basis, products = [_orthonormal(start, start)], []
    for number in range(SKETCH_PASSES):
        product, square = _multiply(layer, kinds, basis[-1])
        is_number = product.isfinite().flatten(2).all(dim=-1)
        products.append(product.where(is_number[..., None, None], 0.0))
        if number + 1 < SKETCH_PASSES:
            known = torch.cat(basis, dim=-1)
            new = products[-1]
            for _ in range(2):  # once leaves rounding of the size of what is taken off
                new = new - known @ (known.transpose(-2, -1) @ new)
            basis.append(_orthonormal(new, products[-1]))
    small = torch.cat(basis, dim=-1).transpose(-2, -1) @ torch.cat(products, dim=-1)  # A^T A, seen inside the space
    largest: Tensor = torch.linalg.eigvalsh((small + small.transpose(-2, -1)) / 2)[..., -1]
    rank: Tensor = square / (largest + (largest == 0))
    return rank.where(is_number, torch.nan)


def _seeded_vectors(kinds: TokenKinds) -> Float[Tensor, "batch key_len vectors"]:
    """Return what a map is first multiplied with: ones and seeded normal numbers on real tokens, 0 on padding."""
    generator = torch.Generator().manual_seed(SKETCH_SEED)
    # drawn by the piece, so that the first tokens of a short and of a long text have the same numbers
    pieces = [
        torch.randn(SEED_ROWS, SKETCH_VECTORS, generator=generator, dtype=torch.float64)
        for _ in range(0, kinds.keys.shape[1], SEED_ROWS)
    ]
    table = torch.cat(pieces)
    table[:, 0] = 1.0
    place = (kinds.keys.cumsum(dim=-1) - 1).clamp(min=0)
    return table.to(place.device)[place] * kinds.keys.unsqueeze(-1)


def _orthonormal(
    vectors: Float[Tensor, "batch num_heads key_len vectors"], source: Float[Tensor, "batch num_heads key_len vectors"]
) -> Float[Tensor, "batch num_heads key_len directions"]:
    """Return orthonormal directions of the vectors, 0 for those that are but rounding beside what they are made of."""
    q, r = torch.linalg.qr(vectors)
    largest = torch.linalg.vector_norm(source, dim=-2).amax(dim=-1, keepdim=True)
    is_new = r.diagonal(dim1=-2, dim2=-1).abs() > DEPENDENT * largest
    directions: Tensor = q * is_new.unsqueeze(-2)
    return directions


def _multiply(
    layer: LayerWeights, kinds: TokenKinds, vectors: Float[Tensor, "batch num_heads key_len vectors"]
) -> tuple[Float[Tensor, "batch num_heads key_len vectors"], Float[Tensor, "batch num_heads"]]:
    """Return A^T A X and ||A||_F^2 for every text and head, in one pass over the layer."""
    product = torch.zeros_like(vectors)
    square = torch.zeros(vectors.shape[:2], dtype=torch.float64, device=vectors.device)
    is_padded = not bool(kinds.real.all() and kinds.keys.all())
    for block in layer.blocks():
        weights = block.weights
        if is_padded:
            queries = kinds.real[:, block.start : block.start + weights.shape[2]]
            keys = kinds.keys[:, None, None, : weights.shape[3]]
            weights = torch.where(queries[:, None, :, None] & keys, weights, 0.0)
        known = slice(weights.shape[3])
        product[:, :, known] += weights.transpose(-2, -1) @ (weights @ vectors[:, :, known].to(weights.dtype))
        square += torch.linalg.vector_norm(weights, dim=(-2, -1), dtype=torch.float64).square()
    return product, square
