"""list_changes: every single change of a setup, each as a delta on the same ledger, ranked."""

from headwise.cost.planning.catalogue import CATALOGUE
from headwise.cost.planning.option import Made, Option, Place
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.reasons import refusal, why
from headwise.cost.planning.results import Change
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.sharding.results import Travel
from headwise.cost.sharding.travel import travels
from headwise.errors import HeadwiseError


def list_changes(
    predictor: Predictor, setup: Setup, device: Device, *, num_devices: int = 8, judge: Judge | None = None
) -> tuple[Change, ...]:
    """Try every change of the catalogue by itself, and rank what they do.

    Args:
        predictor: tells memory and FLOPs.
        setup: what is changed.
        device: what it should fit.
        num_devices: over how many devices the shardings spread it.
        judge: of that device, with what it has judged. Default: a new one.

    Raises:
        HeadwiseError: the predictor cannot tell the setup without any change.
    """
    place = Place(judge or Judge(predictor, device), num_devices)
    place.judge(setup)
    return rank(tuple(try_option(option, setup, place) for option in CATALOGUE))


def try_option(option: Option, setup: Setup, place: Place) -> Change:
    """Make one change, and tell what it does to the peak."""
    made: Made | str | None = None
    try:
        made = option.make(setup, place)
        if isinstance(made, str):
            return _cannot(option, made)
        return _changed(option, setup, made, place)
    except HeadwiseError as error:
        return _cannot(option, refusal(error, setup, made.setup if isinstance(made, Made) else None))


def rank(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Put changes in order: those with the same result first, then those that alter the model or the batch.

    In either list those come first that cost no FLOPs, by the bytes that they free; then the others, by the bytes that
    they free for each FLOP more; then those that free nothing. At the end stands what cannot be made.
    """
    return tuple(sorted(changes, key=_order))


def _order(change: Change) -> tuple[bool, bool, int, float]:
    extra = change.extra_flops_fraction
    if change.frees_bytes <= 0:
        tier, worth = 3, float(change.frees_bytes)
    elif extra is None:
        tier, worth = 2, float(change.frees_bytes)
    elif extra <= 0:
        tier, worth = 0, float(change.frees_bytes)
    else:
        tier, worth = 1, change.frees_bytes / extra
    return not change.applies, change.list == "alters", tier, -worth


def _cannot(option: Option, reason: str) -> Change:
    return Change(
        key=option.key,
        change=option.words,
        list=option.list,
        applies=False,
        frees_bytes=0,
        peak_bytes=None,
        extra_flops_fraction=None,
        fits=None,
        why=reason,
    )


def _changed(option: Option, setup: Setup, made: Made, place: Place) -> Change:
    judge = place.judge
    verdict, before = judge(made.setup), judge(setup)
    freed = before.peak_bytes - verdict.peak_bytes
    return Change(
        key=option.key,
        change=made.words,
        list=made.list,
        applies=True,
        frees_bytes=freed,
        peak_bytes=verdict.peak_bytes,
        extra_flops_fraction=extra_flops(judge.predictor, setup, made.setup),
        fits=verdict.fits,
        why=why(judge.predictor, setup, made.setup, is_enough=verdict.fits == "yes"),
        travels=_travels(made.setup),
        other_gpus=(place.num_devices - 1) if option.takes_devices else 0,
    )


def _travels(setup: Setup) -> tuple[Travel, ...]:
    if setup.sharding is None or setup.config is None:
        return ()
    return travels(with_positions(setup.config, setup.workload.seq), setup.workload, setup.sharding)


def extra_flops(predictor: Predictor, before: Setup, after: Setup) -> float | None:
    """Return by which share a step with a change runs more FLOPs for each token that it trains on."""
    rates = []
    for setup in (before, after):
        flops = predictor.flops(setup)
        if flops is None:
            return None
        rates.append(flops / setup.num_tokens)
    return rates[1] / rates[0] - 1 if rates[0] else None
