"""T5 of Hugging Face's transformers -> Seq2Seq."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.config.block import BlockConfig
from headwise.config.huggingface import read_config
from headwise.convert.as_made import require_as_made
from headwise.convert.huggingface_weights import TABLE, LayerWeights
from headwise.convert.plain import require_one_dtype
from headwise.convert.weights import build_empty, fill, parameters_of, view_of
from headwise.errors import UnsupportedError
from headwise.nn.seq2seq import Seq2Seq

_FEED_FORWARDS = {"wi_0": "gate_proj", "wi_1": "up_proj", "wi": "up_proj", "wo": "down_proj"}
_STACKS = ("encoder", "decoder")


def seq2seq_from_huggingface(model: nn.Module) -> Seq2Seq:
    """Make the encoder-decoder that computes what a T5 of transformers computes, with its weights copied.

    Where a T5 scales its last states before the head, the last norm's weight has that factor here. The head is the
    token table's own, as of the first T5, or another matrix, as of T5 1.1 and Flan-T5.

    Args:
        model: a `T5ForConditionalGeneration`.

    Returns:
        A model in the mode of the given one (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another model; one that is no longer what its class makes of its config (a part taken out or
            replaced, a number or switch of a module set anew, a hook, a token table of one stack's own); weights that
            are no plain ones (in several dtypes, quantised, offloaded, with an adapter, a weight norm or a
            parametrization).
        ConfigError: the model's config cannot be read.
    """
    theirs: Any = model
    family = getattr(getattr(model, "config", None), "model_type", None)
    if family != "t5" or not hasattr(model, "lm_head"):
        raise UnsupportedError(
            f"an encoder-decoder must be a T5 with its head to be converted; got a {type(model).__name__} of {family}"
        )
    config = read_config(theirs.config.to_dict(), name=type(model).__name__)
    require_as_made(model)
    encoder, head = config.encoder, config.head
    assert encoder is not None and head is not None
    config = replace(config, head=replace(head, tied=theirs.lm_head.weight is theirs.shared.weight))
    weights = dict(_read(theirs, {"encoder": encoder.blocks, "decoder": config.blocks}))
    require_one_dtype(weights)
    for stack in _STACKS:
        if getattr(theirs, stack).embed_tokens.weight is not theirs.shared.weight:
            raise UnsupportedError(
                f"{stack}.embed_tokens must be the table that both stacks share to convert a T5; got another one"
            )
    ours = build_empty(lambda: Seq2Seq(config), like=theirs.shared.weight)
    fill(ours, weights, parameters_of(ours))
    return ours.train(model.training)


def _read(model: Any, configs: dict[str, tuple[BlockConfig, ...]]) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of their model under our names."""
    yield "token_table.weight", view_of(model.shared.weight)
    if model.lm_head.weight is not model.shared.weight:
        yield "projection.weight", view_of(model.lm_head.weight)
    yield "encoder_norm.weight", view_of(model.encoder.final_layer_norm.weight)
    last = view_of(model.decoder.final_layer_norm.weight)
    if model.config.scale_decoder_outputs:
        last = (last.detach() * model.config.d_model**-0.5).requires_grad_(last.requires_grad)
    yield "norm.weight", last
    for stack in _STACKS:
        blocks = getattr(model, stack).block
        table = view_of(blocks[0].layer[0].SelfAttention.relative_attention_bias.weight)
        for number, (block, config) in enumerate(zip(blocks, configs[stack], strict=True)):
            ours, parts = f"{stack}.{number}", block.layer
            for name, weight in _read_attention(parts[0].SelfAttention, config.attention, table):
                if number == 0 or name != TABLE:  # one table a stack
                    yield f"{ours}.attention.{name}", weight
            yield f"{ours}.attention_norm.weight", view_of(parts[0].layer_norm.weight)
            if stack == "decoder":
                for name, weight in _read_attention(parts[1].EncDecAttention, config.cross_attention, None):
                    yield f"{ours}.cross_attention.{name}", weight
                yield f"{ours}.cross_attention_norm.weight", view_of(parts[1].layer_norm.weight)
            yield f"{ours}.feed_forward_norm.weight", view_of(parts[-1].layer_norm.weight)
            for name, weight in parameters_of(parts[-1].DenseReluDense).items():
                part, _, kind = name.rpartition(".")
                yield f"{ours}.feed_forward.{_FEED_FORWARDS[part]}.{kind}", weight


def _read_attention(
    attention: nn.Module, config: object, table: Tensor | None
) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of one attention layer under our names."""
    assert isinstance(config, AttentionConfig), "T5 has layers of one kind only"
    yield from LayerWeights(attention, "t5", config, table).read().items()
