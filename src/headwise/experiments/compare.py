"""A controlled comparison: arms that differ in one thing, the same seeds, each with its own best learning rate."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headwise.errors import ConfigError, MissingExtraError
from headwise.experiments.arm_results import (
    arm_result,
    comparison_notes,
    environment_notes,
    environments_of,
    setup_of,
    test_lengths,
)
from headwise.experiments.claim_tests import decide_claims
from headwise.experiments.classification import Classification
from headwise.experiments.comparison import TUNING_SEED, Arm, Comparison, identity_of
from headwise.experiments.comparison_folder import keep_result, kept_result, open_folder
from headwise.experiments.engine import Engine, Job, LocalEngine
from headwise.experiments.intervals import paired_difference
from headwise.experiments.linear_baseline import linear_baseline
from headwise.experiments.processes import Processes
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import ArmResult, ComparisonResult, LinearBaseline, PairedDifference
from headwise.experiments.run_result import Run

__all__ = ["TUNING_SEED", "Arm", "Comparison", "identity_of", "run_comparison"]

LINEAR = "linear baseline"  # what is being done, as progress tells it

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def run_comparison(
    comparison: Comparison,
    folder: str | os.PathLike[str],
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> ComparisonResult:
    """Choose each arm's learning rate on one seed, run every arm with every seed, and compare them seed by seed.

    Args:
        comparison: what to run.
        folder: where runs are kept, one folder each; those that are done are read, those that were killed go on. The
            result is kept in its `comparison.json`.
        engine: what does the runs. Default: this process, one after another.
        progress: called as runs begin and after every one.

    Raises:
        OutputError: the folder cannot be written, or holds something else.
        ConfigError: with no learning rate an arm trained to its end with a finite loss.
    """
    engine = LocalEngine() if engine is None else engine
    with engine.together() as processes:
        return _run(comparison, Path(folder), engine, processes, progress if processes.is_first else None)


def _run(
    comparison: Comparison, place: Path, engine: Engine, processes: Processes, progress: Progress | None
) -> ComparisonResult:
    """Do a comparison in this process, of which the first one alone reads and writes the folder."""
    processes.first(lambda: open_folder(place, comparison.name, identity_of(comparison)))

    def run_all(what: str, jobs: list[Job]) -> list[Run]:
        if progress is None or not jobs:
            return engine.run_all(jobs)
        progress(what, 0, len(jobs))
        return engine.run_all(jobs, done=lambda so_far, total: progress(what, so_far, total))

    baseline, missing = processes.first(lambda: _baseline(comparison, place, progress))
    tried = _try_rates(comparison, place, run_all)
    chosen = {arm.name: _best_rate(tried[arm.name], arm.recipe or comparison.recipe) for arm in comparison.arms}
    jobs = [
        Job(
            settings=comparison.settings(arm, seed, chosen[arm.name]),
            folder=place / f"arm-{number}-seed-{seed}",
        )
        for number, arm in enumerate(comparison.arms)
        for seed in comparison.seeds
    ]
    runs = run_all("runs", jobs)
    return processes.first(
        lambda: _result(comparison, place, runs, chosen, tried, baseline, missing, getattr(engine, "workers", 1))
    )


def _result(
    comparison: Comparison,
    place: Path,
    runs: Sequence[Run],
    chosen: Mapping[str, float],
    tried: Mapping[str, Mapping[float, float]],
    baseline: LinearBaseline | None,
    missing: tuple[str, ...],
    at_once: int,
) -> ComparisonResult:
    """Return what came out of all runs, and keep it."""
    environments = environments_of(place)
    machine = {**(environments[0] if environments else {}), "runs_at_once": at_once}
    count = len(comparison.seeds)
    settings = [comparison.settings(arm, comparison.seeds[0]) for arm in comparison.arms]
    arms = tuple(
        arm_result(
            arm.name,
            settings[number],
            metric=comparison.metric,
            rate=chosen[arm.name],
            tried=tried[arm.name],
            runs=runs[number * count : (number + 1) * count],
            device=machine.get("device", "cpu"),
        )
        for number, arm in enumerate(comparison.arms)
    )
    result = ComparisonResult(
        name=comparison.name,
        question=comparison.question,
        metric=comparison.metric,
        seeds=comparison.seeds,
        arms=arms,
        differences=_differences(comparison.metric, arms),
        claims=decide_claims(comparison.claims, arms, comparison.metric),
        published=comparison.published,
        baseline=baseline,
        test_lengths=test_lengths(settings[0]),
        setup=setup_of(comparison.recipe, settings[0], comparison.learning_rates),
        environment=machine,
        when=max((str(one.get("date", ""))[:10] for one in environments), default=""),
        folder=str(place),
        notes=(*comparison_notes(arms, comparison.task.num_classes), *environment_notes(environments), *missing),
    )
    keep_result(place, comparison.name, identity_of(comparison), result)
    return result


def _baseline(
    comparison: Comparison, place: Path, progress: Progress | None
) -> tuple[LinearBaseline | None, tuple[str, ...]]:
    """Return the plain rival of arms that classify texts, and a note where it cannot be had.

    There is no chance in it, so that the one of a result that is kept in the folder already is taken from there.
    """
    task = comparison.task
    if not isinstance(task, Classification) or comparison.test_task not in (None, task):
        return None, ()
    kept = kept_result(place)
    if kept is not None and kept.baseline is not None:
        return kept.baseline, ()
    tell = progress or (lambda what, done, total: None)
    tell(LINEAR, 0, 1)
    try:
        found = linear_baseline(task, buckets=comparison.buckets, num_test=comparison.num_test)
    except MissingExtraError as error:
        return None, (f"There is no linear baseline beside the arms: {error}.",)
    tell(LINEAR, 1, 1)
    return found, ()


def _differences(metric: str, arms: Sequence[ArmResult]) -> tuple[PairedDifference, ...]:
    """Return those of every other arm from the first; of arms with a run without the metric there are none."""
    first = arms[0]
    return tuple(
        paired_difference(
            arm.metrics[metric].known, first.metrics[metric].known, metric=metric, arm=arm.name, other=first.name
        )
        for arm in arms[1:]
        if first.mean is not None and arm.mean is not None
    )


def _try_rates(
    comparison: Comparison, place: Path, run_all: Callable[[str, list[Job]], list[Run]]
) -> dict[str, dict[float, float]]:
    """Return the validation loss of each learning rate of each arm; NaN where a run was stopped or had none."""
    pairs = [(number, arm, rate) for number, arm in enumerate(comparison.arms) for rate in comparison.learning_rates]
    jobs = [
        Job(settings=comparison.settings(arm, TUNING_SEED, rate), folder=place / f"arm-{number}-rate-{rate:g}")
        for number, arm, rate in pairs
    ]
    tried: dict[str, dict[float, float]] = {arm.name: {} for arm in comparison.arms}
    if not jobs:
        return tried
    for (_, arm, rate), run in zip(pairs, run_all("learning rates", jobs), strict=True):
        losses = [] if run.stopped else [record["validation_loss"] for record in run.curve]
        tried[arm.name][rate] = min((loss for loss in losses if math.isfinite(loss)), default=math.nan)
    for name, losses_of in tried.items():
        if all(math.isnan(loss) for loss in losses_of.values()):
            raise ConfigError(f"no learning rate of {name} trained to its end; try lower ones than {min(losses_of)}")
    return tried


def _best_rate(tried: dict[float, float], recipe: Recipe) -> float:
    """Return the learning rate with the lowest loss; the recipe's own where none was tried."""
    finite = {rate: loss for rate, loss in tried.items() if math.isfinite(loss)}
    return min(finite, key=lambda rate: finite[rate]) if finite else recipe.learning_rate
