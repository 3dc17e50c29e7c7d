"""Which allocations the operation that a traceback stands at can make."""

import re
from typing import NamedTuple

from headwise.cost.oom.births import Birth
from headwise.cost.workload import Workload

_ELSEWHERE = 0.01  # chance that the line says something else than it seems to


class _Made(NamedTuple):
    """What an operation of the forward pass makes: by the tensor's name, its owner, or its kind; "" = any."""

    name: str = ""
    owner: str = ""
    kind: str = ""


_IN_FORWARD = {
    "logits": _Made(owner="^head$"),
    "repeated keys": _Made(name="^(key|value) of each head"),
    "sdpa": _Made(owner="attention$"),
    "softmax": _Made(name="^attention (scores|weights)"),
    "attention output": _Made(name="^(attention (output|weights)|value)", owner="attention$"),
    "scores": _Made(name="^attention (scores|weights)|^(query|key), contiguous"),
    "cache": _Made(name="cached"),
    "mask": _Made(name="mask"),
    "rotary": _Made(name=r"rotary|rotated|cosine|sine|halves swapped|\bhalf\b"),
    "norm": _Made(name="norm|input|squares|mean|inverse|hidden state|encoded"),
    "embedding": _Made(owner="^(embeddings|encoder)$"),
    "feed-forward": _Made(owner="feed-forward$"),
    "projection": _Made(name="^(query|key|value)|_proj", owner="attention$"),
}
_ANYWHERE = {
    "weights": _Made(kind="parameter"),
    "inputs": _Made(kind="input"),
    "gradients": _Made(kind="gradient"),
}
_BY_MOMENT = ("backward", "optimizer")

OPERATIONS = (*_IN_FORWARD, *_ANYWHERE, *_BY_MOMENT)
"""The operations that are told apart, as `find_operation` names them."""


def operation_factor(operation: str | None, birth: Birth, workload: Workload | None = None) -> float:
    """Return by how much less likely an allocation is, given the operation at which memory ran out.

    Args:
        operation: as `find_operation` names it; any other tells nothing. None where no line tells.
        birth: the allocation.
        workload: of its step. Default: not known.
    """
    if operation is None or operation not in OPERATIONS:
        return 1.0
    return 1.0 if _is_made_by(operation, birth, workload) else _ELSEWHERE


def _is_made_by(operation: str, birth: Birth, workload: Workload | None) -> bool:
    if operation in _BY_MOMENT:
        return birth.moment == operation
    if operation in _ANYWHERE:
        return _matches(_ANYWHERE[operation], birth)
    if operation == "sdpa" and workload is not None and workload.attention != "sdpa":
        return False
    runs_again = workload is not None and workload.checkpoint != "none"
    if birth.moment not in ("forward", "loss") and not (birth.moment == "backward" and runs_again):
        return False
    return _matches(_IN_FORWARD[operation], birth)


def _matches(made: _Made, birth: Birth) -> bool:
    return (
        re.search(made.name, birth.name) is not None
        and re.search(made.owner, birth.owner) is not None
        and made.kind in ("", birth.kind)
    )
