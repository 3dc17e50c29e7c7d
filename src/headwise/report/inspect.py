"""What heads do, for the terminal: which hold a role, and how statistics run through the layers."""

import io
from collections import defaultdict
from statistics import mean

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.inspect_results import InspectedModel, InspectedPart
from headwise.inspection.results import HeadStatistics, Inspection
from headwise.report.figures import format_share, texts_read
from headwise.report.text import held_roles_table, notes_text, print_renderable, safe_text

WIDTH = 80
MAX_LAYERS = 48  # rows of the table; of a deeper model every second, third, ... layer
MAX_CHANGES = 8  # heads that changed most
COLUMNS = (
    ("normalised\nentropy", "normalized_entropy"),
    ("sparsity", "sparsity"),
    ("first\ntoken", "sink_mass"),
    ("largest\nweight", "max_weight"),
)


def print_inspection(result: InspectedModel) -> None:
    """Print an inspection on stdout, in colours where that is a terminal."""
    print_renderable(inspection_renderable(result))


def inspection_text(result: InspectedModel) -> str:
    """Return an inspection as plain text of at most 80 columns."""
    written = io.StringIO()
    Console(file=written, width=WIDTH, color_system=None).print(inspection_renderable(result))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def inspection_renderable(result: InspectedModel) -> RenderableType:
    """Return what is printed of an inspection."""
    about = [each for each in (result.stack, result.part) if each not in (None, result.model)]
    title = ", ".join(dict.fromkeys(about))
    parts: list[RenderableType] = [
        safe_text(f"{result.model}: {title}" if title else result.model, style="bold"),
        *_heads(result, f" of {texts_read(result)} of at most {result.window:,} tokens"),
    ]
    for part in result.others:
        parts += [Text(), *(_changes(part) if part.comparable else _stack(part))]
    parts += notes_text(
        tuple(note for each in (result, *(part.inspection for part in result.others)) for note in each.notes)
    )
    if result.probe is not None:
        parts += [Text(), *(safe_text(line) for line in result.probe.to_text().splitlines())]
    for relation in result.relations:
        parts += [Text(), *(safe_text(line) for line in relation.to_text().splitlines())]
    if result.page is not None:
        parts += [Text(), safe_text(f"written: {result.page}")]
    return Group(*parts)


def _layers_table(heads: tuple[HeadStatistics, ...]) -> RenderableType:
    """Return the means of each layer's heads, and how far its heads look."""
    layers: dict[int, list[HeadStatistics]] = defaultdict(list)
    for head in heads:
        layers[head.layer].append(head)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("mean of a layer's heads", no_wrap=True)
    for label, _ in COLUMNS:
        table.add_column(label, justify="right")
    on_image = any(head.patch_distance is not None for head in heads)
    table.add_column("distance,\npatches" if on_image else "distance,\ntokens", justify="right")
    every = -(-len(layers) // MAX_LAYERS)
    for layer, own in list(layers.items())[::every]:
        shares = [format_share(mean(getattr(head, name) for head in own)) for _, name in COLUMNS]
        found = [head.patch_distance if on_image else head.distance for head in own]
        distances = [distance for distance in found if distance is not None]
        table.add_row(f"layer {layer}", *shares, f"{mean(distances):.1f}" if distances else "–")
    return table


def _stack(part: InspectedPart) -> list[RenderableType]:
    """Return what is said of another stack of layers."""
    return [safe_text(part.name, style="bold"), *_heads(part.inspection, "")]


def _heads(inspection: Inspection, of_texts: str) -> list[RenderableType]:
    """Return what the heads of one stack read and do; in cross-attention no position stands for a role."""
    read = f"{len(inspection.heads)} heads, over {inspection.num_tokens:,} tokens{of_texts}"
    if inspection.key_tokens is not None:
        read += ", which read those of another text"
    roles = [] if inspection.key_tokens is not None else [held_roles_table(inspection), Text()]
    return [safe_text(read), Text(), *roles, _layers_table(inspection.heads)]


def _changes(part: InspectedPart) -> list[RenderableType]:
    """Return the heads that differ most, with how far apart their maps are or else by the statistics alone."""
    are_maps = any(change.divergence is not None for change in part.changes)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("heads that differ most", no_wrap=True)
    if are_maps:
        table.add_column("divergence", justify="right", no_wrap=True)
    for label, _ in COLUMNS:
        table.add_column(label, justify="right")
    for change in part.changes[:MAX_CHANGES]:
        row = [f"layer {change.layer} head {change.head}"]
        if are_maps:
            row.append(_with_error(change.divergence, change.divergence_error))
        known = [change.differences.get(name) for _, name in COLUMNS]
        table.add_row(*row, *("–" if value is None else f"{value:+.2f}" for value in known))
    inspection = part.inspection
    read = f"{inspection.num_tokens:,} tokens of {texts_read(inspection)}"
    what = "mean Jensen-Shannon divergence of the maps in nats, then " if are_maps else ""
    return [
        safe_text(f"against {part.name}", style="bold"),
        safe_text(f"over {read}; {what}differences of the statistics"),
        Text(),
        table,
    ]


def _with_error(divergence: float | None, error: float | None) -> str:
    return "–" if divergence is None or error is None else f"{divergence:.3f} ±{error:.3f}"
