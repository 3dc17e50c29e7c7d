"""One door to the attention weights of a model: each layer shown to an observer, in blocks of queries."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headwise.errors import ModelError, UnsupportedError
from headwise.inspection.own_attention import observe_own_attention
from headwise.integrations.layer_weights import CallCount, GivenWeights, LayerWeights
from headwise.integrations.torch_attention import observe_multihead_attention
from headwise.integrations.transformers_attention import (
    is_transformers_model,
    keep_implementation,
    observe_attention,
    use_eager_attention,
)
from headwise.nn.multihead import MultiHeadAttention

Inputs = Mapping[str, Any] | tuple[Any, ...]
Observer = Callable[[int, LayerWeights], None]


@runtime_checkable
class Reader(Protocol):
    """A way to read the attention of one model; `notes` say, after reading, what a reader of the result must know."""

    notes: tuple[str, ...]

    def read(self, inputs: Inputs, observer: Observer) -> None:
        """Run the model once, showing every self-attention layer to `observer(layer, weights)`, from layer 0 on."""


def open_reader(model: nn.Module, example: Inputs) -> Reader:
    """Find the way to read a model's attention, trying it on the first text of `example` where that is not known.

    The model runs in eval mode without gradients, and is as it was afterwards. Weights come in blocks of queries: no
    more than one layer is ever held, and of most models no more than one block.

    Args:
        model: a Hugging Face model, or a module with `nn.MultiheadAttention`s or headwise's `MultiHeadAttention`s.
        example: keyword arguments of its forward pass as a mapping, or positional ones as a tuple.

    Raises:
        ModelError: the model is of another kind, or its attention cannot be read whole.
    """
    if is_transformers_model(model):
        return _open_transformers(model, example)
    layers = [part for part in model.modules() if isinstance(part, nn.MultiheadAttention | MultiHeadAttention)]
    if not layers:
        raise ModelError(
            "heads can be shown of a Hugging Face model, or of a module that holds nn.MultiheadAttention or "
            f"headwise's MultiHeadAttention; {type(model).__name__} is and holds none of them"
        )
    if all(isinstance(layer, MultiHeadAttention) for layer in layers):
        return _ModuleReader(model, observe_own_attention)
    if all(isinstance(layer, nn.MultiheadAttention) for layer in layers):
        return _ModuleReader(model, observe_multihead_attention)
    raise ModelError(
        "a module's heads are shown where all its attention layers are of one kind; "
        f"{type(model).__name__} mixes nn.MultiheadAttention and headwise's MultiHeadAttention: inspect its parts"
    )


class _ModuleReader:
    """Reads a module whose attention layers can be listened to one by one."""

    def __init__(
        self,
        model: nn.Module,
        observe: Callable[[nn.Module, Callable[[Any, Any], None]], AbstractContextManager[CallCount]],
    ):
        self.model = model
        self.observe = observe
        self.notes: tuple[str, ...] = ()

    def read(self, inputs: Inputs, observer: Observer) -> None:
        def number(_: nn.Module, weights: LayerWeights) -> None:
            observer(count.calls, weights)

        with _quietly(self.model), self.observe(self.model, number) as count:
            _run(self.model, inputs)
        if count.calls == 0:
            raise ModelError(
                "heads are shown of self-attention layers that run (cross-attention reads keys of another text); "
                f"in one forward pass of {type(self.model).__name__} none did"
            )
        if count.cross_calls:
            layers = "layer that reads" if count.cross_calls == 1 else "layers that read"
            self.notes = (f"Cross-attention is left out: {count.cross_calls} {layers} the keys of another text.",)


class _InterfaceReader:
    """Reads a Hugging Face model on its fast path, through transformers' own attention interface."""

    def __init__(self, model: Any, num_layers: int):
        self.model = model
        self.num_layers = num_layers
        self.notes: tuple[str, ...] = ()

    def read(self, inputs: Inputs, observer: Observer) -> None:
        with _quietly(self.model), observe_attention(self.model, observer) as count:
            _run_without_cache(self.model, inputs)
        if count.calls != self.num_layers:
            raise ModelError(
                f"every pass of {type(self.model).__name__} must call its {self.num_layers} attention layers once; "
                f"this one called {count.calls}"
            )


