"""Text classification: whole texts of a corpus in, one class each out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.config.checks import require_size
from headwise.errors import ConfigError
from headwise.experiments.corpora.cache import data_folder
from headwise.experiments.corpora.catalogue import CORPORA, find_corpus
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import texts_of, version_of
from headwise.experiments.corpora.texts import SPLITS, words_of
from headwise.experiments.examples import IGNORED, Examples, Split, TokenTask, generator_of
from headwise.experiments.vocabulary import END, NUM_MARKS, PAD, WordVocabulary


@dataclass(frozen=True, kw_only=True)
class Classification(TokenTask):
    """Say of a text which class it is of, at an end mark behind its words.

    Tokens are words in lower case: the most frequent ones of the training split by themselves, all others as one. Of a
    longer text the first words are read. `lengths` are words of the whole text, those that are not read, too.

    Args:
        corpus: a corpus with classes: "bbc", "r8", "r52", "20news", "movies", "tweets".
        max_tokens: of a text, with its end mark.
        vocab_size: rows of the model's token table: words with three marks. Fewer words leave rows without use.

    Raises:
        ConfigError: there is no such corpus, or it has no classes.
    """

    corpus: str = "bbc"
    max_tokens: int = 256
    vocab_size: int = 8192

    def __post_init__(self) -> None:
        if not find_corpus(self.corpus).labels:
            with_classes = ", ".join(name for name, corpus in CORPORA.items() if corpus.labels)
            raise ConfigError(f"corpus must be one with classes, {with_classes}; got {self.corpus!r}")
        require_size("max_tokens", self.max_tokens, minimum=2)
        require_size("vocab_size", self.vocab_size, minimum=NUM_MARKS + 1)

    @property
    def num_classes(self) -> int:
        """Return the number of the corpus's classes."""
        return len(self.labels)

    @property
    def classifies(self) -> bool:
        """Return that answers are classes of texts."""
        return True

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their numbers."""
        return find_corpus(self.corpus).labels

    @property
    def max_len(self) -> int:
        """Return the tokens of the longest text as it is read."""
        return self.max_tokens

    @property
    def data_version(self) -> str:
        """Return what tells the corpus's texts and splits from any others."""
        return version_of(find_corpus(self.corpus))

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return texts of a split, padded on the right to the longest of them.

        Of the training texts none is drawn twice in one call before all were drawn; the next call, with another seed,
        begins anew. Of the other splits the first ones are
        returned, which stand in an order of no meaning.

        Raises:
            DataError: the corpus was not fetched yet.
        """
        texts = _numbered(find_corpus(self.corpus), data_folder(), self.max_tokens, self.vocab_size)[split]
        count = len(texts.labels)
        index = drawn(count, num_examples, seed) if split == "train" else torch.arange(min(count, num_examples))
        ends = texts.ends[index]
        width = int(ends.max()) + 1 if len(ends) else 1
        targets = torch.full((len(index), width, 1), IGNORED)
        targets[torch.arange(len(index)), ends, 0] = texts.labels[index]
        real = torch.arange(width) <= ends[:, None]
        return Examples(texts.ids[index, :width].long(), targets, texts.lengths[index], real)


@dataclass(frozen=True, eq=False)
class _Numbered:
    """Texts of a split as numbers: words with the end mark behind, its place, classes, words of the whole texts."""

    ids: Int[Tensor, "texts max_tokens"]
    ends: Int[Tensor, " texts"]
    labels: Int[Tensor, " texts"]
    lengths: Int[Tensor, " texts"]


def words_by_split(corpus: Corpus) -> dict[Split, list[tuple[list[str], str]]]:
    """Return words and class of every text of a corpus, by split."""
    found: dict[Split, list[tuple[list[str], str]]] = {split: [] for split in SPLITS}
    for text in texts_of(corpus):
        found[text.split].append((words_of(text.text), text.label))
    return found


def drawn(count: int, num_examples: int, seed: int) -> Int[Tensor, " drawn"]:
    """Draw numbers below `count`, none again before all were drawn."""
    return torch.cat(list(_orders(count, num_examples, seed)))[:num_examples]


def _orders(count: int, num_examples: int, seed: int) -> Iterator[Tensor]:
    generator = generator_of(seed)
    for _ in range(-(-num_examples // count)):
        yield torch.randperm(count, generator=generator)


@lru_cache(maxsize=4)
def _numbered(corpus: Corpus, folder: Path, max_tokens: int, vocab_size: int) -> dict[Split, _Numbered]:
    splits = words_by_split(corpus)
    vocabulary = WordVocabulary.of([words for words, _ in splits["train"]], vocab_size)
    return {split: _number(corpus, texts, vocabulary, max_tokens) for split, texts in splits.items()}


def _number(
    corpus: Corpus, texts: Sequence[tuple[list[str], str]], vocabulary: WordVocabulary, max_tokens: int
) -> _Numbered:
    rows = [[*vocabulary.encode(words[: max_tokens - 1]), END] for words, _ in texts]
    ids = torch.full((len(rows), max_tokens), PAD, dtype=torch.int32)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return _Numbered(
        ids=ids,
        ends=torch.tensor([len(row) - 1 for row in rows], dtype=torch.long),
        labels=torch.tensor([corpus.labels.index(label) for _, label in texts], dtype=torch.long),
        lengths=torch.tensor([len(words) for words, _ in texts], dtype=torch.long),
    )
