"""find_paths: the shortest lists of changes that make a step fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod

from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.option import Made, Option, Place
from headwise.cost.planning.rank import extra_flops
from headwise.cost.planning.results import Change, Path
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.step.cycles import count_played
from headwise.errors import HeadwiseError

MAX_LENGTH = 4  # changes in a path
MAX_PATHS = 12  # of one length
BUDGET = 3500
"""Tensors of layers that are played at most for each length: of most models it takes 200 to 400 to judge a setup."""

MIN_TRIES = 2  # lists of each length, on one device and on several

HOPEFUL = 1.25
"""Lists are tried in the order of preference whose estimated peak is at most so many times what the device has."""

HOPELESS = 2.0
"""Lists are not tried whose estimated peak is more than so many times what the device has."""


def find_paths(
    predictor: Predictor,
    setup: Setup,
    device: Device,
    changes: tuple[Change, ...],
    *,
    num_devices: int = 8,
    judge: Judge | None = None,
    budget: int = BUDGET,
) -> tuple[Path, ...]:
    """Return the shortest lists of changes with which a step fits ("yes"), the best first.

    Where the only single changes that are enough take more devices, the shortest lists for the one device stand first.
    Where a single change is enough, the pairs of techniques that are enough stand behind: they leave the model, the
    batch, the length and the number of devices as they are. Lists are made of changes that can each be made by itself,
    and the search ends with its budget: it may miss a list. No list holds another one. Of lists of one length the best
    has the same result, one device, the fewest FLOPs and the smallest peak, in this order.

    Args:
        predictor: tells memory and FLOPs.
        setup: what should fit.
        device: what it should fit.
        changes: of `list_changes` for the same setup and device.
        num_devices: as of `list_changes`.
        judge: of that device, with what it has judged. Default: a new one.
        budget: tensors of layers that are played at most for each length, in lists that seem to fit by what each change
            frees.

    Returns:
        No path where the setup fits as it is, or where none was found.
    """
    place = Place(judge or Judge(predictor, device), num_devices)
    if place.judge.fits(setup) == "yes":
        return ()
    search = _Search(setup, place, changes)
    singles = search.singles()
    if not singles:
        return _best(search.shortest_lists(search.options, budget))
    own = [option for option in search.options if not option.takes_devices]
    needs_others = all(found.takes_devices for found in singles)
    on_one_device = search.shortest_lists(own, budget) if needs_others else []
    techniques = [option for option in search.options if option.is_technique]
    return _best(on_one_device) + _best(singles) + _best(search.lists_of(2, techniques, singles, budget))


def _num_played(setup: Setup, predictor: Predictor) -> int:
    """Return about how many tensors of layers are played to judge a setup once."""
    if setup.config is None:
        return 1
    num_tensors = len(predictor.ledger(setup).entries)
    return num_tensors * count_played(setup.config, setup.workload) // setup.config.num_layers


@dataclass(frozen=True)
class _Found:
    """A list of changes that is enough, and on how many devices."""

    path: Path
    takes_devices: bool

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        """The best first."""
        extra = self.path.extra_flops_fraction
        return self.path.list == "alters", self.takes_devices, inf if extra is None else extra, self.path.peak_bytes


def _best(found: list[_Found]) -> tuple[Path, ...]:
    return tuple(one.path for one in sorted(found, key=lambda one: one.order)[:MAX_PATHS])


class _Search:
    """Lists of changes of one setup: those that can be made by themselves, in the catalogue's order."""

    def __init__(self, setup: Setup, place: Place, changes: Sequence[Change]):
        self.setup = setup
        self.place = place
        self.changes = {change.key: change for change in changes if change.applies}
        self.options = [option for option in CATALOGUE if option.key in self.changes]
        self._peak_bytes = place.judge(setup).peak_bytes
        self._num_played = max(1, _num_played(setup, place.judge.predictor))

    def singles(self) -> list[_Found]:
        """Return the changes that are enough by themselves."""
        found = []
        for option in self.options:
            change = self.changes[option.key]
            if change.fits == "yes" and change.peak_bytes is not None:
                path = Path(
                    keys=(option.key,),
                    changes=(change.change,),
                    list=change.list,
                    peak_bytes=change.peak_bytes,
                    extra_flops_fraction=change.extra_flops_fraction,
                    fits="yes",
                )
                found.append(_Found(path, option.takes_devices))
        return found

    def shortest_lists(self, options: Sequence[Option], budget: int) -> list[_Found]:
        """Return the lists of the fewest options, of two or more, that are enough."""
        for length in range(2, MAX_LENGTH + 1):
            if found := self.lists_of(length, options, [], budget):
                return found
        return []

    def lists_of(self, length: int, options: Sequence[Option], shorter: list[_Found], budget: int) -> list[_Found]:
        """Return lists of so many options that are enough and hold none that is."""
        enough = [set(found.path.keys) for found in shorter]
        lists = [
            chosen
            for chosen in combinations(options, length)
            if len({option.topic for option in chosen}) == length
            and not any(keys.issubset(option.key for option in chosen) for keys in enough)
            and self._estimate(chosen) <= HOPELESS * self.place.device.memory_bytes
        ]
        on_one = [chosen for chosen in lists if not _takes_devices(chosen)]
        on_many = [chosen for chosen in lists if _takes_devices(chosen)]
        return [*self._try_all(on_one, budget), *self._try_all(on_many, budget // 2)]

    def _try_all(self, lists: list[tuple[Option, ...]], budget: int) -> list[_Found]:
        last = self.place.judge.num_judged + max(MIN_TRIES, budget // self._num_played)
        found: list[_Found] = []
        for chosen in self._ordered(lists):
            if self.place.judge.num_judged >= last or len(found) >= MAX_PATHS:
                break
            if (one := self._try(chosen)) is not None:
                found.append(one)
        return found

    def _ordered(self, lists: list[tuple[Option, ...]]) -> list[tuple[Option, ...]]:
        """Put lists in the order in which they are tried: by preference, and in turns by what they seem to need."""
        pairs = zip(sorted(lists, key=self._preference), sorted(lists, key=self._estimate), strict=True)
        return list(dict.fromkeys(chosen for pair in pairs for chosen in pair))

    def _estimate(self, chosen: Sequence[Option]) -> float:
        """Estimate a peak as if each change freed its share of what the others leave."""
        peaks = (self.changes[option.key].peak_bytes or 0 for option in chosen)
        return self._peak_bytes * prod(peak / self._peak_bytes for peak in peaks)

    def _preference(self, chosen: Sequence[Option]) -> tuple[bool, bool, float, float]:
        estimate = self._estimate(chosen)
        if estimate > HOPEFUL * self.place.device.memory_bytes:
            return True, False, 0.0, estimate
        members = [self.changes[option.key] for option in chosen]
        alters = any(member.list == "alters" for member in members)
        extra = sum(member.extra_flops_fraction or 0.0 for member in members)
        return False, alters, extra, estimate

    def _try(self, chosen: Sequence[Option]) -> _Found | None:
        """Make changes one after another; None where one cannot be made after the others, or they are not enough."""
        steps: list[Made] = []
        setup = self.setup
        try:
            for option in chosen:
                made = option.make(setup, self.place)
                if isinstance(made, str):
                    return None
                steps.append(made)
                setup = made.setup
            verdict = self.place.judge(setup)
            if verdict.fits != "yes":
                return None
            extra = extra_flops(self.place.judge.predictor, self.setup, setup)
        except HeadwiseError:
            return None
        path = Path(
            keys=tuple(option.key for option in chosen),
            changes=tuple(step.words for step in steps),
            list="alters" if any(step.list == "alters" for step in steps) else "same",
            peak_bytes=verdict.peak_bytes,
            extra_flops_fraction=extra,
            fits=verdict.fits,
        )
        return _Found(path, _takes_devices(chosen))


def _takes_devices(chosen: Sequence[Option]) -> bool:
    return any(option.takes_devices for option in chosen)
