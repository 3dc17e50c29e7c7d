"""A benchmark for the terminal: the machine's limits, a row a length and implementation, how they grow."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.bench_results import Benchmark
from headwise.report.bench_figures import (
    case_facts,
    format_percent,
    growth_words,
    impl_words,
    limits_sentence,
    memory_words,
    points_words,
    rate_words,
    time_words,
)
from headwise.report.text import notes_text, plain_text, print_renderable, safe_text


def print_bench(result: Benchmark) -> None:
    """Print a benchmark on stdout, in colours where that is a terminal."""
    print_renderable(bench_renderable(result))


def bench_text(result: Benchmark, *, width: int = 80) -> str:
    """Return a benchmark as lines of plain text, without colours, at most `width` columns wide."""
    return plain_text(bench_renderable(result), width=width)


def bench_renderable(result: Benchmark) -> RenderableType:
    """Return a benchmark as what rich prints; made for 80 columns."""
    return Group(*_parts(result), *notes_text(result.notes))


def _parts(result: Benchmark) -> Iterator[RenderableType]:
    yield safe_text(f"Attention on {result.machine}", style="bold")
    yield safe_text(" · ".join(case_facts(result.case)), style="dim")
    yield safe_text(limits_sentence(result.limits), style="dim")
    yield Text()
    yield _rows_table(result)
    yield Text()
    yield _growth_table(result)
    if result.page is not None:
        yield Text()
        yield safe_text(f"page: {result.page}")


def _rows_table(result: Benchmark) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("impl", no_wrap=True)
    for heading in ("median", "allowed pairs", "of limit", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kernel")
    before = None
    for row in result.rows:
        table.add_row(
            "" if row.seq == before else f"{row.seq:,}",
            safe_text(impl_words(row)),
            time_words(row),
            rate_words(row),
            format_percent(row.share_of_limit),
            memory_words(row),
            ", ".join(row.kernels) or "–",
        )
        before = row.seq
    return table


def _growth_table(result: Benchmark) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("grows with the length L", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("least squares in log-log over")
    for growth in result.growth:
        table.add_row(
            safe_text(growth.impl),
            growth_words(growth.time_exponent),
            growth_words(growth.memory_exponent),
            points_words(growth),
        )
    return table
