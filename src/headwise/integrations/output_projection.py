"""Finding, in any model, the projection that reads the heads of each attention layer side by side."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from torch import nn

from headwise.errors import ModelError
from headwise.integrations.text_config import text_config_of

# What families call the projections that make queries, alone or fused with keys and values,
QUERY_NAMES = (
    *("q", "q_proj", "query", "query_proj", "q_lin", "q_head", "q_b_proj", "wq", "Wq", "to_q", "linear_q", "qkv"),
    *("qkv_proj", "query_key_value", "c_attn", "Wqkv", "queries", "q_linear", "query_layer", "query_projection"),
    *("att_proj", "attn_qkv", "self_query", "qkv_linear", "W_pack", "in_proj"),
)
# in modules whose class says attention, and not the kind that keeps a state in place of weights;
ATTENTION_WORDS = ("attention", "attn", "mla", "mha", "mhsa")
STATEFUL_WORDS = ("lightning", "delta", "linearattention")
# and where they keep the one that reads the heads: beside those, or beside the module that holds those.
OUTPUT_PATHS = (
    *("o_proj", "out_proj", "c_proj", "dense", "o", "wo", "Wo", "out_lin", "proj", "projection", "projection_layer"),
    *("linear_out", "output_proj", "proj_out", "post_proj", "to_out", "to_out.0", "linear_o", "output_projection"),
    *("out", "output.dense", "output"),
)
NUM_HEADS_NAMES = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads", "nhead", "heads")
HEAD_DIM_NAMES = (
    *("v_head_dim", "value_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim"),
    *("dim_per_head", "depth", "attention_head_dim", "hidden_size_per_attention_head", "d_head"),
)
TIME_FIRST = ("transformers.models.fsmt.",)  # families whose attention has tokens before texts, by their module


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionPart:
    """A module that makes queries: an attention, or the part of one before its output projection.

    Args:
        path: where it stands in the model.
        module: itself.
        is_cross: whether its keys are of other tokens than its queries, as far as its name or class tells.
    """

    path: str
    module: nn.Module
    is_cross: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class OutputProjection:
    """Where the heads of one attention layer lie side by side: `output = projection(concat over heads h of head_h)`.

    Args:
        layer: its number within its stack, from 0.
        name: path of `module` in the model.
        module: the projection; of an `nn.MultiheadAttention`, which never calls its projection, the attention itself.
        num_heads: number H of query heads.
        head_dim: size V of a value head.
        time_first: whether tokens stand before texts in what it reads, (T, B, H V) instead of (B, T, H V).
    """

    layer: int
    name: str
    module: nn.Module
    num_heads: int
    head_dim: int
    time_first: bool = False


def find_attention_parts(model: nn.Module) -> list[AttentionPart]:
    """Find the modules that make queries, those that several layers of one list share once for each.

    Raises:
        ModelError: there is none.
    """
    found: list[AttentionPart] = []
    places: dict[nn.Module, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        names_queries = any(name in QUERY_NAMES and _in_width(child) is not None for name, child in _children(module))
        if not (isinstance(module, nn.MultiheadAttention) or (_is_attention(module) and names_queries)):
            continue
        place = re.sub(r"\d+", "*", path)
        if places.setdefault(module, place) == place:  # else a second name of a part that was there
            found.append(AttentionPart(path=path, module=module, is_cross=_is_cross(path, module)))
    if not found:
        raise ModelError(
            "heads are changed where a projection reads them, beside one that makes queries or inside "
            f"nn.MultiheadAttention; {type(model).__name__} has none"
        )
    return _repeat_shared_groups(found, model)


def find_output_projections(model: nn.Module, parts: Sequence[AttentionPart]) -> tuple[OutputProjection, ...]:
    """Find the output projection of each of some attention layers, numbered as they come.

    It stands beside the projection of queries, or beside the module that holds that one, and is told by its name and
    its width, which must be the number of heads times their size, as the layer or its config says them.

    Args:
        model: a Hugging Face model, or any module with `nn.MultiheadAttention`s or attention of headwise's own.
        parts: of the model, layer by layer.

    Raises:
        ModelError: a layer has no projection of outputs that fits.
    """
    return tuple(replace(_read(part, model), layer=layer) for layer, part in enumerate(parts))


def output_candidates(path: str, holder: nn.Module, model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the path, the module and the width of all that may read the heads of an attention layer, likelier first.

    Args:
        path: where `holder` stands in the model.
        holder: what makes the queries of the layer.
        model: holds it.
    """
    for (place, module), name in product(_holders(path, holder, model), OUTPUT_PATHS):
        candidate = _child(module, name)
        width = _in_width(candidate)
        if candidate is not None and width is not None:
            yield ".".join(filter(None, (place, name))), candidate, width


