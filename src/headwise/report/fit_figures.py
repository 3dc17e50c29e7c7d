"""What the text and the page of a fit say in words: the answer, the parts of the peak, the step, the changes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.api.fit_results import FitPlan, TrackedAccuracy
from headwise.cost.planning.results import Change, Fits, Moment, Path, TimeEstimate
from headwise.cost.results import Unmodelled
from headwise.cost.sharding.results import DATA_PARALLEL, Sharding, Travel
from headwise.cost.workload import Workload
from headwise.report.figures import format_gap
from headwise.results import format_bytes

ANSWERS: dict[Fits, str] = {"yes": "Fits", "tight": "Tight", "no": "Does not fit"}

# field of a moment -> its name, from the bottom of a drawing to its top
KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer",
    "kv_cache": "KV cache",
    "input": "inputs",
    "saved": "saved",
    "temporary": "temporary",
}
PRECISIONS = {"amp-bf16": "autocast to bf16", "amp-fp16": "autocast to fp16"}
OPTIMIZERS = {
    "sgd": "SGD",
    "momentum": "SGD with momentum",
    "adam": "Adam",
    "adamw": "AdamW",
    "adamw8bit": "8-bit AdamW",
}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SHARDINGS = {
    "zero1": "ZeRO-1 (DDP)",
    "zero2": "ZeRO-2 (FSDP2)",
    "zero3": "ZeRO-3 (FSDP2)",
    "tensor": "tensor parallel",
    "sequence": "tensor and sequence parallel",
    "context": "context parallel",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A share of what is alive at the peak: `key` is the field of a moment, `label` its name."""

    key: str
    label: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is needed beside the tensors of the peak, between two bounds."""

    key: str
    label: str
    low: int
    high: int


def format_range(low: int, high: int) -> str:
    """Write two bounds: 8.1 MiB to 2.00 GiB, or 1.50 to 2.00 GiB; one figure where both read the same."""
    first, last = format_bytes(low), format_bytes(high)
    if first == last:
        return last
    number, unit = first.split(" ")
    return f"{number if unit == last.split(' ')[1] else first} to {last}"


def format_extra(fraction: float | None) -> str:
    """Write extra FLOPs as a share of the step's: +33 %, −8 %, 0 %; – where they are not known."""
    if fraction is None:
        return "–"
    percent = 100 * fraction
    if percent == 0:
        return "0 %"
    sign = "+" if percent > 0 else "−"
    size = abs(percent)
    return f"under {sign}0.1 %" if size < 0.05 else f"{sign}{size:.{1 if size < 9.95 else 0}f} %"


def need_low_bytes(plan: FitPlan) -> int:
    """Return what the step needs at least: its tensors and the lower bound of all that is not modelled."""
    return plan.peak_bytes + sum(part.low for part in plan.unmodelled)


def need_high_bytes(plan: FitPlan) -> int:
    """Return what the step needs at most: reserved bytes and the upper bound of all that is not modelled."""
    return plan.capacity_bytes - plan.spare_bytes


def answer_sentence(plan: FitPlan) -> str:
    """Say whether the step fits, by how much, and what it needs, in one line."""
    margin = f", {margin_words(plan)}" if plan.fits == "yes" else f", by {_excess(plan)}" if plan.fits == "no" else ""
    decides = "; memory beside tensors decides" if plan.fits == "tight" else ""
    return f"{ANSWERS[plan.fits]}{margin}: {need_words(plan)}{decides}."


def need_words(plan: FitPlan) -> str:
    """Say what the step needs, between its bounds, of what the device has."""
    return f"needs {format_range(need_low_bytes(plan), need_high_bytes(plan))} of {format_bytes(plan.capacity_bytes)}"


def margin_words(plan: FitPlan) -> str:
    """Say how much is left, or too much, between the bounds of what is needed."""
    if plan.fits == "yes":
        return f"{format_range(plan.spare_bytes, plan.capacity_bytes - need_low_bytes(plan))} to spare"
    return "memory beside tensors decides" if plan.fits == "tight" else f"{_excess(plan)} too much"


