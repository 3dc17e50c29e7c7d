"""Does a setup fit? By bounds where they suffice, by a replay of the allocator where they do not."""

from headwise.cost.planner import ALLOCATOR_KINDS, judge, unmodelled
from headwise.cost.planning.results import Fits
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.results import Device, FitVerdict

MAX_REPLAYED_LAYERS = 128
"""Layers, over all replays of one judge: one takes a millisecond or two a layer, and a plan should take below a second.
Afterwards bounds alone decide, on the safe side: "tight" may stand where a replay would have said "yes"."""

MAX_LAYERS_WITHOUT_LIMIT = 48
"""Steps of more layers that cannot fit are not replayed to tell what they would reserve."""

USUAL_HOLES_PERCENT = 2
"""How much more than the peak a step needs as a rule: 1.6 % in the median, see `planner.HOLES_PERCENT`."""


class Judge:
    """Whether setups fit one device; each is judged once.

    "no": the peak and the lower bound of what is not modelled are more than the device has. "yes": the peak with the
    most for holes between blocks and the upper bounds is not. Only between the two are the allocations replayed, within
    what the upper bounds leave of the device: "yes" if they all fit, else "tight".

    Args:
        predictor: tells the memory of a setup.
        device: what the setups should fit.
        max_replayed_layers: how many layers may be replayed in all, where not asked for with `replayed`.
    """

    def __init__(self, predictor: Predictor, device: Device, *, max_replayed_layers: int = MAX_REPLAYED_LAYERS):
        self.predictor = predictor
        self.device = device
        self._layers_left = max_replayed_layers
        self._by_bounds: dict[Setup, FitVerdict] = {}
        self._verdicts: dict[Setup, FitVerdict] = {}

    @property
    def num_judged(self) -> int:
        """How many setups have been judged."""
        return len(self._by_bounds)

    @property
    def can_replay(self) -> bool:
        """Whether torch's CUDA allocator serves the device."""
        return self.device.kind in ALLOCATOR_KINDS

    def __call__(self, setup: Setup) -> FitVerdict:
        """Judge a setup, by a replay where bounds do not tell.

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self._verdicts.get(setup)
        if verdict is None:
            verdict = self.by_bounds(setup)
            if verdict.fits == "tight" and self._take_layers(setup):
                return self.replayed(setup)
            self._verdicts[setup] = verdict
        return verdict

    def fits(self, setup: Setup) -> Fits:
        """Judge a setup: the word alone."""
        return self(setup).fits

    def by_bounds(self, setup: Setup) -> FitVerdict:
        """Judge a setup by bounds alone, unless it has been judged with a replay.

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self._verdicts.get(setup) or self._by_bounds.get(setup)
        if verdict is None:
            peak_bytes = self.predictor.step(setup).peak_bytes
            verdict = judge(peak_bytes, self.device, num_devices=_num_devices(setup))
            self._by_bounds[setup] = verdict
        return verdict

    def replayed(self, setup: Setup) -> FitVerdict:
        """Judge a setup by a replay, unless bounds say "no".

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self.by_bounds(setup)
        if verdict.fits != "no" and verdict.reserved_bytes is None and self.can_replay:
            verdict = self._within_capacity(setup, verdict.peak_bytes) or verdict
        self._verdicts[setup] = verdict
        return verdict

    def with_reserved(self, setup: Setup) -> FitVerdict:
        """Judge a setup by a replay, and tell the reserved bytes also of one that does not fit, as without a limit.

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self.replayed(setup)
        if verdict.reserved_bytes is None and self.can_replay and _num_layers(setup) <= MAX_LAYERS_WITHOUT_LIMIT:
            reserved = self.predictor.reserved(setup)
            if reserved is not None:
                num_devices = _num_devices(setup)
                verdict = judge(verdict.peak_bytes, self.device, reserved_bytes=reserved, num_devices=num_devices)
                self._verdicts[setup] = verdict
        return verdict

    def usual_need(self, verdict: FitVerdict) -> int:
        """Return what a step needs of the device if holes between its blocks take as much as they do as a rule."""
        parts = unmodelled(verdict.peak_bytes, self.device, reserved_bytes=verdict.peak_bytes)
        holes = verdict.peak_bytes * USUAL_HOLES_PERCENT // 100
        return verdict.peak_bytes + holes + sum(part.high for part in parts)

    def _within_capacity(self, setup: Setup, peak_bytes: int) -> FitVerdict | None:
        """Judge by a replay within what the upper bounds leave; None: it does not fit there, or cannot be replayed."""
        num_devices = _num_devices(setup)
        parts = unmodelled(peak_bytes, self.device, reserved_bytes=peak_bytes, num_devices=num_devices)
        room = self.device.memory_bytes - sum(part.high for part in parts)
        reserved = self.predictor.reserved(setup, room) if room >= peak_bytes else None
        if reserved is None:
            return None
        return judge(peak_bytes, self.device, reserved_bytes=reserved, num_devices=num_devices)

    def _take_layers(self, setup: Setup) -> bool:
        """Say whether a setup may be replayed, and count its layers."""
        if not self.can_replay or _num_layers(setup) > self._layers_left:
            return False
        self._layers_left -= _num_layers(setup)
        return True


def judge_setup(predictor: Predictor, setup: Setup, device: Device) -> FitVerdict:
    """Judge one setup on one device, as `Judge` does.

    Raises:
        HeadwiseError: the predictor cannot tell it.
    """
    return Judge(predictor, device)(setup)


def _num_layers(setup: Setup) -> int:
    return 1 if setup.config is None else setup.config.num_layers


def _num_devices(setup: Setup) -> int:
    return 1 if setup.sharding is None else setup.sharding.num_devices
