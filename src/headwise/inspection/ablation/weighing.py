"""What a loss says of a model's passes, batch by batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs

Batches = Inputs | Sequence[Inputs]
Loss = Callable[[Any, Inputs], Tensor]
"""Called with a model's output and the inputs of that pass; returns the batch's loss, or (B,) one of each text."""


def as_batches(name: str, inputs: Batches) -> list[Inputs]:
    """Return the inputs of each pass: a mapping or a tuple is those of one, a list holds those of several.

    Raises:
        ModelError: something else, or no inputs.
    """
    batches = [inputs] if isinstance(inputs, Mapping | tuple) else inputs
    if not isinstance(batches, list) or not all(isinstance(batch, Mapping | tuple) and batch for batch in batches):
        batches = []
    if not batches:
        raise ModelError(
            f"{name} must be what the model is called with, keywords as a mapping or positional arguments as a tuple, "
            f"or a list of such; got {type(inputs).__name__} with none"
        )
    return batches


def weigh(model: nn.Module, output: Any, inputs: Inputs, loss: Loss | None) -> Tensor:
    """Return what the loss says of an output: one number, or one of each text.

    Args:
        model: that gave the output.
        output: of one pass.
        inputs: of that pass.
        loss: Default: the loss that the output holds, as a Hugging Face model's does when it is given labels.

    Raises:
        ModelError: there is no loss, or it is no function, no number or vector.
    """
    value: Any
    if loss is not None and not callable(loss):
        raise ModelError(f"loss must be a function (output, inputs); got {shown(loss)}")
    if loss is not None:
        value = loss(output, inputs)
    else:
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if value is None:
            raise ModelError(
                "there must be a loss to tell what heads are for, and the output of "
                f"{type(model).__name__} holds none: give labels among the inputs, if the model makes a loss of them, "
                "or loss, a function (output, inputs)"
            )
    if not isinstance(value, Tensor) or value.dim() > 1 or not value.numel():
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(f"loss must be a tensor of one number, or of one for each text, (B,); got {got}")
    return value
