"""Count a module's parameters by part, from the module itself: the other path to what `parameters` predicts."""

import re
from collections import Counter
from collections.abc import Iterator

from torch import nn

from headwise.cost.results import ParameterCount
from headwise.errors import ModelError

OUTPUT_HEAD = "output_head"

# Where a parameter belongs, told by the name and the class of the modules around it. The innermost module that any rule
# knows decides, so that a norm inside an attention layer is a norm, and the first rule that knows it names the part.
# Columns: part, whole name of the attribute or of its owner's and its own ("" = none), any part of the class name; case
# does not matter.
RULES: tuple[tuple[str, str, str], ...] = (
    ("norm", r"", r"norm(\d*d|gated|layer|perhead|zero\w*|1p)?$"),
    ("other", r"pooler|classifier|score|qa_outputs|lm_head\.dense", r"headtransform"),
    (OUTPUT_HEAD, r"lm_head|vocab_projector", r"lmpredictionhead|lmhead$"),
    ("embedding", r"wte|wpe|patch_proj|\w*embed(ding)?s?", r"embed(ding)?s?(\d?d|er|table|sine)?$"),
    ("attention", r"[qkv]|\w*attn|\w*attention", r"attention|attn|selfoutput"),
    (
        "feed_forward",
        r"mlp|ffn|feed_forward|linear1|linear2|fc1|fc2|experts|densereludense",
        r"mlp|ffn|feedforward|expert|router|moe(block|layer)?$",
    ),
    ("feed_forward", r"", r"intermediate$|output$"),  # BERT's two halves; its attention's SelfOutput is known above
)


def count_module_parameters(module: nn.Module) -> ParameterCount:
    """Count the distinct parameters of a module by part, trained or frozen, buffers left out.

    A parameter that stands in several places counts once; the matrix of a tied output head is the embedding's.
    Distinct means distinct objects, so that it holds on the meta device too. Parts are told by the names and classes in
    `RULES`; what they do not know is `other`, so that the total is always right.

    Args:
        module: any module, on any device.

    Raises:
        ModelError: a lazy parameter has no size yet.
    """
    parts: dict[int, set[str]] = {}
    sizes: dict[int, int] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if nn.parameter.is_lazy(parameter):
            raise ModelError(f"every parameter must have a size; {name} is still lazy: run the module once first")
        parts.setdefault(id(parameter), set()).add(_part_of(module, name))
        sizes[id(parameter)] = parameter.numel()
    totals: Counter[str] = Counter()
    for key, found in parts.items():
        totals["embedding" if "embedding" in found else min(found)] += sizes[key]
    return ParameterCount(
        attention=totals["attention"],
        feed_forward=totals["feed_forward"],
        embedding=totals["embedding"] + totals[OUTPUT_HEAD],
        norm=totals["norm"],
        other=totals["other"],
        output_head=totals[OUTPUT_HEAD],
    )


def _part_of(root: nn.Module, parameter_name: str) -> str:
    """Return the part of the parameter: what the innermost known module says, else `other`."""
    for names, class_name in _surroundings(root, parameter_name):
        for part, name_pattern, class_pattern in RULES:
            if name_pattern and any(re.fullmatch(name_pattern, name, re.IGNORECASE) for name in names):
                return part
            if re.search(class_pattern, class_name, re.IGNORECASE):
                return part
    return "other"


def _surroundings(root: nn.Module, parameter_name: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the parameter's own name, then names and class of each module that holds it, from the inside out.

    The names are the module's own, and its owner's with it.
    """
    *owners, own_name = parameter_name.split(".")
    yield (own_name,), ""
    for depth in range(len(owners), 0, -1):
        names = (owners[depth - 1], ".".join(owners[max(depth - 2, 0) : depth]))
        yield names, type(root.get_submodule(".".join(owners[:depth]))).__name__
    yield ("",), type(root).__name__
