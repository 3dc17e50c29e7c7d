"""same_instants: the instants of a step's stretches at which the same happens as at the worst instant of others."""

from bisect import bisect_left
from collections import defaultdict
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
    begins = [stretch.begin_tick for stretch in tape.stretches]
    worst = {ticks[index]: index for index in like.values()}
    names = {worst[record.born]: record.name for record in tape.records if record.born in worst}
    made: dict[tuple[int, str], list[int]] = defaultdict(list)
    wanted = set(names.values())
    for record in tape.records:
        if record.name in wanted:
            made[bisect_left(begins, record.born) - 1, record.name].append(record.born)
    same = list(ticks)
    for index, other in like.items():
        if other not in names:  # the other's worst instant is its beginning
            same[index] = begins[index]
            continue
        times = made[index, names[other]]
        place = made[other, names[other]].index(ticks[other])
        same[index] = times[place] if place < len(times) else ticks[index]
    return same
