"""What must hold of the tensors that a module is called with.

Sizes are checked at the door. Dtypes and devices are not: torch refuses those that do not fit by itself, and only then
is it said which tensor it was. So a call that fits pays nothing, and a module whose weights something else holds (in 4
bits, say) takes what its own layers take.
"""

import sys

import torch
from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.errors import ConfigError, UnsupportedError
from headwise.positions.checks import described, is_whole


def require_plain(name: str, tokens: object) -> None:
    """Raise unless `tokens` is a tensor that holds every number: neither nested nor sparse.

    Args:
        name: of the argument.
        tokens: what came.

    Raises:
        ConfigError: no tensor.
        UnsupportedError: a nested or sparse tensor.
    """
    if not isinstance(tokens, Tensor):
        raise ConfigError(f"{name} must be a tensor; got {shown(tokens)}")
    if tokens.is_nested or tokens.layout is not torch.strided:
        got = "sparse one (to_dense() makes it plain)"
        if tokens.is_nested:
            got = "nested one (torch's nn.TransformerEncoder makes it so, unless its use_nested_tensor is set to False)"
        raise UnsupportedError(f"{name} must be a plain tensor, padded where texts differ in length; got a {got}")


def require_tokens(name: str, tokens: object, width_name: str, width: int) -> None:
    """Raise unless `tokens` are vectors of a width, one for each token of a batch of texts.

    Args:
        name: of the argument.
        tokens: what came.
        width_name: of the setting that says how wide vectors are.
        width: what it says.

    Raises:
        ConfigError: no tensor, or another shape than (batch, seq_len, width).
        UnsupportedError: a nested or sparse tensor.
    """
    require_plain(name, tokens)
    assert isinstance(tokens, Tensor)
    if tokens.dim() != 3 or tokens.shape[-1] != width:
        raise ConfigError(f"{name} must have shape (batch, seq_len, {width_name} = {width}); got {tuple(tokens.shape)}")


def require_ids(name: str, ids: object) -> None:
    """Raise ConfigError unless `ids` are whole numbers, one for each token of a batch of texts."""
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not is_whole(ids):
        raise ConfigError(f"{name} must hold one whole number a token, shape (batch, seq_len); got {described(ids)}")


def explain_ids(name: str, ids: Tensor, size_name: str, size: int) -> None:
    """Raise ConfigError if a number is none of a vocabulary's, which is why torch has refused them.

    Args:
        name: of the argument.
        ids: the numbers that count.
        size_name: of the setting that says how many there are.
        size: what it says.
    """
    wrong = ids[(ids < 0) | (ids >= size)]
    if wrong.numel():
        raise ConfigError(f"{name} must be from 0 to {size_name} - 1 = {size - 1}; got {wrong[0].item()}") from None


def explain_device(name: str, ids: Tensor, table: Tensor) -> None:
    """Raise ConfigError if numbers are on another device than the table, which is why torch has refused them."""
    if ids.device != table.device:
        raise ConfigError(f"{name} must be on the device of the table, {table.device}; got {ids.device}") from None


def require_numbers(name: str, ids: Tensor, table: Tensor) -> None:
    """Raise ConfigError if there are no numbers (the meta device) for a table that has some.

    torch then looks up what nobody has written. Other devices it refuses by itself.
    """
    if ids.is_meta:
        explain_device(name, ids, table)


def explain_refusal(module: nn.Module, **tensors: Tensor) -> None:
    """Raise ConfigError if a tensor has the dtype and device of no weight, which is why torch has refused it.

    Called where torch's error is caught. Of memory that has run out it says nothing, nor where a weight is stored as
    whole numbers (4 bits, say), since whoever stores it so says what it is multiplied with.

    Args:
        module: what holds the weights.
        tensors: what it was called with, by name.
    """
    weights = {(weight.dtype, weight.device) for weight in module.parameters()}
    are_multiplied = bool(weights) and all(dtype.is_floating_point for dtype, _ in weights)
    if not are_multiplied or isinstance(sys.exception(), torch.OutOfMemoryError):
        return
    for name, tensor in tensors.items():
        kind = tensor.device.type
        is_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        kinds = {(_multiplied_in(dtype, is_autocast), device) for dtype, device in weights}
        if (_multiplied_in(tensor.dtype, is_autocast), tensor.device) not in kinds:
            listed = " or ".join(sorted(f"{dtype} on {device}" for dtype, device in weights))
            hint = "autocast casts floats alone, and no float64" if is_autocast else "or use torch.autocast"
            raise ConfigError(
                f"{name} must have the dtype and device of the weights, {listed}; got {tensor.dtype} on "
                f"{tensor.device} (cast one of the two, {hint})"
            ) from None


def _multiplied_in(dtype: torch.dtype, is_autocast: bool) -> torch.dtype:
    """Return one dtype for all that torch.autocast casts to the same, and any other as it is."""
    is_cast = is_autocast and dtype.is_floating_point and dtype != torch.float64
    return torch.float32 if is_cast else dtype