def _excess(plan: FitPlan) -> str:
    return format_range(need_low_bytes(plan) - plan.capacity_bytes, -plan.spare_bytes)


def peak_words(plan: FitPlan) -> str:
    """Say what the tensors take at the peak, what is reserved for them, and when that is."""
    reserved = "" if plan.reserved_bytes is None else f", for which torch reserves {format_bytes(plan.reserved_bytes)}"
    return f"{format_bytes(plan.peak_bytes)}{reserved}, at {plan.peak_label}"


def peak_index(timeline: Sequence[Moment]) -> int:
    """Return the moment with the most bytes, the first of equals."""
    return max(range(len(timeline)), key=lambda index: timeline[index].total)


def parts_of(moment: Moment) -> list[Part]:
    """Return what is alive at a moment by kind, what there is none of left out."""
    parts = [Part(key=key, label=label, bytes=getattr(moment, key)) for key, label in KINDS.items()]
    return [part for part in parts if part.bytes]


def beside_tensors(plan: FitPlan) -> list[Beside]:
    """Return what is needed beside the tensors: what the allocator reserves above them, and the unmodelled."""
    low, high = unmodelled_bounds(plan.unmodelled)
    reserved = need_high_bytes(plan) - high - plan.peak_bytes
    parts = [Beside(key="reserved", label="reserved beside them", low=0, high=max(0, reserved))]
    return [part for part in (*parts, Beside(key="beside", label="not modelled", low=low, high=high)) if part.high]


def beside_words(part: Beside) -> str:
    """Write the bounds of what is needed beside the tensors: up to 3.62 GiB, 0.25 to 2.06 GiB."""
    return format_range(part.low, part.high) if part.low else f"up to {format_bytes(part.high)}"


def step_facts(workload: Workload, sharding: Sharding | None = None) -> list[str]:
    """Return what is asked of a model, a few words each."""
    texts = "text" if workload.batch == 1 else "texts"
    size = f"{workload.batch:,} {texts} × {workload.seq:,} tokens"
    if sharding is not None and sharding.kind in DATA_PARALLEL:
        size += f" on each device, {sharding.num_devices * workload.batch:,} in all"
    facts = [size]
    precision = PRECISIONS.get(workload.precision, workload.precision)
    if workload.phase == "train":
        optimizer = OPTIMIZERS.get(workload.optimizer, workload.optimizer.capitalize())
        facts += [f"training in {precision}", f"{optimizer} ({workload.optimizer_step})"]
    else:
        facts.append({"prefill": "prefill", "decode": "one more token"}[workload.phase] + f" in {precision}")
    facts.append(f"{workload.attention} attention")
    if workload.phase == "train":
        facts.append("loss " + workload.loss.replace("_", " "))
    optional = (
        (workload.accumulation > 1, f"{workload.accumulation:,} passes a step"),
        (workload.checkpoint != "none", f"{workload.checkpoint} checkpointing"),
        (workload.lora is not None, f"LoRA of rank {workload.lora.rank if workload.lora else 0}"),
        (workload.frozen_layers > 0, f"{workload.frozen_layers:,} layers frozen"),
        (workload.kv_cache != "model", f"{workload.kv_cache} KV cache"),
        (workload.phase == "train" and not workload.dropout, "no dropout"),
    )
    facts += [words for is_so, words in optional if is_so]
    if sharding is not None:
        facts.append(f"{SHARDINGS[sharding.kind]} over {sharding.num_devices:,} devices")
    return facts


def unmodelled_bounds(unmodelled: Sequence[Unmodelled]) -> tuple[int, int]:
    """Return the sums of the lower and of the upper bounds."""
    return sum(part.low for part in unmodelled), sum(part.high for part in unmodelled)


def largest_words(plan: FitPlan) -> str | None:
    """Say the largest batch and the largest length that fit; None where neither is known."""
    workload = plan.workload
    words = []
    if plan.largest_batch is not None:
        batch = f"batch {plan.largest_batch:,}" if plan.largest_batch else "not even one text"
        words.append(f"{batch} at length {workload.seq:,}")
    if plan.largest_seq is not None:
        seq = f"length {plan.largest_seq:,}" if plan.largest_seq else "not even one token"
        words.append(f"{seq} at batch {workload.batch:,}")
    return "; ".join(words) if words else None


