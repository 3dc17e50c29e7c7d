"""Every attention of a model replaced by ours in place, proven on a probe batch."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.convert.probe import Inputs, make_inputs, make_probe, probing, require_equal, run, run_before
from headwise.errors import ConfigError, HeadwiseError, UnsupportedError, describe
from headwise.integrations.transformers_attention import is_transformers_model, keep_implementation
from headwise.integrations.transformers_backend import NAME, register, served
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention

OURS = (TorchMultiheadAttention, MultiHeadAttention, LatentAttention)

Model = TypeVar("Model", bound=nn.Module)


def swap(model: Model, inputs: Inputs | None = None) -> Model:
    """Replace every attention of a Hugging Face or torch model by ours in place, if its outputs stay what they are.

    A Hugging Face model gets `attn_implementation="headwise"` (see `register`). A `torch.nn.MultiheadAttention`
    becomes a `TorchMultiheadAttention`: the same module with the same parameters under its old name, so that optimizers
    and state dicts go on; torch's fused path for evaluation, which passes such modules by, is then off, and with it the
    zeros that it writes at padding. Attention of headwise's own stays as it is.

    The proof is a run before and after, in evaluation, in float32 at least, uncompiled. Every attention of torch's is
    run by itself, with masks. The model is run on `inputs`, or a Hugging Face model on two random texts, one of them
    padded at its end, or on two random images. While it lasts, a model in bfloat16 or float16 holds a float32 copy of
    its weights beside them: three times their memory.

    Args:
        model: stays the same object, in its mode (training or not), with its weights where they are in memory. Swap a
            whole `nn.TransformerEncoder`, not one of its layers: the encoder around it would go on to give that layer
            nested tensors at padding.
        inputs: what the model is called with: keywords, positional arguments, or one tensor. A query that may read no
            key (padding before a text) must not be among them, as models disagree on what it then gives. Default: as
            above; a module of your own around a Hugging Face model needs them, as do models of texts and images, since
            every attention must be called.

    Returns:
        The model.

    Raises:
        UnsupportedError: the model has no attention, or one that is not known here (a subclass of torch's too) or is
            not called in the proof, whose name is given; an output differs by more than rounding, or there is none of
            floats to compare; weights are not in memory (offloaded). The model is as it was, then.
        ConfigError: no model, one that needs `inputs`, or `inputs` that it cannot be called with.

    Example:
        >>> model = swap(AutoModelForCausalLM.from_pretrained(folder))
    """
    _require_in_memory(model)
    ours = [module for module in model.modules() if isinstance(module, OURS)]
    of_torch = [module for module in model.modules() if type(module) is nn.MultiheadAttention]
    of_transformers = _outermost(model, is_transformers_model)
    _require_no_subclass(model)
    if not (ours or of_torch or of_transformers):
        _require_all_known(model, set(), set())
        raise _has_none(model)
    with probing(model), ExitStack() as kept, ExitStack() as undo:
        is_made = bool(of_transformers) and inputs is None
        inputs = make_inputs(model) if is_made else inputs
        before = None if inputs is None else run_before(model, inputs, is_made=is_made)
        for module in of_torch:
            probe = make_probe(module)
            expected = run_before(module, probe, is_made=True)
            undo.callback(_give_back, module, module._qkv_same_embed_dim)
            _take(module)
            require_equal(_name_of(module, model), _run_after(module, probe), expected)
        if of_transformers:
            register()
            for each in of_transformers:
                kept.enter_context(keep_implementation(each))
                each.set_attn_implementation(NAME)
        through_interface: set[nn.Module] = set()
        token = served.set(through_interface)
        try:
            with _noting_calls(model) as called:
                after = None if inputs is None else _run_after(model, inputs)
        finally:
            served.reset(token)
        not_called = set(model.modules()) - called if inputs is not None else set()
        _require_all_known(model, {*ours, *of_torch, *through_interface}, not_called)
        if not (ours or of_torch or through_interface):
            raise _has_none(model)
        if before is not None and after is not None:
            require_equal(type(model).__name__, after, before)
        undo.pop_all()
    for each in of_transformers:
        each.set_attn_implementation(NAME)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and of_torch:
            encoder.use_nested_tensor = False
    return model


def _has_none(model: nn.Module) -> UnsupportedError:
    return UnsupportedError(
        "model must have attention of torch's or be one of Hugging Face's to be swapped; "
        f"got {type(model).__name__} without any"
    )


def _require_in_memory(model: object) -> None:
    """Raise unless a model came, whose weights are at hand."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module to swap its attention; got {shown(model)}")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UnsupportedError(
                f"weights must be in memory to swap attention; got {name} on meta (offloaded or not loaded)"
            )
        if tensor.is_inference() and tensor.dtype.itemsize == 2:  # cannot be computed with in float32 and given back
            raise UnsupportedError(
                f"weights in {tensor.dtype} must not be tensors of torch.inference_mode to swap attention; got {name} "
                "(load or make the model outside of it)"
            )


