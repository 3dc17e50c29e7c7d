"""What benchmarks share: contestants timed in turns, figures beside the bounds they are to keep, and how both look."""

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.attention import describe_machine

from headwise.api.bench_timing import time_in_turns

MAX_SECONDS = 40.0  # after which no further round of a row begins


class Check(NamedTuple):
    """A figure, and the bound that it is to keep: at least or at most; without one it is for information."""

    what: str
    value: float
    target: float | None = None
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


class Row(NamedTuple):
    """What was measured: the median seconds of each contestant, and the figures that follow."""

    case: str
    seconds: dict[str, float]
    checks: tuple[Check, ...]


def time_all(calls: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Time contestants in turns; return their medians, and the least of each."""
    timings = time_in_turns(calls, repeats=repeats, max_seconds=MAX_SECONDS)
    medians = {name: timing.seconds for name, timing in timings.items()}
    return medians, {name: timing.least_seconds for name, timing in timings.items()}


def as_dict(row: Row) -> dict[str, object]:
    """Return a row for JSON."""
    checks = [{**check._asdict(), "holds": check.holds} for check in row.checks]
    return {"case": row.case, "seconds": row.seconds, "checks": checks}


def show(row: Row) -> None:
    """Print a row."""
    print(row.case)
    for name, seconds in row.seconds.items():
        print(f"    {name:<50} {1e3 * seconds:9.3f} ms")
    for check in row.checks:
        verdict = "" if check.target is None else f"  target {check.target}  {'holds' if check.holds else 'MISSED'}"
        print(f"    {check.what:<50} {check.value:9.4g}{verdict}")


def show_all(cases: Sequence[Callable[[], Row]], *, as_json: bool) -> None:
    """Run cases one after another and print the machine and every row, each as soon as it is known, or one object."""
    if as_json:
        print(json.dumps({"machine": describe_machine(), "rows": [as_dict(case()) for case in cases]}))
        return
    print(describe_machine())
    for case in cases:
        show(case())
