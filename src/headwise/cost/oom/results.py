"""What an out-of-memory message says, and what it is about."""

from dataclasses import dataclass
from typing import Literal

from headwise.cost.workload import Workload
from headwise.results import Result

OomKind = Literal["one huge tensor", "slow fill", "fragmentation", "another process", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Frame(Result):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class OomMessage(Result):
    """An out-of-memory message as read; None = it does not say.

    `requested_low_bytes` to `requested_high_bytes`: what was asked for, within the rounding of the message; both are
    the same where it gives bytes. `is_rounded_up`: the figure is what a caching allocator asked the driver for, which
    is the tensor's size rounded up to a segment's. `allocated_bytes`: of this process's tensors; `reserved_bytes`:
    held by its allocator, tensors included; `process_bytes`: in use by this process in all; `other_bytes`: by others.
    `allowed_bytes`: a limit set for this process, below the capacity. `private_pool_bytes`: what of the allocated is in
    pools of its own, as CUDA graphs have. `wording`: which form of the message it is. `num_messages`: how many with a
    size the text holds, of which this is the first. `traceback`: outermost line first.
    """

    backend: Literal["cuda", "hip", "mps", "xpu", "cpu", "npu"]
    wording: str
    requested_text: str | None
    requested_low_bytes: int | None
    requested_high_bytes: int | None
    is_rounded_up: bool = False
    device_index: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    other_bytes: int | None = None
    allowed_bytes: int | None = None
    private_pool_bytes: int | None = None
    num_messages: int = 1
    traceback: tuple[Frame, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation(Result):
    """What was at work when memory ran out, and the line of the traceback that says so."""

    name: str
    frame: Frame


@dataclass(frozen=True, kw_only=True)
class Candidate(Result):
    """A tensor that has the size that was asked for, at a batch and length.

    `batch`, `seq`: None where its size does not depend on it. `bytes`: its own. `alternatives`: other pairs of batch
    and length that give a size within the rounding too, likeliest first. `score`: how likely, 1 the likeliest of all,
    and `why` in words. `members`: every tensor that it may be, which no size can tell apart, by owner and name.
    `moment`: when it is made. `workload`: the likeliest step that makes it; None where none is known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    owner: str
    batch: int | None
    seq: int | None
    bytes: int
    score: float
    why: str
    alternatives: tuple[tuple[int, int], ...] = ()
    members: tuple[str, ...] = ()
    moment: Literal["loading", "forward", "loss", "backward", "optimizer"] | None = None
    workload: Workload | None = None
