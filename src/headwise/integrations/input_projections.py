"""The projections that make queries, keys and values of an attention layer, in any family, and how their rows lie."""

import re
from dataclasses import dataclass

from torch import Tensor, nn

from headwise.integrations.output_projection import QUERY_NAMES

FUSED_WORDS = ("qkv", "query_key_value", "c_attn", "att_proj", "W_pack", "in_proj")  # in names of one for all three
BY_GROUP = ("query_key_value",)  # by group as Megatron does; under all other names queries come first, then keys
CLASSES_BY_GROUP = ("GPTBigCodeAttention",)  # by group under another name
CLASSES_IN_NO_ORDER = ("CodeGenAttention",)  # in pieces for the devices it was trained on, values before keys


@dataclass(frozen=True, eq=False, kw_only=True)
class Linear:
    """A linear map of tokens.

    Args:
        weight: its weight.
        bias: its bias; None if it has none.
        is_transposed: whether the weight has inputs before outputs, as that of transformers' Conv1D.
    """

    weight: Tensor
    bias: Tensor | None
    is_transposed: bool = False

    @property
    def out_width(self) -> int:
        """Return how many numbers of a token it makes."""
        return int(self.weight.shape[1 if self.is_transposed else 0])

    @property
    def in_width(self) -> int:
        """Return how many numbers of a token it reads."""
        return int(self.weight.shape[0 if self.is_transposed else 1])


@dataclass(frozen=True, eq=False, kw_only=True)
class InputProjections:
    """What makes the queries, keys and values of a layer.

    Args:
        linears: of queries, keys and values, or one for all three.
        by_group: the rows of that one go key/value head by key/value head, each behind its query heads, key before
            value, in place of all queries first.
    """

    linears: tuple[Linear, ...]
    by_group: bool = False


def as_linear(module: nn.Module | None) -> Linear | None:
    """Return a module as the linear map that it is; None for anything else."""
    is_conv1d = type(module).__name__ == "Conv1D"  # transformers' own: a linear map, its weight transposed
    if module is None or not (is_conv1d or isinstance(module, nn.Linear)):
        return None
    weight, bias = module.weight, module.bias
    if not isinstance(weight, nn.Parameter) or not isinstance(bias, Tensor | None):
        return None
    return Linear(weight=weight, bias=bias, is_transposed=is_conv1d)


def find_input_projections(attention: nn.Module) -> InputProjections | None:
    """Find what makes the queries, keys and values of a layer, by the names that families use.

    Separate ones are called alike but for their letter or word (`q_proj`, `k_proj`, `v_proj`; `query`, `key`, `value`).

    Args:
        attention: the module that holds them.

    Returns:
        None if there is none under a known name, or not all three, or their rows lie in another order.
    """
    kind = type(attention).__name__
    children = {name: as_linear(child) for name, child in attention.named_children()}
    for name in QUERY_NAMES:
        query = children.get(name)
        if query is None:
            continue
        if any(word in name for word in FUSED_WORDS):
            if kind in CLASSES_IN_NO_ORDER:
                return None
            return InputProjections(linears=(query,), by_group=name in BY_GROUP or kind in CLASSES_BY_GROUP)
        key, value = (children.get(_twin(name, letter)) for letter in "kv")
        if key is not None and value is not None:
            return InputProjections(linears=(query, key, value))
    return None


def _twin(name: str, letter: str) -> str:
    """Return what the projection of keys (k) or values (v) is called beside that of queries."""
    for query, others in (("queries", ("keys", "values")), ("query", ("key", "value"))):
        if query in name:
            return name.replace(query, others[letter == "v"])
    return re.sub("q", letter, name, count=1)
