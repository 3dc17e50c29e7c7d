"""Corpora for the terminal: all of them in a table, or one with its splits and classes."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headwise.api.data_results import CorpusData, CorpusTable
from headwise.report.text import notes_text, plain_text, print_renderable, safe_text

MAX_CLASSES = 20
MISSING = "–"


def print_data(result: CorpusData | CorpusTable) -> None:
    """Print corpora on stdout, in colours where that is a terminal."""
    print_renderable(corpus_renderable(result) if isinstance(result, CorpusData) else table_renderable(result))


def corpus_text(result: CorpusData, *, width: int = 80) -> str:
    """Return a corpus as lines of plain text, at most `width` columns wide."""
    return plain_text(corpus_renderable(result), width=width)


def table_text(result: CorpusTable, *, width: int = 80) -> str:
    """Return all corpora as lines of plain text, at most `width` columns wide."""
    return plain_text(table_renderable(result), width=width)


def table_renderable(result: CorpusTable) -> RenderableType:
    """Return all corpora as what rich prints; made for 80 columns."""
    table = _table()
    table.add_column("corpus", no_wrap=True)
    table.add_column("what it is")
    for heading in ("items", "classes", "download"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fetched", no_wrap=True)
    for corpus in result.corpora:
        items = corpus.items or corpus.source_items
        table.add_row(
            corpus.name,
            safe_text(corpus.about),
            MISSING if items is None else f"{items:,}",
            str(corpus.num_classes) if corpus.num_classes else MISSING,
            _download_words(corpus),
            _fetched_words(corpus),
        )
    licences = _table()
    licences.add_column("corpus", no_wrap=True)
    licences.add_column("licence")
    for corpus in result.corpora:
        licences.add_row(corpus.name, safe_text(corpus.licence))
    lines = ("Fetch one: headwise data NAME", f"Kept in {result.folder}")
    return Group(table, Text(), licences, Text(), *(safe_text(line, style="dim") for line in lines))


def corpus_renderable(result: CorpusData) -> RenderableType:
    """Return a corpus as what rich prints; made for 80 columns."""
    return Group(*_parts(result), *notes_text(result.cautions))


def _parts(result: CorpusData) -> Iterator[RenderableType]:
    yield safe_text(f"{result.name}: {result.about}", style="bold")
    yield Text()
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    for name, value in _facts(result):
        table.add_row(name, safe_text(value))
    table.show_header = False
    yield table
    if result.splits:
        yield Text()
        yield _splits_table(result)
    if len(result.labels) > MAX_CLASSES:
        yield Text(f"and {len(result.labels) - MAX_CLASSES} smaller classes", style="dim")


def _facts(result: CorpusData) -> Iterator[tuple[str, str]]:
    if result.path is not None:
        yield "path", result.path
    if result.items is not None:
        source = result.source_items
        found = "" if source is None or source == result.items else f", of {source:,} before cleaning"
        yield "items", f"{result.items:,}{found}"
    if result.words is not None:
        yield "words", f"half have {result.words['median']:,} at most, nine tenths {result.words['p90']:,}"
    if result.package is not None:
        yield "package", f"{result.package}, {_download_words(result)}"
    yield "licence", result.licence
    if result.sha256 is not None:
        yield "sha256", result.sha256


def _splits_table(result: CorpusData) -> Table:
    table = _table()
    table.add_column("class" if result.labels else "", no_wrap=True, overflow="ellipsis")
    splits = list(result.splits)
    for split in splits:
        table.add_column(split, justify="right", no_wrap=True)
    largest = sorted(result.labels.items(), key=lambda pair: -sum(pair[1].values()))[:MAX_CLASSES]
    for label, counts in largest:
        table.add_row(safe_text(label), *(f"{counts[split]:,}" for split in splits))
    table.add_row("all", *(f"{result.splits[split]:,}" for split in splits), style="bold")
    return table


def _download_words(corpus: CorpusData) -> str:
    return "none" if corpus.download_bytes is None else f"{corpus.download_bytes / 1e6:.1f} MB"


def _fetched_words(corpus: CorpusData) -> Text:
    if corpus.package is None:
        return Text("not needed", style="dim")
    return Text("yes", style="green") if corpus.path is not None else Text("no")


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
