"""One door to the attention weights of a model: each layer shown to an observer, in blocks of queries."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, Protocol, runtime_checkable

from torch import nn

from headwise.errors import ModelError, UnsupportedError
from headwise.inspection.capture.eager import EagerReader
from headwise.inspection.capture.listening import Trial, listen
from headwise.inspection.capture.quiet_passes import Inputs, quietly, run, run_without_cache, trial_text
from headwise.inspection.capture.stacks import Place, Stack, StackNames
from headwise.integrations.layer_weights import AttentionCall, LayerWeights
from headwise.integrations.text_config import text_config_of
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.integrations.wrappers import unwrapped

Observer = Callable[[int, LayerWeights], None]
StackObserver = Callable[[str, int, LayerWeights], None]


@runtime_checkable
class Reader(Protocol):
    """A way to read the attention of one model; `notes` say, after reading, what a reader of the result must know."""

    notes: tuple[str, ...]

    def read(self, inputs: Inputs, observer: Observer) -> None:
        """Run the model once, showing every layer of one stack to `observer(layer, weights)`, from layer 0 on."""


@runtime_checkable
class StackReader(Protocol):
    """A way to read all stacks of attention layers of one model, in one pass."""

    stacks: tuple[Stack, ...]
    notes: tuple[str, ...]

    def read(self, inputs: Inputs, observer: StackObserver) -> None:
        """Run the model once, showing every layer to `observer(name of its stack, layer, weights)`."""


def open_reader(model: nn.Module, example: Inputs, *, stack: str | None = None) -> "OneStack":
    """Find the way to read one stack of a model's attention layers.

    Args:
        model: as of `open_stacks`.
        example: as of `open_stacks`.
        stack: name of the stack. Default: the only stack of self-attention; cross-attention is left out.

    Raises:
        ModelError: as `open_stacks`; the model has no such stack, or none or several of self-attention and no name is
            given.
    """
    reader = open_stacks(model, example)
    name = type(model).__name__
    known = ", ".join(map(str, reader.stacks))
    if stack is not None:
        return OneStack(reader, require_stack(reader, stack, name), ())
    own = [each for each in reader.stacks if not each.is_cross]
    if not own:
        raise ModelError(
            "heads are shown of self-attention layers that run (cross-attention reads keys of another text); in one "
            f"forward pass of {name} none did: give stack, one of {known}"
        )
    if len(own) > 1:
        raise ModelError(
            f"heads are shown of one stack of attention layers at a time; {name} has {known}: give stack, one of their "
            "names, or inspect its parts"
        )
    left_out = sum(each.num_layers for each in reader.stacks if each.is_cross)
    layers = "layer that reads" if left_out == 1 else "layers that read"
    note = f"Cross-attention is left out: {left_out} {layers} the keys of another text."
    return OneStack(reader, own[0], (note,) if left_out else ())


def require_stack(reader: StackReader, stack: str, model_name: str) -> Stack:
    """Return the stack of a name.

    Raises:
        ModelError: the model has none of that name; the text names those that it has.
    """
    found = next((each for each in reader.stacks if each.name == stack), None)
    if found is None:
        raise ModelError(f"stack must be one of {model_name}'s: {', '.join(map(str, reader.stacks))}; got {stack!r}")
    return found


def open_stacks(model: nn.Module, example: Inputs) -> StackReader:
    """Find the way to read all attention layers of a model, trying it on `example`.

    The model runs in eval mode without gradients, and is as it was afterwards. Weights come in blocks of queries: no
    more than one layer is ever held, and of most models no more than one block. In the trial, what was recomputed is
    compared with what a Hugging Face layer attends with; where it differs, or a layer bypasses transformers'
    interface, the model is read in eager mode, and a note says so.

    Args:
        model: a Hugging Face model, or a module with `nn.MultiheadAttention`s, headwise's own layers, calls of
            `headwise.attention`, or layers that an adapter reads (`register_adapter`).
        example: keyword arguments of its forward pass as a mapping, or positional ones as a tuple. Of a Hugging Face
            model the trial reads the first tokens of the first text.

    Raises:
        ModelError: the model is of another kind, or its attention cannot be read whole.
    """
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    if is_transformers_model(model):
        return _open_transformers(model, example)
    trial = Trial()
    with quietly(model), trial.watch(model):
        run(model, example)
    if not trial.calls:
        raise ModelError(
            "heads can be shown of a Hugging Face model, or of a module whose forward pass runs nn.MultiheadAttention "
            f"or headwise's MultiHeadAttention; {type(model).__name__} is and runs none of them: "
            "register_adapter says how to read others"
        )
    has_cross = any(is_cross for _, is_cross in trial.calls)
    return _ListeningReader(model, run, StackNames(model, by_path=has_cross), trial)


class OneStack:
    """Reads one of a model's stacks.

    Args:
        reader: of all of them.
        stack: which one.
        notes: what a reader of it must know besides.
    """

    def __init__(self, reader: StackReader, stack: Stack, notes: tuple[str, ...]):
        self.reader = reader
        self.stack = stack
        self.notes = (*reader.notes, *notes)

    def read(self, inputs: Inputs, observer: Observer) -> None:
        """Run the model once, showing every layer of the stack to `observer(layer, weights)`, from layer 0 on."""
        self.reader.read(inputs, partial(self._choose, observer))

    def _choose(self, observer: Observer, stack: str, number: int, weights: LayerWeights) -> None:
        if stack == self.stack.name:
            observer(number, weights)


class _ListeningReader:
    """Reads a model by listening to its attention calls."""

    def __init__(
        self,
        model: nn.Module,
        run_model: Callable[[Any, Inputs], Any],
        names: StackNames,
        trial: Trial,
    ):
        self.model = model
        self.run_model = run_model
        self.names = names
        self.places = names.name_places([names.place_of(*call) for call in trial.calls])
        self.stacks = tuple(self.places.values())
        self.notes: tuple[str, ...] = ()

    def read(self, inputs: Inputs, observer: StackObserver) -> None:
        counts: Counter[Place] = Counter()
        with quietly(self.model), listen(self.model, partial(self._hear, observer, counts)):
            self.run_model(self.model, inputs)
        expected = Counter({place: stack.num_layers for place, stack in self.places.items()})
        if counts != expected:
            raise ModelError(
                f"every pass of {type(self.model).__name__} must call its {expected.total()} attention layers once; "
                f"this one called {counts.total()}"
            )

    def _hear(self, observer: StackObserver, counts: Counter[Place], call: AttentionCall) -> None:
        place = self.names.place_of(call.module, call.is_cross)
        if place in self.places:
            observer(self.places[place].name, counts[place], call.weights)
        counts[place] += 1


def _open_transformers(model: Any, example: Inputs) -> StackReader:
    """Listen to one text; where a layer bypasses the interface, or cannot be told from its call, read in eager mode."""
    _require_decoder_inputs(model, example)
    body = _without_head(model)
    text = trial_text(body, example)
    num_layers = getattr(text_config_of(model.config), "num_hidden_layers", None)
    if model.config.is_encoder_decoder:  # what its config says is of one of its stacks
        num_layers = None
    trial = Trial()
    try:
        with quietly(body), trial.watch(body):
            run_without_cache(body, text)
    except UnsupportedError as error:
        return _open_eager(EagerReader(body, num_layers, str(error)), text)
    if not trial.calls and not trial.silent:
        reason = "none of its layers goes through transformers' AttentionInterface"
        return _open_eager(EagerReader(body, num_layers, reason), text)
    num_known = len(trial.calls) + len(trial.silent)
    reason = f"{len(trial.silent)} of its {num_known} layers bypass transformers' AttentionInterface"
    if not trial.calls:
        return _open_eager(EagerReader(body, num_known, reason), text)

    reader = _ListeningReader(body, run_without_cache, StackNames(body, by_path=True), trial)
    silent = {reader.names.place_of(layer, is_cross)[0] for layer in trial.silent for is_cross in (False, True)}
    if silent & {path for path, _ in reader.places}:  # a stack with holes: its layers would get wrong numbers
        return _open_eager(EagerReader(body, num_known, reason), text)
    if trial.silent:
        names = ", ".join(sorted({type(layer).__name__ for layer in trial.silent}))
        reader.notes = (f"Left out is {names}, whose attention does not go through transformers' AttentionInterface.",)
    if len(reader.stacks) == 1 and num_layers is not None and len(trial.calls) < num_layers:
        shown = f"{len(trial.calls)} of the {num_layers} layers of {type(model).__name__}"
        reader.notes += (f"{shown} have softmax attention; they are numbered from 0.",)
    return reader


def _open_eager(reader: EagerReader, text: Inputs) -> StackReader:
    """Return a reader that has read a text."""
    reader.read(text, lambda stack, layer, weights: None)
    reader.note_difference(text)
    return reader


def _without_head(model: Any) -> Any:
    """Return a model without its output head: scores over a vocabulary are often the largest tensor of all."""
    body = model.base_model
    reads = signature(body.forward).parameters
    return body if model.main_input_name in reads else model  # some call a part base that reads hidden states


def _require_decoder_inputs(model: Any, inputs: Inputs) -> None:
    if not model.config.is_encoder_decoder or model.get_encoder() is model or not isinstance(inputs, Mapping):
        return
    # what looks at images answers with queries that it has learned
    if "pixel_values" not in inputs and not any(name.startswith("decoder_") for name in inputs):
        raise ModelError(
            f"{type(model).__name__} is an encoder and a decoder: its inputs must have decoder_input_ids, too; or give "
            f"one of them, for instance model.get_encoder(); got {', '.join(inputs)}"
        )
