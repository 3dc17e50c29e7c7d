"""How far heads are apart in two parts of a page, for its script."""

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.results import Inspection


def changes_data(inspection: Inspection) -> dict[str, object]:
    """Return the divergence of every head between the first part and each comparable one, by the part's number.

    A head's entry is its layer, its number, the divergence in nats and the most that it can be off; heads whose maps
    are of other tokens have none.
    """
    others = inspection.others if isinstance(inspection, InspectedModel) else ()
    found = {
        str(index): [
            [
                change.layer,
                change.head,
                _rounded(change.divergence),
                None if change.divergence_error is None else _rounded(change.divergence_error),
            ]
            for change in part.changes
            if change.divergence is not None
        ]
        for index, part in enumerate(others, start=1)
        if part.comparable
    }
    return {"changes": {index: own for index, own in found.items() if own}}


def _rounded(nats: float) -> float:
    """Return four digits of a number, of a small one too."""
    return float(f"{nats:.4g}")
