"""Changes that spread a step over several devices."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from headwise.cost.planning.option import Made, Option, Place
from headwise.cost.planning.setup import Setup
from headwise.cost.sharding.results import DATA_PARALLEL, SHARDINGS, Sharding

NAMES = {
    "zero1": "DDP with ZeroRedundancyOptimizer (ZeRO-1)",
    "zero2": "FSDP2 with reshard_after_forward=False (ZeRO-2, its weights sharded too)",
    "zero3": "FSDP2 (ZeRO-3)",
    "tensor": "tensor parallel",
    "sequence": "tensor and sequence parallel",
    "context": "context parallel",
}


def list_sharding_changes() -> Iterator[Option]:
    """Give every way of spreading a step over devices."""
    for kind in SHARDINGS:
        make = partial(_spread, kind)
        yield Option(key=kind, topic="devices", words=NAMES[kind], list="same", make=make, takes_devices=True)


def _spread(kind: str, setup: Setup, place: Place) -> Made | str:
    """Spread a step; whether heads and tokens can be shared out, the predictor says."""
    num_devices = place.num_devices
    if setup.sharding is not None:
        return f"already spread over {setup.sharding.num_devices} devices: {NAMES[setup.sharding.kind]}"
    if num_devices < 2:
        return f"it takes two devices at least; there is {num_devices}"
    phase = setup.workload.phase
    if phase != "train" and kind in ("zero1", "zero2"):
        return f"a {phase} has no optimizer states and no gradients to share out"
    spread = replace(setup, sharding=Sharding(kind=kind, num_devices=num_devices))  # type: ignore[arg-type]  # a kind
    words = f"{NAMES[kind]} over {num_devices} devices"
    return _share_texts(spread, words) if kind in DATA_PARALLEL else Made(spread, words, "same")


def _share_texts(spread: Setup, words: str) -> Made:
    """Share the texts of one step out among the devices where they can be, else let each have as many of its own."""
    workload, num_devices = spread.workload, spread.num_copies
    if workload.batch % num_devices == 0:
        shared = replace(workload, batch=workload.batch // num_devices)
        return Made(replace(spread, workload=shared), f"{words}, batch {shared.batch} on each", "same")
    if workload.accumulation % num_devices == 0:
        shared = replace(workload, accumulation=workload.accumulation // num_devices)
        return Made(replace(spread, workload=shared), f"{words}, {shared.accumulation} of the passes on each", "same")
    whole = num_devices * workload.batch
    return Made(spread, f"{words}, batch {workload.batch} on each: {whole} in all", "alters")
