"""A comparison for the terminal: the arms, paired differences, a line a claim, figures of others."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.experiments.results import ArmResult, ComparisonResult, SeedValues
from headwise.report.compare_figures import (
    MEANINGS,
    MEMORY,
    TONES,
    arm_cells,
    baseline_value,
    baseline_words,
    claim_reason,
    comparison_facts,
    interval_words,
    length_buckets,
    mean_difference,
    mean_words,
    quantity_words,
    run_numbers,
    short_words,
)
from headwise.report.text import STYLES, notes_text, plain_text, print_renderable, safe_text
from headwise.results import format_count


def print_comparison(results: Sequence[ComparisonResult], *, page: str | None = None) -> None:
    """Print comparisons on stdout, in colours where that is a terminal."""
    print_renderable(compare_renderable(results, page=page))


def compare_text(results: Sequence[ComparisonResult], *, page: str | None = None, width: int = 80) -> str:
    """Return comparisons as lines of plain text, without colours, at most `width` columns wide."""
    return plain_text(compare_renderable(results, page=page), width=width)


def compare_renderable(results: Sequence[ComparisonResult], *, page: str | None = None) -> RenderableType:
    """Return comparisons, one below the other, as what rich prints; made for 80 columns.

    Args:
        results: the parts.
        page: the file that was written.
    """
    parts: list[RenderableType] = []
    for number, result in enumerate(results):
        parts += [Text(), Text()] if number else []
        parts += [*_parts(result), *notes_text(result.notes)]
    return Group(*parts, *([Text(), safe_text(f"page: {page}")] if page is not None else []))


def builtin_text(comparisons: Sequence[tuple[str, str]], *, width: int = 80) -> str:
    """Return the comparisons that come with headwise, each with its question."""
    table = _table("comparison")
    table.add_column("question")
    for name, question in comparisons:
        table.add_row(name, safe_text(question))
    how = "Run one with: headwise compare NAME --quick --out page.html"
    return plain_text(Group(table, Text(), safe_text(how, style="dim")), width=width)


def _parts(result: ComparisonResult) -> Iterator[RenderableType]:
    yield safe_text(f"{result.name}: {result.question}" if result.question else result.name, style="bold")
    yield safe_text(" · ".join(comparison_facts(result)), style="dim")
    yield Text()
    yield _arms_table(result)
    if result.baseline is not None:
        yield Text()
        yield safe_text(" ".join(baseline_words(result)), style="dim")
    for names in _number_groups(result.arms):
        yield Text()
        yield _numbers_table(result.arms, names)
    if result.differences:
        yield Text()
        yield _differences_table(result)
    yield from _places_tables(result)
    if result.claims:
        yield Text()
        yield from _claims(result)
    for figure in result.published:
        yield Text()
        yield safe_text(f"published: {figure.text} ({figure.source})")
        if figure.differs:
            yield safe_text(f"  differs: {figure.differs}", style="dim")
    yield from _where(result)


def _arms_table(result: ComparisonResult) -> Table:
    table = _table("arm")
    for heading in (quantity_words(result.metric), "all seeds", "params", "FLOPs", "steps/s", "rate"):
        table.add_column(heading, justify="right", no_wrap=heading in ("all seeds", "params", "FLOPs"))
    for arm in result.arms:
        table.add_row(safe_text(arm.name), *arm_cells(result, arm))
    if result.baseline is not None:
        known = baseline_value(result), "", format_count(result.baseline.num_parameters)
        table.add_row(safe_text(f"(no arm) {result.baseline.name}"), *known, style="dim")
    return table


def _number_groups(arms: Sequence[ArmResult]) -> list[list[str]]:
    """Return the numbers of runs by table: those of memory have one of their own where they are predicted, too."""
    names = run_numbers(arms)
    memory = [name for name in names if name in MEMORY]
    if len(memory) < 2:
        return [names] if names else []
    return [group for group in ([name for name in names if name not in memory], memory) if group]


def _numbers_table(arms: Sequence[ArmResult], names: Sequence[str]) -> Table:
    is_memory = set(names) <= set(MEMORY)
    table = _table("memory of a step" if is_memory else "mean of the runs")
    for name in names:
        heading = "measured" if is_memory and name == "peak_bytes" else short_words(name)
        table.add_column(heading, justify="right", no_wrap=is_memory)
    for arm in arms:
        table.add_row(safe_text(arm.name), *(mean_words(name, arm.numbers.get(name)) for name in names))
    return table


def _differences_table(result: ComparisonResult) -> Table:
    table = _table(f"less {result.arms[0].name}, paired")
    for heading in ("mean", "95 % interval", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for difference in result.differences:
        table.add_row(
            safe_text(difference.arm),
            mean_difference(difference),
            interval_words(difference),
            str(len(difference.values)),
            difference.verdict,
        )
    return table


def _places_tables(result: ComparisonResult) -> Iterator[RenderableType]:
    """Give the tables of buckets of lengths, and of further tests with the length of their texts."""
    arms = result.arms
    buckets = length_buckets(arms)
    if buckets:
        counts = arms[0].length_counts
        headings = {name: f"{name} ({counts[name]:,})" if name in counts else name for name in buckets}
        yield Text()
        table = _by_place(result, "by length (texts)", headings, [arm.by_length for arm in arms])
        if result.baseline is not None and result.baseline.test_by_length:
            cells = [baseline_value(result, name) for name in buckets]
            table.add_row(safe_text(f"(no arm) {result.baseline.name}"), *cells, style="dim")
        yield table
    tests = list(dict.fromkeys(name for arm in arms for name in arm.further))
    if tests:
        lengths = result.test_lengths
        headings = {name: f"{name} ({lengths[name]:,})" if name in lengths else name for name in tests}
        yield Text()
        yield _by_place(result, "further tests (tokens)", headings, [arm.further for arm in arms])


def _by_place(
    result: ComparisonResult,
    heading: str,
    columns: Mapping[str, str],
    each: Sequence[Mapping[str, Mapping[str, SeedValues]]],
) -> Table:
    table = _table(heading)
    for words in columns.values():
        table.add_column(safe_text(words), justify="right")
    for arm, places in zip(result.arms, each, strict=True):
        cells = [mean_words(result.metric, places.get(name, {}).get(result.metric)) for name in columns]
        table.add_row(safe_text(arm.name), *cells)
    return table


def _claims(result: ComparisonResult) -> Iterator[RenderableType]:
    for claim in result.claims:
        line = safe_text(f"{claim.verdict}", style=f"bold {STYLES.get(TONES[claim.verdict], '')}".strip())
        yield line.append_text(safe_text(f": {claim.text} ({claim.source})"))
        yield safe_text(f"  {claim_reason(claim)}", style="dim")


def _where(result: ComparisonResult) -> Iterator[RenderableType]:
    yield Text()
    if result.metric in MEANINGS:
        yield safe_text(f"{quantity_words(result.metric)}: {MEANINGS[result.metric]}", style="dim")
    if result.folder is not None:
        yield safe_text(f"runs: {result.folder}")


def _table(heading: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(safe_text(heading))
    return table
