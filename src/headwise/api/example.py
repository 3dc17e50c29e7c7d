"""Input for a module that comes without a tokenizer: token ids where it embeds them, else random vectors."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.errors import ModelError
from headwise.nn.multihead import MultiHeadAttention

SEED = 0


def example_inputs(module: nn.Module, *, batch: int, seq: int) -> dict[str, Tensor]:
    """Make keyword arguments for one forward pass of `module` on `batch` texts of `seq` tokens, from a fixed seed.

    A module that defines `example_inputs(batch, seq)` is asked. A model of transformers that reads images gets one
    image a text, of its config's size. Else, if its first module with weights is an `nn.Embedding`, the first parameter
    of `forward` gets token ids, and the decoder of an encoder-decoder of transformers others. Else every parameter of
    `forward` without a default gets vectors as wide as its first attention expects.

    Raises:
        ModelError: it holds neither an embedding nor an attention.
    """
    users_own: Any = getattr(module, "example_inputs", None)
    if users_own is not None:
        inputs = users_own(batch, seq)
        if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
            raise ModelError(f"example_inputs(batch, seq) must return a dict of tensors; got {type(inputs).__name__}")
        return dict(inputs)
    generator = torch.Generator().manual_seed(SEED)
    if getattr(module, "main_input_name", None) == "pixel_values":
        return {"pixel_values": _image(module, batch, generator)}
    names = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    embedding = _token_embedding(module)
    if embedding is not None and names:
        name = "input_ids" if "input_ids" in names else names[0]
        inputs = {name: torch.randint(embedding.num_embeddings, (batch, seq), generator=generator)}
        if getattr(getattr(module, "config", None), "is_encoder_decoder", False):  # of transformers
            inputs["decoder_input_ids"] = torch.randint(embedding.num_embeddings, (batch, seq), generator=generator)
        return inputs
    for part in module.modules() if names else ():
        if isinstance(part, nn.MultiheadAttention):
            width, batch_first = part.embed_dim, part.batch_first
            break
        if isinstance(part, MultiHeadAttention):
            width, batch_first = part.config.embed_dim, True
            break
    else:
        raise ModelError(
            f"{type(module).__name__} must embed tokens or hold an attention (nn.MultiheadAttention, "
            "headwise.MultiHeadAttention), or define example_inputs(batch, seq) that returns its keyword arguments"
        )
    required = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if name in names and parameter.default is parameter.empty
    ]
    shape = (batch, seq, width) if batch_first else (seq, batch, width)
    vectors = torch.randn(shape, generator=generator)
    return dict.fromkeys(required or names[:1], vectors)


def beside(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs that were made here on the device of a module's weights, numbers in the weights' dtype."""
    weight = next((each for each in module.parameters() if each.is_floating_point()), None)
    if weight is None:
        return dict(inputs)
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        if isinstance(value, Tensor)
        else value
        for name, value in inputs.items()
    }


def _image(module: Any, batch: int, generator: torch.Generator) -> Tensor:
    """Make images of the size that a Hugging Face config names.

    Raises:
        ModelError: it names none.
    """
    config = module.config
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    height_and_width = (size, size) if isinstance(size, int) else size
    if not isinstance(height_and_width, list | tuple) or len(height_and_width) != 2:
        raise ModelError(f"{type(module).__name__} must say its image_size, or define example_inputs(batch, seq)")
    return torch.randn(batch, channels, *height_and_width, generator=generator)


def _token_embedding(module: nn.Module) -> nn.Embedding | None:
    """Return the token embedding: what the module says, or its first module with weights if that is an embedding."""
    get_input_embeddings: Any = getattr(module, "get_input_embeddings", None)
    if get_input_embeddings is not None:
        try:
            embedding = get_input_embeddings()
        except NotImplementedError:  # a model of transformers that embeds no tokens, or two kinds of them
            return None
        return embedding if isinstance(embedding, nn.Embedding) else None
    parts = list(module.modules())
    inner = parts[1:] or parts  # the module itself may hold a table of positions beside its embedding
    first = next((part for part in inner if next(part.parameters(recurse=False), None) is not None), None)
    return first if isinstance(first, nn.Embedding) else None
