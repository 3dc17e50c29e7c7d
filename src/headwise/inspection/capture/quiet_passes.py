"""Forward passes for looking: in eval mode, without gradients, and without what looking does not need."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.inspection.capture.checked_inputs import explained, require_module

Inputs = Mapping[str, Any] | tuple[Any, ...]

TRIAL_TOKENS = 32  # enough for every layer to make its call; a long text would cost as much again as to read it
BY_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def run(model: nn.Module, inputs: Inputs) -> Any:
    """Run a module on keyword arguments, or on positional ones.

    Raises:
        ModelError: it failed, and its inputs tell why; or they are of another kind.
    """
    if not isinstance(inputs, Mapping | tuple):
        raise ModelError(
            "inputs must be what the model is called with, keywords as a mapping or positional arguments as a tuple; "
            f"got {type(inputs).__name__}"
        )
    with explained(model, inputs):
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def run_without_cache(model: Any, inputs: Inputs, **keywords: Any) -> Any:
    """Run a Hugging Face model on a whole text, whose keys and values nobody will ask for again.

    Raises:
        ModelError: the inputs are positional; or the model failed, and they tell why.
    """
    if not isinstance(inputs, Mapping):
        raise ModelError("a Hugging Face model is run with keyword arguments; give inputs as a dict")
    has_cache = getattr(model.config, "use_cache", None) is not None
    with explained(model, inputs):
        without_cache = {"use_cache": False} if has_cache else {}
        return model(**{**inputs, **keywords, **without_cache})  # what looking needs goes before what was asked for


def trial_text(model: Any, inputs: Inputs) -> Inputs:
    """Return the inputs of the first text of a batch, of a long one its first real tokens alone, to try a model on.

    Args:
        model: a Hugging Face model.
        inputs: of a batch. What is not named as tokens and what goes with them is taken whole.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    if any(isinstance(each, Tensor) and not each.numel() for each in inputs.values()):
        return inputs  # there is no text, or no token: the pass will tell
    first = {name: each[:1] if isinstance(each, Tensor) and each.dim() else each for name, each in inputs.items()}
    # BigBird changes its attention for good when it is given a short text
    if hasattr(model.config, "attention_type") or not all(_goes_by_tokens(*item) for item in first.items()):
        return first
    mask = first.get("attention_mask")
    start = 0 if mask is None else int((mask[0] != 0).int().argmax())
    return {
        name: each[:, :TRIAL_TOKENS] if name.startswith("decoder_") else each[:, start : start + TRIAL_TOKENS]
        for name, each in first.items()
    }


def _goes_by_tokens(name: Any, value: Any) -> bool:
    return (
        isinstance(name, str)
        and name.removeprefix("decoder_") in BY_TOKENS
        and isinstance(value, Tensor)
        and value.dim() == 2
    )


def count_texts(inputs: Inputs) -> int:
    """Return how many texts (or images) a Hugging Face model is given: the first size of its first tensor."""
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return next((value.shape[0] for value in values if isinstance(value, Tensor) and value.dim() > 0), 1)


@contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients; every part has its own training flag again afterwards.

    Raises:
        ModelError: `model` is no module.
    """
    require_module(model)
    training = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, flag in training:
            part.training = flag
