"""All heads of a model as points of a plane: those that read alike stand near one another."""

import math
from dataclasses import dataclass

import torch

from headwise.inspection.results import HeadDivergence

WIDTH, HEIGHT, MARGIN = 640, 420, 34  # of the drawing, in its units
RADIUS = 9  # of a head's disc; smaller where there are many heads
MANY = 200


@dataclass(frozen=True, kw_only=True)
class PlacedHead:
    """A head and where its disc stands in the drawing; `depth` is from 0, the first layer, to 1, the last."""

    layer: int
    head: int
    x: float
    y: float
    depth: int | float


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The heads of a model in a plane.

    Args:
        heads: each with its place.
        width, height, radius: of the drawing and of a disc, in its units.
        share: part of the spread of all heads that the two axes show, from 0 to 1.
    """

    heads: tuple[PlacedHead, ...]
    width: int
    height: int
    radius: int | float
    share: float


def lay_out_heads(divergence: HeadDivergence) -> Layout | None:
    """Place heads in a plane by classical multidimensional scaling; None where no two heads differ.

    A mean Jensen-Shannon divergence is a squared distance between points of a Euclidean space (Fuglede and Topsøe
    2004), so `B = -J D J / 2`, D being the divergences and J what takes the mean off, holds those points' products: its
    two largest eigenvalues, with their vectors, give the plane that keeps most of their spread. Axes have no unit; both
    are drawn at one scale, and a vector's sign is chosen so that its largest entry is positive.

    Source: Torgerson 1952, "Multidimensional Scaling"; Fuglede and Topsøe 2004, "Jensen-Shannon Divergence and Hilbert
    Space Embedding"; Clark et al. 2019, "What Does BERT Look At?", section 6 (heads laid out so).
    """
    squared = torch.tensor(divergence.divergence, dtype=torch.float64)
    if len(squared) < 2 or not squared.isfinite().all():
        return None
    products = -(squared - squared.mean(dim=0) - squared.mean(dim=1, keepdim=True) + squared.mean()) / 2
    values, vectors = torch.linalg.eigh(products)  # the largest last
    if values[-1] <= 0:
        return None
    top = vectors[:, [-1, -2]] * values[[-1, -2]].clamp(min=0).sqrt()
    signs = top.gather(0, top.abs().argmax(dim=0, keepdim=True)).sign()
    places = (top * torch.where(signs == 0, 1.0, signs)).tolist()
    share = float(values[-2:].clamp(min=0).sum() / values.clamp(min=0).sum())
    layers = sorted({layer for layer, _ in divergence.heads})
    xs, ys = [place[0] for place in places], [place[1] for place in places]
    span_x, span_y = max(xs) - min(xs), max(ys) - min(ys)
    scale = min((WIDTH - 2 * MARGIN) / span_x, (HEIGHT - 2 * MARGIN) / span_y if span_y > 0 else math.inf)
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return Layout(
        heads=tuple(
            PlacedHead(
                layer=layer,
                head=head,
                x=round(WIDTH / 2 + scale * (x - middle_x), 1),
                y=round(HEIGHT / 2 - scale * (y - middle_y), 1),
                depth=layers.index(layer) / max(1, len(layers) - 1),
            )
            for (layer, head), x, y in zip(divergence.heads, xs, ys, strict=True)
        ),
        width=WIDTH,
        height=HEIGHT,
        radius=RADIUS if len(places) <= MANY else RADIUS * math.sqrt(MANY / len(places)),
        share=share,
    )
