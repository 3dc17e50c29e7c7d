"""solve: which tensor has the size that ran out of memory, and at which batch and length.

Every allocation of every step that a message may come from is asked at which batches and lengths it has the size. What
is found is weighed: how usual the batch and the length are, how likely the allocation is the one for which there is no
room, whether the bytes alive before it are those that the message says, and whether the traceback's line makes it. The
likeliest steps are replayed through the model of torch's caching allocator: one that fails with the message's own bytes
in use, reserved and free gains much.
"""

from dataclasses import replace
from typing import Literal

from headwise.config.model import ModelConfig
from headwise.cost.oom.agreement import make_replayer
from headwise.cost.oom.common import common_tensors
from headwise.cost.oom.operations import operation_factor
from headwise.cost.oom.pairs import tensor_ranges
from headwise.cost.oom.printed import rounded_by_hand
from headwise.cost.oom.results import Candidate, OomMessage
from headwise.cost.oom.search import Group, Known, Search
from headwise.cost.oom.steps import Hints, compute_capability_of, list_suspects
from headwise.cost.workload import Workload
from headwise.results import format_bytes

NO_HINTS = Hints()
MAX_ALTERNATIVES = 8
MAX_NAMES = 3
MAX_MODELS = 4
_PHASES = {"train": "training", "prefill": "prefill", "decode": "decoding"}


def solve(
    message: OomMessage,
    config: ModelConfig | None,
    *,
    hints: Hints = NO_HINTS,
    operation: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    limit: int = 12,
) -> tuple[Candidate, ...]:
    """Find the tensors that have the size that a message says was asked for, the likeliest first.

    Tensors whose sizes agree at every batch and length and that are made at the same kind of moment are one candidate.

    Args:
        message: the message.
        config: the model, or None: then tensors of common shapes are tried.
        hints: what is known of the step.
        operation: what the traceback says was being computed, as `find_operation` names it.
        batch, seq: where these are known.
        limit: how many candidates.
    """
    if not tensor_ranges(message):
        return ()
    device: Literal["cpu", "cuda"] = "cpu" if message.backend == "cpu" else "cuda"
    capability = hints.compute_capability or compute_capability_of(message)
    suspects = () if config is None else list_suspects(config, hints, device, capability)
    known = Known(operation, batch, seq, None if config is None else config.max_positions)
    groups: list[Group] = []
    for reading in _readings(message):
        search = Search(reading, tensor_ranges(reading), known)
        if config is None or not suspects:
            groups = search.try_common(common_tensors(config, precision=hints.precision, capability=capability))
        else:
            groups = search.run(suspects, make_replayer(config, reading))
        if groups:
            break
    return tuple(_candidate(group, message, operation, groups[0].weight) for group in groups[:limit])


def _readings(message: OomMessage) -> list[OomMessage]:
    """Return a message as torch would mean it and, of a size that a hand may have rounded, as that hand would.

    One that leaves out the bytes in use, as who types it does, is taken for typed at once.
    """
    by_hand = rounded_by_hand(message.requested_text)
    if by_hand is None or message.requested_low_bytes is None:
        return [message]
    typed = replace(message, requested_low_bytes=min(by_hand[0], message.requested_low_bytes))
    return [typed] if message.allocated_bytes is None else [message, typed]


def _candidate(group: Group, message: OomMessage, operation: str | None, top: float) -> Candidate:
    birth = group.birth
    assert birth is not None, "a group has a tensor"
    pairs = sorted(group.by_pair, key=lambda pair: -group.by_pair[pair])
    batch, seq = pairs[0]
    tensors = sorted(group.by_tensor, key=lambda tensor: -group.by_tensor[tensor])
    workload = None
    if group.suspect is not None:
        workload = replace(group.suspect.step.workload, batch=batch or 1, seq=seq or 1)
    num_bytes = birth.pattern.bytes_at(batch or 1, seq or 1)
    reasons = [_size_reason(num_bytes, batch, seq)]
    by_hand = rounded_by_hand(message.requested_text)
    if by_hand is not None and num_bytes <= by_hand[0]:
        reasons.append(f"torch prints that as {by_hand[1]}: {message.requested_text} is taken for typed by hand")
    if group.models:
        reasons.append(f"as {', '.join(group.models[:MAX_MODELS])} {'has' if len(group.models) == 1 else 'have'}")
    if workload is not None:
        reasons.append(_step_reason(workload))
    if group.before is not None and message.allocated_bytes is not None:
        reasons.append(
            f"{format_bytes(group.before)} of tensors are alive before it by the ledger, and the message says "
            f"{format_bytes(message.allocated_bytes)}"
        )
    if operation is not None and operation_factor(operation, birth, workload) == 1.0:
        reasons.append(f"the traceback stands at {operation}")
    return Candidate(
        name=_join(list(dict.fromkeys(name for _, name in tensors))),
        shape=birth.pattern.shape_at(batch or 1, seq or 1),
        dtype=birth.pattern.dtype,
        owner=_owner(tensors[0][0], group.layers),
        batch=batch,
        seq=seq,
        bytes=num_bytes,
        score=group.weight / top,
        why="; ".join(reasons),
        alternatives=tuple((b, s) for b, s in pairs[1 : 1 + MAX_ALTERNATIVES] if b is not None and s is not None),
        members=tuple(f"{owner}: {name}" if owner else name for owner, name in tensors),
        moment=birth.moment,
        workload=workload,
    )


def _size_reason(num_bytes: int, batch: int | None, seq: int | None) -> str:
    settings = [f"{name} {value}" for name, value in (("batch", batch), ("length", seq)) if value is not None]
    where = f"at {' and '.join(settings)}" if settings else "at any batch and length"
    return f"{format_bytes(num_bytes)} {where}"


def _step_reason(workload: Workload) -> str:
    parts = [_PHASES[workload.phase], workload.precision, f"{workload.attention} attention"]
    if workload.checkpoint != "none":
        parts.append(f"{workload.checkpoint} checkpointing")
    return ", ".join(parts)


def _join(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    rest = f"; or {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{names[0]} (or {'; or '.join(names[1:MAX_NAMES])}{rest})"  # a name may hold commas


def _owner(part: str, layers: set[int]) -> str:
    if not layers:
        return part
    first, last = min(layers), max(layers)
    span = f"layer {first}" if first == last else f"layers {first} to {last}"
    return f"{span}, {part}" if part else span