def _require_no_subclass(model: nn.Module) -> None:
    """Raise UnsupportedError if an attention is a subclass of torch's, which may compute something else."""
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and type(module) not in (nn.MultiheadAttention, *OURS):
            where = repr(name) if name else "the top"
            raise UnsupportedError(
                "every attention must be torch.nn.MultiheadAttention itself or go through transformers' interface to "
                f"be swapped; got a subclass, {type(module).__name__}, at {where}"
            )


@contextmanager
def _noting_calls(model: nn.Module) -> Iterator[set[nn.Module]]:
    """Collect the modules that are called."""
    called: set[nn.Module] = set()
    handles = [module.register_forward_pre_hook(lambda each, _: called.add(each)) for module in model.modules()]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _run_after(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Call a model with our attention in place."""
    try:
        return run(model, inputs)
    except HeadwiseError:
        raise
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} must run with our attention to be swapped, as it did before; got {describe(error)}"
        ) from error


def _outermost(model: nn.Module, is_wanted: Callable[[nn.Module], bool]) -> list[Any]:
    """Return the modules that are wanted and stand in no other such."""
    if is_wanted(model):
        return [model]
    return [found for child in model.children() for found in _outermost(child, is_wanted)]


def _take(module: nn.MultiheadAttention) -> None:
    """Make torch's module ours: the same parameters by the same names, and another forward pass."""
    # A new object would leave the references that others hold (hooks, shared modules) with the old one.
    module.__class__ = TorchMultiheadAttention
    module._qkv_same_embed_dim = False  # torch's encoder layers read it to pass the module by


def _give_back(module: nn.MultiheadAttention, has_one_width: bool) -> None:
    module.__class__ = nn.MultiheadAttention
    module._qkv_same_embed_dim = has_one_width


def _require_all_known(model: nn.Module, known: set[nn.Module], not_called: set[nn.Module]) -> None:
    """Raise UnsupportedError if a module calls itself an attention, and neither it nor a part of it is known."""
    waiting = [("", model)]
    while waiting:
        parent, module = waiting.pop()
        for part, child in module.named_children():
            name = f"{parent}.{part}" if parent else part
            if "attention" in type(child).__name__.lower() and not known.intersection(child.modules()):
                _refuse(f"a {type(child).__name__} at {name!r}", is_called=child not in not_called)
            if child not in known:
                waiting.append((name, child))


def _refuse(what: str, *, is_called: bool) -> None:
    """Raise UnsupportedError for an attention that is not known, or of which nothing can be known."""
    if not is_called:
        raise UnsupportedError(
            f"every attention must be called in the proof to be swapped; got {what} that is not "
            "(give inputs that call it)"
        )
    raise UnsupportedError(
        "every attention must be torch.nn.MultiheadAttention or go through transformers' interface to be swapped; "
        f"got {what} that does neither"
    )


def _name_of(module: nn.Module, model: nn.Module) -> str:
    return next(str(name) for name, each in model.named_modules() if each is module)