def _holders(path: str, holder: nn.Module, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return where the output projection of a layer may stand: beside its queries, or beside what holds them."""
    above = path.rpartition(".")[0]
    return [(path, holder)] + ([(above, model.get_submodule(above))] if path else [])


def _is_attention(module: nn.Module) -> bool:
    """Tell whether a module's class, or one that it is made from, says that it is an attention with weights."""
    names = [cls.__name__.lower() for cls in type(module).__mro__]
    says_so = any(word in name for word in ATTENTION_WORDS for name in names)
    return says_so and not any(word in name for word in STATEFUL_WORDS for name in names)


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of a module by name; of a sequence, which low-rank queries are made by, its last."""
    for name, child in module.named_children():
        yield name, child[-1] if isinstance(child, nn.Sequential) and len(child) else child


def _read(part: AttentionPart, model: nn.Module) -> OutputProjection:
    """Read one attention layer, from the module that makes its queries."""
    path, holder = part.path, part.module
    if isinstance(holder, nn.MultiheadAttention):
        return OutputProjection(
            layer=0,
            name=path,
            module=holder,
            num_heads=holder.num_heads,
            head_dim=holder.embed_dim // holder.num_heads,
            time_first=not holder.batch_first,
        )
    holders = [module for _, module in _holders(path, holder, model)]
    misfits = []
    for name, candidate, width in output_candidates(path, holder, model):
        sizes = _split_width(width, [*holders, model])
        if sizes is not None:
            return OutputProjection(
                layer=0,
                name=name,
                module=candidate,
                num_heads=sizes[0],
                head_dim=sizes[1],
                time_first=type(holder).__module__.startswith(TIME_FIRST),
            )
        misfits.append(f"{name.removeprefix(f'{path}.')} reads {width}")
    reason = f" that reads all its heads side by side ({', '.join(misfits)})" if misfits else ""
    raise ModelError(
        "each attention layer must have an output projection beside its queries for its heads to be changed; "
        f"{path or type(holder).__name__} ({type(holder).__name__}) of {type(model).__name__} has none{reason}"
    )


def _child(module: nn.Module, path: str) -> nn.Module | None:
    for name in path.split("."):
        found = dict(module.named_children()).get(name)
        if found is None:
            return None
        module = found
    return module


def _in_width(module: nn.Module | None) -> int | None:
    """Return how many numbers of a token a linear map reads, None for anything else."""
    if module is None:
        return None
    width = getattr(module, "in_features", None)
    if width is None and type(module).__name__ == "Conv1D":  # transformers' own: a linear map, its weight transposed
        width = module.get_parameter("weight").shape[0]
    return width if isinstance(width, int) else None


def _split_width(width: int, modules: list[nn.Module]) -> tuple[int, int] | None:
    """Return (heads, size of a head) that the modules or their configs say and that give the width, None if none do."""
    configs: list[Any] = [module.config for module in modules if hasattr(module, "config")]
    configs += [text_config_of(config) for config in configs if hasattr(config, "get_text_config")]
    for told in (modules, [*modules, *configs]):  # what a layer says of itself goes before its config
        counts, sizes = _numbers(told, NUM_HEADS_NAMES), _numbers(told, HEAD_DIM_NAMES)
        for count in counts:
            if width % count == 0 and (not sizes or width // count in sizes):
                return count, width // count
    size = next((size for size in _numbers(modules, HEAD_DIM_NAMES) if width % size == 0), None)
    return None if size is None or counts else (width // size, size)


def _numbers(sources: Sequence[Any], names: tuple[str, ...]) -> list[int]:
    """Return every positive whole number that sources hold under the names, nearest source first."""
    values = [_attribute(source, name) for source in sources for name in names]
    return [value for value in values if isinstance(value, int) and value > 0]


def _attribute(source: Any, name: str) -> Any:
    try:
        return getattr(source, name, None)
    except RuntimeError:  # transformers' configs, asked for a number that differs from layer to layer
        return None


def _is_cross(path: str, holder: nn.Module) -> bool:
    """Tell by its name or class whether an attention layer reads another text; nothing else tells without a call."""
    flag = getattr(holder, "is_cross_attention", None)
    if isinstance(flag, bool):
        return flag
    parts = path.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    words = " ".join([*parts[numbered:], type(holder).__name__]).lower()
    return any(word in words for word in ("cross", "encdec", "encoder_attn", "multihead_attn"))


def _repeat_shared_groups(found: list[AttentionPart], model: nn.Module) -> list[AttentionPart]:
    """List the groups of layers that ALBERT reads over and over once for each of its layers."""
    num_groups = getattr(getattr(model, "config", None), "num_hidden_groups", None)
    if num_groups is None:
        return found
    config: Any = model.config
    size = len(found) // num_groups
    groups = [found[start : start + size] for start in range(0, len(found), size)]
    # the group of a layer is computed as transformers does
    places = [int(layer / (config.num_hidden_layers / num_groups)) for layer in range(config.num_hidden_layers)]
    return [part for place in places for part in groups[place]]
