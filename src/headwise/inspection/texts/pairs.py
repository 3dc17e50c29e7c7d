"""Pairs of texts as an encoder-decoder reads them: what its encoder reads, and what its decoder reads beside it."""

from collections.abc import Sequence
from typing import Any

from headwise.errors import ModelError, TextError
from headwise.inspection.texts.batches import (
    TextBatch,
    TextReading,
    batches_of,
    notes_on_unknown,
    pad,
    pad_id_of,
    require_shown,
)
from headwise.inspection.texts.generated import generated_ids
from headwise.inspection.texts.tokens import label_by_decoding
from headwise.inspection.texts.windows import Window, cut_into_windows, model_length
from headwise.integrations.transformers_attention import is_transformers_model

GENERATED_TOKENS = 32  # that an encoder-decoder writes where nothing is said: a sentence


def is_encoder_decoder(model: Any) -> bool:
    """Tell whether a model is a Hugging Face encoder-decoder, and not one of the two alone."""
    return bool(is_transformers_model(model) and model.config.is_encoder_decoder and model.get_encoder() is not model)


def in_pairs(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    targets: Sequence[str] | None,
    *,
    generate: int | None,
    max_length: int | None,
    show: int,
    batch_size: int,
) -> TextReading:
    """Return texts with what the decoder reads: targets, or what the model writes itself.

    Each text is read whole, cut at the model's length. The decoder reads its start token and then the target, without
    its end token, as in training; of what the model writes it reads all.

    Args:
        model: a Hugging Face encoder-decoder that reads token ids.
        tokenizer, texts, max_length, show, batch_size: as of `inspect_texts`.
        targets: one for each text; None: the model writes them.
        generate: tokens that it writes at most. Default: 32.

    Raises:
        ModelError: the model reads no tokens, cannot write, or does not tell what its decoder begins with.
        TextError: targets and texts are not as many, both targets and `generate` are given, or as of `inspect_texts`.
    """
    if model.main_input_name != "input_ids":
        raise ModelError(
            f"{type(model).__name__} reads {model.main_input_name}, no text: give the inputs of a forward pass"
        )
    if targets is not None and generate is not None:
        raise TextError("the decoder reads targets, or what the model generates itself; got both")
    if targets is not None and len(targets) != len(texts):
        counts = [
            f"{len(each)} {name}{'' if len(each) == 1 else 's'}"
            for each, name in ((texts, "text"), (targets, "target"))
        ]
        raise TextError(f"every text must have its target; got {' and '.join(counts)}")
    longest = model_length(model, tokenizer)
    limit = min((each for each in (longest, max_length) if each is not None), default=None)
    windows, num_cut = cut_into_windows(tokenizer, texts, window=None, max_length=limit)
    require_shown(show, len(texts))
    notes = [f"{num_cut} of {len(texts)} texts were cut at {limit} tokens."] if num_cut else []
    pad_id = pad_id_of(tokenizer)
    device = next(model.parameters()).device
    sources = batches_of(model, tokenizer, windows, batch_size)
    if targets is not None:
        read, num_cut = _given(model, tokenizer, targets, limit)
        if num_cut:
            notes.append(f"{num_cut} of {len(targets)} targets were cut at {limit} tokens.")
    else:
        count = GENERATED_TOKENS if generate is None else generate
        if longest is not None and generate is not None and count >= longest:
            raise TextError(f"generate must leave room in the {longest} tokens that the model reads; got {count}")
        count = count if longest is None else min(count, longest - 1)
        written = [row for batch in sources for row in generated_ids(model, batch.inputs, count, pad_id)]
        read = [_window(tokenizer, number, ids) for number, ids in enumerate(written)]
        notes.append(
            f"The decoder reads what the model wrote itself, up to {count} tokens, each time the likeliest; a target "
            "gives it another text."
        )
    batches = []
    done = 0
    for batch in sources:
        ids, target = pad(read[done : done + len(batch.source.real)], pad_id)
        done += len(batch.source.real)
        decoder = {"decoder_input_ids": ids.to(device), "decoder_attention_mask": target.real.long().to(device)}
        batches.append(TextBatch({**batch.inputs, **decoder}, batch.source, target))
    return TextReading(
        batches=tuple(batches),
        shown=show,
        tokens=windows[show].labels,
        target_tokens=read[show].labels,
        num_prompt_tokens=1 if targets is None else None,
        num_texts=len(texts),
        notes=(*notes, *notes_on_unknown(tokenizer, windows)),
        first_windows=tuple(range(len(texts))),
    )


def _given(model: Any, tokenizer: Any, targets: Sequence[str], limit: int | None) -> tuple[list[Window], int]:
    """Return targets as the decoder reads them, and how many were cut."""
    start = next(
        (
            token
            for config in (getattr(model, "generation_config", None), model.config)
            if (token := getattr(config, "decoder_start_token_id", None)) is not None
        ),
        None,
    )
    if start is None:
        raise ModelError(f"{type(model).__name__} must say what its decoder begins with: set decoder_start_token_id")
    windows, num_cut = cut_into_windows(tokenizer, targets, window=None, max_length=limit, as_target=True)
    read = []
    for number, window in enumerate(windows):
        ends = window.ids[-1] == tokenizer.eos_token_id
        kept = slice(0, len(window.ids) - ends if limit is None else min(len(window.ids) - ends, limit - 1))
        first = _window(tokenizer, number, [start])
        read.append(
            Window(
                text=number,
                ids=(start, *window.ids[kept]),
                labels=(*first.labels, *window.labels[kept]),
                separators=(*first.separators, *window.separators[kept]),
            )
        )
    return read, num_cut


def _window(tokenizer: Any, text: int, ids: Sequence[int]) -> Window:
    return Window(
        text=text,
        ids=tuple(ids),
        labels=label_by_decoding(tokenizer, ids),
        separators=tuple(token == tokenizer.sep_token_id for token in ids),
    )
