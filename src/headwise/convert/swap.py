"""Every attention of a model replaced by ours in place, proven on a probe batch."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from headwise.errors import ConfigError, UnsupportedError
from headwise.integrations.transformers_attention import is_transformers_model, keep_implementation
from headwise.integrations.transformers_backend import NAME, register, served
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH_SIZE, QUERY_LEN, KEY_LEN = 2, 13, 11  # of the probe
# Sums of up to 2^14 numbers, whose rounding grows like the root of that, in a stack of 8: relative to the largest
# output, in steps of its dtype, or of float32, in which models compute norms and softmax whatever their dtype.
ROUNDING_STEPS = 2**10

Inputs = Mapping[str, Any] | Sequence[Any] | Tensor
Model = TypeVar("Model", bound=nn.Module)


def swap(model: Model, inputs: Inputs | None = None) -> Model:
    """Replace every attention of a Hugging Face or torch model by ours in place, if its outputs stay what they are.

    A Hugging Face model gets `attn_implementation="headwise"` (see `register`). A `torch.nn.MultiheadAttention`
    becomes a `TorchMultiheadAttention`: the same module with the same parameters under its old name, so that optimizers
    and state dicts go on; torch's fused path for evaluation, which passes such modules by, is then off, and with it the
    zeros that it writes at padding.

    The proof is a run before and after, in evaluation, in float32 at least. Every attention of torch's is run by
    itself, with masks. The model is run on `inputs`, or a Hugging Face model on two random texts, one of them padded at
    its end, or on two random images.

    Args:
        model: stays the same object, in its mode (training or not), with its weights.
        inputs: what the model is called with: keywords, positional arguments, or one tensor. A query that may read no
            key (padding before a text) must not be among them, as models disagree on what it then gives. Default: as
            above; a module of your own around a Hugging Face model needs them.

    Returns:
        The model.

    Raises:
        UnsupportedError: the model has no attention or one that is not known here, whose name is given, or an output
            differs by more than rounding. The model is as it was, then.
        ConfigError: the model needs `inputs`.

    Example:
        >>> model = swap(AutoModelForCausalLM.from_pretrained(folder))
    """
    ours = [module for module in model.modules() if isinstance(module, TorchMultiheadAttention)]
    of_torch = [module for module in model.modules() if type(module) is nn.MultiheadAttention]
    of_transformers = _outermost(model, is_transformers_model)
    if not (ours or of_torch or of_transformers):
        _require_all_known(model, set())
        raise UnsupportedError(
            "model must have attention of torch's or be one of Hugging Face's to be swapped; "
            f"got {type(model).__name__} without any"
        )
    with _probing(model), ExitStack() as kept, ExitStack() as undo:
        if of_transformers and inputs is None:
            inputs = _make_inputs(model)
        before = None if inputs is None else _run(model, inputs)
        for module in of_torch:
            probe = _make_probe(module)
            expected = _run(module, probe)
            undo.callback(_give_back, module, module._qkv_same_embed_dim)
            _take(module)
            _require_equal(_name_of(module, model), _run(module, probe), expected)
        called: set[nn.Module] = set()
        if of_transformers:
            register()
            for each in of_transformers:
                kept.enter_context(keep_implementation(each))
                each.set_attn_implementation(NAME)
        token = served.set(called)
        try:
            after = None if inputs is None else _run(model, inputs)
        finally:
            served.reset(token)
        _require_all_known(model, {*ours, *of_torch, *called})
        if before is not None and after is not None:
            _require_equal(type(model).__name__, after, before)
        undo.pop_all()
    for each in of_transformers:
        each.set_attn_implementation(NAME)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and of_torch:
            encoder.use_nested_tensor = False
    return model


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


def _require_all_known(model: nn.Module, known: set[nn.Module]) -> None:
    """Raise UnsupportedError if a module calls itself an attention, and neither it nor a part of it is known."""

    def is_named_so(module: nn.Module) -> bool:
        return module in known or "attention" in type(module).__name__.lower()

    for module in (found for child in model.children() for found in _outermost(child, is_named_so)):
        if not known.intersection(module.modules()):
            raise UnsupportedError(
                "every attention must be torch.nn.MultiheadAttention or go through transformers' interface to be "
                f"swapped; got a {type(module).__name__} at {_name_of(module, model)!r} that does neither"
            )


def _name_of(module: nn.Module, model: nn.Module) -> str:
    return next(str(name) for name, each in model.named_modules() if each is module)


@contextmanager
def _probing(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation, without gradients or torch's fused path, in float32 where it is narrower."""
    modes = {module: module.training for module in model.modules()}
    narrow = [
        (tensor, tensor.dtype)
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_floating_point() and tensor.dtype.itemsize == 2
    ]
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model.eval()
        for tensor, _ in narrow:
            tensor.data = tensor.data.float()  # there and back, numbers stay what they are
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fast_path)
        for tensor, dtype in narrow:
            tensor.data = tensor.data.to(dtype)
        for module, mode in modes.items():
            module.training = mode


