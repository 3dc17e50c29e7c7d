"""What is wrong with the inputs of a pass that failed: one line in place of an error from deep inside a model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.errors import HeadwiseError, ModelError
from headwise.inspection.capture.positions import turns_positions
from headwise.integrations.text_config import text_config_of
from headwise.integrations.transformers_attention import is_transformers_model

IDS = ("input_ids", "decoder_input_ids")


def require_module(model: Any) -> None:
    """Refuse what is no module.

    Raises:
        ModelError: it is a name, a class, nothing.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise ModelError(
            f"model must be a module in hand (torch.nn.Module); got {got}: build or load it first, as "
            "AutoModel.from_pretrained(name) of transformers does"
        )


@contextmanager
def explained(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Run a model inside: where it fails and its inputs tell why, that is the error; else its own error goes through.

    What a model can do with its inputs is the model's to say: nothing is refused that it reads, but for a mask that is
    not of its texts.

    Args:
        model: what runs; of one that is no Hugging Face model nothing is known.
        inputs: what it is called with.

    Raises:
        ModelError: the pass failed, and the inputs tell why; or there is one mask too short or too long.
    """
    reason = None
    if isinstance(inputs, Mapping) and is_transformers_model(model):
        _require_mask(inputs)
        # found before the pass: on a GPU an id out of range leaves nothing behind that could be asked
        reason = next(_reasons(model, inputs), None)
    try:
        yield
    except (HeadwiseError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if reason is None:
            raise
        raise ModelError(reason) from error


def _require_mask(told: Mapping[str, Any]) -> None:
    ids, mask = told.get("input_ids"), told.get("attention_mask")
    if isinstance(ids, Tensor) and isinstance(mask, Tensor) and ids.dim() == mask.dim() == 2:  # noqa: SIM102
        if ids.shape != mask.shape:
            raise ModelError(
                f"attention_mask must say of each token whether it is real, {tuple(ids.shape)} like input_ids; got "
                f"{tuple(mask.shape)}"
            )


def _reasons(model: Any, told: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a Hugging Face model may fail on its inputs."""
    unnamed = next((name for name in told if not isinstance(name, str)), None)
    if unnamed is not None:
        yield f"inputs must be named by what {type(model).__name__} calls them; got {shown(unnamed)} as a name"
    mask = told.get("attention_mask")
    if mask is not None and not isinstance(mask, Tensor):
        yield f"attention_mask must be a tensor; got {type(mask).__name__}: torch.tensor(...) makes one"
    main = model.main_input_name
    if not told.keys() & {main, "inputs_embeds"}:
        names = ", ".join(map(str, told)) or "nothing"
        yield f"inputs must hold {main} for {type(model).__name__}; got {names}"
    for name in IDS:
        ids = told.get(name)
        if ids is None:
            continue
        what = f"{name} must be a tensor of whole numbers, (texts, tokens), of one token or more"
        if not isinstance(ids, Tensor):
            yield f"{what}; got {type(ids).__name__}: torch.tensor(...) makes one"
            continue
        if ids.is_floating_point() or ids.is_complex() or ids.dim() < 2 or not ids.numel():
            yield f"{what}; got {str(ids.dtype).removeprefix('torch.')} of shape {tuple(ids.shape)}"
            continue
        num_ids = _num_ids(model)
        least, most = int(ids.min()), int(ids.max())
        if num_ids is not None and not 0 <= least <= most < num_ids:
            wrong = least if least < 0 else most
            yield f"{name} must be tokens of {type(model).__name__}, from 0 to {num_ids - 1}; got {wrong}"
        longest = getattr(text_config_of(model.config), "max_position_embeddings", None)
        if isinstance(longest, int) and ids.shape[-1] > longest and not turns_positions(model):
            yield (
                f"{name} must hold at most {longest} tokens a text, as {type(model).__name__} has no more positions; "
                f"got {ids.shape[-1]}: cut them, or give the text itself to headwise.inspect, which reads it in windows"
            )


def _num_ids(model: Any) -> int | None:
    """Return how many tokens a model knows; None where it does not say, as one with several embeddings."""
    try:
        embeddings = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None
    return getattr(embeddings, "num_embeddings", None)
