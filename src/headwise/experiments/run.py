"""One run: one model on one task with one seed, from its first step to its test, in a folder that survives a kill."""

import hashlib
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headwise.errors import TrainingError
from headwise.experiments.asking import ModelDescription, evaluate, loss_of, make_model, scores_of
from headwise.experiments.budget import with_steps
from headwise.experiments.final_tests import Tests, take_tests
from headwise.experiments.machine import device_for, environment, rng_devices
from headwise.experiments.processes import Processes
from headwise.experiments.recipe import Recipe
from headwise.experiments.run_folder import RunFolder
from headwise.experiments.run_result import Run
from headwise.experiments.run_settings import RunSettings
from headwise.experiments.training import StepRecord, Training

__all__ = ["ModelDescription", "RunSettings", "data_seed", "evaluate", "loss_of", "make_model", "run", "scores_of"]

REACHED = (0.5, 0.9, 0.99)  # accuracies on validation texts, the seconds to which are told
ALONE = Processes()

Progress = Callable[[int, int], None]
"""Called with the steps that are done and how many there are."""


def run(
    settings: RunSettings,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    device: str | torch.device | None = None,
    processes: Processes = ALONE,
) -> Run:
    """Train, choose the best state on the validation set, test it once, and return what came out.

    A run that was killed goes on from its last state, on the same machine to the same numbers bit for bit; one that is
    done is read.

    Args:
        settings: of the run.
        folder: where it is kept.
        progress: called after every step.
        device: to train on. Default: the GPU that torch uses, where it sees one, else the CPU.
        processes: that train together, each of which must call this. Default: this one alone.

    Raises:
        OutputError: the folder cannot be written, holds another run, or another process is at work in it.
        ConfigError: there is no such device, the recipe's budget does not pay for a step, or the run that was killed
            was of another number of processes.
    """
    place_on = device_for(device)
    recipe = with_steps(settings.recipe, settings.task, settings.model)
    place = RunFolder(folder, settings.to_dict(), environment(place_on)) if processes.is_first else None
    done = processes.share(None if place is None else place.result())
    if done is not None:
        return done
    # torch's streams of random numbers are the caller's own again afterwards
    with torch.random.fork_rng(devices=rng_devices(place_on)), _held(place), processes.quietly():
        torch.manual_seed(settings.seed)
        module = make_model(settings.model, checkpoint=recipe.checkpoint, impl=recipe.impl).to(place_on)
        num_parameters = sum(parameter.numel() for parameter in module.parameters())
        training = _make_training(settings, recipe, module, processes)
        looks = _train(settings, recipe, training, place, progress, processes)
        finished = None if place is None else _finish(settings, place, training, looks, num_parameters, place_on)
        shared: Run | None = processes.share(finished)
        assert shared is not None
        return shared


@dataclass(kw_only=True)
class _Looks:
    """What a run knows beside its training, kept with every state."""

    best: float = math.inf
    seconds: float = 0.0
    seconds_to: dict[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    stopped: str | None = None
    train_loss_end: float | None = None
    notes: tuple[str, ...] = ()

    def kept(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "seconds", "seconds_to", "peak_bytes")}

    def note_accuracy(self, accuracy: float) -> None:
        for bound in REACHED:
            if accuracy >= bound:
                self.seconds_to.setdefault(str(bound), self.seconds)


def _make_training(settings: RunSettings, recipe: Recipe, module: nn.Module, processes: Processes) -> Training:
    task = settings.task
    training = Training(
        processes.spread(module, recipe.precision),
        recipe,
        loss=lambda module, batch: loss_of(module, batch, task, label_smoothing=recipe.label_smoothing),
        batch_of=lambda step: task.draw(recipe.batch_size, seed=data_seed("train", settings.seed, step), split="train"),
        rank=processes.rank,
        world_size=processes.world_size,
    )
    if not processes.is_first:  # the same weights, but dropout of its own
        torch.manual_seed(data_seed("dropout", settings.seed, processes.rank))
    return training


