"""plan: everything that fit says of a setup on a device, in one call."""

from dataclasses import dataclass

from headwise.collector import without_collections
from headwise.cost.planning.limits import largest_batch, largest_image, largest_seq
from headwise.cost.planning.path import find_paths
from headwise.cost.planning.rank import list_changes
from headwise.cost.planning.results import Change, Path, Sweep
from headwise.cost.planning.setup import Predictor, Setup
from headwise.cost.planning.sweep import axes_of, sweep_sizes
from headwise.cost.planning.verdict import MAX_REPLAYS, Judge
from headwise.cost.results import Device, FitVerdict, Ledger
from headwise.results import Result

MAX_REPLAYED_TENSORS = 14_000
"""Tensors of a step, over all that its changes replay, and as many again for each largest size. They take 15
microseconds each."""
MIN_REPLAYS = 2  # for a largest size: how large holes are, and whether one fits


@dataclass(frozen=True, kw_only=True)
class Planned(Result):
    """What planning says of one setup.

    `verdict`: whether it fits; its `reserved_bytes` are those of a replay, None where none was possible. `ledger`:
    every tensor. `changes`: every single change, ranked. `paths`: the shortest lists of changes that make it fit, best
    first; empty where it fits, or where none was found. `largest_batch`, `largest_seq`: that fit, the other as it is;
    0: none; None: not found in time, or the model reads images, whose length is fixed. `largest_image`: pixels a side,
    of a model that reads images of any size. `sweep`: over the axes that were asked for. One judge says of all of them
    what fits, so that none contradicts another.
    """

    verdict: FitVerdict
    ledger: Ledger
    changes: tuple[Change, ...]
    paths: tuple[Path, ...]
    largest_batch: int | None
    largest_seq: int | None
    largest_image: int | None = None
    sweep: Sweep | None = None


def plan(
    predictor: Predictor,
    setup: Setup,
    device: Device,
    *,
    num_devices: int = 8,
    axes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Planned:
    """Judge a setup, and list what would change it.

    Args:
        predictor: tells memory and FLOPs of setups.
        setup: the step.
        device: what it should fit.
        num_devices: over how many devices the shardings among the changes spread it.
        axes: batches and lengths of a sweep, from `parse_axes`. Default: no sweep.

    Raises:
        HeadwiseError: the predictor cannot tell the setup, or the axes are not those of a sweep.
    """
    if axes is not None:
        axes = axes_of(setup, *axes)  # refused before anything is told
    num_layers = 1 if setup.config is None else setup.config.num_layers
    with without_collections():
        ledger = predictor.ledger(setup)
        num_replays = MAX_REPLAYED_TENSORS / max(1, len(ledger.entries))
        max_replays = min(max(MIN_REPLAYS, int(num_replays)), MAX_REPLAYS)
        max_replayed_layers = int(num_replays * num_layers)
        judge = Judge(predictor, device, max_replayed_layers=max_replayed_layers, max_replays=max_replays)
        verdict = judge.with_reserved(setup)
        changes = list_changes(predictor, setup, device, num_devices=num_devices, judge=judge)
        paths = find_paths(predictor, setup, device, changes, num_devices=num_devices, judge=judge)
        batch = largest_batch(predictor, setup, device, judge=judge)
        seq = largest_seq(predictor, setup, device, judge=judge)
        image = largest_image(predictor, setup, device, judge=judge)
    return Planned(
        verdict=verdict,
        ledger=ledger,
        changes=changes,
        paths=paths,
        largest_batch=batch,
        largest_seq=seq,
        largest_image=image,
        sweep=None if axes is None else sweep_sizes(predictor, setup, device, *axes, judge=judge),
    )
