"""An out-of-memory message explained, for the terminal: what kind, which tensor, what was alive, what to change."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.fit_results import OomAnswer
from headwise.cost.oom.results import Candidate, OomKind, OomMessage
from headwise.report.fit_figures import compact_shape, format_range, shape_words, step_facts
from headwise.report.fit_tables import changes_parts, figures_table, more, tensors_table
from headwise.report.headlines import as_sentence
from headwise.report.tensor_groups import group_tensors
from headwise.report.text import notes_text, plain_text, print_renderable, safe_text
from headwise.results import format_bytes

BACKENDS = {"cuda": "CUDA", "hip": "HIP (ROCm)", "mps": "MPS", "xpu": "XPU", "cpu": "The CPU", "npu": "NPU"}
KINDS: dict[OomKind, str] = {
    "one huge tensor": "one tensor is too large by itself",
    "slow fill": "the device was full, and this tensor was the last",
    "fragmentation": "memory is reserved in pieces too small",
    "another process": "another process holds the device's memory",
    "unknown": "the message does not say why",
}
MAX_CANDIDATES = 5
LEAST_SCORE = 0.01
MAX_ALIVE = 5
MAX_ALTERNATIVES = 3


def print_oom(answer: OomAnswer) -> None:
    """Print what a message is about on stdout, in colours where that is a terminal."""
    print_renderable(oom_renderable(answer))


def oom_text(answer: OomAnswer, *, width: int = 80) -> str:
    """Return what a message is about as lines of plain text, at most `width` columns wide."""
    return plain_text(oom_renderable(answer), width=width)


def oom_renderable(answer: OomAnswer) -> RenderableType:
    """Return what a message is about as what rich prints; made for 80 columns."""
    return Group(*_parts(answer), *notes_text(answer.notes))


def _parts(answer: OomAnswer) -> Iterator[RenderableType]:
    backend = BACKENDS[answer.message.backend]
    yield safe_text(f"{backend} ran out of memory: {KINDS[answer.kind]}.", style="bold red")
    for evidence in answer.evidence:
        yield safe_text(as_sentence(evidence))
    figures = message_words(answer.message)
    if figures:
        yield safe_text(figures, style="dim")
    yield Text()
    yield from _likeliest(answer)
    yield from _advice(answer)
    others = answer.candidates[1:]
    if others:
        yield Text()
        yield _others_table(others[:MAX_CANDIDATES])
        yield from more(len(others) - MAX_CANDIDATES)
    if answer.alive:
        yield Text()
        when = "then" if answer.peak_moment is None else f"in {answer.peak_moment}"
        yield tensors_table(group_tensors(answer.alive, limit=MAX_ALIVE), when=when)
    yield from _changes(answer)


def message_words(message: OomMessage) -> str:
    """Return the figures of a message and the line that it was raised in, as one line."""
    figures = (
        ("capacity", message.capacity_bytes),
        ("allowed", message.allowed_bytes),
        ("free", message.free_bytes),
        ("in tensors", message.allocated_bytes),
        ("of it in private pools", message.private_pool_bytes),
        ("reserved", message.reserved_bytes),
        ("in this process", message.process_bytes),
        ("in others", message.other_bytes),
    )
    asked = _asked(message)
    words = [f"asked for {asked}"] if asked else []
    words += [f"{name} {format_bytes(num_bytes)}" for name, num_bytes in figures if num_bytes is not None]
    if message.traceback:
        frame = message.traceback[-1]
        code = f": {frame.code}" if frame.code else ""
        words.append(f"raised in {frame.file}, line {frame.line}, {frame.function}{code}")
    return " · ".join(words)


def _asked(message: OomMessage) -> str | None:
    if message.requested_text is not None:
        return message.requested_text
    low, high = message.requested_low_bytes, message.requested_high_bytes
    return None if low is None or high is None else format_range(low, high)


def _likeliest(answer: OomAnswer) -> Iterator[RenderableType]:
    if not answer.candidates:
        yield Text("No tensor of that size was found." if answer.requested_bytes else "The message names no size.")
        return
    likeliest = answer.candidates[0]
    yield safe_text(f"Likeliest: {candidate_words(likeliest)}.", style="bold")
    yield safe_text(as_sentence(likeliest.why))
    if likeliest.alternatives:
        pairs = " or ".join(f"{batch} × {seq}" for batch, seq in likeliest.alternatives[:MAX_ALTERNATIVES])
        yield safe_text(f"Of that size too at batch × length {pairs}.", style="dim")


def _advice(answer: OomAnswer) -> Iterator[RenderableType]:
    """Say what to do about a failure of this kind, and which changes make the step fit."""
    if answer.advice:
        yield Text("\nWhat to do", style="bold")
        for advice in answer.advice:
            yield safe_text(f"- {as_sentence(advice)}")
    if answer.path:
        yield Text()
        left = "" if answer.path_peak_bytes is None else f": peak {format_bytes(answer.path_peak_bytes)}"
        names = " + ".join(answer.path)
        yield safe_text(f"What makes it fit: {names}{left}.", style="bold")


def candidate_words(candidate: Candidate) -> str:
    """Say what a tensor is: 6.00 GiB = attention scores of one layer, (32, 12, 2048, 2048) float32, at batch 32 ..."""
    place = f" of {candidate.owner}" if candidate.owner else ""
    sizes = (("batch", candidate.batch), ("length", candidate.seq))
    at = " and ".join(f"{name} {size}" for name, size in sizes if size is not None)
    words = (
        f"{format_bytes(candidate.bytes)} = {candidate.name}{place}, {shape_words(candidate.shape)} {candidate.dtype}"
    )
    return f"{words}, at {at}" if at else words


def _others_table(candidates: Sequence[Candidate]) -> Table:
    table = figures_table(
        ("others", "right"),
        ("", "left"),
        ("shape", "left"),
        ("batch", "right"),
        ("length", "right"),
        ("likely", "right"),
    )
    for one in candidates:
        table.add_row(
            format_bytes(one.bytes),
            safe_text(f"{one.owner}: {one.name}" if one.owner else one.name),
            safe_text(compact_shape(one.shape, one.dtype)),
            *("–" if size is None else str(size) for size in (one.batch, one.seq)),
            f"{one.score:.2f}" if one.score >= LEAST_SCORE else f"below {LEAST_SCORE}",
        )
    return table


def _changes(answer: OomAnswer) -> Iterator[RenderableType]:
    if not answer.changes:
        return
    if answer.workload is not None:
        of = "" if answer.model is None else f"{answer.model.name}: "
        yield Text()
        yield safe_text(f"Changes of {of}{' · '.join(step_facts(answer.workload))}", style="dim")
    yield from changes_parts(answer.changes)
