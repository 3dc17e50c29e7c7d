"""What the page's script reads: every head's statistics and map, as JSON that can stand inside HTML."""

import base64
import json
import math
from dataclasses import dataclass
from typing import Any

from headwise.inspection.results import HeadStatistics, Inspection


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
    Statistic(name="sink_mass", label="First-token mass", unit="", about="mean weight on the first token (the sink)"),
    Statistic(name="max_weight", label="Largest weight", unit="", about="mean of the largest weight of a query"),
)


def heads_json(inspection: Inspection) -> str:
    """Return heads, maps and tokens as JSON that can stand in a `<script type="application/json">` element.

    `statistics` says once what every number of a head means: the fields of HeadStatistics, then each role that any head
    was scored for. A head's `values` stand in that order, null where there is no finite number; `held` lists the
    positions of the roles that it holds. Maps are base64 of `AttentionMap.weights`.
    """
    role_names = role_names_of(inspection)
    statistics: list[dict[str, Any]] = [
        {"label": s.label, "unit": s.unit, "about": s.about, "top": s.top, "role": False} for s in STATISTICS
    ]
    statistics += [
        {"label": name, "unit": "", "about": f"mean weight on the key of the role “{name}”", "top": 1.0, "role": True}
        for name in role_names
    ]
    data = {
        "statistics": statistics,
        "heads": [_head(head, role_names) for head in inspection.heads],
        "maps": [
            {
                "layer": map_.layer,
                "head": map_.head,
                "num_queries": map_.num_queries,
                "num_keys": map_.num_keys,
                "weights": base64.b64encode(map_.weights).decode("ascii"),
            }
            for map_ in inspection.maps
        ],
        "tokens": list(inspection.tokens),
    }
    return json_inside_html(data)


def role_names_of(inspection: Inspection) -> list[str]:
    """Return the roles that any head was scored for, in the order in which they were."""
    return list(dict.fromkeys(role.name for head in inspection.heads for role in head.roles))


def _head(head: HeadStatistics, role_names: list[str]) -> dict[str, Any]:
    roles = {role.name: role for role in head.roles}
    scores = [roles[name].score if name in roles else None for name in role_names]
    values = [getattr(head, statistic.name) for statistic in STATISTICS] + scores
    return {
        "layer": head.layer,
        "head": head.head,
        "values": [round(value, 6) if value is not None and math.isfinite(value) else None for value in values],
        "held": [len(STATISTICS) + i for i, name in enumerate(role_names) if name in roles and roles[name].holds],
    }


def json_inside_html(data: object) -> str:
    """Write `data` as JSON in which no character means anything to an HTML parser.

    Text inside a script element ends at the first `</script` and is read differently after `<!--`, whatever quotes
    stand around it; so `<`, `>` and `&` are written as JSON escapes, and so is everything outside ASCII (the line
    separators U+2028 and U+2029 are among it).
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
