"""The largest batch and the largest length that fit: the other as it is, and all else too."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from headwise.config.checks import MAX_SIZE
from headwise.cost.planning.setup import OutOfTime, Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device, FitVerdict
from headwise.cost.workload import MAX_TOKENS
from headwise.errors import HeadwiseError

MAX_REPLAYS = 12
"""Sizes whose allocations one search replays at most,"""
MAX_LAYERS = 192
"""and the layers that it replays in all, about; one size is tried in any case."""
NEIGHBOURS = 64
"""The second size is replayed at a distance of one in so many, the next ones at four times that each."""


def largest_batch(
    predictor: Predictor, setup: Setup, device: Device, *, judge: Judge | None = None, limit: int | None = None
) -> int | None:
    """Return the most texts a pass that fit ("yes"), at the length as it is; 0: not even one does; None: not found.

    Args:
        predictor: tells the memory of a setup.
        setup: whose batch is varied.
        device: what the step should fit.
        judge: of that device, with what it has judged. Default: a new one.
        limit: the largest batch that is tried. Default: 2^40 tokens, and what a tensor's dimension can be.
    """
    workload = setup.workload
    most = min(MAX_SIZE if limit is None else limit, MAX_SIZE, MAX_TOKENS // workload.seq)
    return find_largest(
        lambda batch: replace(setup, workload=replace(workload, batch=batch)),
        judge or Judge(predictor, device),
        start=workload.batch,
        limit=most,
    )


def largest_seq(
    predictor: Predictor, setup: Setup, device: Device, *, judge: Judge | None = None, limit: int | None = None
) -> int | None:
    """Return the most tokens a text that fit ("yes"), at the batch as it is; 0: not even one does; None: not found.

    A length beyond the model's position table is reckoned with a longer table. An image's length is fixed: None. Where
    devices have equal parts of a text, lengths are tried that their number divides.

    Args:
        predictor, setup, device, judge: as of `largest_batch`.
        limit: the longest length that is tried.
    """
    if setup.config is not None and setup.config.patches is not None:
        return None
    workload = setup.workload
    most = min(MAX_SIZE if limit is None else limit, MAX_SIZE, MAX_TOKENS // workload.batch)
    return find_largest(
        lambda seq: with_length(setup, seq),
        judge or Judge(predictor, device),
        start=workload.seq,
        limit=most,
        step=setup.length_step,
    )


def with_length(setup: Setup, seq: int) -> Setup:
    """Return a setup at another length."""
    return replace(setup, workload=replace(setup.workload, seq=seq))


def find_largest(make: Callable[[int], Setup], judge: Judge, *, start: int, limit: int, step: int = 1) -> int | None:
    """Return the largest size that is found to fit ("yes"), 0 where none is; memory must not shrink with the size.

    None: the predictor ran out of time before it was found.

    Bounds alone give the largest size that fits for certain, by bisection. Some beyond it fit by a replay of the
    allocator: a size that should fit if holes are as large as they are as a rule is replayed without a limit, and tells
    how large they are; first one is tried that should fit with these, then others at a distance of 1/64, 4/64 and on,
    then by bisection between what fits and what does not, to the end or until `MAX_REPLAYS` have been made, of deep
    models fewer. What the judge has said of smaller and larger sizes counts as
    found; and that the next size does not fit, it takes as said from then on.

    Args:
        make: from a size, the setup. One that the predictor cannot tell does not fit.
        judge: of what fits.
        start: size to begin with.
        limit: the largest size that is tried.
        step: only multiples of it are tried.
    """
    most = limit // step
    if most == 0:
        return 0
    sizes = _Sizes(lambda count: make(count * step), judge, most)
    largest = sizes.find_largest(min(max(start // step, 1), most))
    return None if sizes.is_cut_short else step * largest


class _Sizes:
    """Sizes of a setup, and what has been found of them.

    Args:
        make: from a size, the setup.
        judge: of what fits.
        limit: the largest size that is tried.
    """

    def __init__(self, make: Callable[[int], Setup], judge: Judge, limit: int):
        self._make = make
        self._judge = judge
        self._limit = limit
        self._shares: dict[int, float] = {}  # of the device that a size needs
        self.is_cut_short = False
        self._holes_share: float | None = None  # of the peak, as one replay has them
        num_layers = getattr(make(1).config, "num_layers", 1)
        self._replays_left = max(1, min(MAX_REPLAYS, MAX_LAYERS // num_layers))

    def find_largest(self, start: int) -> int:
        """Return the largest size that is found to fit, or 0."""
        low = self._search(start, self._fits_for_certain)
        if self._judge.can_replay and low < self._limit and not self.is_cut_short:
            low = self._search_by_replays(low, self._guess(low))
        if self.is_cut_short:
            return 0  # and nothing is said of any size
        if low:
            self._judge(self._make(low))
        if low < self._limit:
            self._judge.rule_out(self._make(low + 1))
        return low

    def _guess(self, low: int) -> int:
        """Return the size that should be the largest, from how large holes are as a rule, and then from one replay."""
        guess = max(self._search(max(low, 1), self._should_fit), low + 1)
        verdict = self._judged(self._make(guess))
        if verdict is None or verdict.fits == "no":
            return low
        self._holes_share = self._judge.holes_share(self._make(guess))
        return guess if self._holes_share is None else max(self._search(max(low, 1), self._should_fit), low + 1)

    def _fits_for_certain(self, size: int) -> bool:
        """Say whether a size fits by what has been said, or by bounds."""
        setup = self._make(size)
        verdict = self._judged(setup)
        if verdict is None:
            return False
        self._shares[size] = (verdict.peak_bytes + verdict.unmodelled_high_bytes) / self._judge.device.memory_bytes
        known = self._judge.known(setup)
        return verdict.fits == "yes" if known is None else known

    def _should_fit(self, size: int) -> bool:
        """Say whether a size should fit if the holes between its blocks are as large as is known so far."""
        setup = self._make(size)
        verdict = self._judged(setup)
        if verdict is None:
            return False
        needed = self._judge.usual_need(setup, verdict, holes_share=self._holes_share)
        self._shares[size] = needed / self._judge.device.memory_bytes
        known = self._judge.known(setup)
        return needed <= self._judge.device.memory_bytes if known is None else known

    def _fits_replayed(self, size: int) -> bool:
        """Say whether a size fits by what has been said, or by a replay."""
        setup = self._make(size)
        known = self._judge.known(setup)
        if known is None:
            self._replays_left -= 1
            verdict = self._judged(setup) and self._judge.replayed(setup)
            known = verdict is not None and verdict.fits == "yes"
        return known

    def _judged(self, setup: Setup) -> FitVerdict | None:
        """Judge a size by bounds; None: the predictor cannot tell it."""
        try:
            return self._judge.by_bounds(setup)
        except OutOfTime:
            self.is_cut_short = True
            return None
        except HeadwiseError:
            return None

    def _search(self, start: int, test: Callable[[int], bool]) -> int:
        """Return the largest size that passes a test, or 0: doubling or halving from a start, then between the two."""
        self._shares.clear()
        low, high = self._bracket(start, test)
        tries = 0
        while high - low > 1:
            tries += 1
            size = (low + high) // 2 if tries % 3 == 0 else self._between(low, high)
            low, high = (size, high) if test(size) else (low, size)
        return low

    def _search_by_replays(self, low: int, guess: int) -> int:
        """Return the largest size found to fit from one that does, or 0: by replays around a guess, then bisection."""
        high = self._limit + 1
        size, distance = guess, max(1, guess // NEIGHBOURS)
        has_replayed = False  # one that fits
        while low < size < high and self._replays_left:
            if self._fits_replayed(size):
                low, has_replayed = size, True
                size = min(size + distance, self._limit) if high > self._limit else (low + high) // 2
            else:
                high = size
                size = (low + high) // 2 if has_replayed else max(size - distance, (low + high) // 2)
            distance *= 4
        return low

    def _bracket(self, start: int, test: Callable[[int], bool]) -> tuple[int, int]:
        """Return a size that passes, or 0, and a larger one that does not, or limit + 1."""
        low, high = start, start
        if test(start):
            while low < self._limit:
                high = min(2 * low, self._limit)
                if not test(high):
                    return low, high
                low = high
            return low, low + 1
        if not test(1) and 1 in self._shares:  # where the least can be told at all, it is the least memory
            return 0, 1
        while high > 1:
            low = high // 2
            if test(low):
                return low, high
            high = low
        return 0, 1

    def _between(self, low: int, high: int) -> int:
        """Return where a curve through what three sizes need, those that need nearly all, meets the whole device."""
        shares = self._shares
        if low not in shares or high not in shares or shares[low] >= shares[high]:
            return (low + high) // 2
        near = dict(sorted(((share, size) for size, share in shares.items()), key=lambda one: abs(1 - one[0]))[:3])
        guess = sum(
            size * prod((1 - other) / (share - other) for other in near if other != share)
            for share, size in near.items()
        )
        return min(max(int(guess), low + 1), high - 1)
