"""The same architecture with random weights: what heads do before they have learnt anything."""

import copy
from typing import Any

import torch
from torch import nn

from headwise.errors import ModelError, describe
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.nn.language_model import LanguageModel
from headwise.nn.transformer import Transformer


def untrained_twin(model: nn.Module, *, seed: int) -> nn.Module:
    """Build a model anew from its config, with the random weights that its own initialisation draws.

    Of a Hugging Face model it is the stack without an output head, which attention does not need. It stands on the
    model's device in the model's dtype, and takes as much memory.

    Args:
        model: a Hugging Face model, or headwise's `LanguageModel` or `Transformer`.
        seed: of the random weights; torch's generators are as they were afterwards.

    Raises:
        ModelError: it is another module, whose description is nowhere, or its class cannot be built from its config.
    """
    body: Any
    if is_transformers_model(model):
        body = model.base_model
    elif isinstance(model, LanguageModel | Transformer):
        body = model
    else:
        raise ModelError(
            f"a model is built anew from its config; {type(model).__name__} has none that is known: give `untrained`"
        )
    parameter = next(model.parameters())
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        try:
            twin: nn.Module = type(body)(copy.deepcopy(body.config))
        except Exception as error:  # a class of a user's may want more than its config, and fail in any way
            raise ModelError(
                f"{type(body).__name__} cannot be built anew from its config ({describe(error)}): give `untrained`"
            ) from error
    return twin.to(device=parameter.device, dtype=parameter.dtype).eval()
