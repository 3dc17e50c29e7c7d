"""What `compare` answers with: comparisons that print themselves, and those that come with headwise."""

from dataclasses import dataclass
from typing import Any

from headwise.experiments.results import ComparisonResult
from headwise.results import Result

SHARED_OUT = ("arms", "differences", "claims")


@dataclass(frozen=True, kw_only=True)
class Compared(Result):
    """What came out of one question put to one task or several.

    Args:
        name: of the comparison.
        question: that it asks.
        parts: one a task.
        folder: where the runs are kept.
        page: the file that was written; None = none.
    """

    name: str
    question: str
    parts: tuple[ComparisonResult, ...]
    folder: str
    page: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As every result, with the `arms`, `differences` and `claims` of all parts, each with the name of its part."""
        result = super().to_dict()
        for name in SHARED_OUT:
            result[name] = [{"part": part["name"], **each} for part in result["parts"] for each in part[name]]
        result["parts"] = [
            {name: value for name, value in part.items() if name not in SHARED_OUT} for part in result["parts"]
        ]
        return result

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.compare import compare_text

        return compare_text(self.parts, page=self.page)

    def _repr_html_(self) -> str:
        from headwise.report.compare_picture import notebook_html

        return notebook_html(self.parts, self.to_text())


@dataclass(frozen=True, kw_only=True)
class BuiltinComparison(Result):
    """A comparison that comes with headwise: its name, and what it asks."""

    name: str
    question: str


@dataclass(frozen=True, kw_only=True)
class BuiltinComparisons(Result):
    """The comparisons that come with headwise."""

    comparisons: tuple[BuiltinComparison, ...]

    def to_text(self) -> str:
        """As the command line prints it."""
        from headwise.report.compare import builtin_text

        return builtin_text([(one.name, one.question) for one in self.comparisons])