def _train(
    settings: RunSettings,
    recipe: Recipe,
    training: Training,
    place: RunFolder | None,
    progress: Progress | None,
    processes: Processes,
) -> _Looks:
    """Train to the end, with a look at the validation set, and a state kept, every so many steps."""
    task = settings.task
    validation = task.draw(settings.num_validation, seed=data_seed("validation", settings.seed), split="validation")
    looks = _Looks()
    found = processes.share(None if place is None else place.load())
    if found is None:
        looks.peak_bytes = training.measure_peak()
    else:
        training.restore(*found)
        looks = _Looks(**{name: found[1][name] for name in looks.kept()})
    losses: list[float] = []
    started = time.perf_counter()
    is_over = training.step >= recipe.steps or processes.share(_is_spent(recipe, looks))
    while not is_over:
        try:
            record = training.take_step()
        except TrainingError as error:  # a result like any other: the recipe does not suit the model
            looks.seconds += time.perf_counter() - started
            looks.stopped = str(error)
            return looks
        losses.append(record.loss)
        if progress is not None:
            progress(training.step, recipe.steps)
        is_over = training.step == recipe.steps
        if training.step % recipe.evaluate_every and not is_over:
            continue
        looks.seconds += time.perf_counter() - started
        metrics = evaluate(training.module, validation, task)
        looks.note_accuracy(metrics["accuracy"])
        _keep(place, training, looks, _line(training, record, sum(losses) / len(losses), metrics), metrics["loss"])
        is_over = is_over or processes.share(_is_spent(recipe, looks))
        losses, started = [], time.perf_counter()
    if training.step < recipe.steps:
        looks.notes = (
            f"The budget of {recipe.budget_seconds:g} s was spent after step {training.step}: not to be repeated.",
        )
    if training.step < recipe.warmup_steps:
        looks.notes += (
            f"The warmup of {recipe.warmup_steps} steps was not over after {training.step}: the learning rate never "
            f"reached {recipe.learning_rate:g}.",
        )
    sample = task.draw(settings.num_validation, seed=data_seed("train sample", settings.seed), split="train")
    looks.train_loss_end = _finite(evaluate(training.module, sample, task)["loss"])
    return looks


def _is_spent(recipe: Recipe, looks: _Looks) -> bool:
    return recipe.budget_seconds is not None and looks.seconds >= recipe.budget_seconds


def _line(training: Training, record: StepRecord, train_loss: float, metrics: dict[str, float]) -> dict[str, Any]:
    """Return what is written at a look."""
    return {
        "step": training.step,
        "train_loss": train_loss,
        "learning_rate": record.learning_rate,
        "gradient_norm": record.gradient_norm,
        "num_clipped": training.num_clipped,
        "num_bad": training.num_bad,
        **{f"validation_{name}": value for name, value in metrics.items()},
    }


def _keep(place: RunFolder | None, training: Training, looks: _Looks, line: dict[str, Any], loss: float) -> None:
    """Write a look's line, the weights where they are the best so far, and the state, in this order."""
    tensors, numbers = training.state()  # in all processes, which hold a part each
    if place is None:
        return
    place.append(line)
    if loss < looks.best:
        looks.best = loss
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith("module.")}
        place.save_best(weights, {"step": training.step, "loss": loss})
    place.save(tensors, {**numbers, **looks.kept()})


def _finish(
    settings: RunSettings,
    place: RunFolder,
    training: Training,
    looks: _Looks,
    num_parameters: int,
    device: torch.device,
) -> Run:
    """Test the best state once, in a module that is this process's alone, keep the result, and return it."""
    chosen = place.load_best()
    tests = Tests()
    if chosen is not None:  # None: no validation loss was ever a number
        module = make_model(settings.model, impl=settings.recipe.impl).to(device)
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                tensor.copy_(chosen[0][f"module.{name}"])
        tests = take_tests(
            module,
            settings.model,
            {"test": settings.test_task or settings.task, **dict(settings.further_tests)},
            num_examples=settings.num_test,
            seed=data_seed("test", settings.seed),
            buckets=settings.buckets,
            how=settings.lengthen,
        )
    curve = tuple(place.records())
    result = Run(
        seed=settings.seed,
        num_parameters=num_parameters,
        steps=training.step,
        seconds=looks.seconds,
        best_step=0 if chosen is None else chosen[1]["step"],
        clipped_share=training.num_clipped / training.step,
        num_bad=training.num_bad,
        test=tests.test,
        test_by_length=tests.by_length,
        curve=curve,
        stopped=looks.stopped,
        train_loss_end=looks.train_loss_end,
        validation_loss_end=None if looks.stopped else _finite(curve[-1]["validation_loss"]),
        validation_loss_best=_finite(looks.best),
        steps_per_second=training.step / looks.seconds,
        peak_bytes=looks.peak_bytes,
        seconds_to=looks.seconds_to,
        further=tests.further,
        further_notes=tests.notes,
        notes=looks.notes,
    )
    place.write_result(result)
    return result


def _held(place: RunFolder | None) -> AbstractContextManager[None]:
    return nullcontext() if place is None else place.held()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def data_seed(split: str, seed: int, step: int = 0) -> int:
    """Return the seed that a batch is drawn with: another one for every split, run seed and step."""
    digest = hashlib.sha256(f"{split}/{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 56 bits: torch takes 64 with a sign
