"""A controlled comparison: arms that differ in one thing, the same seeds, each with its own best learning rate."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headwise.config.checks import require_choice, require_instance, require_positive, require_text
from headwise.errors import ConfigError, MissingExtraError
from headwise.experiments.answers import bucket_of
from headwise.experiments.arm_results import (
    NUMBERS,
    arm_result,
    comparison_notes,
    environment_notes,
    environments_of,
    setup_of,
    test_lengths,
)
from headwise.experiments.claim_tests import TEST, ClaimTest, decide_claims
from headwise.experiments.classification import Classification
from headwise.experiments.comparison_folder import keep_result, kept_result, open_folder
from headwise.experiments.engine import Engine, Job, LocalEngine
from headwise.experiments.examples import TokenTask
from headwise.experiments.intervals import paired_difference
from headwise.experiments.linear_baseline import linear_baseline
from headwise.experiments.processes import Processes
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import ArmResult, ComparisonResult, LinearBaseline, PairedDifference, Published
from headwise.experiments.run import REACHED, ModelDescription, RunSettings
from headwise.experiments.run_result import Run

TUNING_SEED = 2**20  # of the runs that a learning rate is chosen on: none of a comparison's own
LINEAR = "linear baseline"  # what is being done, as progress tells it
QUANTITIES = (TEST, *NUMBERS, "predicted_peak_bytes", *(f"seconds_to_{accuracy}" for accuracy in REACHED))
METRICS = ("loss", "accuracy", "exact", "whole", "macro_f1")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison.

    Args:
        name: what it is called.
        model: what learns.
        recipe: how, where that is another than the comparison's.
        lengthen: how a learned table of positions is made longer before a test whose texts are longer than it: "clamp"
            or "interpolate"; None = such a test has no metrics.
    """

    name: str
    model: ModelDescription
    recipe: Recipe | None = None
    lengthen: Literal["clamp", "interpolate"] | None = None

    def __post_init__(self) -> None:
        require_text("name", self.name)
        if self.lengthen is not None:
            require_choice("lengthen", self.lengthen, ("clamp", "interpolate"))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms on one task.

    Args:
        name: what it is called.
        task: what is learned.
        arms: at least two, each of another name; the others are compared with the first.
        recipe: how.
        question: what it asks, in a sentence.
        seeds: of the runs, each another one.
        learning_rates: tried on one seed of their own, for each arm by itself; the one with the lowest validation loss
            is taken. Empty: the recipe's.
        metric: "loss" (nats an answer), "accuracy" (of answers), "exact" (of places), "whole" (of texts), "macro_f1"
            (of tasks with one class a text).
        test_task, buckets, num_validation, num_test, further_tests: as of `RunSettings`.
        claims: that are put to the test.
        published: figures of others, to stand beside.

    Raises:
        ConfigError: there are too few arms, two share a name, two seeds or learning rates are the same, the metric is
            none of the task's, a claim is about an arm, a place or a quantity that is not there, or a run would refuse
            its settings.
    """

    name: str
    task: TokenTask
    arms: tuple[Arm, ...]
    recipe: Recipe
    question: str = ""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    learning_rates: tuple[float, ...] = ()
    metric: str = "accuracy"
    test_task: TokenTask | None = None
    buckets: tuple[int, ...] = ()
    num_validation: int = 256
    num_test: int = 512
    further_tests: tuple[tuple[str, TokenTask], ...] = ()
    claims: tuple[ClaimTest, ...] = ()
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        require_text("name", self.name)
        require_instance("recipe", self.recipe, Recipe)
        names = [arm.name for arm in self.arms]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(f"a comparison needs two arms or more, each of another name; got {', '.join(names)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or TUNING_SEED in self.seeds:
            raise ConfigError(f"seeds must be different numbers, none of them {TUNING_SEED}; got {self.seeds!r}")
        for rate in self.learning_rates:
            require_positive("learning_rates", rate)
        if len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise ConfigError(f"learning_rates must differ in their first six digits; got {self.learning_rates}")
        metrics = METRICS if self.task.classifies else tuple(metric for metric in METRICS if metric != "macro_f1")
        if self.metric not in metrics:
            raise ConfigError(f"metric must be one of {', '.join(metrics)}; got {self.metric!r}")
        for arm in self.arms:
            self.settings(arm, self.seeds[0])  # what a run would refuse is refused before any is begun
        places = self._places()
        for claim in self.claims:
            for name, among in (
                (claim.arm, names),
                (claim.other, names),
                (claim.where, places),
                (claim.minus or TEST, places),
                (claim.metric or self.metric, metrics),
                (claim.quantity, QUANTITIES),
            ):
                if name not in among:
                    raise ConfigError(f"a claim must be about one of {', '.join(among)}; got {name!r}: {claim.text}")

    def _places(self) -> list[str]:
        """Return what a claim may be about: the test, a bucket of lengths, a further test."""
        lengths = (*self.buckets, self.buckets[-1] + 1) if self.buckets else ()
        buckets = [bucket_of(length, self.buckets) for length in lengths]
        return [TEST, *buckets, *(name for name, _ in self.further_tests)]

    def settings(self, arm: Arm, seed: int, learning_rate: float | None = None) -> RunSettings:
        """Return the settings of one run."""
        recipe = arm.recipe or self.recipe
        if learning_rate is not None:
            recipe = replace(recipe, learning_rate=learning_rate)
        return RunSettings(
            task=self.task,
            model=arm.model,
            recipe=recipe,
            seed=seed,
            num_validation=self.num_validation,
            num_test=self.num_test,
            test_task=self.test_task,
            buckets=self.buckets,
            further_tests=self.further_tests,
            lengthen=arm.lengthen,
        )


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


def identity_of(comparison: Comparison) -> dict[str, Any]:
    """Return all that the runs of a comparison depend on but their seeds, as JSON can hold it.

    More seeds, another metric or other claims need no other runs, so they may go on in the same folder.
    """
    arms = []
    for arm in comparison.arms:
        settings = comparison.settings(arm, comparison.seeds[0]).to_dict()
        del settings["seed"]
        arms.append([arm.name, settings])
    return {"arms": arms, "learning_rates": list(comparison.learning_rates)}


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
