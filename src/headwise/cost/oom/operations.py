"""Which allocations the line of a traceback can make."""

from headwise.cost.oom.births import Birth
from headwise.cost.workload import Workload

_ELSEWHERE = 0.01  # chance that the line says something else than it seems to


def operation_factor(operation: str | None, birth: Birth, workload: Workload | None = None) -> float:
    """Return by how much less likely an allocation is, given the operation at which memory ran out.

    Args:
        operation: as `operation_of` names it, or None where no line tells.
        birth: the allocation.
        workload: of its step. Default: not known.
    """
    return 1.0 if operation is None or _is_made_by(operation, birth, workload) else _ELSEWHERE


def _is_made_by(operation: str, birth: Birth, workload: Workload | None) -> bool:  # noqa: PLR0911  one an operation
    name, part = birth.name, birth.owner
    runs_again = workload is not None and workload.checkpoint != "none"
    is_forward = birth.moment in ("forward", "loss") or (birth.moment == "backward" and runs_again)
    match operation:
        case "backward":
            return birth.moment == "backward"
        case "optimizer":
            return birth.moment == "optimizer"
        case "weights":
            return birth.kind == "parameter"
        case "gradients":
            return birth.kind == "gradient"
        case "cache":
            return name.startswith("cached")
        case "embedding":
            return part == "embeddings" and is_forward
        case "feed-forward":
            return part.endswith("feed-forward") and is_forward
        case "logits":
            return part == "head" and is_forward
        case "norm":
            return is_forward and ("norm" in name or "input" in name or "hidden state" in name)
        case "scores":
            return is_forward and "attention scores" in name
        case "softmax":
            return is_forward and ("attention weights" in name or "attention scores" in name)
        case "sdpa":
            return is_forward and part.endswith("attention") and (workload is None or workload.attention == "sdpa")
    return True
