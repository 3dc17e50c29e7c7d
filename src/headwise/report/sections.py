"""What the sections of heads ask for by name: roles, relations, similarity and differences as rows and places."""

from collections import defaultdict
from collections.abc import Sequence

from headwise.inspection.results import HeadDivergence, Inspection
from headwise.report.figures import counted, texts_read
from headwise.report.page_parts import PagePart, parts_of
from headwise.report.probe_table import held_roles, missed_roles, why_missed
from headwise.report.relations_table import has_null, is_ahead, parts_with_relations, say_offset
from headwise.report.similarity_table import parts_with_similarity

__all__ = [
    "compared_parts",
    "has_null",
    "held_roles",
    "is_ahead",
    "lay_out",
    "missed_roles",
    "parts_with_relations",
    "parts_with_similarity",
    "roles_by_head",
    "say_offset",
    "texts_compared",
    "why_missed",
]


def compared_parts(inspection: Inspection) -> list[PagePart]:
    """Return the main part and those whose heads are its own, on another text or of another checkpoint."""
    return [part for part in parts_of(inspection) if part.comparable]


def texts_compared(parts: Sequence[PagePart]) -> str:
    """Return what was read of each part, and whether texts alone may make a difference."""
    reads = [
        f"{counted(part.inspection.num_tokens, 'token')} of {texts_read(part.inspection)}".removesuffix(", each")
        for part in parts
    ]
    if len({(part.inspection.tokens, read) for part, read in zip(parts, reads, strict=True)}) == 1:
        return f"All of them read {reads[0]}." if len(parts) > 2 else f"Both read {reads[0]}."
    names = ("A", "B") if len(parts) == 2 else tuple(part.name for part in parts)
    said = "; ".join(f"{name} read {read}" for name, read in zip(names, reads, strict=True))
    return f"{said}. Other texts alone make a difference, too."


def lay_out(divergence: HeadDivergence) -> object:
    """Return heads in a plane; torch is imported for it, which no other section needs."""
    from headwise.report.similarity_layout import lay_out_heads

    return lay_out_heads(divergence)


def roles_by_head(inspection: Inspection, index: int) -> dict[tuple[int, int], str]:
    """Return the names of the roles that each head of a part holds; nothing for a head that holds none."""
    names: dict[tuple[int, int], str] = defaultdict(str)
    for head in parts_of(inspection)[index].inspection.heads:
        names[head.layer, head.head] = ", ".join(role.name for role in head.roles if role.holds)
    return names
