"""Claims put to the test: what a claim says of two arms, and what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.config.checks import require_choice, require_text
from headwise.errors import ConfigError
from headwise.experiments.intervals import paired_difference, paired_ratio
from headwise.experiments.results import MIN_SEEDS, ArmResult, ClaimResult, PairedDifference, SeedValues, Verdict

TEST = "test"
RATIOS = ("steps_per_second", "peak_bytes", "seconds")
"""Quantities of speed and memory: arms are compared by their ratio, all others by their difference."""


@dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """A claim, and the paired difference that decides it.

    Args:
        text: the claim as it is made.
        source: by whom.
        arm, other: names of the arms: what the claim is about, and what it is held against.
        expects: whether the arm's number should be "higher" or "lower" than the other's.
        metric: of the test, where `quantity` is "test". Default: the comparison's.
        where: "test", the name of a bucket of lengths, or that of a further test.
        minus: a second place as `where`, whose number is taken from that at `where`: a claim about a fall.
        quantity: "test", or a number of the runs: "steps_per_second", "peak_bytes", "gap", "seconds_to_0.9" and others.

    Raises:
        ConfigError: a text is empty, both arms are the same, or a metric or a place is given for a number of the
            runs.
    """

    text: str
    source: str
    arm: str
    other: str
    expects: Literal["higher", "lower"] = "higher"
    metric: str | None = None
    where: str = TEST
    minus: str | None = None
    quantity: str = TEST

    def __post_init__(self) -> None:
        for name in ("text", "source", "arm", "other", "where", "quantity"):
            require_text(name, getattr(self, name))
        for name in ("metric", "minus"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        require_choice("expects", self.expects, ("higher", "lower"))
        if self.arm == self.other:
            raise ConfigError(f"a claim must hold one arm against another; got {self.arm!r} twice")
        if self.quantity != TEST and (self.where != TEST or self.minus is not None or self.metric is not None):
            raise ConfigError(
                f"a claim about {self.quantity} is one about whole runs; leave out metric, where and minus"
            )


def decide_claims(claims: Sequence[ClaimTest], arms: Sequence[ArmResult], metric: str) -> tuple[ClaimResult, ...]:
    """Return what became of each claim.

    A claim is supported if the 95 % interval of the paired difference lies on the side that it expects, contradicted if
    on the other. It is not decided if the interval holds 0 (a ratio's: 1), or if a run of either arm has no such
    number; and with fewer than five seeds nothing is said.

    Args:
        claims: to test.
        arms: of the comparison.
        metric: of the comparison.
    """
    by_name = {arm.name: arm for arm in arms}
    return tuple(_test(claim, by_name[claim.arm], by_name[claim.other], metric) for claim in claims)


def difference_of(claim: ClaimTest, arm: ArmResult, other: ArmResult, metric: str) -> PairedDifference | None:
    """Return the paired difference or ratio that decides a claim; None where a run has no such number."""
    first, second = _values(claim, arm, metric), _values(claim, other, metric)
    if first is None or second is None or not first or len(first) != len(second):
        return None
    is_ratio = claim.quantity.startswith(RATIOS) and min(*first, *second) > 0
    compare = paired_ratio if is_ratio else paired_difference
    name = (claim.metric or metric) if claim.quantity == TEST else claim.quantity
    return compare(first, second, metric=name, arm=arm.name, other=other.name)


def _test(claim: ClaimTest, arm: ArmResult, other: ArmResult, metric: str) -> ClaimResult:
    difference = difference_of(claim, arm, other, metric)
    verdict: Verdict = "not decided"
    if len(arm.runs) < MIN_SEEDS:
        verdict = "not enough seeds"
    elif difference is not None and difference.verdict in ("higher", "lower"):
        verdict = "supported" if difference.verdict == claim.expects else "contradicted"
    where = claim.where if claim.minus is None else f"{claim.where} less {claim.minus}"
    return ClaimResult(
        text=claim.text,
        source=claim.source,
        verdict=verdict,
        difference=difference,
        expects=claim.expects,
        where=where,
    )


def _values(claim: ClaimTest, arm: ArmResult, metric: str) -> tuple[float, ...] | None:
    """Return one number a seed; None where one is missing."""
    if claim.quantity != TEST:
        return _complete(arm.numbers.get(claim.quantity))
    name = claim.metric or metric
    values = _complete(_at(arm, claim.where).get(name))
    if claim.minus is None or values is None:
        return values
    taken = _complete(_at(arm, claim.minus).get(name))
    return None if taken is None else tuple(one - less for one, less in zip(values, taken, strict=True))


def _at(arm: ArmResult, where: str) -> dict[str, SeedValues]:
    if where == TEST:
        return arm.metrics
    return arm.further.get(where) or arm.by_length.get(where) or {}


def _complete(found: SeedValues | None) -> tuple[float, ...] | None:
    return None if found is None or len(found.known) < len(found.values) else found.known
