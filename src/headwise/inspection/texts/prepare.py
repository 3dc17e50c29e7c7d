"""Texts as a Hugging Face model reads them: in windows, continued by the model itself, or in pairs."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from headwise.config.checks import require_size, shown
from headwise.errors import ModelError, TextError
from headwise.inspection.texts.batches import TextReading, continued, in_windows
from headwise.inspection.texts.pairs import in_pairs, is_encoder_decoder
from headwise.inspection.texts.windows import require_texts
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
    require_reader(model)
    require_tokenizer(tokenizer)
    require_texts(texts)
    if targets is not None:
        require_texts(targets, name="targets")
    for what, size in (("generate", generate), ("max_length", max_length), ("window", window)):
        if size is not None:
            require_size(what, size)
    require_size("show", show, minimum=0)
    require_size("batch_size", batch_size)
    name = type(model).__name__
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
        given = "window" if not show else "show" if window is None else "window and show"
        raise TextError(f"what a model generates is read whole, after the first text: leave {given} out")
    return continued(model, tokenizer, texts, max_length=max_length, generate=generate)


def require_reader(model: nn.Module) -> None:
    """Refuse a model that reads no texts.

    Raises:
        ModelError: it is no Hugging Face model.
    """
    if not is_transformers_model(model):
        raise ModelError(
            f"texts are read by a Hugging Face model and its tokenizer; {type(model).__name__} is none: give its "
            "inputs to inspect_inputs"
        )


def require_tokenizer(tokenizer: Any) -> None:
    """Refuse what is no tokenizer.

    Raises:
        TextError: it is none of transformers, nor used as one.
    """
    if not callable(tokenizer) or not hasattr(tokenizer, "is_fast"):
        raise TextError(f"a text is read with a tokenizer of transformers; got {shown(tokenizer)}")
