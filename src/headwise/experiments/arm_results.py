"""What came out of an arm, from its runs: every number of every seed, with means and intervals."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.config.vision import C3TRConfig, PatchEncoderConfig
from headwise.experiments.answers import bucket_of
from headwise.experiments.image_classifier import ImageClassifierConfig
from headwise.experiments.intervals import seed_values
from headwise.experiments.predicted_peak import predicted_peaks
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig
from headwise.experiments.results import ArmResult, SeedValues
from headwise.experiments.run import ModelDescription, RunSettings, data_seed
from headwise.experiments.run_folder import RUN
from headwise.experiments.run_result import Run
from headwise.experiments.text_flops import text_flops

TRAINING, TEST = "training", "test"
GUESSED = 0.99  # of the loss of a guess: from there on a mean loss is one
NUMBERS = (
    "steps_per_second",
    "peak_bytes",
    "gap",
    "train_loss_end",
    "validation_loss_end",
    "validation_loss_best",
    "seconds",
    "clipped_share",
)
"""Numbers of a run that arms can be compared by, beside `seconds_to_` and an accuracy."""

OF_STOPPED = ("peak_bytes", "clipped_share")
"""Those of them that a run has which was stopped before its last step."""


def arm_result(
    name: str,
    settings: RunSettings,
    *,
    metric: str,
    rate: float,
    tried: Mapping[float, float],
    runs: Sequence[Run],
    device: str = "cpu",
) -> ArmResult:
    """Return what came out of one arm.

    Args:
        name: of the arm.
        settings: of its runs, but for seed and learning rate.
        metric: that arms are compared by.
        rate: the learning rate of the runs.
        tried: validation loss of each learning rate; NaN = none was a number.
        runs: one a seed. One that was stopped has no numbers here but its memory and its clipped steps, whatever its
            best state would get.
        device: that they were on, as their environment names it.
    """
    ended: list[Run | None] = [None if run.stopped else run for run in runs]
    metrics = _by_name([run.test if run else {} for run in ended])
    seconds_to = sorted({accuracy for run in runs for accuracy in run.seconds_to})
    numbers = {
        one: seed_values([None if run.stopped and one not in OF_STOPPED else getattr(run, one) for run in runs])
        for one in NUMBERS
    } | {
        f"seconds_to_{accuracy}": seed_values([run.seconds_to.get(accuracy) if run else None for run in ended])
        for accuracy in seconds_to
    }
    predicted = predicted_peaks(settings, [run.seed for run in runs], device=device)
    pairs = [(foretold, run.peak_bytes) for foretold, run in zip(predicted.peak_bytes, runs, strict=True)]
    numbers |= {
        "predicted_peak_bytes": seed_values([foretold for foretold, _ in pairs]),
        "peak_gap": seed_values([foretold / peak - 1 if foretold and peak else None for foretold, peak in pairs]),
    }
    return ArmResult(
        name=name,
        about=about_model(settings.model),
        learning_rate=rate,
        rates_tried={f"{one:g}": loss if math.isfinite(loss) else None for one, loss in tried.items()},
        runs=tuple(runs),
        num_parameters=runs[0].num_parameters,
        forward_flops=text_flops(settings.model, settings.task.max_len),
        mean=metrics[metric].mean if metric in metrics else None,
        metrics=metrics,
        by_length=_by_place([run.test_by_length if run else {} for run in ended]),
        length_counts=_length_counts(settings, [run.seed for run in runs]),
        further=_by_place([run.further if run else {} for run in ended]),
        numbers={one: values for one, values in numbers.items() if values.known},
        no_prediction=predicted.reason,
    )


def about_model(model: ModelDescription) -> str:
    """Return a model in a few words: 1 layer, 8 heads of 4, width 32."""
    if isinstance(model, RecurrentConfig):
        attends = ", attends to earlier states" if model.attends else ""
        return f"{_counted(model.num_layers, 'layer')} of {model.cell.upper()}, width {model.embed_dim}{attends}"
    if isinstance(model, ImageClassifierConfig):
        return _about_body(model.body)
    layers = f"{_counted(len(model.blocks), 'layer')}, width {model.embed_dim}"
    attention = model.blocks[0].attention if model.blocks else None
    num_heads, head_dim = (getattr(attention, name, None) for name in ("num_heads", "head_dim"))
    return layers if num_heads is None else f"{layers}, {_counted(num_heads, 'head')} of {head_dim}"


def _about_body(body: PatchEncoderConfig | C3TRConfig) -> str:
    layers, num_heads = _counted(body.num_layers, "layer"), body.num_heads
    if isinstance(body, PatchEncoderConfig):
        size, width = f"patches of {body.patch_size} x {body.patch_size}", body.embed_dim
    else:
        size, width = f"C3TR of {body.out_channels} channels", body.inner_channels
    return f"{size}, {layers}, width {width}, {_counted(num_heads, 'head')} of {width // num_heads}"


def test_lengths(settings: RunSettings) -> dict[str, int]:
    """Return the tokens of the longest text of the training, the test and each further test."""
    return {
        TRAINING: settings.task.max_len,
        TEST: (settings.test_task or settings.task).max_len,
        **{name: task.max_len for name, task in settings.further_tests},
    }


def setup_of(recipe: Recipe, settings: RunSettings, rates: Sequence[float]) -> dict[str, Any]:
    """Return what all arms share, as JSON can hold it."""
    shared = RunSettings(task=settings.task, model=settings.model, recipe=recipe).to_dict()
    own = settings.to_dict()
    kept = ("task", "test_task", "num_validation", "num_test", "buckets", "further_tests")
    return {name: own[name] for name in kept} | {"recipe": shared["recipe"], "learning_rates": list(rates)}


def environments_of(folder: Path) -> list[dict[str, Any]]:
    """Return what every run noted of its machine and versions as it began, and as it went on after a stop."""
    found: list[dict[str, Any]] = []
    for place in sorted(folder.glob(f"arm-*/{RUN}")):
        try:
            known = json.loads(place.read_text(encoding="utf-8"))
            found += [dict(one) for one in (known["environment"], *known.get("resumed", []))]
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def environment_notes(environments: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a note where runs were done in more than one environment, with what differs."""
    names = dict.fromkeys(name for one in environments for name in one if name != "date")
    values = {name: list(dict.fromkeys(str(one.get(name)) for one in environments)) for name in names}
    differing = [f"{name} {' and '.join(each)}" for name, each in values.items() if len(each) > 1]
    if not differing:
        return ()
    return (
        f"Runs were done in more than one environment ({'; '.join(differing)}): times are not to be compared, and "
        "other numbers may differ by rounding.",
    )


