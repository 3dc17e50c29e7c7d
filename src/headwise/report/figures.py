"""The figures of a report as words: what both the page and the terminal show, row by row."""

from collections.abc import Callable
from dataclasses import dataclass

from headwise.api.results import FlopsSection, MemorySection, ModelSummary, ParametersSection, Report
from headwise.cost.results import StepMemory
from headwise.inspection.results import HeadStatistics, Inspection, Role
from headwise.results import format_bytes, format_count, format_flops

PARTS = (
    ("attention", "Attention", "projections with their biases"),
    ("feed_forward", "Feed-forward", "with the router of a mixture of experts"),
    ("embedding", "Embedding", "token, position and type tables, and an untied output head"),
    ("norm", "Norms", "query and key norms too"),
    ("other", "Other", "pooler, classifier and the rest"),
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number in print: rounded with its unit, and exact. Both are None where the number is not known."""

    value: str | None = None
    exact: str | None = None


UNKNOWN = Figure()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: what was predicted beside what was counted or measured.

    Args:
        label: what the number is.
        about: a few words that say it more exactly.
        predicted, measured: the two figures.
        gap: how they differ, in words ("equal", "+1.2 %"); None where one of them is missing.
        share: part of the whole from 0 to 1, where the row has a whole.
    """

    label: str
    about: str = ""
    predicted: Figure = UNKNOWN
    measured: Figure = UNKNOWN
    gap: str | None = None
    share: float | None = None


def format_gap(percent: float) -> str:
    """Write a gap in percent with its sign: +12 %, −1.3 %, +0.04 %; a gap too small for that is not called equal."""
    magnitude = abs(percent)
    if magnitude == 0:
        return "equal"
    if magnitude < 0.005:
        return "within 0.01 %"
    sign = "+" if percent > 0 else "−"
    digits = 0 if magnitude >= 9.95 else 1 if magnitude >= 0.095 else 2
    return f"{sign}{magnitude:.{digits}f} %"


def format_difference(predicted: int, counted: int) -> str:
    """Write how many more were predicted than counted: equal, +3,072, −12."""
    if predicted == counted:
        return "equal"
    return f"{predicted - counted:+,}".replace("-", "−")


def format_share(share: float | None) -> str:
    """Write a share in two digits, 0.42; one that would round up to all of it keeps a third: 0.996; – for None."""
    if share is None:
        return "–"
    return f"{share:.3f}" if 0.995 <= share < 1 else f"{share:.2f}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number with what is counted: 1 head, 1,024 heads; `plural` where it is no more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def texts_read(inspection: Inspection) -> str:
    """Return what was read, as far as "of at most ... tokens": 24 texts; 1 text in 30 windows; 1 example input."""
    what = "example input" if inspection.is_example else "text" if inspection.patches is None else "image"
    texts = counted(inspection.num_texts, what)
    if inspection.num_windows == inspection.num_texts:
        return texts if inspection.num_texts == 1 else f"{texts}, each"
    return f"{texts}, read in {counted(inspection.num_windows, 'window')}"


def tokens_shown(inspection: Inspection) -> str:
    """Return how many tokens the maps cover, of how many: 128; the first 209 of 512."""
    covered = inspection.maps[0].num_queries if inspection.maps else 0
    total = len(inspection.tokens)
    return f"the first {covered:,} of {total:,}" if 0 < covered < total else f"{total:,}"


def model_facts(model: ModelSummary, *, seq: int = 0) -> list[str]:
    """Return what the config says of the model, a few words each, and that it is reckoned with more positions."""
    heads = counted(model.num_heads or 0, "head")
    if model.num_kv_heads is not None and model.num_kv_heads != model.num_heads:
        heads += f" on {counted(model.num_kv_heads, 'key/value head')}"
    positions = counted(model.max_positions, "position") if model.max_positions else ""
    if positions and model.max_positions is not None and seq > model.max_positions:
        positions += f", reckoned with {seq:,}"
    facts = (
        (model.model_type, model.model_type),
        (model.num_layers, counted(model.num_layers or 0, "layer")),
        (model.num_heads, heads),
        (model.embed_dim, f"{model.embed_dim} wide"),
        (model.head_dim, f"{model.head_dim} per head"),
        (model.max_positions, positions),
    )
    return [str(words) for value, words in facts if value is not None]


def workload_facts(report: Report) -> list[str]:
    """Return what was asked of the model, a few words each."""
    workload = report.workload
    facts = [
        f"{counted(workload.batch, 'text')} × {counted(workload.seq, 'token')}",
        workload.precision,
        f"{workload.attention} attention",
    ]
    if workload.phase == "train":
        optimizer = {"adamw": "AdamW", "sgd": "SGD"}.get(workload.optimizer, workload.optimizer)
        facts.insert(1, f"one training step with {optimizer}")
        facts.append("dropout as the model says" if workload.dropout else "no dropout")
    else:
        facts.insert(1, "one forward pass")
    return facts


def parameter_rows(section: ParametersSection) -> list[Row]:
    """Return a row for each part of the parameters and one for the total, last."""
    parts = list(PARTS)
    known = section.counted or section.predicted
    if known is None:
        return []
    if known.output_head:
        after_embedding = [name for name, *_ in parts].index("embedding") + 1
        parts.insert(after_embedding, ("output_head", "of it: output head", "already in the embedding"))
    parts.append(("total", "Total", "tied weights once"))
    rows = []
    for name, label, about in parts:
        predicted, counted = _pair(name, section.predicted, section.counted)
        share = getattr(known, name) / known.total if known.total else None
        gap = _difference(predicted, counted)
        rows.append(_row(label, about, predicted, counted, format_count, gap=gap, share=share))
    return rows


def flop_rows(section: FlopsSection) -> list[Row]:
    """Return the rows of FLOPs: a forward pass predicted and counted, a training step predicted."""
    rows = []
    for label, prediction, count in (
        ("Forward pass", section.forward, section.counted_forward),
        ("Training step", section.train, None),
    ):
        for name, about in (("dense", "every query with every key"), ("attended", "the pairs that the mask allows")):
            predicted, counted = _pair(name, prediction, count)
            if predicted is not None or counted is not None:
                gap = _difference(predicted, counted)
                rows.append(_row(f"{label}, {name}", about, predicted, counted, format_flops, gap=gap))
    return rows


def memory_rows(section: MemorySection) -> list[Row]:
    """Return the rows of memory: of a training step predicted and measured, of a cache and of one score matrix."""
    rows = []
    if section.predicted or section.measured:
        saved_about = "what the forward pass keeps, parameters aside"
        peak_about = _moments(section.predicted, section.measured)
        for label, about, name, percent in (
            ("Parameter memory", "the weights alone", "parameter_bytes", None),
            ("Saved for backward", saved_about, "saved_bytes", section.saved_gap_percent),
            ("Peak of the step", peak_about, "peak_bytes", section.peak_gap_percent),
        ):
            predicted, measured = _pair(name, section.predicted, section.measured)
            gap = _difference(predicted, measured) if percent is None else format_gap(percent)
            rows.append(_row(label, about, predicted, measured, format_bytes, gap=gap))
    if rows or section.kv_cache_bytes is not None:
        rows.append(kv_cache_row(section.kv_cache_bytes, section.kv_cache_bytes_per_token, section.kv_cache_dtype))
    if section.score_matrix_bytes is not None:
        about = "of one layer, all heads and texts, if it were stored"
        rows.append(_row("One score matrix", about, section.score_matrix_bytes, None, format_bytes))
    return rows


def kv_cache_row(cache_bytes: int | None, bytes_per_token: int | None, dtype: str | None) -> Row:
    """Return the row of a key/value cache in a dtype: all of it, and the bytes of one token of one text."""
    label = "Key/value cache" if dtype is None else f"Key/value cache, {dtype}"
    about = "" if bytes_per_token is None else f"{bytes_per_token:,} bytes a token"
    return _row(label, about, cache_bytes, None, format_bytes)


def _pair(name: str, predicted: object, measured: object) -> tuple[int | None, int | None]:
    first, second = (None if source is None else getattr(source, name) for source in (predicted, measured))
    return first, second


def _difference(predicted: int | None, counted: int | None) -> str | None:
    return None if predicted is None or counted is None else format_difference(predicted, counted)


def _moments(predicted: StepMemory | None, measured: StepMemory | None) -> str:
    moments = [step.peak_moment for step in (predicted, measured) if step is not None and step.peak_moment]
    if len(moments) == 2 and moments[0] != moments[1]:
        return f"predicted: {moments[0]}; measured: {moments[1]}"
    return moments[0] if moments else ""


def _row(
    label: str,
    about: str,
    predicted: int | None,
    measured: int | None,
    write: Callable[[float], str],
    *,
    gap: str | None = None,
    share: float | None = None,
) -> Row:
    figures = [UNKNOWN if n is None else Figure(value=write(n), exact=f"{n:,}") for n in (predicted, measured)]
    return Row(label=label, about=about, predicted=figures[0], measured=figures[1], gap=gap, share=share)


def held_roles(inspection: Inspection) -> list[tuple[HeadStatistics, Role]]:
    """Return every head that holds a role with that role, the clearest first."""
    held = [(head, role) for head in inspection.heads for role in head.roles if role.holds]
    return sorted(held, key=lambda pair: pair[1].score or 0.0, reverse=True)
