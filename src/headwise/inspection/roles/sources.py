"""What roles are read on: prose, and random tokens that come twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from headwise.errors import ModelError, TextError
from headwise.inspection.roles.texts import RoleTexts, batches_of_windows, draw_repeats
from headwise.inspection.texts.batches import pad_id_of
from headwise.inspection.texts.tokens import label_by_decoding
from headwise.inspection.texts.windows import cut_into_windows, require_window
from headwise.integrations.text_config import text_config_of
from headwise.integrations.transformers_attention import is_transformers_model

NUM_RANDOM = 40  # tokens of one copy, where model and vocabulary have room for them
WINDOW = 128  # tokens: a paragraph; in full windows of 512 heads read the token before less surely


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary:
    """The tokens of a model.

    Args:
        tokenizer: None where only their number is known.
        drawable: ids of all that are not special and not the first.
        special_ids: those that are.
        first_id: what random texts begin with; None = nothing.
        pad_id: any id that a model accepts as padding.
    """

    tokenizer: Any
    drawable: Int[Tensor, " num_drawable"]
    special_ids: frozenset[int]
    first_id: int | None
    pad_id: int

    def label(self, token_id: int) -> str:
        """Return the word that a token alone stands for, its number where there is no tokenizer."""
        return str(token_id) if self.tokenizer is None else label_by_decoding(self.tokenizer, [token_id])[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """Batches of texts, and how to write a token: `label(number of the text, index)`."""

    batches: tuple[RoleTexts, ...]
    label: Callable[[int, int], str]

    @property
    def num_texts(self) -> int:
        """Return the number of texts in all batches."""
        return sum(len(batch.ids) for batch in self.batches)

    @property
    def num_tokens(self) -> int:
        """Return the number of real tokens in all batches."""
        return sum(int(batch.real.sum()) for batch in self.batches)

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest text."""
        return max(batch.ids.shape[1] for batch in self.batches)


def read_vocabulary(model: nn.Module, vocabulary: Any, first_id: int | None) -> Vocabulary:
    """Return what is known of a model's tokens.

    Args:
        model: the model that reads them.
        vocabulary: its tokenizer, or how many ids there are.
        first_id: what random texts begin with. Default: as `probe_roles` says.

    Raises:
        ModelError: a Hugging Face model has no table of tokens.
        TextError: there are more ids than the model's table has, or the first is none of them.
    """
    config = _text_config(model) if is_transformers_model(model) else None
    if not isinstance(vocabulary, int) and not hasattr(vocabulary, "all_special_ids"):
        raise TextError(f"a vocabulary must be a tokenizer or a number of ids; got {vocabulary!r:.60}")
    tokenizer = None if isinstance(vocabulary, int) else vocabulary
    num_ids = vocabulary if tokenizer is None else len(vocabulary)
    known = num_ids if config is None else _num_embeddings(model)
    if num_ids < 1 or (tokenizer is None and num_ids > known):
        raise TextError(f"a vocabulary must be a tokenizer or a number of ids from 1 to {known}; got {vocabulary}")
    of_config = {name: _config_ids(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    special_ids = {token for ids in of_config.values() for token in ids}
    bos_ids = list(of_config["bos_token_id"])
    if tokenizer is not None:
        special_ids |= set(tokenizer.all_special_ids)
        own = (tokenizer.bos_token_id, *bos_ids, tokenizer.cls_token_id)
        bos_ids = [token for token in own if token is not None]
    if first_id is None:
        first_id = next((token for token in bos_ids if token < known), None)
    elif not 0 <= first_id < known:
        raise TextError(f"first_id must be a token of the vocabulary, from 0 to {known - 1}; got {first_id}")
    reserved = special_ids | {first_id}
    drawable = torch.tensor([token for token in range(min(num_ids, known)) if token not in reserved])
    pad_id = pad_id_of(tokenizer)
    return Vocabulary(
        tokenizer=tokenizer,
        drawable=drawable,
        special_ids=frozenset(special_ids),
        first_id=first_id,
        pad_id=pad_id,
    )


def random_repeats(
    vocabulary: Vocabulary,
    *,
    num_texts: int,
    num_random: int | None,
    max_length: int | None,
    seed: int,
    batch_size: int,
) -> tuple[Source, int]:
    """Return random tokens that come twice, and how many there are in one copy.

    Args:
        vocabulary: what to draw from.
        num_texts: how many texts.
        num_random: tokens of one copy. Default: 40, or as many as there is room and there are tokens for.
        max_length: tokens that the model reads at once; None = any.
        seed: of the random numbers.
        batch_size: texts of a batch.

    Raises:
        TextError: there is no text, or there is no room or are no tokens for so many, or for two.
    """
    room = len(vocabulary.drawable)
    if max_length is not None:
        room = min(room, (max_length - (vocabulary.first_id is not None)) // 2)
    if num_random is None:
        num_random = min(NUM_RANDOM, room)
    if not 2 <= num_random <= room:
        raise TextError(
            f"num_random must be from 2 to {room}: {len(vocabulary.drawable)} different tokens can be drawn, and two "
            f"copies must fit into {'any number of' if max_length is None else max_length} tokens; got {num_random}"
        )
    texts = draw_repeats(
        vocabulary.drawable, num_texts=num_texts, num_random=num_random, first_id=vocabulary.first_id, seed=seed
    )
    source = Source(
        batches=tuple(texts.in_batches(batch_size)),
        label=lambda text, index: vocabulary.label(int(texts.ids[text, index])),
    )
    return source, num_random


def prose(
    vocabulary: Vocabulary, texts: Sequence[str], *, window: int | None, max_length: int | None, batch_size: int
) -> Source:
    """Return texts cut into windows.

    Args:
        vocabulary: of the model; with a tokenizer.
        texts: what to read.
        window: tokens of a window. Default: 128, or what the model reads at most.
        max_length: tokens that the model reads at once; None = any.
        batch_size: windows of a batch.

    Raises:
        TextError: there is no text, one holds no token, or a window does not fit.
    """
    if window is None:
        window = WINDOW if max_length is None else min(WINDOW, max_length)
    require_window(window, max_length)
    windows, _ = cut_into_windows(vocabulary.tokenizer, texts, window=window, max_length=None)
    batches = batches_of_windows(
        windows, special_ids=vocabulary.special_ids, pad_id=vocabulary.pad_id, batch_size=batch_size
    )
    return Source(batches=tuple(batches), label=lambda text, index: windows[text].labels[index])


def _text_config(model: Any) -> Any:
    return text_config_of(model.config)


def _num_embeddings(model: Any) -> int:
    """Return how many ids a Hugging Face model's table of tokens has rows for."""
    table = model.get_input_embeddings()
    if not hasattr(table, "num_embeddings"):
        raise ModelError(f"roles are probed in models that read token ids; {type(model).__name__} does not")
    return int(table.num_embeddings)


def _config_ids(config: Any, name: str) -> tuple[int, ...]:
    """Return the ids that a config gives under a name: none, one, or a list of them."""
    ids = getattr(config, name, None)
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
