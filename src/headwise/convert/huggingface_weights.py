"""Where the weights of an attention layer are in transformers 5.24, family by family, and how they are laid out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from headwise.config.attention import AttentionConfig, T5Bias
from headwise.convert.plain import require_nothing_else, require_plain
from headwise.convert.weights import copy_weights, name_projections, view_of, views_of_fused
from headwise.errors import UnsupportedError

NORMS = ("q_norm.weight", "k_norm.weight")
_NORM_KINDS = ("Qwen3RMSNorm", "Qwen3MoeRMSNorm", "Gemma3RMSNorm")
TABLE = "relative_bias.table"


@dataclass(frozen=True)
class Layout:
    """What sets the weights of a family apart.

    Args:
        projections: paths of the projections of query, key, value and output, or of one for the first three and output.
        by_group: the rows of that one go key/value head by key/value head, each behind its query heads, key before
            value, in place of all queries first (GPT-NeoX, Falcon).
        norm_offset: what norms of queries and keys add to their weight before they multiply by it (Gemma 3: 1).
    """

    projections: tuple[str, ...]
    by_group: bool = False
    norm_offset: int = 0


_BERT = Layout(("self.query", "self.key", "self.value", "output.dense"))
_LLAMA = Layout(("q_proj", "k_proj", "v_proj", "o_proj"))
_BART = Layout(("q_proj", "k_proj", "v_proj", "out_proj"))

# A family must stay out where its equation is not ours: norms over all heads (OLMo 2), latent keys (DeepSeek); and
# BLOOM, whose layers do not know their config.
LAYOUTS: Mapping[str, Layout] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": Layout(("q_lin", "k_lin", "v_lin", "out_lin")),
    "gpt2": Layout(("c_attn", "c_proj")),
    "gpt_neox": Layout(("query_key_value", "dense"), by_group=True),
    "falcon": Layout(("query_key_value", "dense"), by_group=True),
    "opt": _BART,
    "bart": _BART,
    "t5": Layout(("q", "k", "v", "o")),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _LLAMA,
    "gemma3_text": Layout(_LLAMA.projections, norm_offset=1),
    "phi3": Layout(("qkv_proj", "o_proj")),
    "gpt_oss": _LLAMA,
    "smollm3": _LLAMA,
    "starcoder2": _LLAMA,
    "vit": _LLAMA,
}
"""The families that are converted, by `model_type`."""


class LayerWeights:
    """The weights of one attention layer of a Hugging Face model, to be read and written by our names.

    Args:
        attention: the layer.
        family: a key of `LAYOUTS`.
        config: what the layer is.
        table: T5's table of biases, (num_buckets, num_heads), where the layer reads one.

    Raises:
        UnsupportedError: a projection is missing, is no plain matrix, or has not the rows that the config asks for; a
            norm that is no plain one; a parameter that is not known here.
    """

    def __init__(self, attention: nn.Module, family: str, config: AttentionConfig, table: Tensor | None):
        self._offset = LAYOUTS[family].norm_offset
        self._regrouped: list[tuple[Tensor, Tensor, Tensor]] = []  # rows as they are stored, our order of them, a copy
        projections = [_read_projection(attention, path, family) for path in LAYOUTS[family].projections]
        if len(projections) == 2:
            (weight, bias), output = projections
            weights = self._split(weight, attention, family, config)
            biases = (None, None, None) if bias is None else self._split(bias, attention, family, config)
            projections = [*zip(weights, biases, strict=True), output]
        self._views = name_projections(*zip(*projections, strict=True))
        if config.qk_norm:
            for norm in NORMS:
                self._views[norm] = _read_norm(attention, norm)
        if config.sink:
            self._views["sink"] = view_of(attention.get_parameter("sinks"))
        if isinstance(config.position, T5Bias):
            assert table is not None  # which every attention of T5 that has the projections gives, or table_from
            self._views[TABLE] = table
        require_nothing_else(attention, _names_of(family, config))

    def read(self) -> dict[str, Shaped[Tensor, "..."]]:
        """Return the weights, some of them as views.

        Raises:
            UnsupportedError: the sum of a norm's weight and what is added to it has no place in a narrow dtype.
        """
        weights = dict(self._views)
        for norm in NORMS if self._offset else ():
            if norm in weights:
                weights[norm] = (self._offset + weights[norm].detach()).requires_grad_(weights[norm].requires_grad)
                # models add in float32, whatever their dtype
                if weights[norm].dtype.itemsize < 4 and not torch.equal(
                    weights[norm].float(), self._offset + self._views[norm].float()
                ):
                    raise UnsupportedError(
                        f"{norm} must be in float32 to be converted, since the layer multiplies by {self._offset} plus "
                        f"it, which {weights[norm].dtype} would round; convert the model in float32 (model.float())"
                    )
        return weights

    def write(self, weights: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Overwrite the weights in place.

        Raises:
            UnsupportedError: they have not the same names and shapes. Nothing is written then.
        """
        offsets = {norm: weights[norm].detach() - self._offset for norm in NORMS if self._offset and norm in weights}
        copy_weights({**weights, **offsets}, self._views)
        with torch.no_grad():
            for stored, order, stacked in self._regrouped:
                stored[order] = stacked

    def _split(self, fused: Tensor, attention: nn.Module, family: str, config: AttentionConfig) -> tuple[Tensor, ...]:
        """Cut the weight or the bias of one projection for queries, keys and values."""
        sizes = [config.num_heads * config.head_dim] + [config.num_kv_heads * config.head_dim] * 2
        if fused.shape[0] != sum(sizes):
            raise UnsupportedError(
                f"{LAYOUTS[family].projections[0]} must have {sum(sizes)} rows, as the config of the model says; "
                f"got {fused.shape[0]} in {type(attention).__name__}"
            )
        if LAYOUTS[family].by_group:
            rows = torch.arange(sum(sizes), device=fused.device)
            rows = rows.view(config.num_kv_heads, config.queries_per_kv + 2, config.head_dim)
            parts = torch.split(rows, [config.queries_per_kv, 1, 1], dim=1)
            order = torch.cat([part.flatten() for part in parts])
            stacked = fused.detach()[order].requires_grad_(fused.requires_grad)
            self._regrouped.append((fused, order, stacked))
            fused = stacked
        return views_of_fused(fused, sizes)


