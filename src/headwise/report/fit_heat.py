"""A sweep as a heat map: peaks over batches and lengths, and the line between what fits and what does not."""

from dataclasses import dataclass

from headwise.cost.planning.results import FrontierPoint, Sweep, SweepPoint

NUM_SHADES = 5


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One batch and length. `shade`: 1 (an empty device) to `NUM_SHADES`. `edges`: sides where what fits ends."""

    point: SweepPoint
    shade: int
    edges: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Rows of cells, one a batch; None where a batch and length were not reckoned."""

    seqs: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Cell | None, ...], FrontierPoint | None], ...]


def heat_map(sweep: Sweep, capacity_bytes: int) -> HeatMap:
    """Return the sweep in rows of batches and columns of lengths, with the largest length that fits of each batch."""
    points = {(point.batch, point.seq): point for point in sweep.points}
    batches = sorted({point.batch for point in sweep.points})
    seqs = sorted({point.seq for point in sweep.points})
    frontier = {point.batch: point for point in sweep.frontier}

    def cell(row: int, column: int) -> Cell | None:
        point = points.get((batches[row], seqs[column]))
        if point is None:
            return None
        beside = {"right": (row, column + 1), "below": (row + 1, column)}
        edges = [name for name, (r, c) in beside.items() if r < len(batches) and c < len(seqs) and ends(point, r, c)]
        share = point.peak_bytes / max(capacity_bytes, 1)
        return Cell(point=point, shade=max(1, min(NUM_SHADES, 1 + int(share * NUM_SHADES))), edges=tuple(edges))

    def ends(point: SweepPoint, row: int, column: int) -> bool:
        other = points.get((batches[row], seqs[column]))
        return other is not None and (other.fits == "no") != (point.fits == "no")

    return HeatMap(
        seqs=tuple(seqs),
        rows=tuple(
            (batch, tuple(cell(row, column) for column in range(len(seqs))), frontier.get(batch))
            for row, batch in enumerate(batches)
        ),
    )
