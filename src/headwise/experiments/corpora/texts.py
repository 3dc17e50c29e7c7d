"""A text with what is known of it, and what a word is."""

import re
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class SourceText:
    """A text as a source has it.

    Args:
        text: the text.
        label: its class; "" where there are none.
        group: texts of one group stay in one split: reviews of one movie, say. Default: a text stands for itself.
        split: "train" or "test" where the source says which; None = it does not.
    """

    text: str
    label: str = ""
    group: str | None = None
    split: Literal["train", "test"] | None = None


@dataclass(frozen=True)
class Text:
    """A text of a corpus that was cleaned and split.

    Args:
        split: "train", "validation" or "test".
        label: its class; "" where there are none.
        text: the text.
    """

    split: Split
    label: str
    text: str


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case: runs of letters and digits, all else left out."""
    return _WORD.findall(text.lower())


def key_of(text: str) -> str:
    """Return what texts have in common that differ in signs, spaces and capitals alone."""
    return " ".join(words_of(text))
