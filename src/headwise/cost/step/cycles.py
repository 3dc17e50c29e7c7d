"""find_cycles: equal layers, and cycles of layers, that come many times in a row; and how many of them are played."""

from collections.abc import Sequence

from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step.freezing import frozen_layers
from headwise.cost.workload import Workload

MAX_CYCLE = 16  # layers; in published models a cycle has at most 8


def count_played(config: ModelConfig, workload: Workload) -> int:
    """Return how many layers of a model are played to tell a step of it, those of an encoder included."""
    border, turns = frozen_layers(workload), turns_ahead(workload)
    parts = (config.blocks[:border], config.blocks[border:])
    cycles = [cycle for part in parts for cycle in find_cycles(part)]
    num_played = sum(len(cycle) * count_turns(len(cycle), times, turns) for cycle, times in cycles)
    return num_played + (0 if config.encoder is None else len(config.encoder.blocks))


def turns_ahead(workload: Workload) -> int:
    """Return how many whole turns of a cycle are played before the one that stands for others.

    Adapters may be in some layers of a cycle alone; no backward goes below the first, so that one turn is.
    """
    return 0 if workload.lora is None else 1


def count_turns(width: int, times: int, ahead: int) -> int:
    """Return how many turns are played of a cycle of so many layers: one that has a layer before and one behind it."""
    return min(times, max(3 if width == 1 else 2, ahead + 2))


def find_cycles(blocks: Sequence[BlockConfig]) -> list[tuple[list[BlockConfig], int]]:
    """Cut a sequence of layers into cycles, each with how many times it comes in a row.

    At every place the cycle is taken that leaves the fewest layers to play, or the layer alone.
    """
    numbers: dict[BlockConfig, int] = {}
    distinct = {id(block): block for block in blocks}  # readers share one object among equal layers
    by_object = {key: numbers.setdefault(block, len(numbers)) for key, block in distinct.items()}
    kinds = [by_object[id(block)] for block in blocks]
    cycles = []
    place = 0
    while place < len(kinds):
        best, most_saved = (1, 1), 0
        for width in range(1, MAX_CYCLE + 1):
            end = place + width
            while end < len(kinds) and kinds[end] == kinds[end - width]:
                end += 1
            times = (end - place) // width
            saved = (times - count_turns(width, times, 0)) * width
            if saved > most_saved:
                best, most_saved = (width, times), saved
        width, times = best
        cycles.append((list(blocks[place : place + width]), times))
        place += width * times
    return cycles
