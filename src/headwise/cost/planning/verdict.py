"""Does a setup fit? By bounds where they suffice, by a replay of the allocator where they do not."""

from dataclasses import replace

from headwise.cost.planner import ALLOCATOR_KINDS, judge, unmodelled
from headwise.cost.planning.results import Fits
from headwise.cost.planning.said import Said
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.results import Device, FitVerdict

MAX_REPLAYED_LAYERS = 256
"""Layers, over all replays of one judge: one takes a millisecond or two a layer, and a plan should take below a second.
Afterwards bounds decide, on the safe side: "tight" may stand where a replay would have said "yes"."""

MAX_REPLAYS = 12
"""Replays that one search for a largest size makes at most."""

MAX_LAYERS_WITHOUT_LIMIT = 40
"""Steps of more layers that cannot fit are not replayed to tell what they would reserve."""

USUAL_HOLES_PERCENT = 4
"""How much more than the peak a step needs as a rule: 3 to 4 % in the median of the replays of `planner`,"""
USUAL_HOLES_OF_CHECKPOINTS_PERCENT = 12
"""and 12 % in the median of those that checkpoint every layer."""


class Judge:
    """Whether setups fit one device; each is judged once.

    "no": the peak and the lower bound of what is not modelled are more than the device has. "yes": the peak with the
    most for holes between blocks and the upper bounds is not. Only between the two are the allocations replayed, within
    what the upper bounds leave of the device: "yes" if they all fit, else "tight".

    One judge never contradicts itself. A setup keeps its verdict; and of setups that differ in batch and length alone,
    none is "yes" where one that is smaller in both, or as large, is not. Holes between blocks do not obey this: now and
    then a replay of 2048 tokens does not fit and one of 4096 does. What is said first stands then: the larger one is
    "tight" where the smaller one has been found not to fit; and the smaller one is "yes" where the larger one has been
    found to fit, since padded up to that one's size it is the same step.

    When no layers are left to replay, a setup that bounds do not tell is "tight".

    Args:
        predictor: tells the memory of a setup.
        device: what the setups should fit.
        max_replayed_layers: how many layers may be replayed in all, where not asked for with `replayed`.
        max_replays: how many replays a search for a largest size may make, at least 1.
    """

    def __init__(
        self,
        predictor: Predictor,
        device: Device,
        *,
        max_replayed_layers: int = MAX_REPLAYED_LAYERS,
        max_replays: int = MAX_REPLAYS,
    ):
        self.predictor = predictor
        self.device = device
        self.max_replays = max_replays
        self._layers_left = max_replayed_layers
        self._by_bounds: dict[Setup, FitVerdict] = {}
        self._verdicts: dict[Setup, FitVerdict] = {}
        self._said = Said()

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
            if verdict.fits == "tight" and self.known(setup) is None and self._take_layers(setup):
                return self.replayed(setup)
            verdict = self._say(setup, verdict)
        return verdict

    def fits(self, setup: Setup) -> Fits:
        """Judge a setup: the word alone."""
        return self(setup).fits

    def known(self, setup: Setup) -> bool | None:
        """Tell whether a setup fits ("yes") by what has been said of smaller and larger ones; None: nothing tells."""
        return self._said.tells(setup)

    def rule_out(self, setup: Setup) -> None:
        """Take it as said that a setup does not fit for certain, as of one beyond the largest that was found to."""
        self._said.add(setup, False)

    def allow(self, num_layers: int) -> None:
        """Let so many layers more be replayed."""
        self._layers_left += num_layers

    def by_bounds(self, setup: Setup) -> FitVerdict:
        """Judge a setup by bounds alone, unless it has been judged with a replay.

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self._verdicts.get(setup) or self._by_bounds.get(setup)
        if verdict is None:
            peak_bytes = self.predictor.step(setup).peak_bytes
            verdict = judge(peak_bytes, self.device, num_devices=_num_devices(setup), workload=setup.workload)
            self._by_bounds[setup] = verdict
        return verdict

    def replayed(self, setup: Setup) -> FitVerdict:
        """Judge a setup by a replay, unless bounds say "no".

        Raises:
            HeadwiseError: the predictor cannot tell it.
        """
        verdict = self.by_bounds(setup)
        is_open = verdict.fits != "no" and verdict.reserved_bytes is None and self.known(setup) is None
        if is_open and self.can_replay and (replayed := self._within_capacity(setup, verdict.peak_bytes)):
            verdict = replayed
        return self._say(setup, verdict)

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
                found = judge(verdict.peak_bytes, self.device, reserved_bytes=reserved, num_devices=num_devices)
                # A replay counts cuBLAS's workspace among its own, so that its lower bound says "no" less often.
                fits = verdict.fits if verdict.fits == "no" else found.fits
                self._said.forget(setup)
                verdict = self._say(setup, replace(found, fits=fits))
        return verdict

    def holes_share(self, setup: Setup) -> float | None:
        """Return what a replay without a limit reserves above the peak, as a share of it; None where there is none."""
        reserved = self.predictor.reserved(setup)
        return None if reserved is None else max(0.0, reserved / self.by_bounds(setup).peak_bytes - 1)

    def usual_need(self, setup: Setup, verdict: FitVerdict, *, holes_share: float | None = None) -> int:
        """Return what a judged step needs of the device if holes between its blocks take a share of its peak.

        Args:
            setup: the step.
            verdict: about it.
            holes_share: of the peak. Default: what holes take as a rule.
        """
        peak_bytes, num_devices = verdict.peak_bytes, _num_devices(setup)
        parts = unmodelled(peak_bytes, self.device, reserved_bytes=peak_bytes, num_devices=num_devices)
        if holes_share is None:
            checkpoints_all = setup.workload.phase == "train" and setup.workload.checkpoint == "full"
            holes_share = (USUAL_HOLES_OF_CHECKPOINTS_PERCENT if checkpoints_all else USUAL_HOLES_PERCENT) / 100
        holes = int(peak_bytes * holes_share)
        return peak_bytes + holes + sum(part.high for part in parts)

    def _within_capacity(self, setup: Setup, peak_bytes: int) -> FitVerdict | None:
        """Judge by a replay within what the upper bounds leave; None: it does not fit there, or cannot be replayed."""
        num_devices = _num_devices(setup)
        parts = unmodelled(peak_bytes, self.device, reserved_bytes=peak_bytes, num_devices=num_devices)
        room = self.device.memory_bytes - sum(part.high for part in parts)
        reserved = self.predictor.reserved(setup, room) if room >= peak_bytes else None
        if reserved is None:
            return None
        return judge(peak_bytes, self.device, reserved_bytes=reserved, num_devices=num_devices)

    def _say(self, setup: Setup, verdict: FitVerdict) -> FitVerdict:
        """Make a verdict agree with what has been said of smaller and larger setups, and remember it."""
        known = self.known(setup)
        if known is not None and verdict.fits == ("tight" if known else "yes"):
            verdict = replace(verdict, fits="yes" if known else "tight")
        self._said.add(setup, verdict.fits == "yes")
        self._verdicts[setup] = verdict
        return verdict

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
