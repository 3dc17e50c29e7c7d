"""Listening to the attention layers of a Hugging Face model on their own fast path.

transformers looks its attention function up by name in `AttentionInterface`, and the mask that goes with it in
`AttentionMaskInterface`. Under one name of our own, we register a function that shows each call to an observer and then
computes the output by transformers' own sdpa function, with the masks of sdpa. The registered function holds nothing:
whom to tell stands in a context variable, set only while `observe_attention` is open.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headwise.errors import MissingExtraError, UnsupportedError
from headwise.integrations.layer_weights import CallCount, ProjectedWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CAPTURE_NAME = "headwise_capture"
UNREADABLE_KEYWORDS = ("softcap", "s_aux")  # change the weights in ways that queries and keys alone do not tell

Observer = Callable[[int, ProjectedWeights], None]


_listener: ContextVar[Callable[[nn.Module, ProjectedWeights], None] | None] = ContextVar("listener", default=None)


def is_transformers_model(module: nn.Module) -> bool:
    """Tell whether `module` is a Hugging Face model, without importing transformers.

    A model in hand proves that transformers is imported; its classes are told by their name and home.
    """
    return any(
        cls.__name__ == "PreTrainedModel" and cls.__module__.startswith("transformers.") for cls in type(module).__mro__
    )


@contextmanager
def observe_attention(model: "PreTrainedModel", observer: Observer) -> Iterator[CallCount]:
    """Show every attention call that `model` makes through transformers' interface to `observer`.

    Args:
        model: a Hugging Face model, in any attention implementation; it has its own again afterwards, also on failure.
        observer: called with the number of the call, from 0, and what its weights are made of.

    Yields:
        The count of calls. A count below the number of attention layers means that the model has attention of its own.

    Raises:
        UnsupportedError: (from inside the model's call) a layer changes its scores in a way that is not read here.
    """
    _register()
    count = CallCount()

    def listen(module: nn.Module, weights: ProjectedWeights) -> None:
        observer(count.calls, weights)
        count.calls += 1

    with keep_implementation(model):
        with _silenced("transformers.modeling_utils"):
            model.set_attn_implementation(CAPTURE_NAME)
        token = _listener.set(listen)
        try:
            yield count
        finally:
            _listener.reset(token)


@contextmanager
def keep_implementation(model: "PreTrainedModel") -> Iterator[None]:
    """Give the model and all configs inside it the attention implementation back that they have now."""
    # the public setter dispatches one name to all sub-configs and checks it again: only the field that it
    # writes (transformers 5.24) brings a mixture, or a name that needs a GPU, back exactly
    before = [(config, config._attn_implementation_internal) for config in _configs(model)]
    try:
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation


def use_eager_attention(model: "PreTrainedModel") -> None:
    """Switch the model and all configs inside it to eager attention; call it inside `keep_implementation`.

    Models that dispatch by themselves refuse the public setter but read the name in their config, masks included.
    """
    for config in _configs(model):
        config._attn_implementation_internal = "eager"


@contextmanager
def _silenced(logger_name: str) -> Iterator[None]:
    """Hold back warnings: that a model refuses to be switched is what the count of calls tells."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _configs(model: "PreTrainedModel") -> list[Any]:
    """Return every config that the model or a part of it reads, each once."""
    found: dict[int, Any] = {}
    waiting = [module.config for module in model.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += [sub for name in config.sub_configs if (sub := getattr(config, name, None)) is not None]
    return list(found.values())


def _register() -> None:
    """Register the capture function and its masks, once."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("transformers", "hf") from error
    if CAPTURE_NAME not in AttentionInterface():
        AttentionInterface.register(CAPTURE_NAME, _show_and_attend)
        AttentionMaskInterface.register(CAPTURE_NAME, AttentionMaskInterface()["sdpa"])


def _show_and_attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **keywords: Any
) -> tuple[Tensor, None]:
    """Tell the listener what this call attends with, and compute its output as sdpa would."""
    from transformers import AttentionInterface

    listener = _listener.get()
    if listener is not None:
        listener(module, _read_call(module, query, key, attention_mask, keywords))
    attend = AttentionInterface()["sdpa"]
    return attend(module, query, key, value, attention_mask, **keywords)  # type: ignore[no-any-return]


def _read_call(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, keywords: dict[str, Any]
) -> ProjectedWeights:
    """Turn the arguments of one call into what its weights are made of, as the sdpa function reads them."""
    for name in UNREADABLE_KEYWORDS:
        if keywords.get(name) is not None:
            raise UnsupportedError(
                f"weights are recomputed from queries and keys alone, but {type(module).__name__} gives {name}"
            )
    scale = keywords.get("scaling")
    is_causal = keywords.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask, bias = attention_mask, keywords.get("position_bias")
    if mask is not None and mask.dtype != torch.bool:
        # an additive mask hides with -inf or the lowest number of its dtype, and may carry a bias besides
        additive, mask = mask, mask > torch.finfo(mask.dtype).min / 2
        bias = additive if bias is None else bias + additive
    return ProjectedWeights(
        query=query.detach(),
        key=key.detach(),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=mask,
        bias=None if bias is None else bias.detach(),
        # transformers lets the flag speak only where there is no mask and more than one query
        is_causal=bool(is_causal) and attention_mask is None and query.shape[2] > 1,
    )
