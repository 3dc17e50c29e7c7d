"""Running a model before and after its attention is replaced, and telling whether its outputs stayed what they were."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from headwise.errors import ConfigError, HeadwiseError, UnsupportedError, describe
from headwise.integrations.text_config import text_config_of
from headwise.integrations.transformers_attention import is_transformers_model

BATCH_SIZE, QUERY_LEN, KEY_LEN = 2, 13, 11  # of the probe
# Sums of up to 2^14 numbers, whose rounding grows like the root of that, in a stack of 8: relative to the largest
# output, in steps of its dtype, or of float32, in which models compute norms and softmax whatever their dtype.
ROUNDING_STEPS = 2**10
NUM_POSITIONS_BEFORE_TEXT = 2  # that RoBERTa and OPT leave out of their table

Inputs = Mapping[str, Any] | Sequence[Any] | Tensor


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation, without gradients, compilation or torch's fused path, in float32 where narrower."""
    modes = {module: module.training for module in model.modules()}
    narrow = [
        (tensor, tensor.data)
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_floating_point() and tensor.dtype.itemsize == 2
    ]
    has_fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        model.eval()
        for tensor, data in narrow:
            tensor.data = data.float()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
            torch.manual_seed(0)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(has_fast_path)
        for tensor, data in narrow:
            tensor.data = data  # itself, so that memory that is shared stays shared
        for module, mode in modes.items():
            module.training = mode


def run(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Call a model and return the tensors of floats that it gives.

    Raises:
        UnsupportedError: it gives none, so that there is nothing to compare.
    """
    inputs = tree_map_only(Tensor, _widen, dict(inputs) if isinstance(inputs, Mapping) else inputs)
    if isinstance(inputs, Mapping):
        output = model(**inputs)
    else:
        output = model(inputs) if isinstance(inputs, Tensor) else model(*inputs)
    found = [leaf for leaf in _leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not any(leaf.numel() for leaf in found):
        raise UnsupportedError(
            "outputs must hold a tensor of floats to be compared before and after; "
            f"got a {type(output).__name__} without one from {type(model).__name__} (swap the model inside it)"
        )
    return found


def run_before(model: nn.Module, inputs: Inputs, *, is_made: bool) -> list[Tensor]:
    """Call a model as `run` does; an error of its own tells that inputs are wrong, or must be given if they were made.

    Raises:
        ConfigError: the model cannot be called with them.
        UnsupportedError: it gives no floats.
    """
    try:
        return run(model, inputs)
    except HeadwiseError:
        raise
    except Exception as error:
        name, got = type(model).__name__, describe(error)
        if is_made:
            raise ConfigError(
                f"inputs must be given to swap attention in {name}, as it cannot be called with those made for it; "
                f"got {got}"
            ) from error
        raise ConfigError(f"inputs must be what {name} can be called with; got {got}") from error


def _leaves(output: object) -> Iterator[object]:
    """Yield what an output holds, of the plain dataclasses in it, too."""
    for leaf in tree_leaves(output):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            for field in fields(leaf):
                yield from _leaves(getattr(leaf, field.name, None))
        else:
            yield leaf


def _widen(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 2 else tensor


def require_equal(name: str, after: list[Tensor], before: list[Tensor]) -> None:
    """Raise UnsupportedError unless outputs are equal within rounding."""
    if [each.shape for each in after] != [each.shape for each in before]:
        raise UnsupportedError(f"{name} must give as many outputs, of the same shapes, before and after to be swapped")
    for ours, theirs in zip(after, before, strict=True):
        # -inf, or the lowest float, stands for what is masked out: it must be in the same places, and is no measure of
        # the other numbers
        is_extreme = theirs.abs() >= torch.finfo(torch.float32).max
        differences = (ours - theirs)[~(is_extreme & (ours == theirs))].abs()
        if not differences.numel():
            continue
        largest = torch.where(is_extreme, 0, theirs).abs().max().item()
        difference = differences.max().item()
        if not difference <= ROUNDING_STEPS * torch.finfo(torch.float32).eps * largest:  # NaN is no equality
            raise UnsupportedError(
                f"outputs must be equal before and after to swap attention; those of {name} differ by "
                f"{difference:.3g}, with a largest of {largest:.3g}"
            )


def make_probe(module: nn.MultiheadAttention) -> dict[str, Any]:
    """Return a call of torch's module: texts, one of them padded at its end, and pairs that may not attend."""
    weight = next(module.parameters())
    lengths = {"query": QUERY_LEN, "key": KEY_LEN, "value": KEY_LEN}
    widths = {"query": module.embed_dim, "key": module.kdim, "value": module.vdim}
    tokens = {name: torch.randn(BATCH_SIZE, length, widths[name]).to(weight) for name, length in lengths.items()}
    if not module.batch_first:
        tokens = {name: each.transpose(0, 1) for name, each in tokens.items()}
    is_padding = torch.zeros(BATCH_SIZE, KEY_LEN, dtype=torch.bool, device=weight.device)
    is_padding[-1, KEY_LEN // 2 :] = True
    hidden = torch.ones(QUERY_LEN, KEY_LEN, dtype=torch.bool, device=weight.device).triu(1)
    return tokens | {"key_padding_mask": is_padding, "attn_mask": hidden, "need_weights": False}


def make_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Return a probe batch for a Hugging Face model: two texts, one of them padded at its end, or two images.

    Raises:
        ConfigError: the model is none, or takes something else, so that inputs must be given.
    """
    inner: Any = getattr(model, "_orig_mod", model)  # of a compiled one
    kind = getattr(inner, "main_input_name", None) if is_transformers_model(inner) else None
    if kind == "pixel_values" and isinstance(size := getattr(inner.config, "image_size", None), int):
        return {kind: torch.rand(BATCH_SIZE, inner.config.num_channels, size, size).to(inner.device)}
    if kind != "input_ids":
        raise ConfigError(f"inputs must be given to swap attention in {type(model).__name__}; got None")
    config = text_config_of(inner.config)
    length = _read_length(config)
    ids = torch.randint(config.vocab_size, (BATCH_SIZE, length)).to(inner.device)
    made = {kind: ids}
    if "attention_mask" in inspect.signature(inner.forward).parameters:
        made["attention_mask"] = torch.ones_like(ids)
        made["attention_mask"][-1, _end_of_text(config, length) :] = 0
    if inner.config.is_encoder_decoder:
        made["decoder_input_ids"] = ids[:, : KEY_LEN // 2]
    return made


def _read_length(config: Any) -> int:
    """Return how long the texts of the probe are: no longer than the model has positions."""
    num_positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(num_positions, int) or num_positions >= QUERY_LEN + NUM_POSITIONS_BEFORE_TEXT:
        return QUERY_LEN
    return max(1, num_positions - NUM_POSITIONS_BEFORE_TEXT)


def _end_of_text(config: Any, length: int) -> int:
    """Return where a text of the probe ends and padding begins: so that the last query's window still holds a key."""
    window_size = getattr(config, "sliding_window", None)
    half = max(1, length // 2)
    return max(half, length - window_size + 1) if isinstance(window_size, int) else half
