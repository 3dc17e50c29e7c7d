"""same_instants: the instants of a step's stretches at which the same happens as at the worst instant of others."""

from bisect import bisect_left
from collections.abc import Mapping

from headwise.cost.step.tape import Tape


def worst_instants(tape: Tape) -> list[int]:
    """Return the tick of the most bytes alive in each stretch."""
    return [stretch.peak_tick for stretch in tape.stretches]


def same_instants(tape: Tape, like: Mapping[int, int]) -> list[int]:
    """Return a tick of each stretch: of its own worst instant, or of what happens at that of the stretch it is like.

    The same happens where a tensor of the same name is made, for the same time in the stretch. A stretch that makes
    none such keeps its own worst instant.

    Args:
        tape: of the step.
        like: which stretches are like which other.
    """
    ticks = worst_instants(tape)
    wanted = {*like, *like.values()}
    begins = [stretch.begin_tick for stretch in tape.stretches]
    made: dict[int, dict[str, list[int]]] = {index: {} for index in wanted}
    names: dict[int, str] = {}  # what is made at the worst instants
    for record in tape.records:
        index = bisect_left(begins, record.born) - 1  # -1: it stands since before the step
        if index in wanted:
            made[index].setdefault(record.name, []).append(record.born)
            if record.born == ticks[index]:
                names[index] = record.name
    same = list(ticks)
    for index, other in like.items():
        if other not in names:  # the other's worst instant is its beginning
            same[index] = begins[index]
            continue
        times = made[index].get(names[other], [])
        place = made[other][names[other]].index(ticks[other])
        same[index] = times[place] if place < len(times) else ticks[index]
    return same
