"""Asking a model a task's texts: what it puts out, what that costs it, and how often it is right."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.model import ModelConfig
from headwise.errors import ConfigError
from headwise.experiments.answers import AnswerSums, loss_sum
from headwise.experiments.examples import Examples, TokenTask
from headwise.experiments.image_classifier import ImageClassifier, ImageClassifierConfig
from headwise.experiments.recurrent import RecurrentConfig, RecurrentModel
from headwise.masks.data import KeyPadding
from headwise.nn.build import build
from headwise.nn.classifier import Classifier
from headwise.nn.language_model import LanguageModel

EVALUATION_BATCH = 64  # texts at once as answers are counted: results do not depend on it but for float error

ModelDescription = ModelConfig | RecurrentConfig | ImageClassifierConfig


def make_model(
    description: ModelDescription, *, checkpoint: Literal["none", "selective", "full"] = "none", impl: str = "auto"
) -> nn.Module:
    """Build what a description stands for, with weights from torch's global stream.

    Args:
        description: of the model.
        checkpoint, impl: of a Transformer, as of `build`; a recurrent model has neither, one of images no checkpoints.

    Raises:
        ConfigError: what has no checkpoints is to be checkpointed, or a recurrent model's attention computed otherwise.
    """
    require_ways(description, checkpoint=checkpoint, impl=impl)
    if isinstance(description, ModelConfig):
        return build(description, checkpoint=checkpoint, impl=impl)
    if isinstance(description, ImageClassifierConfig):
        return ImageClassifier(description, impl=impl)
    return RecurrentModel(description)


def require_ways(description: ModelDescription, *, checkpoint: str, impl: str) -> None:
    """Raise ConfigError where what is described cannot be trained in these ways (see `make_model`)."""
    if isinstance(description, ImageClassifierConfig) and checkpoint != "none":
        raise ConfigError(f'a model of images is trained with checkpoint "none"; got {checkpoint!r}')
    if isinstance(description, RecurrentConfig) and (checkpoint, impl) != ("none", "auto"):
        raise ConfigError(
            f'a recurrent model is trained with checkpoint "none" and impl "auto"; got {checkpoint!r} and {impl!r}'
        )


def scores_of(module: nn.Module, examples: Examples, task: TokenTask) -> Float[Tensor, "texts seq_len answers classes"]:
    """Return the score of each class of each answer; a model that reads later tokens is told which are padding.

    Args:
        module: of ours, recurrent or not, perhaps inside torch's DistributedDataParallel.
        examples: on the module's device.
        task: that they are of.
    """
    scores: Tensor = module(examples.ids, **_padding(module, examples))
    return scores.view(*scores.shape[:-1], task.num_answers, task.num_classes)


def loss_of(
    module: nn.Module, examples: Examples, task: TokenTask, *, label_smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], int]:
    """Return the summed loss of all answers, and how many they are."""
    return loss_sum(scores_of(module, examples, task), examples.targets, label_smoothing=label_smoothing)


@torch.no_grad()
def evaluate(module: nn.Module, examples: Examples, task: TokenTask) -> dict[str, float]:
    """Return the metrics of a module in eval mode on examples (see `AnswerSums.metrics`)."""
    module.eval()
    device = next(module.parameters()).device
    sums = AnswerSums(num_classes=task.num_classes if task.classifies else None)
    for start in range(0, len(examples), EVALUATION_BATCH):
        part = examples.take(slice(start, start + EVALUATION_BATCH)).to(device)
        sums.add(scores_of(module, part, task), part.targets)
    return sums.metrics()


def bare(module: nn.Module) -> nn.Module:
    """Return the model itself, where DistributedDataParallel holds it."""
    return module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module


def _padding(module: nn.Module, examples: Examples) -> dict[str, KeyPadding | Tensor]:
    """Return what a module is told of padding: nothing where it reads forwards only, for padding follows the text."""
    inner = bare(module)
    if examples.real is None or isinstance(inner, RecurrentModel) or _reads_forwards(inner):
        return {}
    lengths = examples.real.sum(dim=1)
    if isinstance(inner, Classifier):
        return {"lengths": lengths}
    return {"mask": KeyPadding(lengths, padded_len=examples.ids.shape[1])}


def _reads_forwards(module: nn.Module) -> bool:
    if not isinstance(module, LanguageModel):
        return False
    try:
        module.require_causal()
    except ConfigError:
        return False
    return True
