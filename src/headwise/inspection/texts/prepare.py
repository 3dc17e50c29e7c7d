"""Texts as a Hugging Face model reads them: in windows, continued by the model itself, or in pairs."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from headwise.errors import ModelError, TextError
from headwise.inspection.texts.batches import TextReading, continued, in_windows
from headwise.inspection.texts.pairs import in_pairs, is_encoder_decoder
from headwise.integrations.transformers_attention import is_transformers_model


def prepare_texts(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    targets: Sequence[str] | None = None,
    generate: int | None = None,
    max_length: int | None = None,
    window: int | None = None,
    show: int = 0,
    batch_size: int = 8,
) -> TextReading:
    """Return texts as a Hugging Face model reads them; arguments and errors as of `inspect_texts`."""
    if not is_transformers_model(model):
        raise ModelError(
            f"texts are read by a Hugging Face model and its tokenizer; {type(model).__name__} is none: "
            "give its inputs to inspect_inputs"
        )
    name = type(model).__name__
    if generate is not None and generate < 1:
        raise TextError(f"generate must be a number of tokens from 1 on; got {generate}")
    if is_encoder_decoder(model):
        if window is not None:
            raise TextError(f"{name} reads each text whole, beside its target: give max_length in place of window")
        return in_pairs(
            model,
            tokenizer,
            texts,
            targets,
            generate=generate,
            max_length=max_length,
            show=show,
            batch_size=batch_size,
        )
    if targets is not None:
        raise TextError(f"a target is what the decoder of an encoder-decoder reads; {name} is none: leave it out")
    if generate is None:
        return in_windows(
            model, tokenizer, texts, max_length=max_length, window=window, show=show, batch_size=batch_size
        )
    if window is not None or show:
        raise TextError("what a model generates is read whole, after the first text: leave window and show out")
    return continued(model, tokenizer, texts, max_length=max_length, generate=generate)