def _read_projection(
    attention: nn.Module, path: str, family: str
) -> tuple[Shaped[Tensor, "out_dim in_dim"], Shaped[Tensor, " out_dim"] | None]:
    """Return weight and bias of one projection, as views, laid out as `nn.Linear`'s."""
    name = type(attention).__name__
    part: Any = attention
    for step in path.split("."):
        part = getattr(part, step, None)
    if part is None:
        raise UnsupportedError(
            f"an attention layer of {family} must have {', '.join(LAYOUTS[family].projections)} to be converted; got a "
            f"{name} without {path} (give the module of one layer that holds the output projection, too)"
        )
    require_plain(path, part, [nn.Linear, "Conv1D", "FalconLinear"], whole=attention)
    weight = part.weight.detach()
    weight = weight.T if type(part).__name__ == "Conv1D" else weight  # Conv1D multiplies from the other side
    return weight.requires_grad_(part.weight.requires_grad), None if part.bias is None else view_of(part.bias)


def _read_norm(attention: nn.Module, path: str) -> Shaped[Tensor, " head_dim"]:
    """Return the weight of a norm of queries or keys, as a view."""
    name = path.removesuffix(".weight")
    norm: Any = getattr(attention, name, None)
    require_plain(name, norm, _NORM_KINDS, whole=attention)
    return view_of(norm.weight)


def _names_of(family: str, config: AttentionConfig) -> set[str]:
    """Return the names of the parameters that a layer can have: those read here, and those of the block's own norm."""
    names = {f"{path}.{kind}" for path in LAYOUTS[family].projections for kind in ("weight", "bias")}
    names |= {"output.LayerNorm.weight", "output.LayerNorm.bias"}  # of BERT and its kin
    names |= set(NORMS) if config.qk_norm else set()
    names |= {"sinks"} if config.sink else set()
    return names | ({"relative_attention_bias.weight"} if isinstance(config.position, T5Bias) else set())
