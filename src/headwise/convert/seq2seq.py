"""T5 of Hugging Face's transformers -> Seq2Seq."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.huggingface import read_config
from headwise.convert.huggingface import from_huggingface
from headwise.convert.weights import copy_weights, parameters_of
from headwise.errors import UnsupportedError
from headwise.nn.seq2seq import Seq2Seq

_FEED_FORWARDS = {"wi_0": "gate_proj", "wi_1": "up_proj", "wi": "up_proj", "wo": "down_proj"}


def seq2seq_from_huggingface(model: nn.Module) -> Seq2Seq:
    """Make the encoder-decoder that computes what a T5 of transformers computes, with its weights copied.

    Where a T5 scales its last states before the head, the last norm's weight has that factor here.

    Args:
        model: a `T5ForConditionalGeneration`.

    Returns:
        A model in the mode of the given one (training or not), on its device and in its dtype.

    Raises:
        UnsupportedError: another model, a head of its own, weights that are no plain matrices.
        ConfigError: the model's config cannot be read.
    """
    theirs: Any = model
    family = getattr(getattr(model, "config", None), "model_type", None)
    if family != "t5" or not hasattr(model, "lm_head"):
        raise UnsupportedError(
            f"an encoder-decoder must be a T5 with its head to be converted; got a {type(model).__name__} of {family}"
        )
    if theirs.lm_head.weight is not theirs.shared.weight:
        raise UnsupportedError("the head of a T5 must be its token table to be converted; got another one")
    config = read_config(theirs.config.to_dict(), name=type(model).__name__)
    with torch.random.fork_rng(devices=[]):  # what the model draws at its start is thrown away
        ours = Seq2Seq(config)
    ours.to(theirs.shared.weight).train(model.training)
    with torch.no_grad():
        copy_weights(dict(_read(theirs)), parameters_of(ours))
    return ours


def _read(model: Any) -> Iterator[tuple[str, Float[Tensor, "..."]]]:
    """Yield the weights of their model under our names."""
    yield "token_table.weight", model.shared.weight.detach()
    yield "encoder_norm.weight", model.encoder.final_layer_norm.weight.detach()
    factor = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
    yield "norm.weight", model.decoder.final_layer_norm.weight.detach() * factor
    for stack in ("encoder", "decoder"):
        blocks = getattr(model, stack).block
        first = blocks[0].layer[0].SelfAttention
        for number, block in enumerate(blocks):
            ours, parts = f"{stack}.{number}", block.layer
            own = parts[0].SelfAttention
            attention = from_huggingface(own, table_from=None if number == 0 else first)
            for name, weight in parameters_of(attention).items():
                if number == 0 or not name.startswith("relative_bias"):  # one table a stack
                    yield f"{ours}.attention.{name}", weight
            yield f"{ours}.attention_norm.weight", parts[0].layer_norm.weight.detach()
            if stack == "decoder":
                cross = from_huggingface(parts[1].EncDecAttention)
                yield from ((f"{ours}.cross_attention.{name}", one) for name, one in parameters_of(cross).items())
                yield f"{ours}.cross_attention_norm.weight", parts[1].layer_norm.weight.detach()
            yield f"{ours}.feed_forward_norm.weight", parts[-1].layer_norm.weight.detach()
            for name, weight in parameters_of(parts[-1].DenseReluDense).items():
                part, _, kind = name.rpartition(".")
                yield f"{ours}.feed_forward.{_FEED_FORWARDS[part]}.{kind}", weight
