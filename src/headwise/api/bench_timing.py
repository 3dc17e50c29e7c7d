"""How long calls take, in turns: what else the machine does then falls on all of them alike.

Each round begins with another call, so that none always finds in the cache what the one before has put there.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from headwise.collector import without_collections

MIN_TURN_SECONDS = 2e-3  # a turn of a short call repeats it for so long, far above the clock's own cost
MAX_CALLS = 1000  # in a turn


class Timing(NamedTuple):
    """Seconds of a call, the median and the least of its turns, and how many calls were timed."""

    seconds: float
    least_seconds: float
    num_calls: int


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    max_seconds: float = math.inf,
    device: torch.device | None = None,
    warm_ups: int = 2,
) -> dict[str, Timing]:
    """Time each of several calls in turns: one, the next, ..., the first again.

    Args:
        calls: what to time, by name.
        repeats: turns of each call.
        max_seconds: no further round of turns begins after so many seconds; one is made in any case.
        device: whose work is waited for; None: the CPU.
        warm_ups: calls before, which are not timed but tell how many a turn needs; at least 1.
    """

    def seconds_of(call: Callable[[], object], num_calls: int) -> float:
        started = time.perf_counter()
        for _ in range(num_calls):
            call()
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / num_calls

    counts = {}
    for name, call in calls.items():
        quickest = min(seconds_of(call, 1) for _ in range(warm_ups))
        counts[name] = min(MAX_CALLS, math.ceil(MIN_TURN_SECONDS / max(quickest, 1e-9)))
    turns: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    with without_collections():
        for round_ in range(repeats):
            if round_ and time.perf_counter() - started > max_seconds:
                break
            names = list(calls)
            first = round_ % max(1, len(names))
            for name in (*names[first:], *names[:first]):
                call = calls[name]
                if counts[name] > 1:
                    call()  # brings into the cache what the turn before has put out of it
                turns[name].append(seconds_of(call, counts[name]))
    return {
        name: Timing(statistics.median(taken), min(taken), len(taken) * counts[name]) for name, taken in turns.items()
    }
