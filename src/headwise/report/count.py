"""A count for the terminal: parameters, FLOPs, memory, kinds of layers, the cache, and the paths compared."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.results import ComparedFigure, Count, FlopsByPhase, MacsByPhase, ParametersSection, Verification
from headwise.cost.results import KvLayer
from headwise.report.figures import Figure, Row, kv_cache_row, model_facts, parameter_rows
from headwise.report.text import notes_text, plain_text, print_renderable, safe_text
from headwise.results import format_bytes, format_count, format_flops

PHASES = {
    "forward": "Forward pass",
    "train": "Training step",
    "hardware": "Training step as run",
    "recomputed": "of it: computed again",
    "decode": "One more token",
}
PRECISIONS = {"amp-bf16": "autocast to bf16", "amp-fp16": "autocast to fp16"}


def print_count(count: Count) -> None:
    """Print a count on stdout, in colours where that is a terminal."""
    print_renderable(count_renderable(count))


def count_text(count: Count, *, width: int = 80) -> str:
    """Return a count as lines of plain text, without colours, at most `width` columns wide."""
    return plain_text(count_renderable(count), width=width)


def count_renderable(count: Count) -> RenderableType:
    """Return a count as what rich prints; made for 80 columns."""
    texts = "text" if count.batch == 1 else "texts"
    parts: list[RenderableType] = [
        safe_text(count.model.name, style="bold"),
        safe_text(" · ".join(model_facts(count.model)), style="dim"),
        safe_text(
            " · ".join([f"{count.batch:,} {texts} × {count.seq:,} tokens", *_describe_step(count)]),
            style="dim",
        ),
        Text(),
        _figures_table(list(_groups(count))),
    ]
    if len(count.layers) > 1 or count.model.num_layers:
        parts += [Text(), _layers_table(count)]
    if count.kv_layers:
        parts += [Text(), _cache_table(count)]
    if count.verification is not None:
        parts += [Text(), *_verification(count.verification)]
    notes = count.notes + (count.verification.notes if count.verification else ())
    return Group(*parts, *notes_text(notes))


def _groups(count: Count) -> Iterator[list[Row]]:
    """Give the rows of parameters, of products and of bytes."""
    yield parameter_rows(ParametersSection(predicted=count.parameters, counted=None))
    if count.macs is not None:
        yield list(_product_rows(count.macs, _format_macs))
    elif count.flops is not None:
        yield list(_product_rows(count.flops, format_flops))
    rows = []
    if count.memory is not None:
        rows += [
            _row("Weights", count.memory.parameter_bytes, format_bytes),
            _row("Saved for backward", count.memory.saved_bytes, format_bytes),
            _row(f"Peak, in the {count.memory.peak_moment}", count.memory.peak_bytes, format_bytes),
        ]
    if count.kv_cache_bytes is not None:
        rows.append(kv_cache_row(count.kv_cache_bytes, count.kv_cache_bytes_per_token, count.dtype))
    if rows:
        yield rows


def _product_rows(phases: FlopsByPhase | MacsByPhase, write: Callable[[int | float], str]) -> Iterator[Row]:
    """Give the rows of each phase, dense and attended, but for those that are not known, nothing, or told already."""
    known = {field.name: getattr(phases, field.name) for field in fields(phases)}
    for name, label in PHASES.items():
        products = known[name]
        if products is None or products.dense == 0 or (name == "hardware" and products == known["train"]):
            continue
        yield _row(f"{label}, dense", products.dense, write)
        if products.attended is not None:
            yield _row(f"{label}, attended", products.attended, write)


def _row(label: str, number: int, write: Callable[[int | float], str]) -> Row:
    return Row(label=label, predicted=Figure(value=write(number), exact=f"{number:,}"))


def _format_macs(macs: int | float) -> str:
    return format_flops(macs).replace("FLOP", "MAC")


def _describe_step(answer: Count | Verification) -> list[str]:
    """Say what the training step of an answer is like, a few words each; nothing where it has none."""
    workload = answer.workload
    if workload is None or workload.phase != "train":
        return []
    words = [f"training in {PRECISIONS.get(workload.precision, workload.precision)}", workload.optimizer]
    words += [f"{workload.attention} attention", "loss " + workload.loss.replace("_", " ")]
    if workload.checkpoint != "none":
        words.append(f"{workload.checkpoint} checkpointing")
    return [*words, "on a GPU" if workload.device == "cuda" else "on a CPU"]


def _figures_table(groups: list[list[Row]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column("")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True, style="dim")
    for group in groups:
        if table.row_count:
            table.add_row()
        for row in group:
            table.add_row(safe_text(row.label), row.predicted.value, row.predicted.exact)
    return table


def _layers_table(count: Count) -> Table:
    """Return a line for each kind of layer: how many, and what one of them has and does."""
    table = _table("layers", "number", "weights each", "dense FLOPs each", "cache each")
    for kind in count.layers:
        table.add_row(
            safe_text(kind.name),
            f"{kind.num_layers:,}",
            format_count(kind.parameters.total),
            format_flops(kind.forward.dense),
            "–" if kind.kv_cache_bytes is None else format_bytes(kind.kv_cache_bytes),
        )
    return table


def _cache_table(count: Count) -> Table:
    """Return a line for all layers that keep alike: what they keep, logical and in an engine's whole pages."""
    is_paged = any(len({entry.bytes, entry.reserved_bytes, entry.unified_bytes}) > 1 for entry in count.kv_layers)
    pages = ("in pages", "unified") if is_paged else ()
    table = _table("cache", "layers", "tokens kept", "a token", "all", *pages)
    alike: Counter[KvLayer] = Counter(replace(entry, layer=0) for entry in count.kv_layers)
    for entry, num_layers in alike.items():
        table.add_row(
            entry.kind,
            f"{num_layers:,}",
            f"{entry.tokens:,}",
            format_bytes(entry.bytes_per_token),
            format_bytes(num_layers * entry.bytes),
            *(format_bytes(num_layers * part) for part in (entry.reserved_bytes, entry.unified_bytes) if is_paged),
        )
    return table


def _verification(verification: Verification) -> list[RenderableType]:
    """Return the paths side by side, and whether they agree."""
    table = _table("scaled down and run here", "closed form", "traced", "measured", "")
    for figure in verification.figures:
        table.add_row(figure.what, *map(_exact, (figure.closed_form, figure.traced, figure.measured)), _verdict(figure))
    width, layers = verification.model.embed_dim, verification.model.num_layers
    facts = [f"{layers} layers", f"{width} wide"] if width else []
    workload = verification.workload
    facts += [f"{workload.batch} texts × {workload.seq} tokens", *_describe_step(verification)]
    return [table, safe_text(" · ".join(facts), style="dim")]


def _verdict(figure: ComparedFigure) -> Text:
    if not figure.holds:
        return Text("differs", style="red")
    return Text("equal" if figure.tolerance == 0 else f"within {figure.tolerance:.0%}", style="green")


def _exact(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _table(first: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
