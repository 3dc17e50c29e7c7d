"""What must hold of the tensors that a module is called with.

Sizes are checked at the door. Dtypes and devices are not: torch refuses those that do not fit by itself, and only then
is it said which tensor it was. So a call that fits pays nothing, and a module whose weights something else holds (in 4
bits, say) takes what its own layers take.
"""

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
        kind = "nested" if tokens.is_nested else "sparse"
        raise UnsupportedError(
            f"{name} must be a plain tensor, padded where texts differ in length; got a {kind} one (torch's "
            "nn.TransformerEncoder makes it nested unless it is built with enable_nested_tensor=False)"
        )


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


def explain_ids(name: str, ids: Tensor, vocab_size: int) -> None:
    """Raise ConfigError if a number is none of the vocabulary's, which is why torch has refused them.

    Args:
        name: of the argument.
        ids: the numbers that count.
        vocab_size: how many there are.
    """
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel():
        raise ConfigError(
            f"{name} must be from 0 to vocab_size - 1 = {vocab_size - 1}; got {wrong[0].item()}"
        ) from None


def explain_device(name: str, ids: Tensor, table: Tensor) -> None:
    """Raise ConfigError if numbers are on another device than the table, which is why torch has refused them."""
    if ids.device != table.device:
        raise ConfigError(f"{name} must be on the device of the table, {table.device}; got {ids.device}") from None


def explain_refusal(module: nn.Module, **tensors: Tensor) -> None:
    """Raise ConfigError if a tensor has the dtype and device of no weight, which is why torch has refused it.

    Args:
        module: what holds the weights.
        tensors: what it was called with, by name.
    """
    weights = {(weight.dtype, weight.device) for weight in module.parameters()}
    for name, tensor in tensors.items():
        kind = tensor.device.type
        is_autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        is_cast = is_autocast and tensor.is_floating_point()
        if not any(tensor.device == device and (is_cast or tensor.dtype == dtype) for dtype, device in weights):
            listed = " or ".join(sorted(f"{dtype} on {device}" for dtype, device in weights))
            raise ConfigError(
                f"{name} must have the dtype and device of the weights, {listed}; got {tensor.dtype} on "
                f"{tensor.device} (cast one of the two, or use torch.autocast)"
            ) from None
