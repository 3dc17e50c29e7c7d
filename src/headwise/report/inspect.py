"""What heads do, for the terminal: which hold a role, and how statistics run through the layers."""

import io
from collections import defaultdict
from statistics import mean

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.inspect_results import InspectedModel
from headwise.inspection.results import HeadStatistics
from headwise.report.figures import format_share, texts_read
from headwise.report.text import held_roles_table, notes_text, print_renderable, safe_text

WIDTH = 80
MAX_LAYERS = 48  # rows of the table; of a deeper model every second, third, ... layer
COLUMNS = (
    ("entropy", "normalized_entropy"),
    ("sparsity", "sparsity"),
    ("first token", "sink_mass"),
    ("largest", "max_weight"),
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
    read = f"{len(result.heads)} heads, over {result.num_tokens:,} tokens of {texts_read(result)}"
    parts: list[RenderableType] = [
        safe_text(result.model, style="bold"),
        safe_text(f"{read} of at most {result.window:,} tokens"),
        Text(),
        held_roles_table(result),
        Text(),
        _layers_table(result.heads),
        *notes_text(result.notes),
    ]
    if result.probe is not None:
        parts += [Text(), *(safe_text(line) for line in result.probe.to_text().splitlines())]
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
    table.add_column("distance, tokens", justify="right")
    every = -(-len(layers) // MAX_LAYERS)
    for layer, own in list(layers.items())[::every]:
        shares = [format_share(mean(getattr(head, name) for head in own)) for _, name in COLUMNS]
        table.add_row(f"layer {layer}", *shares, f"{mean(head.distance for head in own):.1f}")
    return table
