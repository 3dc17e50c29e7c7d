"""InspectedModel: what `headwise inspect` answers with."""

from dataclasses import dataclass
from typing import Any

from headwise.inspection.changes import HeadChange
from headwise.inspection.results import Inspection
from headwise.inspection.roles.results import RoleProbe
from headwise.results import Result

FOR_A_PAGE = ("maps", "overviews", "top_keys")  # a number for each pair of tokens, or some for each query, of each head


@dataclass(frozen=True, kw_only=True)
class InspectedPart(Result):
    """What was looked at beside the main part: another stack of layers, another text, another checkpoint.

    Args:
        name: what it is called where both are shown.
        inspection: what its heads do.
        comparable: whether its heads are those of the main part, on another text or of another checkpoint of the same
            shape, so that differences of their statistics say something.
        changes: how every head differs from the main part's, those that differ most first; empty where they are not
            comparable.
    """

    name: str
    inspection: Inspection
    comparable: bool
    changes: tuple[HeadChange, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the part without what is for a page."""
        known = super().to_dict()
        return {**known, "inspection": _without_maps(known["inspection"])}


@dataclass(frozen=True, kw_only=True)
class InspectedModel(Inspection):
    """What the heads of one model do.

    Args:
        model: its name.
        source: where it came from.
        seconds: how long the answer took.
        page: the file that was written; None = none.
        part: what the main part is called beside others; None where there are none.
        others: what else was looked at.
        probe: the roles of heads, held against an untrained model and shuffled texts; None = not asked for.
    """

    model: str
    source: str
    seconds: float | None = None
    page: str | None = None
    probe: RoleProbe | None = None
    part: str | None = None
    others: tuple[InspectedPart, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result without its maps, overviews and top keys, which are for a page."""
        return _without_maps(super().to_dict())

    def to_text(self) -> str:
        """Return the heads that hold a role, and how the statistics of all heads are spread."""
        from headwise.report.inspect import inspection_text

        return inspection_text(self)

    def _repr_html_(self) -> str:
        from headwise.report.inspect_page import notebook_html

        return notebook_html(self)


def _without_maps(inspection: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inspection.items() if name not in FOR_A_PAGE}
