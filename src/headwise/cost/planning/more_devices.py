"""devices_that_fit: over how many devices a step that is spread, and does not fit, would."""

from contextlib import suppress
from dataclasses import replace

from headwise.cost.planning.results import Fits
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.errors import HeadwiseError

MOST_DEVICES = 1024
MAX_REPLAYED_LAYERS = 128


def devices_that_fit(predictor: Predictor, setup: Setup, device: Device) -> tuple[int, Fits] | None:
    """Return the fewest devices, of twice as many and twice again, over which a step fits, and how well: "yes".

    Where it is "yes" over none up to 1,024, it is the fewest over which it is "tight"; None: over none either. Each
    device keeps its own texts, so that with a data-parallel kind the batch of all grows with their number.

    Args:
        predictor: tells the memory of a setup.
        setup: with a sharding.
        device: what one device's part should fit.
    """
    assert setup.sharding is not None
    judge = Judge(predictor, device, max_replayed_layers=MAX_REPLAYED_LAYERS)
    found: dict[Fits, int] = {}
    num_devices = 2 * setup.sharding.num_devices
    while num_devices <= MOST_DEVICES and "yes" not in found:
        spread = replace(setup, sharding=replace(setup.sharding, num_devices=num_devices))
        with suppress(HeadwiseError):  # heads or tokens cannot be shared out among so many
            found.setdefault(judge.fits(spread), num_devices)
        num_devices *= 2
    fits: Fits = "yes" if "yes" in found else "tight"
    return (found[fits], fits) if fits in found else None
