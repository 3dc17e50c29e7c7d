"""Texts as the batches that a model of one stack reads: in windows, or one text that the model continues itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.errors import TextError
from headwise.inspection.capture.positions import turns_positions
from headwise.inspection.relations.relation import Relation, require_tokens
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.texts.generated import generated_ids, require_writer
from headwise.inspection.texts.tokens import label_by_decoding
from headwise.inspection.texts.windows import UNKNOWN_LENGTH, Window, cut_into_windows, model_length, require_window

MANY_UNKNOWN = 0.1  # share of unknown tokens from which a text is foreign to the tokenizer


@dataclass(frozen=True, eq=False)
class TextBatch:
    """What one forward pass reads.

    Args:
        inputs: of the model.
        source: what the tokens are that it reads.
        target: of an encoder-decoder: what the tokens are that its decoder reads.
    """

    inputs: dict[str, Tensor]
    source: TokenKinds
    target: TokenKinds | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class TextReading:
    """Texts as a model reads them, before it does.

    Args:
        batches: the forward passes.
        shown: number of the text (or window) that is shown, counted through all batches.
        tokens: its words.
        target_tokens: of an encoder-decoder: the words that its decoder reads beside it.
        num_prompt_tokens: how many of the shown words were given, where the model wrote the rest itself: of
            `target_tokens` where there are some, else of `tokens`.
        num_texts: texts that the windows are of.
        notes: what a reader of the result must know.
        first_windows: number of the first window of each text.
    """

    batches: tuple[TextBatch, ...]
    shown: int
    tokens: tuple[str, ...]
    target_tokens: tuple[str, ...] | None = None
    num_prompt_tokens: int | None = None
    num_texts: int
    notes: tuple[str, ...] = ()
    first_windows: tuple[int, ...]

    @property
    def longest_shown(self) -> int:
        """Return the tokens of the shown text, of the longer side where it has two."""
        return max(len(self.tokens), len(self.target_tokens or ()))

    def relations(self, relations: Sequence[Relation]) -> tuple[Relation, ...]:
        """Return relations between tokens of texts as relations between tokens of the first window of each.

        Raises:
            TextError: a relation names a text or a token that is not there.
        """
        sides = [batch.source if batch.target is None else batch.target for batch in self.batches]
        lengths = [int(length) for kinds in sides for length in kinds.real.sum(dim=1)]
        require_tokens(relations, [lengths[number] for number in self.first_windows])
        return tuple(
            replace(
                relation,
                pairs=tuple((self.first_windows[text], start, end) for text, start, end in relation.pairs),
            )
            for relation in relations
        )


def in_windows(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    max_length: int | None,
    window: int | None,
    show: int,
    batch_size: int,
) -> TextReading:
    """Return texts as windows that follow one another without overlap; arguments as of `inspect_texts`.

    Raises:
        TextError: as of `inspect_texts`.
    """
    longest = model_length(model, tokenizer)
    if window is None:
        window = UNKNOWN_LENGTH if longest is None else longest
    require_window(window, None if turns_positions(model) else longest)
    windows, num_cut = cut_into_windows(tokenizer, texts, window=window, max_length=max_length)
    require_shown(show, len(texts))
    shown = next(number for number, each in enumerate(windows) if each.text == show)
    notes = []
    if window is not None and longest is not None and window > longest:
        notes.append(_beyond(window, longest))
    if num_cut:
        notes.append(f"{num_cut} of {len(texts)} texts were cut at {max_length} tokens.")
    if len(windows) > len(texts):
        notes.append(f"Read in {len(windows)} windows of up to {window} tokens: statistics depend on the window.")
    first: dict[int, int] = {}
    for number, each in enumerate(windows):
        first.setdefault(each.text, number)
    return TextReading(
        batches=batches_of(model, tokenizer, windows, batch_size),
        shown=shown,
        tokens=windows[shown].labels,
        num_texts=len(texts),
        notes=(*notes, *notes_on_unknown(tokenizer, windows)),
        first_windows=tuple(first.values()),
    )


def continued(
    model: Any, tokenizer: Any, texts: Sequence[str], *, max_length: int | None, generate: int
) -> TextReading:
    """Return the first text with the tokens that the model writes after it, as one text.

    What decoding step by step with a cache weighs is what one pass over all these tokens weighs, as long as no query
    sees a later key; of the last token, which nothing was written after, there is a row more.

    Args:
        model: a decoder with an output head.
        tokenizer, texts, max_length: as of `inspect_texts`; `max_length` is of the first text alone.
        generate: tokens that are written at most.

    Raises:
        ModelError: the model writes no text.
        TextError: there is no text, or the model has no room for so many tokens.
    """
    require_writer(model)
    windows, num_cut = cut_into_windows(tokenizer, texts[:1], window=None, max_length=max_length, is_open=True)
    prompt = windows[0]
    longest, num_tokens = model_length(model, tokenizer), len(prompt.ids) + generate
    notes = []
    if longest is not None and num_tokens > longest:
        if not turns_positions(model):
            raise TextError(
                f"a prompt of {len(prompt.ids)} tokens and {generate} generated ones must not exceed the {longest} "
                "tokens that the model reads at once: set max_length, or generate fewer"
            )
        notes.append(_beyond(num_tokens, longest))
    if num_cut:
        notes.append(f"The prompt was cut at {max_length} tokens.")
    if len(texts) > 1:
        notes.append(f"The first of {len(texts)} texts was continued and read, the others were not.")
    (batch,) = batches_of(model, tokenizer, [prompt], 1)
    (written,) = generated_ids(model, batch.inputs, generate, pad_id_of(tokenizer))
    whole = Window(
        text=0,
        ids=(*prompt.ids, *written),
        labels=(*prompt.labels, *label_by_decoding(tokenizer, written)),
        separators=(*prompt.separators, *(each == tokenizer.sep_token_id for each in written)),
    )
    notes.append(
        f"The first {len(prompt.ids)} tokens were given, the model wrote the other {len(written)} itself, each time "
        "the likeliest; each of them reads those before it."
    )
    return TextReading(
        batches=batches_of(model, tokenizer, [whole], 1),
        shown=0,
        tokens=whole.labels,
        num_prompt_tokens=len(prompt.ids),
        num_texts=1,
        notes=(*notes, *notes_on_unknown(tokenizer, windows)),
        first_windows=(0,),
    )


def notes_on_unknown(tokenizer: Any, windows: Sequence[Window]) -> list[str]:
    """Say so where many tokens of texts are none that the tokenizer knows."""
    unknown_id = tokenizer.unk_token_id
    num_tokens = sum(len(each.ids) for each in windows)
    num_unknown = sum(each.ids.count(unknown_id) for each in windows) if unknown_id is not None else 0
    if num_unknown <= MANY_UNKNOWN * num_tokens:
        return []
    return [
        f"{100 * num_unknown // num_tokens} % of the tokens are {tokenizer.unk_token}: the tokenizer does not know "
        "this language, and what heads do on such a text says little about them."
    ]


def require_shown(show: int, num_texts: int) -> None:
    """Refuse to show a text that is not there.

    Raises:
        TextError: it is not.
    """
    if not 0 <= show < num_texts:
        raise TextError(f"show must be the number of a text, from 0 to {num_texts - 1}; got {show}")


def pad(windows: Sequence[Window], pad_id: int) -> tuple[Tensor, TokenKinds]:
    """Put windows under one another, padded on the right to the longest; returns their ids and what they are."""
    shape = (len(windows), max(len(window.ids) for window in windows))
    input_ids = torch.full(shape, pad_id)
    real = torch.zeros(shape, dtype=torch.bool)
    separators = torch.zeros(shape, dtype=torch.bool)
    for row, window in enumerate(windows):
        input_ids[row, : len(window.ids)] = torch.tensor(window.ids)
        real[row, : len(window.ids)] = True
        separators[row, : len(window.ids)] = torch.tensor(window.separators)
    return input_ids, TokenKinds(real, separators)


def batches_of(model: Any, tokenizer: Any, windows: Sequence[Window], batch_size: int) -> tuple[TextBatch, ...]:
    """Return windows as batches on the model's device, padded on the right."""
    device = next(model.parameters()).device
    batches = []
    for start in range(0, len(windows), batch_size):
        ids, kinds = pad(windows[start : start + batch_size], pad_id_of(tokenizer))
        inputs = {"input_ids": ids.to(device), "attention_mask": kinds.real.long().to(device)}
        batches.append(TextBatch(inputs, kinds))
    return tuple(batches)


def pad_id_of(tokenizer: Any | None) -> int:
    """Return the token that fills short texts; where a tokenizer has none any will do: padding never counts."""
    return getattr(tokenizer, "pad_token_id", None) or 0


def _beyond(num_tokens: int, longest: int) -> str:
    return (
        f"Up to {num_tokens} tokens are read at once, more than the {longest} that the model is made for: its rotary "
        "positions go on, but what it makes of such a text says little."
    )
