"""Texts as tokens, for models that learn from nothing: words of a training split, or pairs of bytes of it."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headwise.errors import MissingExtraError

PAD, UNKNOWN, END = 0, 1, 2  # of words; the rest are words, the most frequent first
NUM_MARKS = 3
NUM_BYTES = 256


@dataclass(frozen=True)
class WordVocabulary:
    """Words and their numbers.

    Args:
        words: those that have a number of their own, from NUM_MARKS on.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], size: int) -> "WordVocabulary":
        """Return the most frequent words of texts; of equally frequent ones those that come first in the alphabet.

        Args:
            texts: the words of each.
            size: numbers there may be, with PAD, UNKNOWN and END.
        """
        counts: Counter[str] = Counter()
        for words in texts:
            counts.update(words)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(tuple(ordered[: max(0, size - NUM_MARKS)]))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=NUM_MARKS)}

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the number of each word, UNKNOWN where it has none."""
        numbers = self._numbers
        return [numbers.get(word, UNKNOWN) for word in words]


class BytePairs:
    """Byte-pair encoding of UTF-8: the bytes are tokens, and so are the pairs that were most frequent, again and again.

    Nothing is unknown. Tokens 0 to 255 are bytes (in the library's own order), then come pairs; the last one, `size -
    1`, ends a text.

    Args:
        texts: what pairs are counted in.
        size: tokens, at least 257: bytes and the end.

    Raises:
        MissingExtraError: tokenizers is not installed.

    Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units"; Radford et al. 2019,
    "Language Models are Unsupervised Multitask Learners" (bytes).
    """

    def __init__(self, texts: Sequence[str], size: int):
        library = _tokenizers()
        self.end = size - 1
        self._tokenizer: Any = library.Tokenizer(library.models.BPE())
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self.end,
            min_frequency=2,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        self._tokenizer.train_from_iterator(iter(texts), trainer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without an end."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; ends are left out."""
        text: str = self._tokenizer.decode([number for number in ids if number != self.end])
        return text

    def merges(self) -> list[list[str]]:
        """Return the pairs in the order in which they were found."""
        found: list[list[str]] = json.loads(self._tokenizer.to_str())["model"]["merges"]
        return found


def _tokenizers() -> Any:
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: F401  attributes of the package
    except ModuleNotFoundError as error:
        if error.name != "tokenizers":
            raise
        raise MissingExtraError("tokenizers", "hf") from error
    return tokenizers