def comparison_notes(arms: Sequence[ArmResult], num_classes: int) -> tuple[str, ...]:
    """Return what a reader must know: what was not learned, which runs were stopped or have no metric or test.

    Args:
        arms: of the comparison.
        num_classes: that an answer is one of.
    """
    notes = []
    for arm in arms:
        stopped = [f"seed {run.seed}: {run.stopped}" for run in arm.runs if run.stopped]
        if stopped:
            why = "; ".join(stopped)
            notes.append(f"Runs of {arm.name} were stopped before their last step, and count for nothing ({why}).")
        elif arm.mean is None:
            notes.append(f"A run of {arm.name} has no finite metric: no difference is told.")
        for test in dict.fromkeys(test for run in arm.runs for test in run.further_notes):
            reasons = dict.fromkeys(run.further_notes[test] for run in arm.runs if test in run.further_notes)
            notes.append(f"{arm.name}, {test}: {'; '.join(reasons)}")
        notes += [f"{arm.name}: {note}" for note in dict.fromkeys(note for run in arm.runs for note in run.notes)]
    for reason in dict.fromkeys(arm.no_prediction for arm in arms if arm.no_prediction):
        names = ", ".join(arm.name for arm in arms if arm.no_prediction == reason)
        notes.append(f"The memory of a step is not predicted for {names}: {reason.rstrip('.')}.")
    guessers = [arm.name for arm in arms if _only_guesses(arm, num_classes)]
    if guessers:
        who = "All arms" if len(guessers) == len(arms) else ", ".join(guessers)
        notes.append(
            f"{who}: nothing was learned. The loss is that of a guess among {num_classes} classes, and says nothing "
            "about the model: train longer, or at another rate."
        )
    return tuple(dict.fromkeys(notes))


def _only_guesses(arm: ArmResult, num_classes: int) -> bool:
    losses = arm.metrics["loss"].known if "loss" in arm.metrics else ()
    return bool(losses) and sum(losses) / len(losses) >= GUESSED * math.log(num_classes)


def _by_name(each: Sequence[Mapping[str, float]]) -> dict[str, SeedValues]:
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: seed_values([metrics.get(name) for metrics in each]) for name in names}


def _by_place(each: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, SeedValues]]:
    places = dict.fromkeys(place for run in each for place in run)
    return {place: _by_name([run.get(place, {}) for run in each]) for place in places}


def _length_counts(settings: RunSettings, seeds: Sequence[int]) -> dict[str, int]:
    """Return the test texts of each bucket, the shortest first: over all seeds, but of a corpus, whose are the same."""
    if not settings.buckets:
        return {}
    task = settings.test_task or settings.task
    counts: Counter[str] = Counter()
    for seed in seeds if task.data_version is None else seeds[:1]:
        examples = task.draw(settings.num_test, seed=data_seed("test", seed), split="test")
        counts.update(bucket_of(length, settings.buckets) for length in examples.lengths.tolist())
    ends = (*settings.buckets, settings.buckets[-1] + 1)
    names = [bucket_of(end, settings.buckets) for end in ends]
    return {name: counts[name] for name in names if counts[name]}


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
