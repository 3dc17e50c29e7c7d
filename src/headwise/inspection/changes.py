"""How the heads of a model differ on another text, or those of another checkpoint on the same text."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite, log, sqrt
from typing import Any

from headwise.errors import ModelError
from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection
from headwise.results import Result

NO_STATISTICS = ("layer", "head", "roles", "num_nan_queries", "num_empty_queries")
SHARES = ("normalized_entropy", "sparsity", "sink_mass", "max_weight")  # between 0 and 1, whatever the text
HALF_A_STEP = 1 / 510  # of the square root of a weight, as maps keep it


@dataclass(frozen=True, kw_only=True)
class HeadChange(Result):
    """How one head differs.

    Args:
        layer, head: which one, from 0.
        differences: the other's statistic minus the first's, by name; of those that were measured of both.
        divergence: mean Jensen-Shannon divergence between the rows of both maps, in nats, from 0 (the same) to log 2;
            None where they are not of the same tokens.
        divergence_error: how far that mean can be off, at most, since maps keep 8 bits of a weight.
    """

    layer: int
    head: int
    differences: dict[str, float]
    divergence: float | None = None
    divergence_error: float | None = None

    @property
    def size(self) -> float:
        """Return what heads are sorted by: the divergence, else the largest difference of a statistic from 0 to 1."""
        if self.divergence is not None:
            return self.divergence
        return max((abs(self.differences.get(name, 0.0)) for name in SHARES), default=0.0)


def head_changes(first: Inspection, other: Inspection) -> tuple[HeadChange, ...]:
    """Return how every head differs, those that differ most first.

    Where both have maps of the same tokens they are sorted by the divergence between these, else by the largest
    difference among normalised entropy, sparsity, first-token mass and largest weight.

    A row of a map is scaled to sum to 1 over the keys that the map covers; a row without weight on either side is left
    out. With a byte b for each weight w, |b / 255 - sqrt(w)| <= 1 / 510: the vector of roots, whose direction is the
    row, is off by sqrt(n) / 510 over n keys at most, so by an angle a with sin a = sqrt(n) / (510 |b / 255|). A
    divergence is at most the squared Hellinger distance, here 1 - cos a, and its root is a metric: the root of what is
    computed is off by the sum e of both rows' sqrt(1 - cos a), and the divergence D itself by 2 sqrt(D) e + e^2.

    Args:
        first: what is compared with.
        other: of the same heads.

    Raises:
        ModelError: they have other heads.

    Source: Endres and Schindelin 2003, "A new metric for probability distributions" (the root is a metric).
    """
    require_same_heads(first, other)
    are_alike = (first.tokens, first.key_tokens) == (other.tokens, other.key_tokens)
    pairs = _pairs(first.maps, other.maps) if are_alike else {}
    is_causal = first.is_causal and other.is_causal
    found = []
    for head, changed in zip(first.heads, other.heads, strict=True):
        maps = pairs.get((head.layer, head.head))
        divergence, error = (None, None) if maps is None else _divergence(*maps, is_causal=is_causal)
        found.append(
            HeadChange(
                layer=head.layer,
                head=head.head,
                differences=_differences(head, changed),
                divergence=divergence,
                divergence_error=error,
            )
        )
    return tuple(sorted(found, key=lambda change: (-change.size, change.layer, change.head)))


def require_same_heads(first: Inspection, other: Inspection) -> None:
    """Refuse to compare other heads.

    Raises:
        ModelError: there are other numbers of layers or heads.
    """
    own, others = (tuple((head.layer, head.head) for head in each.heads) for each in (first, other))
    if own != others:
        raise ModelError(
            f"heads are compared one by one, so both models must have the same: one has {_shape(first)}, the other "
            f"{_shape(other)}"
        )


def _shape(inspection: Inspection) -> str:
    heads: dict[int, int] = {}
    for head in inspection.heads:
        heads[head.layer] = heads.get(head.layer, 0) + 1
    counts = sorted(set(heads.values()))
    return f"{len(heads)} layers of {' or '.join(map(str, counts))} heads"


def _differences(head: HeadStatistics, changed: HeadStatistics) -> dict[str, float]:
    differences = {}
    for field in fields(HeadStatistics):
        before, after = getattr(head, field.name), getattr(changed, field.name)
        if field.name not in NO_STATISTICS and before is not None and after is not None:
            difference = after - before
            if isfinite(difference):
                differences[field.name] = difference
    return differences


def _pairs(
    first: Sequence[AttentionMap], other: Sequence[AttentionMap]
) -> dict[tuple[int, int], tuple[AttentionMap, AttentionMap]]:
    """Return both maps of each head where they cover the same tokens one by one."""
    others = {(each.layer, each.head): each for each in other}
    found = {}
    for each in first:
        match = others.get((each.layer, each.head))
        if match is not None and _size(each) == _size(match) and each.tile == 1:
            found[each.layer, each.head] = each, match
    return found


def _size(map_: AttentionMap) -> tuple[int, int, int]:
    return map_.num_queries, map_.num_keys, map_.tile


def _divergence(first: AttentionMap, other: AttentionMap, *, is_causal: bool) -> tuple[float | None, float | None]:
    """Return the mean divergence between the rows of two maps, and the most that it can be off."""
    import torch  # a result can be read, and printed, without it

    def roots_of(map_: AttentionMap) -> Any:
        roots = torch.frombuffer(bytearray(map_.weights), dtype=torch.uint8).view(map_.num_queries, map_.num_keys)
        return roots.double() / 255

    roots = [roots_of(each) for each in (first, other)]
    norms = [each.norm(dim=-1) for each in roots]
    counts = (norms[0] > 0) & (norms[1] > 0)
    if not counts.any():
        return None, None
    rows = [(root[counts] / norm[counts].unsqueeze(-1)).square() for root, norm in zip(roots, norms, strict=True)]
    entropies = [torch.special.entr(each).sum(dim=-1) for each in (*rows, (rows[0] + rows[1]) / 2)]
    divergence = (entropies[2] - (entropies[0] + entropies[1]) / 2).clamp(min=0)
    num_keys = torch.full((first.num_queries,), first.num_keys)
    if is_causal:
        num_keys = torch.arange(1, first.num_queries + 1).clamp(max=first.num_keys)
    off = num_keys[counts].double().sqrt() * HALF_A_STEP
    most = sqrt(log(2))
    error = sum((1 - (1 - (off / norm[counts]).clamp(max=1).square()).sqrt()).sqrt().clamp(max=most) for norm in norms)
    bound = (2 * divergence.sqrt() * error + error**2).clamp(max=log(2))
    # of a row without a weight that the map can show (a sink may take nearly all) nothing is known
    unknown = 1 - counts.double().mean()
    return divergence.mean().item(), ((1 - unknown) * bound.mean() + unknown * log(2)).item()
