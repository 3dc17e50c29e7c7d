"""A comparison on paper: arms that differ in one thing, their task, and what is claimed of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from headwise.config.checks import (
    require_choice,
    require_instance,
    require_positive,
    require_sizes,
    require_text,
    require_words,
    shown,
)
from headwise.errors import ConfigError
from headwise.experiments.answers import bucket_of
from headwise.experiments.arm_results import (
    NUMBERS,
)
from headwise.experiments.claim_tests import TEST, ClaimTest
from headwise.experiments.examples import TokenTask
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.run import REACHED, ModelDescription, RunSettings

TUNING_SEED = 2**20  # of the runs that a learning rate is chosen on: none of a comparison's own
QUANTITIES = (TEST, *NUMBERS, "predicted_peak_bytes", *(f"seconds_to_{accuracy}" for accuracy in REACHED))
METRICS = ("loss", "accuracy", "exact", "whole", "macro_f1")


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
        require_words("question", self.question)
        for figure in self.published:
            for name in ("text", "source", "differs"):
                require_words(name, getattr(figure, name))
        require_instance("recipe", self.recipe, Recipe)
        names = [arm.name for arm in self.arms]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(f"a comparison needs two arms or more, each of another name; got {_listed(names)}")
        require_sizes("seeds", self.seeds, minimum=0)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or TUNING_SEED in self.seeds:
            raise ConfigError(f"seeds must be different numbers, none of them {TUNING_SEED}; got {shown(self.seeds)}")
        require_instance("learning_rates", self.learning_rates, tuple)
        for rate in self.learning_rates:
            require_positive("learning_rates", rate)
        if len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise ConfigError(f"learning_rates must differ in their first six digits; got {shown(self.learning_rates)}")
        metrics = METRICS if self.task.classifies else tuple(metric for metric in METRICS if metric != "macro_f1")
        if self.metric not in metrics:
            raise ConfigError(f"metric must be one of {', '.join(metrics)}; got {shown(self.metric)}")
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
                    about = f"got {shown(name)}: {_listed([claim.text])}"
                    raise ConfigError(f"a claim must be about one of {_listed(among)}; {about}")

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


def _listed(names: Sequence[str]) -> str:
    """Return names for the text of an error, whatever signs are in them."""
    return ", ".join(shown(name)[1:-1] for name in names)


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
