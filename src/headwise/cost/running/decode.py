"""What one step of decoding is called with, of a model of transformers: a token for each text, and a cache."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.cost.workload import Workload
from headwise.errors import ModelError, UnsupportedError

CACHE = "cache"
"""The name of the argument, and of the part of the output, that holds keys and values."""


def make_decode_inputs(module: nn.Module, workload: Workload) -> dict[str, Any]:
    """Make a token for each text, and a cache of random keys and values of the `seq - 1` tokens before.

    The model itself makes the cache, of one token, so that it is of the model's own kinds, sizes and dtypes; each layer
    then gets as many random tokens as it would hold, of a window no more than that. Of an encoder-decoder, the encoder
    reads `seq` tokens of source first.

    Args:
        module: a decoder of transformers, after `prepare_module`, in eval mode; its config's `use_cache` is switched
            on. It runs once, under the autocast that is on.
        workload: whose `batch` and `seq` are read.

    Raises:
        UnsupportedError: it takes no cache, or one of other things than keys and values.
        ModelError: it must have run, and raised.
    """
    config: Any = getattr(module, "config", None)
    if config is None or not hasattr(config, "use_cache"):
        raise UnsupportedError(
            f"a decode needs a decoder of transformers, which takes a cache; got {type(module).__name__}"
        )
    config.use_cache = True
    token = torch.full((workload.batch, 1), int(getattr(config, "pad_token_id", None) == 0), device=_device_of(module))
    inputs: dict[str, Any] = {"input_ids": token}
    if getattr(config, "is_encoder_decoder", False):
        inputs = {"input_ids": token.expand(-1, workload.seq), "decoder_input_ids": token}
    with torch.no_grad():
        output: Any = module(**inputs)
    cache: Any = getattr(output, CACHE, None)
    if cache is None:
        raise UnsupportedError(
            f"a decode needs a decoder, which returns a cache; {type(module).__name__} returned none"
        )
    if "decoder_input_ids" in inputs:
        inputs = {"encoder_outputs": (output.encoder_last_hidden_state,), "decoder_input_ids": token}
    for layer in _growing_layers(cache):
        _fill(layer, workload.seq - 1)
    return inputs | {CACHE: cache}


def cached_tensors(cache: Any) -> Iterator[Tensor]:
    """Yield the keys and the values of every layer of a cache, those of an encoder's output too."""
    for part in (getattr(cache, "self_attention_cache", cache), getattr(cache, "cross_attention_cache", None)):
        for layer in part.layers if part is not None else ():
            yield from (one for one in (layer.keys, layer.values) if one is not None)


def _growing_layers(cache: Any) -> list[Any]:
    """Return the layers that get the keys and values of each new token."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = list(getattr(cache, "self_attention_cache", cache).layers)
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise UnsupportedError(
                f"a decode is run of layers that cache keys and values alone; got a {type(layer).__name__}"
            )
        if layer.keys is None:
            raise ModelError("every layer of a cache must hold keys of its own; got one that shares those of another")
    return layers


def _fill(layer: Any, tokens: int) -> None:
    """Put random keys and values of as many tokens in a layer's cache, as decoding leaves them there."""
    like = layer.keys, layer.values
    layer.reset()
    if tokens == 0:
        return
    layer.lazy_initialization(*like)
    window = layer.sliding_window if layer.is_sliding else None
    held = tokens if window is None else min(tokens, window)
    keys, values = (
        torch.randn((*one.shape[:2], held, one.shape[3]), dtype=one.dtype, device=one.device) for one in like
    )
    if window is not None:  # what was read last stays whole behind a view that is one token shorter
        keys, values = keys[:, :, -window + 1 :], values[:, :, -window + 1 :]
        layer.cumulative_length = tokens
    layer.keys, layer.values = keys, values


def _device_of(module: nn.Module) -> torch.device:
    return next((one.device for one in module.parameters()), torch.device("cpu"))
