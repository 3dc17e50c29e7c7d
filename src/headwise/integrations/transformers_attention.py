"""Listening to the attention layers of a Hugging Face model on their own path.

Every layer that goes through transformers' `AttentionInterface` asks it for the function to attend with. While
`observe_attention` is open, what it gets shows its arguments to a listener before it attends, so that the model keeps
its attention implementation, its masks and its outputs, to the bit. The listener stands in a context variable: other
threads hear and change nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import MissingExtraError, UnsupportedError
from headwise.integrations.layer_weights import (
    AttentionCall,
    Listener,
    OnError,
    ProjectedWeights,
    RowsOf,
    in_thread,
    is_self_attention,
    tell,
)
from headwise.integrations.told_mask import Told, told_by
from headwise.masks.dense import dense_mask
from headwise.ops.listening import listening as listening_to_ops

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNREADABLE_KEYWORDS = ("sinks", "indices", "block_indices")  # of single models; queries and keys do not tell them
OTHER_TOKENS = ("encoder_hidden_states", "key_value_states", "cross_attention_states")  # what cross-attention reads
READ_AS_THEY_ARE = ("eager", "sdpa", "headwise")  # implementations whose masks say which keys a query sees


class AttendedCall(NamedTuple):
    """A call with what it computed, to check the weights against.

    Attributes:
        weights: what its weights are made of.
        value: (B, K, S, V).
        output: what the function returned, (B, T, H, V).
    """

    weights: ProjectedWeights
    value: Tensor
    output: Tensor


_listener: ContextVar[Callable[..., tuple[Tensor, Tensor | None]] | None] = ContextVar("listener", default=None)


def is_transformers_model(module: nn.Module) -> bool:
    """Tell whether `module` is a Hugging Face model, without importing transformers.

    A model in hand proves that transformers is imported; its classes are told by their name and home.
    """
    return any(
        cls.__name__ == "PreTrainedModel" and cls.__module__.startswith("transformers.") for cls in type(module).__mro__
    )


@contextmanager
def observe_attention(
    model: "PreTrainedModel",
    listener: Listener,
    *,
    check: Callable[[nn.Module, AttendedCall], None] | None = None,
    on_error: OnError | None = None,
    switches: bool = True,
) -> Iterator[None]:
    """Show every attention call that `model` makes through transformers' interface to `listener`.

    The model keeps its implementation, but for one whose masks cannot be read (FlashAttention, FlexAttention): that is
    "sdpa" meanwhile, or "eager" where the model has no "sdpa".

    Args:
        model: a Hugging Face model.
        listener: called before each call is answered.
        check: called with the layer and the call after it has been answered.
        on_error: as of `tell`.
        switches: False: an implementation whose masks cannot be read is refused, not switched.

    Raises:
        UnsupportedError: (from inside the model's call) a layer changes its scores in a way that is not read here.
    """
    shower = _Shower(model, listener, check, on_error)
    with ExitStack() as exits:
        exits.enter_context(keep_implementation(model))
        _make_readable(model, switches=switches)
        for part in shower.members:
            if (names := _names_of_other_tokens(part.__class__)) is not None:
                noted = _Crossing(names, shower.crossing)
                exits.callback(part.register_forward_pre_hook(noted.before, with_kwargs=True).remove)
                exits.callback(part.register_forward_hook(noted.after, always_call=True).remove)
        exits.enter_context(_interface.shown())
        token = _listener.set(shower.attend)
        exits.callback(_listener.reset, token)
        yield


class _Shower:
    """Answers the calls of one model's layers, and shows each to a listener."""

    def __init__(
        self,
        model: "PreTrainedModel",
        listener: Listener,
        check: Callable[[nn.Module, AttendedCall], None] | None,
        on_error: OnError | None,
    ):
        self.listener, self.check, self.on_error = listener, check, on_error
        self.crossing: set[nn.Module] = set()  # the layers that run just now with other tokens as keys
        self.members = set(model.modules())
        self.outer = _listener.get()

    def attend(
        self,
        attend: Callable[..., tuple[Tensor, Tensor | None]],
        is_eager: bool,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        *rest: Any,
        **keywords: Any,
    ) -> tuple[Tensor, Tensor | None]:
        with listening_to_ops(None):  # an implementation of ours is not to be heard twice
            if module not in self.members:
                if self.outer is not None:  # the layer may be of another model that is heard
                    return self.outer(attend, is_eager, module, query, key, value, attention_mask, *rest, **keywords)
                return attend(module, query, key, value, attention_mask, *rest, **keywords)
            calls: list[ProjectedWeights] = []
            given = (module, query, key, value, attention_mask, keywords)
            tell(self.listener, lambda: _to_call(given, calls, self.crossing, is_eager=is_eager), self.on_error)
            answer = attend(module, query, key, value, attention_mask, *rest, **keywords)
        if self.check is not None:
            self.check(module, AttendedCall(calls[0], value.detach(), answer[0].detach()))
        return answer


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


def _make_readable(model: "PreTrainedModel", *, switches: bool) -> None:
    """Switch implementations whose masks cannot be read to one whose can, or refuse them."""
    for config in _configs(model):
        name = config._attn_implementation_internal
        if name is not None and not name.startswith(READ_AS_THEY_ARE):
            if not switches:
                raise UnsupportedError(
                    f"attention is heard under {', '.join(READ_AS_THEY_ARE)}, whose masks say which keys a query sees; "
                    f'got {name}: train with attn_implementation="sdpa"'
                )
            config._attn_implementation_internal = "sdpa" if model._supports_sdpa else "eager"


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


class _Interface:
    """transformers' interface; from the first use to the last's end it hands out functions that show their calls."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_uses = 0
        self._original: Any = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        try:
            from transformers import AttentionInterface
        except ModuleNotFoundError as error:
            if error.name != "transformers":
                raise
            raise MissingExtraError("transformers", "hf") from error
        with self._lock:
            if self._num_uses == 0:
                self._original = original = AttentionInterface.get_interface
                AttentionInterface.get_interface = lambda interface, attn_implementation, default: _shown(
                    original(interface, attn_implementation, default), default
                )
            self._num_uses += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_uses -= 1
                if self._num_uses == 0:
                    AttentionInterface.get_interface = self._original


def _shown(attend: Callable[..., Any], default: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a layer is to call in place of a function of transformers': the same where nobody listens."""
    show = _listener.get()
    return attend if show is None else lambda *args, **keywords: show(attend, attend is default, *args, **keywords)


_interface = _Interface()


@cache
def _names_of_other_tokens(cls: type[nn.Module]) -> tuple[str, ...] | None:
    """Return the arguments of a layer's forward pass, if tokens to read as keys are among them."""
    try:
        names = tuple(signature(cls.forward).parameters)[1:]
    except (TypeError, ValueError):
        return None
    return names if any(name in names for name in OTHER_TOKENS) else None


class _Crossing:
    """Holds a layer in `layers` while it runs on other tokens than its first argument, of the arguments `names`."""

    def __init__(self, names: tuple[str, ...], layers: set[nn.Module]):
        self.names, self.layers = names, layers
        self.thread = get_ident()  # another one may be in a pass of the same layers

    def before(self, layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not in_thread(self.thread):
            return
        given = {**dict(zip(self.names, args, strict=False)), **keywords}
        others = [given[name] for name in OTHER_TOKENS if isinstance(given.get(name), Tensor)]
        own = given.get(self.names[0])
        if others and not (isinstance(own, Tensor) and is_self_attention(own, others[0])):
            self.layers.add(layer)

    def after(self, layer: nn.Module, *_: Any) -> None:
        if in_thread(self.thread):
            self.layers.discard(layer)


def _to_call(
    given: tuple[Any, ...], calls: list[ProjectedWeights], crossing: set[nn.Module], *, is_eager: bool
) -> AttentionCall:
    """Return what is shown of a call by its arguments, and keep its weights in `calls`."""
    weights = _read_call(*given, is_eager=is_eager)
    calls.append(weights)
    module = given[0]
    return AttentionCall(module, weights, module in crossing or weights.shape[2] != weights.shape[3])


def _read_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    keywords: dict[str, Any],
    *,
    is_eager: bool,
) -> ProjectedWeights:
    """Turn the arguments of one call into what its weights are made of, as the function reads them."""
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
    if any(term is not None and term.dim() != 4 for term in (mask, bias)):
        raise UnsupportedError(
            f"masks and biases must have 4 dimensions to be read; {type(module).__name__} gives others"
        )
    if mask is not None and mask.dtype != torch.bool:
        # an additive mask hides with -inf or the lowest number of its dtype, and may carry a bias besides
        additive, mask = mask, mask > torch.finfo(mask.dtype).min / 2
        bias = additive if bias is None else bias + additive
    sink, softcap = keywords.get("s_aux"), keywords.get("softcap")
    values = value.detach()  # what is kept must not hold the pass's graph
    told = told_by(attention_mask)
    told_rows = None if told is None or told.key_len != key.shape[2] else _rows_of(told, query.shape[2], query.device)
    return ProjectedWeights(
        query=query.detach().expand(key.shape[0], -1, -1, -1),  # learned queries are the same for each row
        key=key.detach(),
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask=told_rows or (None if mask is None else mask[..., : key.shape[2]]),
        bias=None if bias is None else bias.detach()[..., : key.shape[2]],
        # the flag speaks only where there is no mask and more than one query, and eager functions do not read it
        is_causal=bool(is_causal) and attention_mask is None and query.shape[2] > 1 and not is_eager,
        softcap=None if softcap is None else float(softcap),
        sink=None if sink is None else sink.detach().reshape(-1),
        value=lambda: values,
    )


def _rows_of(told: Told, query_len: int, device: torch.device) -> RowsOf:
    """Return the rows of a mask on paper, whose table nobody makes; once it is made, the model itself reads it."""

    def rows(index: Tensor) -> Tensor:
        seen = dense_mask(
            told.mask,
            batch_size=told.mask.batch_size or 1,
            num_heads=1,
            query_len=index.shape[-1],
            key_len=told.key_len,
            query_index=index.to(device) + (told.num_keys - query_len),
            device=device,
        )
        return seen & (torch.arange(told.key_len, device=device) < told.num_keys)

    return rows
