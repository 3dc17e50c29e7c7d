"""Labelled relations as the rows of a table: the heads that follow most pairs, beside what needs no head."""

from dataclasses import dataclass

from headwise.inspection.results import HeadRelation, Inspection, RelationScores
from headwise.report.page_parts import parts_of

MAX_HEADS = 10  # rows of one relation
AHEAD = 0.1  # share of pairs by which a head must be ahead to be called more than positional (Voita et al. 2019)


@dataclass(frozen=True, kw_only=True)
class RankedRelation:
    """One relation with its heads ranked.

    Args:
        scores: of the relation.
        heads: those that are shown, by the share of pairs that they follow, then by weight.
        num_ahead: heads that are ahead of the best fixed offset, and of their own null where there is one.
        num_more: heads that are not shown.
    """

    scores: RelationScores
    heads: tuple[HeadRelation, ...]
    num_ahead: int
    num_more: int


@dataclass(frozen=True, kw_only=True)
class RelatedPart:
    """The relations of one part.

    Args:
        index: of the part, 0 = the main one.
        name: of the part; None where there is but one.
        relations: ranked.
        reads_backward: whether its queries see earlier keys only, and some relation looks at later ones.
    """

    index: int
    name: str | None
    relations: tuple[RankedRelation, ...]
    reads_backward: bool


def parts_with_relations(inspection: Inspection) -> list[RelatedPart]:
    """Return the parts in which relations were looked at."""
    return [
        RelatedPart(
            index=index,
            name=part.name,
            relations=tuple(rank_relation(scores) for scores in part.inspection.relations),
            reads_backward=part.inspection.is_causal
            and any(scores.best_offset > 0 for scores in part.inspection.relations),
        )
        for index, part in enumerate(parts_of(inspection))
        if part.inspection.relations
    ]


def has_null(inspection: Inspection) -> bool:
    """Tell whether any head of a relation stands beside a null."""
    return any(
        head.null_share is not None
        for part in parts_of(inspection)
        for scores in part.inspection.relations
        for head in scores.heads
    )


def rank_relation(scores: RelationScores) -> RankedRelation:
    """Return a relation with the heads that follow most of its pairs."""
    ranked = sorted(scores.heads, key=lambda head: (-head.share, -head.weight, head.layer, head.head))
    return RankedRelation(
        scores=scores,
        heads=tuple(ranked[:MAX_HEADS]),
        num_ahead=sum(is_ahead(head, scores) for head in scores.heads),
        num_more=max(0, len(ranked) - MAX_HEADS),
    )


def is_ahead(head: HeadRelation, scores: RelationScores) -> bool:
    """Tell whether a head follows 10 % more of the pairs than the best fixed offset and than its own null do.

    Source: Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 5.2 (the positional baseline).
    """
    baseline = max(scores.offset_share, head.null_share or 0.0)
    return head.share - baseline >= AHEAD - 1e-9  # 0.6 - 0.5 is a little less than 0.1 in binary


def say_offset(offset: int) -> str:
    """Return where a fixed offset looks: 2 tokens before, 1 token after, at the token itself."""
    if offset == 0:
        return "at the token itself"
    return f"{abs(offset)} token{'' if abs(offset) == 1 else 's'} {'before' if offset < 0 else 'after'}"