def _run(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Call a model and return the tensors of floats that it gives."""
    inputs = tree_map_only(Tensor, _widen, dict(inputs) if isinstance(inputs, Mapping) else inputs)
    if isinstance(inputs, Mapping):
        output = model(**inputs)
    else:
        output = model(inputs) if isinstance(inputs, Tensor) else model(*inputs)
    leaves = tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 2 else tensor


def _require_equal(name: str, after: list[Tensor], before: list[Tensor]) -> None:
    """Raise UnsupportedError unless outputs are equal within rounding."""
    if [each.shape for each in after] != [each.shape for each in before]:
        raise UnsupportedError(f"{name} must give as many outputs, of the same shapes, before and after to be swapped")
    for ours, theirs in zip(after, before, strict=True):
        if not theirs.numel():
            continue
        bound = ROUNDING_STEPS * torch.finfo(torch.float32).eps * theirs.abs().max().item()
        difference = (ours - theirs).abs().max().item()
        if not difference <= bound:  # NaN is no equality
            raise UnsupportedError(
                f"outputs must be equal before and after to swap attention; those of {name} differ by "
                f"{difference:.3g}, with a largest of {theirs.abs().max().item():.3g}"
            )


def _make_probe(module: nn.MultiheadAttention) -> dict[str, Any]:
    """Return a call of torch's module: texts, one of them padded at its end, and pairs that may not attend."""
    weight = module.out_proj.weight
    lengths = {"query": QUERY_LEN, "key": KEY_LEN, "value": KEY_LEN}
    widths = {"query": module.embed_dim, "key": module.kdim, "value": module.vdim}
    tokens = {name: torch.randn(BATCH_SIZE, length, widths[name]).to(weight) for name, length in lengths.items()}
    if not module.batch_first:
        tokens = {name: each.transpose(0, 1) for name, each in tokens.items()}
    is_padding = torch.zeros(BATCH_SIZE, KEY_LEN, dtype=torch.bool, device=weight.device)
    is_padding[-1, KEY_LEN // 2 :] = True
    hidden = torch.ones(QUERY_LEN, KEY_LEN, dtype=torch.bool, device=weight.device).triu(1)
    return tokens | {"key_padding_mask": is_padding, "attn_mask": hidden, "need_weights": False}


def _make_inputs(model: Any) -> dict[str, Tensor]:
    """Return a probe batch for a Hugging Face model: two texts, one of them padded at its end, or two images."""
    kind = getattr(model, "main_input_name", None) if is_transformers_model(model) else None
    if kind == "pixel_values" and isinstance(size := getattr(model.config, "image_size", None), int):
        return {kind: torch.rand(BATCH_SIZE, model.config.num_channels, size, size).to(model.device)}
    if kind != "input_ids":
        raise ConfigError(f"inputs must be given to swap attention in {type(model).__name__}; got None")
    ids = torch.randint(model.config.get_text_config().vocab_size, (BATCH_SIZE, QUERY_LEN)).to(model.device)
    made = {kind: ids}
    if "attention_mask" in inspect.signature(model.forward).parameters:
        made["attention_mask"] = torch.ones_like(ids)
        made["attention_mask"][-1, _end_of_text(model.config.get_text_config()) :] = 0
    if model.config.is_encoder_decoder:
        made["decoder_input_ids"] = ids[:, : KEY_LEN // 2]
    return made


def _end_of_text(config: Any) -> int:
    """Return where a text of the probe ends and padding begins: so that the last query's window still holds a key."""
    window_size = getattr(config, "sliding_window", None)
    return max(QUERY_LEN // 2, QUERY_LEN - window_size + 1) if isinstance(window_size, int) else QUERY_LEN // 2
