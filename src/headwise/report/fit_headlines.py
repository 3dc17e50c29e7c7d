"""What stands on top of a fit's page, and its changes block by block."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwise.api.fit_results import FitPlan
from headwise.cost.planning.results import Change
from headwise.report.fit_figures import (
    answer_sentence,
    format_rate,
    format_seconds,
    format_size,
    peak_words,
)
from headwise.report.headlines import VERDICT_TONES, Headline

WORDS = {"yes": "Yes", "tight": "Tight", "no": "No"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """Changes of one kind, ranked, under a heading."""

    heading: str
    about: str
    changes: tuple[Change, ...]
    is_sharded: bool = False


def fit_headlines(plan: FitPlan) -> list[Headline]:
    """Return the answers that stand on top: does it fit, its peak, the largest batch and length, the least time."""
    lines = [
        Headline(
            label=f"Fits {plan.device.name}?",
            value=WORDS[plan.fits],
            detail=answer_sentence(plan).split(": ", 1)[1],
            tone=VERDICT_TONES[plan.fits],
        ),
        Headline(label="Peak of the tensors", value=format_size(plan.peak_bytes), detail=peak_words(plan)),
        _largest(plan),
    ]
    return [*lines, _time(plan)]


def change_blocks(changes: Sequence[Change]) -> list[Block]:
    """Return the changes that can be made here, as they are ranked: same result, altered, over more devices."""
    alone = [change for change in changes if change.applies and not change.other_gpus]
    blocks = (
        Block(
            heading="The same result",
            about="The same model, batch and mathematics, but for rounding.",
            changes=tuple(change for change in alone if change.list == "same"),
        ),
        Block(
            heading="Alters the model or the batch",
            about="Another model, another batch or an approximation: what comes out is not the same.",
            changes=tuple(change for change in alone if change.list == "alters"),
        ),
        Block(
            heading="Over more devices",
            about="What each device holds, and what it sends to the others in one step.",
            changes=tuple(change for change in changes if change.applies and change.other_gpus),
            is_sharded=True,
        ),
    )
    return [block for block in blocks if block.changes]


def _largest(plan: FitPlan) -> Headline:
    workload = plan.workload
    length = "" if plan.largest_seq is None else f"; length {plan.largest_seq:,} at batch {workload.batch:,}"
    if plan.largest_batch is None:
        return Headline(label="Largest batch", value="unknown", detail=f"at length {workload.seq:,}{length}")
    return Headline(
        label="Largest batch", value=f"{plan.largest_batch:,}", detail=f"at length {workload.seq:,}{length}"
    )


def _time(plan: FitPlan) -> Headline:
    label = "Least time of a step"
    if plan.time is None:
        return Headline(label=label, value="unknown", detail="the device's rates are not known")
    time = plan.time
    flops, moved = format_rate(time.flops_per_second, "FLOP"), format_rate(time.bytes_per_second, "B")
    detail = f"bound by {time.binds}: {format_seconds(time.flops_seconds)} at {flops}, "
    return Headline(
        label=label,
        value=format_seconds(time.seconds),
        detail=detail + f"{format_seconds(time.bytes_seconds)} at {moved}",
    )
