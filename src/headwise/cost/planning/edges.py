"""find_edges: the largest length that fits at each of several batches."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from headwise.config.checks import MAX_SIZE
from headwise.config.vision_model import GrowingPatches
from headwise.cost.planning.limits import largest_image, largest_seq, with_image_size, with_length
from headwise.cost.planning.results import FrontierPoint
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.workload import MAX_TOKENS
from headwise.errors import HeadwiseError

FARTHER = 4
"""By how much the next size is farther away while all that were tried fit, or none did."""


def find_edges(judge: Judge, setup: Setup, batches: Sequence[int]) -> Iterator[FrontierPoint]:
    """Give the largest length that fits at each batch; batches of which it is not found in time are left out.

    The first is searched for as `largest_seq` does. No larger batch has a larger length, so that the others are looked
    for below the one before, first where the last two edges lead, and then where the bytes that two lengths need lead.

    Args:
        judge: of what fits.
        setup: all else of the step; an image's length is its own, where it cannot have any size.
        batches: texts a pass, rising.
    """
    patches = setup.config.patches if setup.config is not None else None
    if isinstance(patches, GrowingPatches):
        yield from _find_images(judge, setup, batches)
        return
    if patches is not None:
        for batch in batches:
            is_enough = judge.fits(_with_batch(setup, batch)) == "yes"
            yield FrontierPoint(batch=batch, largest_seq=setup.workload.seq if is_enough else None, is_limit=is_enough)
        return
    search = _Search(judge)
    for batch in batches:
        at_batch = _with_batch(setup, batch)
        largest = search.find_largest(at_batch)
        if largest is not None:
            is_limit = largest == _longest(at_batch)
            yield FrontierPoint(batch=batch, largest_seq=largest or None, is_limit=is_limit)


def _find_images(judge: Judge, setup: Setup, batches: Sequence[int]) -> Iterator[FrontierPoint]:
    """Give the tokens of the largest image that fits at each batch; no larger batch has a larger image."""
    limit = None
    for batch in batches:
        at_batch = _with_batch(setup, batch)
        image = largest_image(judge.predictor, at_batch, judge.device, judge=judge, limit=limit)
        if image is not None:
            tokens = with_image_size(at_batch, image).workload.seq if image else None
            yield FrontierPoint(batch=batch, largest_seq=tokens, is_limit=False)
            limit = image or 1


def _with_batch(setup: Setup, batch: int) -> Setup:
    return replace(setup, workload=replace(setup.workload, batch=batch))


def _longest(setup: Setup) -> int:
    """Return the longest length that is tried."""
    step = setup.length_step
    return min(MAX_SIZE, MAX_TOKENS // setup.workload.batch) // step * step


class _Search:
    """Edges of rising batches, each found from those before.

    Near an edge a length is about a power of the batch (-1 where memory grows with all tokens alike), and what an edge
    needs of the device by bounds is about the same.
    """

    def __init__(self, judge: Judge):
        self._judge = judge
        self._before: tuple[int, int] | None = None  # batch and length of the last edge
        self._power = -1.0
        self._target = 1.0  # share of the device that an edge needs by bounds
        self._needs: dict[int, float] = {}  # the same of the lengths tried at a batch

    def find_largest(self, setup: Setup) -> int | None:
        """Return the largest length that fits, 0: none; None: not found in time."""
        batch = setup.workload.batch
        try:
            if self._before is None:
                largest = largest_seq(self._judge.predictor, setup, self._judge.device, judge=self._judge)
            else:
                largest = self._below(setup, *self._before)
        except OutOfTime:
            return None
        if largest:
            self._learn(with_length(setup, largest))
        if largest is not None:
            self._before = batch, largest
        return largest

    def _learn(self, edge: Setup) -> None:
        """Note what an edge tells of the next one."""
        self._target = self._need(edge)
        if self._before is not None and self._before[1] > 0:
            batch, seq = self._before
            power = log(edge.workload.seq / seq) / log(edge.workload.batch / batch)
            self._power = max(-1.0, min(power, -0.5))

    def _below(self, setup: Setup, batch: int, seq: int) -> int:
        """Return the largest length that fits, from that of a smaller batch."""
        step = setup.length_step
        most = min(seq, _longest(setup)) // step
        low, high = 0, most + 1  # fits; does not
        self._needs.clear()
        guess = int(seq * (setup.workload.batch / batch) ** self._power) // step
        size = max(1, min(most, guess))
        distance = 0
        while low < high - 1:
            if self._fits(with_length(setup, size * step), size):
                low = size
            else:
                high = size
            missing = abs(self._target - self._needs.get(size, self._target))
            distance = max(FARTHER * distance, int(missing * size), 1)
            size = self._next(low, high, most, distance)
        return low * step

    def _next(self, low: int, high: int, most: int, distance: int) -> int:
        """Return the size to try between one that fits, or 0, and one that does not, or one more than the most."""
        if low == 0:
            return max(high - distance, 1)
        if high > most:
            return min(low + distance, most)
        between = self._needs.get(low, 0.0), self._needs.get(high, 0.0)
        if not 0 < between[0] < between[1] or len(self._needs) % 4 == 0:  # where the line leads nowhere, the middle
            return (low + high) // 2
        share = (self._target - between[0]) / (between[1] - between[0])
        return max(low + 1, min(low + int(share * (high - low)), high - 1))

    def _fits(self, setup: Setup, size: int) -> bool:
        known = self._judge.known(setup)
        if known is not None:
            return known
        try:
            fits = self._judge.fits(setup) == "yes"
        except OutOfTime:
            raise
        except HeadwiseError:
            return False
        self._needs[size] = self._need(setup)
        return fits

    def _need(self, setup: Setup) -> float:
        """Return the share of the device that a setup needs, which the judge knows."""
        verdict = self._judge.by_bounds(setup)
        return verdict.peak_bytes / self._judge.device.memory_bytes
