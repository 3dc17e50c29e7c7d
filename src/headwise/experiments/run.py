"""One run: one model on one task with one seed, from its first step to its test, in a folder that survives a kill."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.config.checks import require_instance, require_size
from headwise.config.model import ModelConfig
from headwise.errors import TrainingError
from headwise.experiments.answers import AnswerSums, bucket_of, loss_sum
from headwise.experiments.examples import Examples, TokenTask
from headwise.experiments.recipe import Recipe
from headwise.experiments.recurrent import RecurrentConfig, RecurrentModel
from headwise.experiments.run_folder import RunFolder
from headwise.experiments.run_result import Run
from headwise.experiments.training import Training
from headwise.nn.build import build

RESULT = "result.json"
EVALUATION_BATCH = 64  # texts at once as answers are counted: results do not depend on it but for float error

ModelDescription = ModelConfig | RecurrentConfig
Progress = Callable[[int, int], None]
"""Called with the steps that are done and how many there are."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that a run's numbers depend on.

    Args:
        task: what is learned; its vocabulary and answers must fit the model.
        model: what learns it: ours, or a recurrent rival. It puts out `num_answers * num_classes` numbers a token.
        recipe: how.
        seed: of the weights, the dropout and the data; arms with one seed see the same batches in the same order.
        num_validation, num_test: texts that the best state is chosen on, and that it is tested on once.
        test_task: what it is tested on, where that is another task: longer texts, say. Default: the same.
        buckets: bounds of lengths that tests are told apart by.
    """

    task: TokenTask
    model: ModelDescription
    recipe: Recipe
    seed: int = 0
    num_validation: int = 256
    num_test: int = 512
    test_task: TokenTask | None = None
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_instance("task", self.task, TokenTask)
        require_instance("recipe", self.recipe, Recipe)
        require_size("seed", self.seed, minimum=0)
        require_size("num_validation", self.num_validation)
        require_size("num_test", self.num_test)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON can hold them, with the kinds of task and model."""
        return {field.name: _described(getattr(self, field.name)) for field in fields(self)}


