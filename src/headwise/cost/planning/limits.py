"""The largest batch and the largest length that fit: the other as it is, and all else too."""

from collections.abc import Callable
from dataclasses import replace

from headwise.config.checks import MAX_SIZE
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device, FitVerdict
from headwise.cost.workload import MAX_TOKENS
from headwise.errors import HeadwiseError

MAX_REPLAYS = 4
"""Sizes whose allocations one search replays at most,"""
MAX_REPLAYED_LAYERS = 128
"""and the layers that it replays in all, about; one size is tried in any case."""
NEIGHBOURS = 64
"""The second size is replayed at a distance of one in so many, the next ones at four times that each."""


def largest_batch(
    predictor: Predictor, setup: Setup, device: Device, *, judge: Judge | None = None, limit: int | None = None
) -> int:
    """Return the most texts a pass that fit ("yes"), at the length as it is; 0: not even one does.

    Args:
        predictor: tells the memory of a setup.
        setup: whose batch is varied.
        device: what the step should fit.
        judge: of that device, with what it has judged. Default: a new one.
        limit: the largest batch that is tried. Default: 2^40 tokens, and what a tensor's dimension can be.

    Raises:
        HeadwiseError: the predictor cannot tell the setup with a batch of one.
    """
    workload = setup.workload
    most = min(limit or MAX_SIZE, MAX_SIZE, MAX_TOKENS // workload.seq)
    return find_largest(
        lambda batch: replace(setup, workload=replace(workload, batch=batch)),
        judge or Judge(predictor, device),
        start=workload.batch,
        limit=most,
    )


def largest_seq(
    predictor: Predictor, setup: Setup, device: Device, *, judge: Judge | None = None, limit: int | None = None
) -> int | None:
    """Return the most tokens a text that fit ("yes"), at the batch as it is; 0: not even one does.

    A length beyond the model's position table is reckoned with a longer table. An image's length is fixed: None.

    Args:
        predictor, setup, device, judge: as of `largest_batch`.
        limit: the longest length that is tried.

    Raises:
        HeadwiseError: the predictor cannot tell the setup with a length of one.
    """
    if setup.config is not None and setup.config.patches is not None:
        return None
    workload = setup.workload
    most = min(limit or MAX_SIZE, MAX_SIZE, MAX_TOKENS // workload.batch)
    return find_largest(
        lambda seq: with_length(setup, seq), judge or Judge(predictor, device), start=workload.seq, limit=most
    )


def with_length(setup: Setup, seq: int) -> Setup:
    """Return a setup at another length, with a position table that is long enough."""
    config = None if setup.config is None else with_positions(setup.config, seq)
    return replace(setup, config=config, workload=replace(setup.workload, seq=seq))


def find_largest(make: Callable[[int], Setup], judge: Judge, *, start: int, limit: int) -> int:
    """Return the largest size whose setup fits ("yes"), 0 if 1 does not; memory must not shrink with the size.

    Bounds alone give the largest size that fits for certain. Some beyond it fit by a replay of the allocator: first one
    that should if holes between blocks take as much as they do as a rule, then others at a distance of 1/64, 4/64 and
    so on, until one fits beside one that does not; `MAX_REPLAYS` in all, fewer of deep models.

    Args:
        make: from a size, the setup. One that the predictor cannot tell does not fit.
        judge: of what fits.
        start: size to begin with.
        limit: the largest size that is tried.
    """
    sizes = _Sizes(make, judge, limit)
    start = min(start, limit)
    low = sizes.search(start, sizes.fits_by_bounds)
    if start > low and sizes.fits_replayed(start, is_free=True):
        low = start
    if not judge.can_replay or low == limit:
        return low
    guess = sizes.search(max(low, 1), sizes.should_fit)
    return sizes.search_by_replays(low, guess) if guess > low else low


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
        num_layers = getattr(make(1).config, "num_layers", 1)
        self._replays_left = max(1, min(MAX_REPLAYS, MAX_REPLAYED_LAYERS // num_layers))

    def fits_by_bounds(self, size: int) -> bool:
        """Say whether a size fits for certain, without a replay."""
        verdict = self._judged(size)
        if verdict is None:
            return False
        self._shares[size] = (verdict.peak_bytes + verdict.unmodelled_high_bytes) / self._judge.device.memory_bytes
        return verdict.fits == "yes"

    def should_fit(self, size: int) -> bool:
        """Say whether a size should fit if the holes between its blocks are as large as they are as a rule."""
        verdict = self._judged(size)
        if verdict is None:
            return False
        needed = self._judge.usual_need(verdict)
        self._shares[size] = needed / self._judge.device.memory_bytes
        return needed <= self._judge.device.memory_bytes

    def fits_replayed(self, size: int, *, is_free: bool = False) -> bool:
        """Say whether a size fits by a replay; `is_free`: only where that has been found out before."""
        if not is_free:
            self._replays_left -= 1
        try:
            setup = self._make(size)
            return (self._judge.by_bounds(setup) if is_free else self._judge.replayed(setup)).fits == "yes"
        except HeadwiseError:
            return False

    def search(self, start: int, test: Callable[[int], bool]) -> int:
        """Return the largest size that passes a test, or 0: doubling or halving from a start, then between the two."""
        self._shares.clear()
        low, high = self._bracket(start, test)
        tries = 0
        while high - low > 1:
            tries += 1
            size = (low + high) // 2 if tries % 3 == 0 else self._between(low, high)
            low, high = (size, high) if test(size) else (low, size)
        return low

    def search_by_replays(self, low: int, guess: int) -> int:
        """Return the largest size found to fit from one that does, or 0, by replays around a guess."""
        step = max(1, guess // NEIGHBOURS)
        high = self._limit + 1
        size = guess
        while low < size < high and self._replays_left:
            if self.fits_replayed(size):
                low, size = size, min(size + step, self._limit)
            elif self._replays_left == 1:  # the last one is rather too small than in vain: holes shun powers of two
                high, size = size, max(low, _power_of_two((low + size) // 2))
            else:
                high, size = size, max(size - step, low + 1)
            step *= 4
        return low

    def _judged(self, size: int) -> FitVerdict | None:
        """Judge a size by bounds; None: the predictor cannot tell it, which is an error of the least size alone."""
        try:
            return self._judge.by_bounds(self._make(size))
        except HeadwiseError:
            if size == 1:
                raise
            return None

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
        while high > 1:
            low = high // 2
            if test(low):
                return low, high
            high = low
        return 0, 1

    def _between(self, low: int, high: int) -> int:
        """Return where a line through what two sizes need meets the whole device."""
        shares = self._shares
        if low not in shares or high not in shares or shares[low] >= shares[high]:
            return (low + high) // 2
        share = (1 - shares[low]) / (shares[high] - shares[low])
        return min(max(low + int(share * (high - low)), low + 1), high - 1)


def _power_of_two(size: int) -> int:
    """Return the largest power of two that is not above a size, 0 of 0."""
    return 1 << size.bit_length() >> 1
