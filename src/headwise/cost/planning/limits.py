"""The largest batch, and the largest length or image, that fit: the other as it is, and all else too."""

from collections.abc import Callable
from dataclasses import replace
from math import isqrt, prod

from headwise.config.checks import MAX_SIZE
from headwise.config.vision_model import GrowingPatches, with_image
from headwise.cost.planning.setup import OutOfTime, Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device, FitVerdict
from headwise.cost.workload import MAX_TOKENS
from headwise.errors import HeadwiseError

ALIGNED = 8
"""Lengths are looked for among its multiples first: rows of a mask are padded up to them, so that a length that is none
may need far more than the next one that is."""
NEIGHBOURS = 64
"""Where guesses agree, the second size is at a distance of one in so many, the next ones at four times that."""


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
        aligned=ALIGNED,
    )


def largest_image(
    predictor: Predictor, setup: Setup, device: Device, *, judge: Judge | None = None, limit: int | None = None
) -> int | None:
    """Return the most pixels a side of an image that fit ("yes"), at the batch as it is; 0: not even one place does.

    Images are tried that are whole patches, or whole strides. None: not found, or the model reads texts, or images of
    one size.

    Args:
        predictor, setup, device, judge: as of `largest_batch`.
        limit: the largest image that is tried.
    """
    patches = setup.config.patches if setup.config is not None else None
    if not isinstance(patches, GrowingPatches):
        return None
    step = patches.patch_size
    places = isqrt(min(MAX_SIZE, MAX_TOKENS // setup.workload.batch))  # along a side
    return find_largest(
        lambda image: with_image_size(setup, image),
        judge or Judge(predictor, device),
        start=patches.image_size,
        limit=min(MAX_SIZE if limit is None else limit, MAX_SIZE, places * step),
        step=step,
    )


def with_image_size(setup: Setup, image: int) -> Setup:
    """Return a setup at another size of image."""
    assert setup.config is not None and setup.config.patches is not None, "a model of images"
    config = with_image(setup.config, image)
    assert config.patches is not None
    return replace(setup, config=config, workload=replace(setup.workload, seq=config.patches.num_tokens))


def with_length(setup: Setup, seq: int) -> Setup:
    """Return a setup at another length."""
    return replace(setup, workload=replace(setup.workload, seq=seq))


def find_largest(
    make: Callable[[int], Setup],
    judge: Judge,
    *,
    start: int,
    limit: int,
    step: int = 1,
    aligned: int = 1,
) -> int | None:
    """Return the largest size that is found to fit ("yes"), 0 where none is; memory must not shrink with the size.

    None: the predictor ran out of time before it was found.

    Bounds alone give the largest size that fits for certain, by bisection. Some beyond it fit by a replay of the
    allocator: a size that should fit if holes are as large as they are as a rule is replayed without a limit, and tells
    how large they are (unless only one replay may be made), which gives a second guess. Between the two, below or above
    them others are tried, to the end or until as many replays have been made as the judge allows. What the judge has
    said of smaller and larger sizes counts as found; and that the next size does not fit, it takes as said from then
    on.

    Args:
        make: from a size, the setup. One that the predictor cannot tell does not fit.
        judge: of what fits.
        start: size to begin with.
        limit: the largest size that is tried.
        step: only multiples of it are tried.
        aligned: the largest multiple of so many steps is found first, and then the largest size up to the next one.
    """
    most = limit // step
    found, known = 0, None
    if most >= aligned > 1:
        known = _Sizes(lambda count: make(count * aligned * step), judge, most // aligned)
        found = aligned * known.find_largest(start // (aligned * step))
        if known.is_cut_short:
            return None
        most = min(most, found + aligned - 1)
    if found == most:
        return found * step
    rest = _Sizes(lambda count: make((found + count) * step), judge, most - found, like=known)
    more = rest.find_largest(1 if known else start // step)
    return None if rest.is_cut_short else step * (found + more)


class _Sizes:
    """Sizes of a setup, and what has been found of them.

    Args:
        make: from a size, the setup.
        judge: of what fits.
        limit: the largest size that is tried.
        like: others of the same step, whose holes are as large, and what they have left to replay. Default: none.
    """

    def __init__(self, make: Callable[[int], Setup], judge: Judge, limit: int, like: "_Sizes | None" = None):
        self._make = make
        self._judge = judge
        self._limit = limit
        self._shares: dict[int, float] = {}  # of the device that a size needs
        self.is_cut_short = False
        self._replays_left: int = judge.max_replays if like is None else like._replays_left
        # Of the peak, as one replay has them.
        self._holes_share: float | None = None if like is None else like._holes_share

    def find_largest(self, start: int) -> int:
        """Return the largest size that is found to fit, or 0."""
        low = self._search(min(max(start, 1), self._limit), self._fits_for_certain)
        if self._judge.can_replay and low < self._limit and self._replays_left and not self.is_cut_short:
            low = self._search_by_replays(low, self._guess(low))
        if self.is_cut_short:
            return 0  # and nothing is said of any size
        if low:
            self._judge(self._make(low))
        if low < self._limit:
            self._judge.rule_out(self._make(low + 1))
        return low

    def _guess(self, low: int) -> tuple[int, int]:
        """Return sizes that should be the largest: from how large holes are as a rule, and from one replay."""
        usual = max(self._search(max(low, 1), self._should_fit), low + 1)
        verdict = self._judged(self._make(usual))
        if verdict is None or verdict.fits == "no" or self._judge.known(self._make(usual)) is False:
            return low, low
        if self._holes_share is None and self._replays_left > 1:
            self._replays_left -= 1
            self._holes_share = self._judge.holes_share(self._make(usual))
        if self._holes_share is None:
            return usual, usual
        return max(self._search(max(low, 1), self._should_fit), low + 1), usual

    def _share_of(self, size: int, verdict: FitVerdict, holes_share: float | None) -> float:
        """Return the share of the device that a judged size needs, with such holes between its blocks."""
        needed = self._judge.usual_need(self._make(size), verdict, holes_share=holes_share)
        return needed / self._judge.device.memory_bytes

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
        self._shares[size] = self._share_of(size, verdict, self._holes_share)
        known = self._judge.known(setup)
        return self._shares[size] <= 1 if known is None else known

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
        """Return the largest size that passes a test, or 0: between those told before, or doubling from a start."""
        told = sorted(self._shares)
        self._shares.clear()
        passing = [test(size) for size in told]  # at once: each has been told
        num_low = passing.index(False) if False in passing else len(told)
        if 0 < num_low < len(told):
            low, high = told[num_low - 1], told[num_low]
        else:
            low, high = self._bracket(told[-1] if num_low else start, test)
        tries = 0
        while high - low > 1:
            tries += 1
            size = (low + high) // 2 if tries % 3 == 0 else self._between(low, high)
            low, high = (size, high) if test(size) else (low, size)
        return low

    def _search_by_replays(self, low: int, guesses: tuple[int, int]) -> int:
        """Return the largest size found to fit from one that does, or 0: by replays around guesses, then bisection."""
        high = self._limit + 1
        least, most = sorted(guesses)
        size, distance = (least + most) // 2, max(1, (most - least + 1) // 2, least // NEIGHBOURS)
        while low < size < high and self._replays_left:
            if self._fits_replayed(size):
                low = size
                size = min(size + distance, self._limit) if high > self._limit else (low + high) // 2
            else:
                high = size
                size = least if low < least < high else max((low + high) // 2, high - distance)
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
