"""What taking heads away answers with: how important each is, what the loss becomes, and the curve of taking many."""

from dataclasses import dataclass

from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class HeadImportance(Result):
    """How much a small change of one head's output would change the loss.

    Args:
        layer, head: which one, from 0.
        importance: mean over texts of |d loss / d gate|, the gate a factor of 1 on the head's output.
        normalized: the same divided by the root of the sum of squares over the layer's heads; 0 where all are 0.
    """

    layer: int
    head: int
    importance: float
    normalized: float


@dataclass(frozen=True, kw_only=True)
class Importance(Result):
    """The importance of every head, layer by layer."""

    heads: tuple[HeadImportance, ...]

    def ranked(self) -> tuple[tuple[int, int], ...]:
        """Return (layer, head) of all heads, the least important (normalised) first; equal ones in their order."""
        return tuple((head.layer, head.head) for head in sorted(self.heads, key=lambda head: head.normalized))

    def to_text(self) -> str:
        """Return the normalised importance as a table, a line a layer."""
        return _table("importance of each head", [(head.layer, head.normalized) for head in self.heads])


@dataclass(frozen=True, kw_only=True)
class HeadLoss(Result):
    """The loss with one head ablated, and how much higher that is than with none (below 0: it is better without)."""

    layer: int
    head: int
    loss: float
    difference: float


@dataclass(frozen=True, kw_only=True)
class AblationLosses(Result):
    """The loss with each head ablated by itself.

    Args:
        heads: one per head, layer by layer.
        loss: with no head ablated.
        mode: "zero", "mean" or "resample".
    """

    heads: tuple[HeadLoss, ...]
    loss: float
    mode: str

    def ranked(self) -> tuple[tuple[int, int], ...]:
        """Return (layer, head) of all heads, the one that the loss misses least first; equal ones in their order."""
        return tuple((head.layer, head.head) for head in sorted(self.heads, key=lambda head: head.difference))

    def to_text(self) -> str:
        """Return the differences as a table, a line a layer."""
        title = f"loss {self.loss:.4g}; difference without each head ({self.mode})"
        return _table(title, [(head.layer, head.difference) for head in self.heads])


@dataclass(frozen=True, kw_only=True)
class CurvePoint(Result):
    """The loss with so many heads ablated, the first `num_removed` of the curve's order."""

    num_removed: int
    loss: float
    difference: float


@dataclass(frozen=True, kw_only=True)
class PruningCurve(Result):
    """The loss as heads are ablated one after another.

    Args:
        points: from no head on.
        order: (layer, head) in the order in which they go.
        mode: "zero", "mean" or "resample".
    """

    points: tuple[CurvePoint, ...]
    order: tuple[tuple[int, int], ...]
    mode: str

    def largest_within(self, difference: float) -> int:
        """Return how many heads can go, along the curve, before the loss first rises by more than `difference`."""
        within = 0
        for point in self.points:
            if not point.difference <= difference:
                break
            within = point.num_removed
        return within

    def to_text(self) -> str:
        """Return a line for each point."""
        lines = [f"{point.num_removed:>6}  {point.loss:>10.4g}  {point.difference:>+10.4g}" for point in self.points]
        return "\n".join([f" heads        loss  difference ({self.mode})", *lines])


def _table(title: str, values: list[tuple[int, float]]) -> str:
    """Write (layer, value) pairs, heads in order, as a line a layer."""
    rows: dict[int, list[str]] = {}
    for layer, value in values:
        rows.setdefault(layer, []).append(f" {value:>9.3g}")
    return "\n".join([title, *(f"layer {layer:>3}{''.join(cells)}" for layer, cells in rows.items())])
