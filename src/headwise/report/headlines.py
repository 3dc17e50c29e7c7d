"""The four answers of a report in a few words each, and the sentences under its tables."""

from dataclasses import dataclass
from typing import Literal

from headwise.api.results import MemorySection, ParametersSection, Report
from headwise.cost.results import FitVerdict
from headwise.report.figures import format_difference, format_gap
from headwise.results import format_bytes, format_count, format_flops

Tone = Literal["good", "warn", "bad", "plain"]
VERDICT_TONES: dict[str, Tone] = {"yes": "good", "tight": "warn", "no": "bad"}
CANNOT_TELL = "cannot tell"
NOTHING_PREDICTED = "nothing is predicted without a config"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One answer: a label, the answer in a word or a number, and what stands behind it."""

    label: str
    value: str
    detail: str
    tone: Tone = "plain"


def headlines(report: Report) -> list[Headline]:
    """Return the answers that stand on top: parameters, FLOPs, peak of a training step, does it fit."""
    return [
        _parameters(report.parameters),
        _forward_flops(report),
        _training_peak(report.memory),
        _fit(report.memory.fit),
    ]


def parameters_verdict(section: ParametersSection) -> str:
    """Return whether the two counts of parameters agree, as a sentence; empty where only one is known."""
    predicted, counted = section.predicted, section.counted
    if predicted is None or counted is None:
        return ""
    if predicted == counted:
        return f"Predicted from the config and counted in the module: equal to the last weight, {counted.total:,}."
    if predicted.total == counted.total:
        return f"The totals agree to the last weight, {counted.total:,}, but the parts differ: see the table."
    difference = format_difference(predicted.total, counted.total)
    return f"Predicted {predicted.total:,} from the config, counted {counted.total:,} in the module: {difference}."


def as_sentence(text: str) -> str:
    """Return the text with a capital at its front, but for a name of code there, and a full stop at its end."""
    text = text.strip()
    if not text:
        return ""
    is_code = any(sign in text.split()[0][:-1] for sign in "._(")
    first = text[0] if is_code else text[0].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _parameters(section: ParametersSection) -> Headline:
    known = section.counted or section.predicted
    if known is None:
        return Headline(label="Parameters", value="unknown", detail="see the notes below")
    if section.predicted is None:
        detail = "counted in the module"
    elif section.counted is None:
        detail = "predicted from the config"
    elif section.predicted == section.counted:
        detail = "predicted = counted, to the last weight"
    else:
        detail = f"predicted and counted differ: {section.predicted.total:,} and {section.counted.total:,}"
    return Headline(label="Parameters", value=format_count(known.total), detail=detail)


def _forward_flops(report: Report) -> Headline:
    known = report.flops.counted_forward or report.flops.forward
    workload = f"{report.workload.batch} × {report.workload.seq} tokens"
    if known is None:
        return Headline(label="Forward pass", value="unknown", detail=workload)
    attended = "" if known.attended in (None, known.dense) else f", {format_flops(known.attended)} attended"
    return Headline(label="Forward pass", value=format_flops(known.dense), detail=f"dense{attended}; {workload}")


def _training_peak(section: MemorySection) -> Headline:
    label = "Training peak"
    if section.measured is not None:
        gap = "" if section.peak_gap_percent is None else f"; prediction {format_gap(section.peak_gap_percent)}"
        return Headline(
            label=label, value=format_bytes(section.measured.peak_bytes), detail=f"measured on this CPU{gap}"
        )
    if section.predicted is not None:
        return Headline(
            label=label,
            value=format_bytes(section.predicted.peak_bytes),
            detail=f"predicted for {section.predicted_for}, not measured",
        )
    return Headline(label=label, value="unknown", detail="see the notes below")


def _fit(verdict: FitVerdict | None) -> Headline:
    if verdict is None:
        return Headline(label="Does it fit?", value=CANNOT_TELL, detail=NOTHING_PREDICTED)
    device = verdict.device
    words = {"yes": "Yes", "tight": "Tight", "no": "No"}
    return Headline(
        label=f"Fits {device.name}?",
        value=words[verdict.fits],
        detail=f"its own peak: {format_bytes(verdict.peak_bytes)} of {format_bytes(device.memory_bytes)}",
        tone=VERDICT_TONES[verdict.fits],
    )
