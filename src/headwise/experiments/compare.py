"""A controlled comparison: arms that differ in one thing, the same seeds, each with its own best learning rate."""

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from headwise.config.checks import require_instance, require_positive, require_text
from headwise.config.model import ModelConfig
from headwise.cost.flops import forward_flops
from headwise.errors import ConfigError
from headwise.experiments.engine import Engine, Job, LocalEngine
from headwise.experiments.examples import TokenTask
from headwise.experiments.intervals import paired_difference
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import ArmResult, ComparisonResult
from headwise.experiments.run import ModelDescription, RunSettings
from headwise.experiments.run_result import Run

TUNING_SEED = 2**20  # of the runs that a learning rate is chosen on: none of a comparison's own
METRICS = ("loss", "accuracy", "exact", "whole")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of a comparison.

    Args:
        name: what it is called.
        model: what learns.
        recipe: how, where that is another than the comparison's.
    """

    name: str
    model: ModelDescription
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        require_text("name", self.name)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms on one task.

    Args:
        name: what it is called.
        task: what is learned.
        arms: at least two, each of another name; the others are compared with the first.
        recipe: how.
        seeds: of the runs, each another one.
        learning_rates: tried on one seed of their own, for each arm by itself; the one with the lowest validation loss
            is taken. Empty: the recipe's.
        metric: "loss" (nats an answer), "accuracy" (of answers), "exact" (of places), "whole" (of texts).
        test_task, buckets, num_validation, num_test: as of `RunSettings`.

    Raises:
        ConfigError: there are too few arms, two share a name, two seeds are the same, or the metric is none.
    """

    name: str
    task: TokenTask
    arms: tuple[Arm, ...]
    recipe: Recipe
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    learning_rates: tuple[float, ...] = ()
    metric: str = "accuracy"
    test_task: TokenTask | None = None
    buckets: tuple[int, ...] = ()
    num_validation: int = 256
    num_test: int = 512

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
        if self.metric not in METRICS:
            raise ConfigError(f"metric must be one of {', '.join(METRICS)}; got {self.metric!r}")

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
        folder: where runs are kept, one folder each; those that are done are read, those that were killed go on.
        engine: what does the runs. Default: this process, one after another.
        progress: called after every run.

    Raises:
        OutputError: the folder cannot be written, or holds other runs.
        ConfigError: no learning rate of an arm gave a finite loss.
    """
    place = Path(folder)
    engine = LocalEngine() if engine is None else engine

    def run_all(what: str, jobs: list[Job]) -> list[Run]:
        done = None if progress is None else lambda so_far, total: progress(what, so_far, total)
        return engine.run_all(jobs, done=done)

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
    count = len(comparison.seeds)
    arms = tuple(
        _arm_result(comparison, arm, chosen[arm.name], tried[arm.name], runs[number * count : (number + 1) * count])
        for number, arm in enumerate(comparison.arms)
    )
    first = arms[0]
    differences = tuple(
        paired_difference(
            _values(other, comparison.metric),
            _values(first, comparison.metric),
            metric=f"{comparison.metric} of {other.name} less that of {first.name}",
        )
        for other in arms[1:]
        if first.mean is not None and other.mean is not None
    )
    lost = [arm.name for arm in arms if arm.mean is None]
    return ComparisonResult(
        name=comparison.name,
        metric=comparison.metric,
        seeds=comparison.seeds,
        arms=arms,
        differences=differences,
        notes=tuple(f"A run of {name} was stopped before it learned anything: no difference is told." for name in lost),
    )


def _try_rates(
    comparison: Comparison, place: Path, run_all: Callable[[str, list[Job]], list[Run]]
) -> dict[str, dict[float, float]]:
    """Return the validation loss of each learning rate of each arm."""
    pairs = [(number, arm, rate) for number, arm in enumerate(comparison.arms) for rate in comparison.learning_rates]
    jobs = [
        Job(settings=comparison.settings(arm, TUNING_SEED, rate), folder=place / f"arm-{number}-rate-{rate:g}")
        for number, arm, rate in pairs
    ]
    tried: dict[str, dict[float, float]] = {arm.name: {} for arm in comparison.arms}
    if not jobs:
        return tried
    for (_, arm, rate), run in zip(pairs, run_all("learning rates", jobs), strict=True):
        losses = [record["validation_loss"] for record in run.curve]
        tried[arm.name][rate] = min((loss for loss in losses if math.isfinite(loss)), default=math.nan)
    for name, losses_of in tried.items():
        if all(math.isnan(loss) for loss in losses_of.values()):
            raise ConfigError(f"no learning rate of {name} gave a finite loss; try lower ones than {min(losses_of)}")
    return tried


def _best_rate(tried: dict[float, float], recipe: Recipe) -> float:
    """Return the learning rate with the lowest loss; the recipe's own where none was tried."""
    finite = {rate: loss for rate, loss in tried.items() if math.isfinite(loss)}
    return min(finite, key=lambda rate: finite[rate]) if finite else recipe.learning_rate


def _arm_result(comparison: Comparison, arm: Arm, rate: float, tried: dict[float, float], runs: list[Run]) -> ArmResult:
    values = [run.test.get(comparison.metric) for run in runs]
    known = [value for value in values if value is not None]
    return ArmResult(
        name=arm.name,
        learning_rate=rate,
        rates_tried={f"{one:g}": loss for one, loss in tried.items()},
        runs=tuple(runs),
        num_parameters=runs[0].num_parameters,
        forward_flops=_flops(arm.model, comparison.task.max_len),
        seconds_per_step=statistics.median(run.seconds / max(1, run.steps) for run in runs),
        mean=statistics.fmean(known) if len(known) == len(values) else None,
    )


def _values(arm: ArmResult, metric: str) -> list[float]:
    return [run.test[metric] for run in arm.runs]


def _flops(model: ModelDescription, seq: int) -> int | None:
    if not isinstance(model, ModelConfig):
        return None
    return forward_flops(model, batch=1, seq=seq).dense