def time_sentence(time: TimeEstimate) -> str:
    """Say the least time of a step and what binds it."""
    if time.binds == "FLOPs":
        rate = f"FLOPs bind, at {format_rate(time.flops_per_second, 'FLOP')}"
        other = f"{format_seconds(time.bytes_seconds)} of moving bytes"
    else:
        rate = f"bandwidth binds, at {format_rate(time.bytes_per_second, 'B')}"
        other = f"{format_seconds(time.flops_seconds)} of computing"
    return f"At least {format_seconds(time.seconds)} a step: {rate} and {other}."


def format_seconds(seconds: float) -> str:
    """Write a time: 1.24 s, 12.5 ms, 38 µs, 2.1 h."""
    for size, unit in ((3600.0, "h"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1e5 else f"{seconds / size:.1e} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_rate(per_second: float, unit: str) -> str:
    """Write a rate with a decimal prefix: 312 TFLOP/s, 900 GB/s."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G")):
        if per_second >= 10**power:
            return f"{per_second / 10**power:.3g} {prefix}{unit}/s"
    return f"{per_second:.3g} {unit}/s"


def travel_words(travels: Sequence[Travel]) -> str:
    """Say what a device sends in one step, by collective operation: all-gather 2.10 GiB, reduce-scatter 1.10 GiB."""
    sent: Counter[str] = Counter()
    for one in travels:
        sent[one.collective] += one.sent_bytes
    return ", ".join(f"{collective} {format_bytes(num_bytes)}" for collective, num_bytes in sent.items())


def frees_words(change: Change) -> str:
    """Say what a change frees: 1.50 GiB, 0, −12.0 MiB (it takes more)."""
    if change.frees_bytes == 0:
        return "0"
    return format_bytes(change.frees_bytes).replace("-", "−", 1)


def shape_words(shape: Sequence[int]) -> str:
    """Write a shape: (32, 12, 2048, 2048)."""
    return f"({', '.join(map(str, shape))})"


def compact_shape(shape: Sequence[int], dtype: str) -> str:
    """Write a shape and a dtype in few characters: 32×12×2048×2048 fp32."""
    return f"{'×'.join(map(str, shape)) or 'scalar'} {DTYPES.get(dtype, dtype)}"


def gap_words(predicted_bytes: int | None, measured_bytes: int) -> str:
    """Say how far a prediction is from what was measured, (predicted - measured) / measured; – for not known."""
    if predicted_bytes is None or not measured_bytes:
        return "–"
    return format_gap(100 * (predicted_bytes - measured_bytes) / measured_bytes)


def accuracy_words(accuracy: TrackedAccuracy) -> str:
    """Say how near predictions came on a device."""
    steps = f"{accuracy.device}: {accuracy.num_steps:,} step{'' if accuracy.num_steps == 1 else 's'} tracked"
    if accuracy.median_error is None or accuracy.worst_error is None:
        return f"{steps}, none predicted"
    median = format_gap(100 * accuracy.median_error).lstrip("+")
    worst = format_gap(100 * accuracy.worst_error)
    return f"{steps}, {accuracy.num_predicted:,} predicted; median gap {median}, worst {worst}"


def thin(values: Sequence[int], limit: int) -> list[int]:
    """Return at most so many of the values, evenly between the first and the last."""
    if len(values) <= limit:
        return list(values)
    return [values[round(place * (len(values) - 1) / (limit - 1))] for place in range(limit)]


def main_path(plan: FitPlan) -> Path | None:
    """Return the path that the answer names, with its figures; None where there is none."""
    return next((path for path in plan.paths if plan.path in (path.keys, path.changes)), None)


def path_words(path: Path) -> str:
    """Say a path and what the step needs with it."""
    extra = f", {format_extra(path.extra_flops_fraction)} FLOPs per token" if path.extra_flops_fraction else ""
    fits = {"yes": "fits", "tight": "tight", "no": "does not fit"}[path.fits]
    return f"{' + '.join(path.changes)} (peak {format_bytes(path.peak_bytes)}{extra}, {fits})"
