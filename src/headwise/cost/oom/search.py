"""Search: every allocation of every step that a message may come from, weighed."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log2
from typing import NamedTuple

from headwise.cost.oom.agreement import Failed, Replayer
from headwise.cost.oom.births import Birth, Cluster, LearnedStep
from headwise.cost.oom.common import Common
from headwise.cost.oom.evidence import Weighed, density, rough_weight, spread, weigh
from headwise.cost.oom.operations import operation_factor
from headwise.cost.oom.pairs import Pair, Ranges, find_pairs
from headwise.cost.oom.patterns import Pattern, Poly, add, length_at, value_at
from headwise.cost.oom.priors import MAX_BATCH, MAX_SEQ, batch_prior, seq_prior, usual_batches, usual_seqs
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.steps import Suspect

MAX_WEIGHED = 200_000  # allocations at a batch and length that are weighed, the likeliest pairs first
MAX_REFINED = 256  # steps at a batch and length that are looked at from the first allocation to the last
_SHARES_OF_BEST = tuple(10 ** (-step / 2) for step in range(1, 13))
_UNREFINED = 0.1  # what the rough weight of the others counts
# A device is taken to do just what the model of the allocator does as often as not: then the true step agrees with the
# message. Another one does so by accident: of 2,800 steps replayed for 19 drawn messages, none that agreed failed at
# another tensor than the true one.
_MODELLED = 0.5
_BY_ACCIDENT = 0.0005
_AGREES = _MODELLED / _BY_ACCIDENT
_DISAGREES = 1 - _MODELLED
_SETTLED = 20  # so many times likelier than all that is left, and no more is replayed

_LOADING = 0.2  # chance that memory runs out before the first step
_UNUSUAL = 0.5  # chance that the batch or the length of a step is none of the usual ones
_UNLIKELY = 1e-3


class Known(NamedTuple):
    """What is known beside the message and the model; None = not known."""

    operation: str | None = None
    batch: int | None = None
    seq: int | None = None
    longest: int | None = None


class Trial(NamedTuple):
    """A batch and length at which a tensor is tried: `pair` says what its size tells of them."""

    pair: Pair
    batch: int
    seq: int
    prior: float


class Refined(NamedTuple):
    """A step at a batch and length that has been looked at as a whole: its allocations, and the trials of each."""

    weight: float
    suspect: Suspect
    batch: int
    seq: int
    trials: dict[Pattern, Trial]
    found: list[Weighed]


@dataclass
class Group:
    """Tensors of one size at all batches and lengths, made at one kind of moment: no size can tell them apart."""

    weight: float = 0.0
    by_pair: dict[tuple[int | None, int | None], float] = field(default_factory=lambda: defaultdict(float))
    by_tensor: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    layers: set[int] = field(default_factory=set)
    best: float = -1.0
    birth: Birth | None = None
    suspect: Suspect | None = None
    before: float | None = None
    models: tuple[str, ...] = ()


class Search:
    """One search for the tensors of some sizes.

    Args:
        message: what torch says.
        ranges: sizes of the tensor that it may be about.
        known: what is known beside.
    """

    def __init__(self, message: OomMessage, ranges: Ranges, known: Known):
        self._message = message
        self._ranges = ranges
        self._known = known
        self._trials: dict[Pattern, list[Trial]] = {}
        self._chances: dict[tuple[int, float, int, bool], dict[int, float]] = {}
        self._groups: dict[object, Group] = defaultdict(Group)

    def run(self, suspects: Sequence[Suspect], replayer: Replayer | None = None) -> list[Group]:
        """Return the groups of tensors that were found, the likeliest first.

        Args:
            suspects: the steps.
            replayer: tells at which tensor a step fails with the message's figures. Default: nothing is replayed.
        """
        found: list[tuple[Suspect, Cluster, list[Trial]]] = []
        for suspect in suspects:
            for cluster in suspect.step.clusters:
                trials = self._trials_of(cluster.pattern)
                if trials and cluster.moment == "loading":
                    self._weigh_loading(suspect, cluster, trials)
                elif trials:
                    found.append((suspect, cluster, trials))
                    self._weigh_unusual(suspect, cluster, trials)
        refined = self._weigh_found(found)
        failures = {} if replayer is None else self._replay(refined, replayer)
        for place, one in enumerate(refined):
            other = _DISAGREES if place in failures else 1.0
            for weighed in one.found:
                factor = _AGREES if _is_it(one, weighed, failures.get(place)) else other
                pair = one.trials[weighed.birth.pattern].pair
                self._add(one.suspect, weighed.birth, pair, factor * self._weight(one, weighed), weighed.before)
        return self._ranked()

    def try_common(self, tensors: Sequence[Common]) -> list[Group]:
        """Return the groups of tensors of common shapes, of which nothing but the size is known."""
        for common in tensors:
            birth, known = common.birth, self._known
            pairs = find_pairs(birth.pattern, self._ranges, batch=known.batch, seq=known.seq, longest=known.longest)
            group = self._groups[birth.pattern]
            for pair in pairs:
                self._add_to(group, birth, pair, common.prior * pair.prior * operation_factor(known.operation, birth))
            group.models = common.models
        return self._ranked()

    def _ranked(self) -> list[Group]:
        return sorted((group for group in self._groups.values() if group.weight), key=lambda group: -group.weight)

    def _trials_of(self, pattern: Pattern) -> list[Trial]:
        if pattern not in self._trials:
            known = self._known
            pairs = find_pairs(pattern, self._ranges, batch=known.batch, seq=known.seq, longest=known.longest)
            trials = [Trial(pair, *values) for pair in pairs for values in self._complete(pair)]
            self._trials[pattern] = sorted(trials, key=lambda trial: -trial.prior)
        return self._trials[pattern]

    def _complete(self, pair: Pair) -> Iterator[tuple[int, int, float]]:
        """Give batches and lengths at which a pair is tried, with priors: usual ones where it leaves them open."""
        known, longest = self._known, self._known.longest
        batch, seq = pair.batch or known.batch, pair.seq or known.seq
        batches = [(batch, 1.0)] if batch else [(one, batch_prior(one)) for one in usual_batches()]
        seqs = [(seq, 1.0)] if seq else [(one, seq_prior(one, longest)) for one in usual_seqs(longest)]
        for (one_batch, of_batch), (one_seq, of_seq) in product(batches, seqs):
            yield one_batch, one_seq, pair.prior * of_batch * of_seq

    def _weigh_found(self, found: Sequence[tuple[Suspect, Cluster, list[Trial]]]) -> list[Refined]:
        """Weigh each allocation alone, then those of the likeliest steps in their turn, and return these in order."""
        least = _least_prior(found)
        rough: dict[tuple[int, int, int], list[tuple[Suspect, Cluster, Trial, float]]] = defaultdict(list)
        for suspect, cluster, trials in found:
            for trial in trials:
                prior = suspect.prior * trial.prior
                if prior < least:
                    break
                if suspect.has_seq(trial.seq):
                    observed = self._message.allocated_bytes
                    weight = prior * rough_weight(suspect.step, cluster, trial.batch, trial.seq, observed)
                    rough[id(suspect), trial.batch, trial.seq].append((suspect, cluster, trial, weight))
        ranked = sorted(rough.values(), key=lambda rows: -sum(row[3] for row in rows))
        refined = [self._refine(rows) for rows in ranked[:MAX_REFINED]]
        least = _UNLIKELY * max((row[3] for rows in ranked for row in rows), default=0.0)
        for rows in ranked[MAX_REFINED:]:
            for suspect, cluster, trial, weight in rows:
                for birth in cluster.births if weight >= least else ():
                    share = birth.times / cluster.num_tensors
                    self._add(suspect, birth, trial.pair, _UNREFINED * share * weight, None)
        return sorted(refined, key=lambda one: -one.weight)

    def _refine(self, rows: Sequence[tuple[Suspect, Cluster, Trial, float]]) -> Refined:
        """Weigh the allocations of a step at one batch and length once more, along the step."""
        suspect, _, trial, _ = rows[0]
        trials = {cluster.pattern: trial for _, cluster, trial, _ in rows}
        found = weigh(suspect.step, trial.batch, trial.seq, self._message, trials)
        total = sum(suspect.prior * trials[one.birth.pattern].prior * one.weight for one in found)
        return Refined(total, suspect, trial.batch, trial.seq, trials, found)

    def _replay(self, refined: Sequence[Refined], replayer: Replayer) -> dict[int, Failed | None]:
        """Replay steps, the likeliest first, and return by place what fails in those that agree with the message.

        Once what agrees is far likelier than all that is left, only steps of the same batches and lengths are replayed
        on: they may differ in nothing before the tensor that fails.
        """
        failures: dict[int, Failed | None] = {}
        pairs: set[tuple[int, int]] = set()
        left, agreeing = sum(one.weight for one in refined), 0.0
        for place, one in enumerate(refined):
            if replayer.is_spent:
                break
            left -= one.weight
            if agreeing > _SETTLED * left and (one.batch, one.seq) not in pairs:
                continue
            failed = failures[place] = replayer.find_failure(one.suspect.step, one.batch, one.seq)
            if failed is not None:
                pairs.add((one.batch, one.seq))
                agreeing += _AGREES * sum(self._weight(one, found) for found in one.found if _is_it(one, found, failed))
        return failures

    def _weight(self, step: Refined, found: Weighed) -> float:
        return step.suspect.prior * step.trials[found.birth.pattern].prior * found.weight

    def _weigh_loading(self, suspect: Suspect, cluster: Cluster, trials: Sequence[Trial]) -> None:
        """Weigh weights, inputs and caches, which come before the step."""
        step, observed = suspect.step, self._message.allocated_bytes
        tried: dict[Pair, Trial] = {}
        for trial in trials:
            if suspect.has_seq(trial.pair.seq):
                tried.setdefault(trial.pair, trial)
        for pair, (_, batch, seq, _) in list(tried.items())[:MAX_REFINED]:
            share = cluster.pattern.bytes_at(batch, seq) / value_at(step.total, batch, seq)
            for birth in cluster.births:
                before, growth = value_at(birth.before, batch, seq), value_at(birth.growth, batch, seq)
                weight = share * birth.times if observed is None else density(observed, before, growth, birth.times)
                self._add(suspect, birth, pair, _LOADING * suspect.prior * pair.prior * weight, before)

    def _weigh_unusual(self, suspect: Suspect, cluster: Cluster, trials: Sequence[Trial]) -> None:
        """Weigh tensors of a fixed size in steps of unusual batches or, where the batch is known, lengths.

        The batch or length is solved from the bytes in use; either is about equally likely in every octave, which makes
        its density that of bytes that may be any.
        """
        step, observed, known = suspect.step, self._message.allocated_bytes, self._known
        pair = trials[0].pair
        is_solved = pair.batch is None and (known.batch is None or (pair.seq or known.seq) is None)
        if not is_solved or observed is None:
            return
        for birth in cluster.births:
            in_middle = add(birth.before, birth.growth, (birth.times - 1) / 2)
            for has_states in (False, True) if step.states_bytes else (False,):
                states = step.states_bytes * (birth.states == "always" or (has_states and birth.states == "later"))
                batch, seq = self._solve_unusual(in_middle, observed - states, pair)
                if not (1 <= batch <= MAX_BATCH and 1 <= seq <= MAX_SEQ and suspect.has_seq(int(seq))):
                    continue
                chance = self._chance(step, birth, batch, seq, has_states=has_states)
                weight = _UNUSUAL * chance * spread(observed) * (0.5 if step.states_bytes else 1.0)
                self._add(suspect, birth, pair, suspect.prior * pair.prior * weight, None)

    def _solve_unusual(self, before: Poly, target: int, pair: Pair) -> tuple[int | float, int | float]:
        """Return the batch and length at which so many bytes are in use, one of them known or usual; 0 = none."""
        known = self._known
        seq = pair.seq or known.seq
        if known.batch is not None and seq is None:
            return known.batch, length_at(before, known.batch, target)
        seq = seq or usual_seqs(known.longest)[0]
        fixed = value_at(before, 0, seq)
        slope = value_at(before, 1, seq) - fixed
        return ((target - fixed) / slope if slope > 0 else 0.0), seq

    def _chance(
        self, step: LearnedStep, birth: Birth, batch: int | float, seq: int | float, *, has_states: bool
    ) -> float:
        """Return how likely there is no room for a tensor of a fixed size, at about a batch and length."""
        about = 2 ** (round(4 * log2(batch)) / 4)
        about_seq = round(2 ** (round(4 * log2(seq)) / 4))
        key = (id(step), about, about_seq, has_states)
        if key not in self._chances:
            patterns = {cluster.pattern for cluster in step.clusters if self._trials.get(cluster.pattern)}
            weighed = weigh(step, about, about_seq, self._message, patterns)
            for states in (False, True):
                self._chances[id(step), about, about_seq, states] = {
                    id(one.birth): one.chance for one in weighed if one.has_states == states
                }
        return self._chances[key].get(id(birth), _UNLIKELY)

    def _add(self, suspect: Suspect, birth: Birth, pair: Pair, weight: float, before: float | None) -> None:
        weight *= operation_factor(self._known.operation, birth, suspect.step.workload)
        group = self._groups[birth.pattern.poly, birth.pattern.dtype, birth.moment]
        if weight > group.best:
            group.suspect, group.before = suspect, before
        self._add_to(group, birth, pair, weight)

    def _add_to(self, group: Group, birth: Birth, pair: Pair, weight: float) -> None:
        group.weight += weight
        group.by_pair[pair.batch, pair.seq] += weight
        group.by_tensor[birth.owner, birth.name] += weight
        group.layers.update(birth.layers or ())
        if weight > group.best:
            group.best, group.birth = weight, birth


def _is_it(step: Refined, found: Weighed, failed: Failed | None) -> bool:
    """Tell whether a replay failed at an allocation."""
    if failed is None:
        return False
    birth = found.birth
    shape = birth.pattern.shape_at(step.batch, step.seq)
    return Failed(birth.name, birth.owner, birth.moment, shape, birth.pattern.dtype) == failed


def _least_prior(found: Sequence[tuple[Suspect, Cluster, list[Trial]]]) -> float:
    """Return the prior below which trials are left out, so that not too many allocations are weighed."""
    best = max((suspect.prior * trials[0].prior for suspect, _, trials in found), default=0.0)
    least = best
    for share in _SHARES_OF_BEST:
        num_weighed = 0
        for suspect, cluster, trials in found:
            bound = share * best / suspect.prior
            num_weighed += len(cluster.births) * bisect_right(trials, -bound, key=lambda trial: -trial.prior)
        if num_weighed > MAX_WEIGHED:
            break
        least = share * best
    return least
