"""Hearing every attention call of a model, whichever kinds of layers it is made of."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn

from headwise.errors import UnsupportedError
from headwise.inspection.capture.adapters import adapted_layers, observe_adapted
from headwise.inspection.capture.own_attention import OWN_LAYERS, observe_own_attention
from headwise.integrations.layer_weights import AttentionCall, Listener, OnError
from headwise.integrations.torch_attention import observe_multihead_attention
from headwise.integrations.transformers_attention import AttendedCall, is_transformers_model, observe_attention
from headwise.nn.c3tr import PlainTransformerLayer
from headwise.nn.torch_multihead import TorchMultiheadAttention

WITHOUT_WEIGHTS = ("Linear", "Lightning", "Rwkv")  # in names of layers that are called attention and have no softmax


@contextmanager
def listen(
    model: nn.Module,
    listener: Listener,
    *,
    check: Callable[[nn.Module, AttendedCall], None] | None = None,
    on_error: OnError | None = None,
    switches: bool = True,
) -> Iterator[None]:
    """Show every attention call of `model` to `listener`, in the order in which they are made.

    Heard are layers that an adapter reads, `nn.MultiheadAttention`, headwise's own layers and calls of its
    `attention`, and Hugging Face layers that go through transformers' interface. What the model computes stays as it
    is, but for torch's fused encoder path and FlashAttention, which others take the place of: there the outputs differ
    by rounding.

    Args:
        model: any module.
        listener: called at each attention call.
        check: as of `observe_attention`.
        on_error: as of `tell`.
        switches: as of `observe_attention`.

    Raises:
        UnsupportedError: (from inside the model's call) weights that cannot be told from a call.
    """
    ear = _Ear(model, listener)
    with ExitStack() as exits:
        exits.enter_context(observe_adapted(model, ear.hear, on_error=on_error))
        torchs = observe_multihead_attention(
            model, ear.hear_unadapted, without=(TorchMultiheadAttention,), on_error=on_error
        )
        exits.enter_context(torchs)
        exits.enter_context(observe_own_attention(model, ear.hear_unadapted, on_error=on_error))
        for part in transformers_models(model):
            exits.enter_context(
                observe_attention(part, ear.hear_unadapted, check=check, on_error=on_error, switches=switches)
            )
        yield


class _Ear:
    """Passes on to a listener what is heard of a model, each call once."""

    def __init__(self, model: nn.Module, listener: Listener):
        self.listener = listener
        self.adapted = set(adapted_layers(model))
        # its keys and queries are projected before, each by a matrix of its own, from the same tokens
        self.among_themselves = {part.ma for part in model.modules() if isinstance(part, PlainTransformerLayer)}

    def hear(self, call: AttentionCall) -> None:
        if call.module in self.among_themselves:
            call = call._replace(is_cross=False)
        self.listener(call)

    def hear_unadapted(self, call: AttentionCall) -> None:
        if call.module is None or call.module not in self.adapted:
            self.hear(call)


def transformers_models(model: nn.Module) -> list[Any]:
    """Return the Hugging Face models in a module that are not parts of others: itself, or those that it wraps."""
    if is_transformers_model(model):
        return [model]
    return [found for child in model.children() for found in transformers_models(child)]


class Trial:
    """What one pass of a model tells about its attention.

    Attributes:
        calls: (layer, whether it is cross-attention) of each call that was heard.
        silent: layers that are attention by their name, ran, and made no call that was heard; of such layers inside
            one another the inner ones.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[nn.Module | None, bool]] = []
        self.silent: list[nn.Module] = []
        self._thread = get_ident()  # another one may be in a pass of the same model
        self._running: list[bool] = []  # of each layer that runs just now: whether something inside it counted

    @contextmanager
    def watch(self, model: nn.Module) -> Iterator[None]:
        """Listen to a pass of `model`, checking what is heard.

        Raises:
            UnsupportedError: (from inside the model's call) weights that are not what the model attends with.
        """
        adapted = set(adapted_layers(model))
        with ExitStack() as exits:
            for part in model.modules():
                if _is_attention(part) and part not in adapted:
                    exits.callback(part.register_forward_pre_hook(self._before).remove)
                    exits.callback(part.register_forward_hook(self._after, always_call=True).remove)
            exits.enter_context(listen(model, self._hear, check=check_weights))
            yield

    def _hear(self, call: AttentionCall) -> None:
        self.calls.append((call.module, call.is_cross))
        self._running = [True] * len(self._running)

    def _before(self, *_: object) -> None:
        if get_ident() == self._thread:
            self._running.append(False)

    def _after(self, layer: nn.Module, *_: object) -> None:
        if get_ident() == self._thread and not self._running.pop():
            self.silent.append(layer)
            self._running = [True] * len(self._running)


def _is_attention(part: nn.Module) -> bool:
    """Tell by its name whether a layer computes attention, other than one that is heard in any case."""
    name = type(part).__name__
    return (
        "Attention" in name and not any(kind in name for kind in WITHOUT_WEIGHTS) and not isinstance(part, OWN_LAYERS)
    )


def check_weights(module: nn.Module, call: AttendedCall) -> None:
    """Compare `weights @ value` with what a layer's own function returned.

    Raises:
        UnsupportedError: they differ by more than rounding.
    """
    batch, num_heads, query_len, _ = call.weights.shape
    output = call.output.transpose(1, 2)
    is_same = output.shape == (batch, num_heads, query_len, call.value.shape[-1])
    if is_same and 0 not in output.shape:
        precise = torch.promote_types(call.value.dtype, torch.float32)
        value, query, key = (each.to(precise) for each in (call.value, call.weights.query, call.weights.key))
        # A score is off by its dtype's eps for each of its roundings, so by a few eps of |q| |k| scale; so is, relative
        # to itself, a weight, and a mean of values besides by a few eps of the largest. Models of float64 may round
        # their weights to float32.
        reach = query.norm(dim=-1).amax() * key.norm(dim=-1).amax() * abs(call.weights.scale)
        eps = max(torch.finfo(dtype).eps for dtype in (call.output.dtype, torch.float32))
        tolerance = 8 * eps * (2 + reach) * value.abs().amax()
        for block in call.weights.blocks():
            num_keys = block.weights.shape[3]
            grouped = block.weights.to(precise).reshape(batch, value.shape[1], -1, num_keys)
            got = (grouped @ value[:, :, :num_keys]).view(batch, num_heads, -1, value.shape[-1])
            expected = output[:, :, block.start : block.start + got.shape[2]].to(precise)
            # a query that sees no key gets the mean of all values from some functions
            error = (got - expected).abs() * block.visible.any(-1, keepdim=True)
            is_same = is_same and not bool((error > tolerance).any())
    if not is_same:
        raise UnsupportedError(f"queries, keys and masks do not tell what {type(module).__name__} attends with")
