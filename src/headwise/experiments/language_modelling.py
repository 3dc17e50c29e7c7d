"""Language modelling: the next token of running text, also at lengths beyond those that were trained on."""

import random
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from headwise.config.checks import require_size
from headwise.errors import ConfigError
from headwise.experiments.corpora.cache import data_folder
from headwise.experiments.corpora.catalogue import find_corpus
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import texts_of, version_of
from headwise.experiments.corpora.texts import SPLITS
from headwise.experiments.examples import IGNORED, Examples, Split, TokenTask, draw_ids, generator_of
from headwise.experiments.vocabulary import NUM_BYTES, BytePairs


@dataclass(frozen=True, kw_only=True)
class LanguageModelling(TokenTask):
    """Say at every token which one comes next. Perplexity is `exp(loss)`, of a token.

    The texts of a split stand one behind another, each with an end token behind it. Training windows begin anywhere.
    Evaluation asks for each token of one stretch at the end of the split once: in windows that lie side by side, whose
    first tokens have little before them, or with `stride` in windows that slide and ask for their last `stride` tokens
    alone, each with `seq_len - stride` tokens or more before it. The windows of a stretch may begin before it, so that
    with one `stretch` tasks of any `seq_len` and `stride` ask for the very same tokens.

    Tokens are pairs of bytes (see `BytePairs`) of the training split: tasks on one corpus with one `vocab_size` share
    them, whatever their lengths. 257 = bytes alone.

    Args:
        corpus: any: "pydoc" comes with Python, "bbc" is better.
        seq_len: tokens of a window.
        stride: tokens that a window of evaluation asks for. Default: all.
        vocab_size: rows of the model's token table, and tokens if the training texts have as many pairs.
        stretch: tokens that evaluation asks for, a multiple of `stride`, else of `seq_len`. Default: as many whole
            windows as the split holds.

    Raises:
        ConfigError: there is no such corpus, or a number is out of range.

    Source: Press et al. 2022, "Train Short, Test Long", appendix B (windows side by side against sliding ones).
    """

    corpus: str = "pydoc"
    seq_len: int = 128
    stride: int | None = None
    vocab_size: int = 1024
    stretch: int | None = None

    def __post_init__(self) -> None:
        find_corpus(self.corpus)
        require_size("seq_len", self.seq_len)
        require_size("vocab_size", self.vocab_size, minimum=NUM_BYTES + 1)
        if self.stride is not None:
            require_size("stride", self.stride)
            if self.stride > self.seq_len:
                raise ConfigError(f"stride must be at most seq_len = {self.seq_len}; got {self.stride}")
        if self.stretch is not None:
            require_size("stretch", self.stretch)
            if self.stretch % self._asked:
                raise ConfigError(
                    f"stretch must be a multiple of {self._asked}, what a window asks; got {self.stretch}"
                )

    @property
    def _asked(self) -> int:
        """Return how many tokens a window of evaluation asks for."""
        return self.seq_len if self.stride is None else self.stride

    @property
    def classifies(self) -> bool:
        """Return that answers are tokens."""
        return False

    @property
    def asks_ahead(self) -> bool:
        """Return that answers are the next tokens of a text."""
        return True

    @property
    def data_version(self) -> str:
        """Return what tells the corpus's texts and splits from any others."""
        return version_of(find_corpus(self.corpus))

    def draw(self, num_examples: int, *, seed: int, split: Split = "train") -> Examples:
        """Return windows of a split: of training text any, of the others the first ones of the stretch.

        Raises:
            DataError: the corpus was not fetched yet.
            ConfigError: a split has fewer tokens than a window, or than the stretch with what comes before it.
        """
        stream = token_stream(self.corpus, self.vocab_size)[split]
        places = torch.arange(self.seq_len)
        if split == "train":
            self._require(split, len(stream) - 1, self.seq_len)
            starts = draw_ids((num_examples,), 0, len(stream) - self.seq_len, generator_of(seed))
        else:
            starts = self._starts(split, len(stream))[:num_examples]
        index = starts[:, None] + places
        targets = stream[index + 1]
        if split != "train":
            targets = targets.masked_fill(places < self.seq_len - self._asked, IGNORED)
        lengths = torch.full((len(starts),), self.seq_len)
        return Examples(stream[index], targets.unsqueeze(-1), lengths)

    def _starts(self, split: Split, num_tokens: int) -> Int[Tensor, " windows"]:
        """Return where windows of evaluation begin: the last one ends before the last token, which it asks for."""
        before = self.seq_len - self._asked
        possible = num_tokens - 1 - before
        self._require(split, possible, self.stretch or self._asked)
        count = (self.stretch or possible) // self._asked
        return num_tokens - 1 - self.seq_len - self._asked * torch.arange(count - 1, -1, -1)

    def _require(self, split: Split, possible: int, wanted: int) -> None:
        if possible < wanted:
            raise ConfigError(
                f"the {split} split of {self.corpus} must have {wanted} tokens to ask for; it has {max(0, possible)} "
                f"with seq_len {self.seq_len}; take a shorter seq_len or stretch, or a larger corpus"
            )


def token_stream(corpus: str, vocab_size: int) -> dict[Split, Int[Tensor, " tokens"]]:
    """Return the tokens of each split, all texts one behind another, each with an end token behind it."""
    return _streams(find_corpus(corpus), data_folder(), vocab_size)[0]


def bytes_per_token(corpus: str, vocab_size: int) -> float:
    """Return the mean bytes of a token of the test split, ends among them.

    It makes losses of different vocabularies comparable: `loss / (ln 2 * bytes_per_token)` is in bits a byte.
    """
    return _streams(find_corpus(corpus), data_folder(), vocab_size)[1]


@lru_cache(maxsize=4)
def _streams(corpus: Corpus, folder: Path, vocab_size: int) -> tuple[dict[Split, Tensor], float]:
    texts = texts_of(corpus)
    pairs = BytePairs([text.text for text in texts if text.split == "train"], vocab_size)
    streams: dict[Split, Tensor] = {}
    for split in SPLITS:
        own = [text.text for text in texts if text.split == split]
        random.Random(corpus.name).shuffle(own)
        streams[split] = torch.tensor([token for ids in pairs.encode(own) for token in (*ids, pairs.end)])
    num_bytes = sum(len(text.text.encode()) for text in texts if text.split == "test")
    return streams, num_bytes / len(streams["test"])