def run(settings: RunSettings, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> Run:
    """Train, choose the best state on the validation set, test it once, and return what came out.

    A run that was killed goes on from its last state, to the same numbers bit for bit; one that is done is read.

    Args:
        settings: of the run.
        folder: where it is kept.
        progress: called after every step.

    Raises:
        OutputError: the folder cannot be written, or holds another run.
    """
    place = RunFolder(folder, settings.to_dict())
    done = place.path / RESULT
    if done.exists():
        known = json.loads(done.read_text(encoding="utf-8"))
        return Run(**{**known, "curve": tuple(known["curve"])})
    # torch's stream of random numbers is the caller's own again afterwards
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return _run(settings, place, progress)


def _run(settings: RunSettings, place: RunFolder, progress: Progress | None) -> Run:
    task, recipe = settings.task, settings.recipe
    module = make_model(settings.model)
    training = Training(
        module,
        recipe,
        loss=lambda module, batch: loss_of(module, batch, task, label_smoothing=recipe.label_smoothing),
        batch_of=lambda step: task.draw(recipe.batch_size, seed=data_seed("train", settings.seed, step)),
    )
    validation = task.draw(settings.num_validation, seed=data_seed("validation", settings.seed))
    best, seconds = float("inf"), 0.0
    found = place.load()
    if found is not None:
        training.restore(*found)
        best, seconds = found[1]["best"], found[1]["seconds"]
    losses: list[float] = []
    started = time.perf_counter()
    while training.step < recipe.steps:
        try:
            record = training.take_step()
        except TrainingError as error:  # a result like any other: the recipe does not suit the model
            seconds += time.perf_counter() - started
            return _finish(settings, place, training, seconds, stopped=str(error))
        losses.append(record.loss)
        if progress is not None:
            progress(training.step, recipe.steps)
        if training.step % recipe.evaluate_every and training.step < recipe.steps:
            continue
        seconds += time.perf_counter() - started
        metrics = evaluate(module, validation, task)
        place.append(
            {
                "step": training.step,
                "train_loss": sum(losses) / len(losses),
                "learning_rate": record.learning_rate,
                "gradient_norm": record.gradient_norm,
                "num_clipped": training.num_clipped,
                "num_bad": training.num_bad,
                **{f"validation_{name}": value for name, value in metrics.items()},
            }
        )
        tensors, numbers = training.state()
        if metrics["loss"] < best:
            best = metrics["loss"]
            weights = {name: tensor for name, tensor in tensors.items() if name.startswith("module.")}
            place.save_best(weights, {"step": training.step, "loss": best})
        place.save(tensors, {**numbers, "best": best, "seconds": seconds})
        losses, started = [], time.perf_counter()
    return _finish(settings, place, training, seconds)


def _finish(
    settings: RunSettings, place: RunFolder, training: Training, seconds: float, stopped: str | None = None
) -> Run:
    """Test the best state once, keep the result, and return it."""
    chosen = place.load_best()
    if chosen is not None:  # None: no validation loss was ever a number
        with torch.no_grad():
            for name, tensor in (*training.module.named_parameters(), *training.module.named_buffers()):
                tensor.copy_(chosen[0][f"module.{name}"])
    task = settings.test_task or settings.task
    test = task.draw(settings.num_test, seed=data_seed("test", settings.seed))
    names = [bucket_of(length, settings.buckets) for length in test.lengths.tolist()]
    by_length = {
        name: evaluate(
            training.module, test.take(torch.tensor([i for i, one in enumerate(names) if one == name])), task
        )
        for name in sorted(set(names))
    }
    result = Run(
        seed=settings.seed,
        num_parameters=sum(parameter.numel() for parameter in training.module.parameters()),
        steps=training.step,
        seconds=seconds,
        best_step=0 if chosen is None else chosen[1]["step"],
        clipped_share=training.num_clipped / training.step,
        num_bad=training.num_bad,
        test={} if chosen is None else evaluate(training.module, test, task),
        test_by_length=by_length if settings.buckets and chosen is not None else {},
        curve=tuple(place.records()),
        stopped=stopped,
    )
    place.write(RESULT, json.dumps(result.to_dict(), indent=1) + "\n")
    return result


def make_model(description: ModelDescription) -> nn.Module:
    """Build what a description stands for, with weights from torch's global stream."""
    return RecurrentModel(description) if isinstance(description, RecurrentConfig) else build(description)


def scores_of(module: nn.Module, examples: Examples, task: TokenTask) -> Tensor:
    """Return (texts, seq_len, answers, classes) scores."""
    scores: Tensor = module(examples.ids)
    return scores.view(*scores.shape[:-1], task.num_answers, task.num_classes)


def loss_of(
    module: nn.Module, examples: Examples, task: TokenTask, *, label_smoothing: float = 0.0
) -> tuple[Tensor, int]:
    """Return the summed loss of all answers, and how many they are."""
    return loss_sum(scores_of(module, examples, task), examples.targets, label_smoothing=label_smoothing)


@torch.no_grad()
def evaluate(module: nn.Module, examples: Examples, task: TokenTask) -> dict[str, float]:
    """Return the metrics of a module in eval mode on examples (see `AnswerSums.metrics`)."""
    module.eval()
    sums = AnswerSums()
    for start in range(0, len(examples), EVALUATION_BATCH):
        part = examples.take(slice(start, start + EVALUATION_BATCH))
        sums.add(scores_of(module, part, task), part.targets)
    return sums.metrics()


def data_seed(split: str, seed: int, step: int = 0) -> int:
    """Return the seed that a batch is drawn with: another one for every split, run seed and step."""
    digest = hashlib.sha256(f"{split}/{seed}/{step}".encode()).digest()
    return int.from_bytes(digest[:7], "big")  # 56 bits: torch takes 64 with a sign


def _described(value: Any) -> Any:
    """Return a value as JSON can hold it; of a dataclass its kind, too, at any depth: all that some masks differ in."""
    if is_dataclass(value):
        return {type(value).__name__: {field.name: _described(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, list | tuple):
        return [_described(each) for each in value]
    return {str(key): _described(each) for key, each in value.items()} if isinstance(value, dict) else value
