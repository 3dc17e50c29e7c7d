"""repeat_row: from the record of a module whose row of layers was cut, the record of the whole one.

The second period of the row stands for all that are missing. The record of the third period must be that of the second
one, birth by birth and release by release, wherever in the step. What comes out is a forecast: it says nothing of a
forward pass that looks at a layer's number, or that runs parts of a layer on their own.
"""

import re
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import groupby

from headwise.cost.tracing.layers import Row
from headwise.cost.tracing.lives import Event, Life, Where

_FIRST, _SECOND, _THIRD, _FOURTH = range(4)
_Run = list[Event]


class IrregularError(Exception):
    """Two periods of a row did not live alike."""


def repeat_row(row: Row, standing: list[Life], events: list[Event]) -> tuple[list[Life], list[Event]]:
    """Return standing lives and events with the periods that are missing.

    Args:
        row: what was cut.
        standing: lives from before the record of the module that was cut.
        events: its births and releases. Lives of layers behind the cut are renumbered in place.

    Raises:
        IrregularError: the second and third period did not live alike, or did not run as layers of the row.
    """
    return _Repetition(row, standing, events).result() if row.num_missing else (standing, events)


class _Repetition:
    """The second period with its copies.

    A run is what happens in one period without a break. Runs of the second and the third stand side by side, in
    forward the second one first, in backward the third; between them those of the missing periods are put.
    """

    def __init__(self, row: Row, standing: list[Life], events: list[Event]):
        self._row = row
        self._standing = standing
        self._unit = {life: row.unit(life.layer) for life in standing}
        for life, where in events:
            self._unit.setdefault(life, row.unit(where.layer))
        self._runs = [(unit, list(run)) for unit, run in groupby(events, key=lambda event: row.unit(event.where.layer))]
        self._copies: dict[Life, list[Life]] = {}  # of a life of the second period: itself, and one a missing period
        self._second_of: dict[Life, Life] = {}  # of a life of the third period: the same of the second
        self._number = re.compile(rf"{re.escape(row.name)}\.(\d+)(?![^.])")

    def result(self) -> tuple[list[Life], list[Event]]:
        """Pair what is the same in the second and the third period, then write all with the copies."""
        self._pair(*([life for life in self._standing if self._unit[life] == unit] for unit in (_SECOND, _THIRD)))
        seen = set(self._standing)
        groups = list(self._group())
        if not any(_SECOND in group for group in groups):  # the row ran under other names, or not as layers
            raise IrregularError
        for group in groups:
            births = {unit: _births(run, seen) for unit, run in group.items()}
            if _SECOND in group:
                self._pair(births[_SECOND], births[_THIRD])
        standing: list[Life] = []
        for unit, lives in groupby(self._standing, key=self._unit.__getitem__):
            if unit == _SECOND:
                columns = zip(*(self._copies[life] for life in lives), strict=True)
                standing += (life for column in columns for life in column)
            else:
                standing += lives
        events: list[Event] = []
        for group in groups:
            if _SECOND in group:
                events += self._repeat(group)
            else:
                [(unit, run)] = group.items()
                events += self._keep(unit, run)
        for life, unit in self._unit.items():
            if unit is not None and unit >= _THIRD:
                self._move(life, self._row.num_missing)
        return standing, events

    def _group(self) -> Iterator[dict[int | None, _Run]]:
        """Yield every run by its period, but runs of the second and the third together, in their order."""
        runs = iter(self._runs)
        for unit, run in runs:
            if unit not in (_SECOND, _THIRD):
                yield {unit: run}
                continue
            next_unit, next_run = next(runs, (None, []))
            if {unit, next_unit} != {_SECOND, _THIRD}:
                raise IrregularError
            yield {unit: run, next_unit: next_run}

    def _pair(self, seconds: list[Life], thirds: list[Life]) -> None:
        """Take lives of the third period for the same as those of the second, in order, and copy the latter."""
        if len(seconds) != len(thirds):
            raise IrregularError
        for second, third in zip(seconds, thirds, strict=True):
            self._require_same(second, third)
            self._second_of[third] = second
            self._copies[second] = [second, *(self._copy(second, c) for c in range(1, self._row.num_missing + 1))]

    def _repeat(self, group: dict[int | None, _Run]) -> _Run:
        """Put the runs of the missing periods between those of the second and the third one."""
        if len(group[_SECOND]) != len(group[_THIRD]):
            raise IrregularError
        columns: list[_Run] = [[] for _ in range(self._row.num_missing + 2)]
        for (second, where), (third, third_where) in zip(group[_SECOND], group[_THIRD], strict=True):
            if self._shift(where, 1) != third_where:
                raise IrregularError
            for periods, (column, life) in enumerate(zip(columns, self._line_up(second, third), strict=True)):
                column.append(Event(life, self._shift(where, periods)))
        ordered = columns if next(iter(group)) == _SECOND else reversed(columns)
        return [event for column in ordered for event in column]

    def _line_up(self, second: Life, third: Life) -> list[Life]:
        """Return what the same event befalls in the second period, in each missing one, and in the third."""
        of = self._unit[second]
        if of == _SECOND and self._second_of.get(third) is second:
            return [*self._copies[second], third]
        if of == _FIRST and third in self._copies:  # each period releases what the one before has made
            return [second, *self._copies[third]]
        if of == _THIRD and second in self._second_of and self._unit[third] == _FOURTH:  # or the one behind
            return [*self._copies[self._second_of[second]][1:], second, third]
        raise IrregularError

    def _keep(self, unit: int | None, run: _Run) -> _Run:
        """Return a run of another period, or of none: there copies are released with their original."""
        kept: _Run = []
        released: dict[int, set[Life]] = {_SECOND: set(), _THIRD: set()}
        periods = self._row.num_missing if unit is not None and unit > _THIRD else 0
        for life, where in run:
            of = self._unit[life]
            if of is not None and of in released:
                released[of].add(life)
            copies = [life]
            if of == _SECOND and unit is None:  # released in the order in which the two that were recorded are
                is_last = any(self._second_of[third] is life for third in released[_THIRD])
                copies = self._copies[life][:: -1 if is_last else 1]
            kept += [Event(each, self._shift(where, periods)) for each in copies]
        if unit is None:
            is_regular = {self._second_of[life] for life in released[_THIRD]} == released[_SECOND]
        else:
            is_regular = not (released[_SECOND] and unit != _FIRST) and not (released[_THIRD] and unit != _FOURTH)
        if not is_regular:
            raise IrregularError
        return kept

    def _require_same(self, life: Life, later: Life) -> None:
        """Demand that a life is that of the same tensor one period later."""
        mine = (life.name, life.kind, life.bytes, life.shape, life.dtype, life.line, self._shift_name(life.owner, 1))
        if mine != (later.name, later.kind, later.bytes, later.shape, later.dtype, later.line, later.owner):
            raise IrregularError

    def _copy(self, life: Life, periods: int) -> Life:
        copied = copy(life)
        self._move(copied, periods)
        return copied

    def _move(self, life: Life, periods: int) -> None:
        life.owner, life.layer = self._shift(Where("", life.owner, life.layer), periods)[1:]

    def _shift(self, where: Where, periods: int) -> Where:
        """Return the same place some periods later."""
        layer = where.layer
        if layer is not None and layer[0] == self._row.name:
            layer = (layer[0], layer[1] + periods * self._row.period)
        return Where(where.phase, self._shift_name(where.owner, periods), layer)

    def _shift_name(self, name: str, periods: int) -> str:
        match = self._number.match(name)
        if match is None:
            return name
        return f"{self._row.name}.{int(match[1]) + periods * self._row.period}{name[match.end() :]}"


def _births(run: Iterable[Event], seen: set[Life]) -> list[Life]:
    """Return the lives that begin in a run, and add them to those that were seen."""
    born = [life for life in dict.fromkeys(event.life for event in run) if life not in seen]
    seen.update(born)
    return born
