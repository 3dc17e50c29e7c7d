"""Decoder language models of Hugging Face's transformers -> LanguageModel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig
from headwise.config.huggingface import read_config
from headwise.config.model import ModelConfig
from headwise.convert.as_made import require_as_made
from headwise.convert.huggingface_weights import LayerWeights
from headwise.convert.plain import require_one_dtype
from headwise.convert.surgery import fuse_qkv
from headwise.convert.weights import build_empty, fill, parameters_of, view_of, weights_of
from headwise.errors import UnsupportedError
from headwise.nn.language_model import LanguageModel


@dataclass(frozen=True)
class Layout:
    """Where a family keeps the parts of its model, as paths; those of a layer without the layer's own.

    Args:
        body: the model without its head.
        layers: the list of layers, in the body.
        token_table, norm: in the body.
        position_table: in the body; None: there is none.
        attention: what `from_huggingface` takes, too.
        parts: our name of a part of a block -> theirs.
    """

    body: str
    layers: str
    token_table: str
    norm: str
    attention: str
    parts: Mapping[str, str]
    position_table: str | None = None


_LLAMA = Layout(
    body="model",
    layers="layers",
    token_table="embed_tokens",
    norm="norm",
    attention="self_attn",
    parts={
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
        "feed_forward.gate_proj": "mlp.gate_proj",
        "feed_forward.up_proj": "mlp.up_proj",
        "feed_forward.down_proj": "mlp.down_proj",
    },
)
LAYOUTS: Mapping[str, Layout] = {
    "gpt2": Layout(
        body="transformer",
        layers="h",
        token_table="wte",
        position_table="wpe",
        norm="ln_f",
        attention="attn",
        parts={
            "attention_norm": "ln_1",
            "feed_forward_norm": "ln_2",
            "feed_forward.up_proj": "mlp.c_fc",
            "feed_forward.down_proj": "mlp.c_proj",
        },
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
}
"""The families that are converted, by `model_type`."""


def language_model_from_huggingface(model: nn.Module, *, fused_qkv: bool = False) -> LanguageModel:
    """Make the language model that computes what a decoder of a Hugging Face model computes, with its weights copied.

    Args:
        model: with its head: a `GPT2LMHeadModel`, `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`,
            `Qwen3ForCausalLM` or `SmolLM3ForCausalLM`.
        fused_qkv: whether each layer makes queries, keys and values by one product (`fuse_qkv`): the same result, some
            per cent faster token by token.

    Returns:
        A model in the mode of the given one (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another family or a model without a head; a model that is no longer what its class makes of
            its config (a part taken out or replaced, a number or switch of a module set anew, a hook); weights that are
            no plain ones (in several dtypes, quantised, offloaded, with an adapter, a weight norm or a
            parametrization); a part that is not built here.
        ConfigError: the model's config cannot be read.

    Example:
        >>> ours = language_model_from_huggingface(AutoModelForCausalLM.from_pretrained(folder))
    """
    theirs: Any = model
    family = str(getattr(getattr(model, "config", None), "model_type", None))
    if family not in LAYOUTS or not hasattr(model, "lm_head"):
        raise UnsupportedError(
            f"a language model must be of one of {', '.join(LAYOUTS)}, with its head, to be converted; "
            f"got a {type(model).__name__} of {family}"
        )
    config = read_config(theirs.config.to_dict(), name=type(model).__name__)
    require_as_made(model)
    table = model.get_submodule(LAYOUTS[family].body).get_submodule(LAYOUTS[family].token_table)
    assert config.head is not None
    config = replace(config, head=replace(config.head, tied=theirs.lm_head.weight is table.weight))
    weights = dict(_read(theirs, LAYOUTS[family], config))
    require_one_dtype(weights)
    ours = build_empty(lambda: LanguageModel(config), like=weights["body.token_table.weight"])
    fill(ours, weights, dict(_ours(ours)))
    if fused_qkv:
        for block in ours.body.blocks:
            block.attention = fuse_qkv(block.attention)  # type: ignore[arg-type]
    return ours.train(model.training)


def _read(model: Any, layout: Layout, config: ModelConfig) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of their model under our names."""
    body = model.get_submodule(layout.body)
    yield from _named("body.token_table", body.get_submodule(layout.token_table))
    if layout.position_table is not None:
        yield "body.positions.table", view_of(body.get_submodule(layout.position_table).get_parameter("weight"))
    yield from _named("body.norm", body.get_submodule(layout.norm))
    for number, (layer, block) in enumerate(zip(body.get_submodule(layout.layers), config.blocks, strict=True)):
        ours = f"body.blocks.{number}"
        assert isinstance(block.attention, AttentionConfig)
        attention = LayerWeights(layer.get_submodule(layout.attention), config.model_type, block.attention, None)
        yield from ((f"{ours}.attention.{name}", one) for name, one in attention.read().items())
        for name, path in layout.parts.items():
            yield from _named(f"{ours}.{name}", layer.get_submodule(path))
    assert config.head is not None
    if not config.head.tied:
        yield from _named("projection", model.lm_head)


def _ours(model: LanguageModel) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of our model, of fused projections as of three."""
    for name, weight in parameters_of(model).items():
        if ".attention." not in name:
            yield name, weight
    for number, block in enumerate(model.body.blocks):
        attention: Any = block.attention
        yield from ((f"body.blocks.{number}.attention.{name}", one) for name, one in weights_of(attention).items())


def _named(name: str, part: nn.Module) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield weight and bias of a projection, a table or a norm by our name of it, laid out as ours."""
    is_turned = type(part).__name__ == "Conv1D"  # multiplies from the other side
    for kind, weight in parameters_of(part).items():
        turned = weight.detach().T.requires_grad_(weight.requires_grad) if is_turned and kind == "weight" else weight
        yield f"{name}.{kind}", turned
