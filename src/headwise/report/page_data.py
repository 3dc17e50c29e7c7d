"""What the page's script reads: every head's statistics and map, as JSON that can stand inside HTML."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headwise.inspection.results import HeadStatistics, Inspection
from headwise.report.changes_data import changes_data
from headwise.report.page_parts import drawn, most_bytes, parts_of
from headwise.report.similarity_table import divergences_data


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """How the page names and shades one statistic of a head.

    Args:
        name: field of HeadStatistics.
        label: heading.
        unit: written after the number.
        about: one line that says what it is.
        top: value of the darkest shade; None = the largest value on the page.
    """

    name: str
    label: str
    unit: str
    about: str
    top: float | None = 1.0


STATISTICS = (
    Statistic(
        name="entropy",
        label="Entropy",
        unit="nats",
        about="how widely a query spreads its weight, in nats; 0 when one key holds it all",
        top=None,
    ),
    Statistic(
        name="normalized_entropy",
        label="Normalised entropy",
        unit="",
        about="entropy divided by the logarithm of the visible keys: 0 for one key, 1 for all alike",
    ),
    Statistic(
        name="sparsity",
        label="Sparsity",
        unit="",
        about="share of the visible keys that get less than a tenth of an even share",
    ),
    Statistic(
        name="distance",
        label="Mean distance",
        unit="tokens",
        about="how far from the query the weight lies, in tokens",
        top=None,
    ),
    Statistic(
        name="patch_distance",
        label="Patch distance",
        unit="patches",
        about="how far from a query's patch the patches lie that it reads, on the grid of the image, in patches",
        top=None,
    ),
    Statistic(name="sink_mass", label="First-token mass", unit="", about="mean weight on the first token (the sink)"),
    Statistic(name="max_weight", label="Largest weight", unit="", about="mean of the largest weight of a query"),
    Statistic(
        name="num_effective_keys",
        label="Effective keys",
        unit="",
        about="as many keys, alike in weight, would have this entropy",
        top=None,
    ),
    Statistic(
        name="num_keys_for_90_percent",
        label="Keys for 90 %",
        unit="",
        about="least number of keys that hold 90 % of a query's weight",
        top=None,
    ),
    Statistic(
        name="distance_spread",
        label="Spread of distance",
        unit="tokens",
        about="standard deviation of the distance under a query's weights, in tokens",
        top=None,
    ),
    Statistic(name="diagonal_mass", label="Near mass", unit="", about="mean weight on the five nearest keys"),
    Statistic(
        name="block_mass",
        label="Block mass",
        unit="",
        about="mean weight on the keys of a query's own block of 16 tokens",
    ),
    Statistic(
        name="variability",
        label="Variability",
        unit="",
        about="how much the map changes from text to text: 0 if positions alone decide",
    ),
    Statistic(
        name="mean_abs_score",
        label="Mean score",
        unit="",
        about="mean size of the scores that the softmax reads",
        top=None,
    ),
    Statistic(
        name="stable_rank",
        label="Stable rank",
        unit="",
        about="squared Frobenius norm of the map over its squared spectral norm: 1 if all queries read alike",
        top=None,
    ),
    Statistic(name="padding_mass", label="Padding mass", unit="", about="mean weight on padding, which must be 0"),
)

SAVED_ONLY = (  # fields of HeadStatistics that stand in a saved table alone: too many columns for the page
    "max_abs_score",
    "score_spread",
    "uniform_diagonal_mass",
    "uniform_block_mass",
    "num_nan_queries",
    "num_empty_queries",
)


def statistics_of(inspection: Inspection) -> tuple[Statistic, ...]:
    """Return the statistics that were measured of any head of any part."""
    return tuple(
        statistic
        for statistic in STATISTICS
        if any(getattr(head, statistic.name) is not None for head in _all_heads(inspection))
    )


def saved_only(inspection: Inspection) -> tuple[str, ...]:
    """Return the fields that a saved table has beside the page's statistics: those known of any head of any part."""
    return tuple(name for name in SAVED_ONLY if any(getattr(head, name) is not None for head in _all_heads(inspection)))


def heads_json(inspection: Inspection, *, allowed_bytes: int | None = None) -> str:
    """Return heads, maps and tokens as JSON that can stand in a `<script type="application/json">` element.

    `statistics` says once what every number of a head means: the fields of HeadStatistics, then each role that any head
    was scored for. `saved` names what else a saved table has. `parts` has what was looked at first, then the others,
    each with its heads, maps and tokens. A head's `values` and `saved` stand in the order of `statistics` and `saved`,
    null where there is no finite number; `held` lists the positions of the roles that it holds. Maps and top keys are
    packed (`report.packing`).

    Args:
        inspection: what was looked at; an InspectedModel may have other parts.
        allowed_bytes: that the maps and keys of each part may take. Default: as many as the length of the text allows.
    """
    role_names, measured = role_names_of(inspection), statistics_of(inspection)
    saved = saved_only(inspection)
    statistics: list[dict[str, Any]] = [
        {"name": s.name, "label": s.label, "unit": s.unit, "about": s.about, "top": s.top, "role": False}
        for s in measured
    ]
    statistics += [
        {
            "name": name,
            "label": name,
            "unit": "",
            "about": f"mean weight on the key of the role “{name}”",
            "top": 1.0,
            "role": True,
        }
        for name in role_names
    ]
    parts = parts_of(inspection)
    if allowed_bytes is None:
        allowed_bytes = most_bytes(parts)
    shown = [
        {
            "name": part.name,
            "comparable": part.comparable,
            "stack": part.inspection.stack,
            "is_causal": part.inspection.is_causal,
            "heads": [_head(head, measured, role_names, saved) for head in part.inspection.heads],
            **drawn(part.inspection, allowed_bytes),
            **divergences_data(part.inspection),
        }
        for part in parts
    ]
    return json_inside_html({"statistics": statistics, "saved": saved, "parts": shown, **changes_data(inspection)})


def role_names_of(inspection: Inspection) -> list[str]:
    """Return the roles that any head of any part was scored for, in the order in which they were."""
    return list(dict.fromkeys(role.name for head in _all_heads(inspection) for role in head.roles))


def _all_heads(inspection: Inspection) -> Iterator[HeadStatistics]:
    for part in parts_of(inspection):
        yield from part.inspection.heads


def _head(
    head: HeadStatistics, measured: tuple[Statistic, ...], role_names: list[str], saved: tuple[str, ...]
) -> dict[str, Any]:
    roles = {role.name: role for role in head.roles}
    scores = [roles[name].score if name in roles else None for name in role_names]
    values = [getattr(head, statistic.name) for statistic in measured] + scores
    return {
        "layer": head.layer,
        "head": head.head,
        "values": [_written(value) for value in values],
        "saved": [_written(getattr(head, name)) for name in saved],
        "held": [len(measured) + i for i, name in enumerate(role_names) if name in roles and roles[name].holds],
    }


def _written(value: float | int | None) -> float | int | None:
    return round(value, 6) if value is not None and math.isfinite(value) else None


def json_inside_html(data: object) -> str:
    """Write `data` as JSON in which no character means anything to an HTML parser.

    Text inside a script element ends at the first `</script` and is read differently after `<!--`, whatever quotes
    stand around it; so `<`, `>` and `&` are written as JSON escapes, and so is everything outside ASCII (the line
    separators U+2028 and U+2029 are among it).
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