class _EagerReader:
    """Reads the weights that a Hugging Face model returns itself, in eager mode; holds all layers of a batch."""

    def __init__(self, model: Any, num_layers: int, reason: str):
        self.model = model
        self.num_layers = num_layers
        self.notes: tuple[str, ...] = (
            f"{type(model).__name__} was read in eager mode, since {reason}: "
            "there a weight of exactly 0 is taken for a hidden key.",
        )

    def read(self, inputs: Inputs, observer: Observer) -> None:
        with _quietly(self.model), keep_implementation(self.model):
            use_eager_attention(self.model)
            output = _run_without_cache(self.model, inputs, output_attentions=True, return_dict=True)
        attentions = getattr(output, "attentions", None) or ()
        shown = [weights for weights in attentions if isinstance(weights, Tensor) and weights.dim() == 4]
        if len(shown) != self.num_layers or len(shown) != len(attentions):
            raise ModelError(
                f"the attention of {type(self.model).__name__} cannot be read: it does not go through transformers' "
                f"AttentionInterface, and in eager mode output_attentions=True returned weights for {len(shown)} of "
                f"{self.num_layers} layers"
            )
        for layer, weights in enumerate(shown):
            observer(layer, GivenWeights(weights=weights.float(), visible=weights > 0))


def _open_transformers(model: Any, example: Inputs) -> Reader:
    """Try the attention interface on one text; where a layer bypasses it, fall back to eager mode."""
    name = type(model).__name__
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder and model.get_encoder() is not model:
        raise ModelError(
            f"heads are shown of one stack of self-attention layers; {name} is an encoder and a decoder: "
            "give one of them, for instance model.get_encoder()"
        )
    # without its output head: scores over a vocabulary are not needed, and often the largest tensor of a model
    body = model.base_model
    num_layers = getattr(config, "num_hidden_layers", None)
    try:
        with _quietly(body), observe_attention(body, lambda layer, weights: None) as count:
            _run_without_cache(body, _first_text(example))
    except UnsupportedError as error:
        if num_layers is None:
            raise ModelError(f"the attention of {name} cannot be read: {error}") from error
        return _EagerReader(body, num_layers, str(error))
    if num_layers is None:
        num_layers = count.calls
    if count.calls == num_layers and num_layers > 0:
        return _InterfaceReader(body, num_layers)
    if count.calls > num_layers:
        raise ModelError(
            f"heads are shown of models with one self-attention a layer; {name} has {num_layers} layers and calls "
            f"attention {count.calls} times: inspect its parts"
        )
    reader = _EagerReader(
        body,
        num_layers,
        f"{num_layers - count.calls} of its {num_layers} layers bypass transformers' AttentionInterface",
    )
    reader.read(_first_text(example), lambda layer, weights: None)
    return reader


def _run(model: nn.Module, inputs: Inputs) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def _run_without_cache(model: Any, inputs: Inputs, **keywords: Any) -> Any:
    """Run a Hugging Face model on a whole text, whose keys and values nobody will ask for again."""
    if not isinstance(inputs, Mapping):
        raise ModelError("a Hugging Face model is run with keyword arguments; give inputs as a dict")
    has_cache = getattr(model.config, "use_cache", None) is not None
    return model(**inputs, **keywords, use_cache=False) if has_cache else model(**inputs, **keywords)


def _first_text(inputs: Inputs) -> Inputs:
    """Return the inputs of the first text of a batch."""

    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.dim() > 0 else value

    if isinstance(inputs, Mapping):
        return {name: first(value) for name, value in inputs.items()}
    return tuple(first(value) for value in inputs)


@contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients; every part has its own training flag again afterwards."""
    training = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, flag in training:
            part.training = flag
