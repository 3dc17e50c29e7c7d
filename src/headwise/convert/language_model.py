"""Decoder language models of Hugging Face's transformers -> LanguageModel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.huggingface import read_config
from headwise.convert.huggingface import from_huggingface
from headwise.convert.plain import require_one_dtype, require_plain
from headwise.convert.weights import fill, parameters_of, view_of, weights_of
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
        attention: what `from_huggingface` takes.
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
_RMS_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "SmolLM3RMSNorm")
_KINDS = (nn.Linear, "Conv1D", nn.Embedding, nn.LayerNorm, *_RMS_NORMS)


def language_model_from_huggingface(model: nn.Module) -> LanguageModel:
    """Make the language model that computes what a decoder of a Hugging Face model computes, with its weights copied.

    Args:
        model: with its head: a `GPT2LMHeadModel`, `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`,
            `Qwen3ForCausalLM` or `SmolLM3ForCausalLM`.

    Returns:
        A model in the mode of the given one (training or not), on its device and in its dtype, frozen where it is.

    Raises:
        UnsupportedError: another family or a model without a head; weights that are no plain ones (in several dtypes,
            quantised, offloaded, with an adapter, a weight norm or a parametrization); a part that is not built here.
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
    weights = dict(_read(theirs, LAYOUTS[family]))
    require_one_dtype(weights)
    with torch.random.fork_rng(devices=[]):  # what the model draws at its start is thrown away
        ours = LanguageModel(config)
    weight = weights["body.token_table.weight"]
    ours.to(weight).train(model.training)
    fill(ours, weights, dict(_ours(ours)))
    return ours


def _read(model: Any, layout: Layout) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of their model under our names."""
    body = model.get_submodule(layout.body)
    table = body.get_submodule(layout.token_table)
    yield from _named("body.token_table", table, model)
    if layout.position_table is not None:
        require_plain(layout.position_table, body.get_submodule(layout.position_table), [nn.Embedding], whole=model)
        yield "body.positions.table", view_of(body.get_submodule(layout.position_table).get_parameter("weight"))
    yield from _named("body.norm", body.get_submodule(layout.norm), model)
    layers = body.get_submodule(layout.layers)
    assert isinstance(layers, nn.ModuleList)
    for number, layer in enumerate(layers):
        ours = f"body.blocks.{number}"
        attention = from_huggingface(layer.get_submodule(layout.attention))
        yield from ((f"{ours}.attention.{name}", one) for name, one in weights_of(attention).items())
        for name, path in layout.parts.items():
            yield from _named(f"{ours}.{name}", layer.get_submodule(path), model)
    head = list(_named("projection", model.lm_head, model))
    if model.lm_head.weight is not table.get_parameter("weight"):
        yield from head


def _ours(model: LanguageModel) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield the weights of our model, of fused projections as of three."""
    for name, weight in parameters_of(model).items():
        if ".attention." not in name:
            yield name, weight
    for number, block in enumerate(model.body.blocks):
        attention: Any = block.attention
        yield from ((f"body.blocks.{number}.attention.{name}", one) for name, one in weights_of(attention).items())


def _named(name: str, part: nn.Module, whole: nn.Module) -> Iterator[tuple[str, Shaped[Tensor, "..."]]]:
    """Yield weight and bias of a projection, a table or a norm by our name of it, laid out as ours."""
    require_plain(name, part, _KINDS, whole=whole)
    is_turned = type(part).__name__ == "Conv1D"  # multiplies from the other side
    for kind, weight in parameters_of(part).items():
        turned = weight.detach().T.requires_grad_(weight.requires_grad) if is_turned and kind == "weight" else weight
        yield f"{name}.{kind}", turned
