"""What stands on top of a fit's page."""

from headwise.api.fit_results import FitPlan
from headwise.report.fit_figures import (
    format_rate,
    format_seconds,
    margin_words,
    need_words,
)
from headwise.report.headlines import VERDICT_TONES, Headline
from headwise.results import format_bytes

WORDS = {"yes": "Yes", "tight": "Tight", "no": "No"}


def fit_headlines(plan: FitPlan) -> list[Headline]:
    """Return the answers that stand on top: does it fit, its peak, the largest batch and length, the least time."""
    lines = [
        Headline(
            label=f"Fits {plan.device.name}?",
            value=WORDS[plan.fits],
            detail=f"{need_words(plan)}, {margin_words(plan)}",
            tone=VERDICT_TONES[plan.fits],
        ),
        Headline(label="Peak of the tensors", value=format_bytes(plan.peak_bytes), detail=plan.peak_label),
        _largest(plan),
    ]
    return [*lines, _time(plan)]


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
