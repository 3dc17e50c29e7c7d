"""One token of one head of a loaded model: what it reads, and which dimensions of q and k made the scores."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn

from headwise.api.example import beside, example_inputs
from headwise.config.attention import AttentionConfig, Rotary
from headwise.config.model import ModelConfig
from headwise.errors import ModelError, TextError
from headwise.inspection.capture.listening import transformers_models
from headwise.inspection.texts.default_text import default_texts
from headwise.inspection.texts.prepare import require_tokenizer
from headwise.inspection.texts.windows import Window, cut_into_windows, model_length
from headwise.inspection.walkthrough.head_reading import HeadReading, read_head
from headwise.inspection.walkthrough.head_steps import explain_reading
from headwise.inspection.walkthrough.pairs import RotationPairs
from headwise.inspection.walkthrough.results import HeadExplanation
from headwise.inspection.walkthrough.words import find_word
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.loading.module import LoadedModule, from_module
from headwise.nn.multihead import MultiHeadAttention
from headwise.positions.scaling import rotary_frequencies

DEFAULT_TOKENS = 24  # of the default text: a sentence or two, so that its keys can be read one by one
EXAMPLE_TOKENS = 11  # of random input
RANDOM_INPUT = "There is no tokenizer: this is a head on random input, not on a text."
DEFAULT_TEXT = "the default text (text or sentence gives another)"
SAME_TEXT = "The decoder was given the same text as the encoder."


class Asked(NamedTuple):
    """What is asked about: a token by its number or its word, of which head, and which key to hold against."""

    query: int | str | None = None
    layer: int | None = None
    head: int | None = None
    stack: str | None = None
    against: int | str | None = None
    keys: int = 3


class _Read(NamedTuple):
    """What the model reads: its inputs, the words of its tokens, their text, and which of them separate texts."""

    inputs: Mapping[str, Any]
    tokens: Sequence[str] | None
    text: str
    name: str  # of the text
    separators: Sequence[int]
    notes: tuple[str, ...]


def explain_head(
    loaded: LoadedModule, asked: Asked, *, text: str | None = None, inputs: Mapping[str, Any] | None = None
) -> HeadExplanation:
    """Explain what one token of one head reads.

    Args:
        loaded: the model.
        asked: which token of which head.
        text: what it reads. Default: the beginning of the default text, or random input where there is no tokenizer.
        inputs: keyword arguments of one forward pass, in place of a text.

    Raises:
        HeadwiseError: the attention cannot be read, or there is no such token, layer or head.
    """
    read = _read(loaded, text, inputs)
    query, notes = _place_of(asked.query, read)
    against, more = _place_of(asked.against, read)
    reading = read_head(
        loaded.module,
        read.inputs,
        query=query,
        layer=asked.layer,
        head=asked.head,
        stack=asked.stack,
        passed_over=(0, *read.separators),
    )
    return explain_reading(
        reading,
        model=loaded.name,
        tokens=_labels(read.tokens, reading.num_queries),
        key_tokens=_labels(read.tokens, reading.num_keys) if reading.is_cross else None,
        num_scores=asked.keys,
        against=against,
        pairs=_pairs_of(loaded, reading, asked.stack),
        notes=(*loaded.notes_on_looking, *read.notes, *notes, *more, *_notes_on_choice(asked, reading)),
    )


def _read(loaded: LoadedModule, text: str | None, inputs: Mapping[str, Any] | None) -> _Read:
    if inputs is not None:
        return _Read(inputs, None, "", "", (), ())
    if loaded.tokenizer is None:
        example = beside(loaded.module, example_inputs(loaded.module, batch=1, seq=EXAMPLE_TOKENS))
        return _Read(example, None, "", "", (), (RANDOM_INPUT,))
    if not is_transformers_model(loaded.module):
        raise ModelError(
            f"texts are read by a Hugging Face model and its tokenizer; {loaded.name} is none: give its inputs"
        )
    require_tokenizer(loaded.tokenizer)
    longest = model_length(loaded.module, loaded.tokenizer)
    words = default_texts()[0] if text is None else text
    windows, _ = cut_into_windows(
        loaded.tokenizer, [words], window=longest, max_length=DEFAULT_TOKENS if text is None else None
    )
    window = windows[0]
    notes = []
    if len(windows) > 1:
        notes.append(f"Read are the first {len(window.ids)} tokens of the text: the model reads no more at once.")
    ids = torch.tensor([window.ids])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "decoder_input_ids" in signature(loaded.module.forward).parameters:
        given["decoder_input_ids"] = ids
        notes.append(SAME_TEXT)
    name = DEFAULT_TEXT if text is None else "the text"
    return _Read(beside(loaded.module, given), window.labels, words, name, _separators(window), tuple(notes))


def _separators(window: Window) -> list[int]:
    return [number for number, is_separator in enumerate(window.separators) if is_separator]


def _place_of(asked: int | str | None, read: _Read) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of a token that is asked for by its number or its word."""
    if not isinstance(asked, str):
        return asked, ()
    if read.tokens is None:
        raise TextError(f"a word is found in a text, and there is none here: give the number of a token; got {asked!r}")
    first, last = find_word(asked, read.tokens, read.text, name=read.name)
    if first == last:
        return last, ()
    return last, (f"The word {asked!r} is {last - first + 1} tokens, {first} to {last}: the last one is shown.",)


def _labels(tokens: Sequence[str] | None, number: int) -> list[str]:
    return list(map(str, range(number))) if tokens is None or len(tokens) != number else list(tokens)


def _notes_on_choice(asked: Asked, reading: HeadReading) -> tuple[str, ...]:
    notes = []
    if asked.query is None:
        which = "last" if reading.query == reading.num_queries - 1 else "middle"
        notes.append(f"Token {reading.query} was chosen here, the {which} one.")
    chosen = [f"layer {reading.layer}"] if asked.layer is None else []
    chosen += [f"head {reading.head}"] if asked.head is None else []
    if chosen:
        notes.append(
            f"Chosen here: {' and '.join(chosen)}, where the token puts the largest weight on one token other than "
            "itself, the first and separators."
        )
    return tuple(notes)


def _pairs_of(loaded: LoadedModule, reading: HeadReading, stack: str | None) -> RotationPairs | None:
    """Return the rotation pairs of a head, where a config tells them."""
    rotary = _rotary_of(loaded, reading, stack)
    if rotary is None or reading.query_vector is None:
        return None
    size = rotary.rotary_dim or len(reading.query_vector)
    length = torch.tensor(reading.num_keys)
    frequencies = rotary_frequencies(rotary, size, length)
    return RotationPairs(frequencies=tuple(frequencies.flatten().tolist()), pairing=rotary.pairing)


def _rotary_of(loaded: LoadedModule, reading: HeadReading, stack: str | None) -> Rotary | None:
    if reading.attention is not None:
        layer: nn.Module = loaded.module.get_submodule(reading.attention)
        if isinstance(layer, MultiHeadAttention):
            return layer.config.position if isinstance(layer.config.position, Rotary) else None
    config = loaded.config or _config_inside(loaded.module)
    if config is None or config.encoder is not None or stack not in (None, "self"):
        return None
    layers = [block.attention for block in config.blocks if isinstance(block.attention, AttentionConfig)]
    if len(layers) != reading.num_layers:  # layers that are left out, or read twice
        return None
    position = layers[reading.layer].position
    return position if isinstance(position, Rotary) else None


def _config_inside(module: nn.Module) -> ModelConfig | None:
    """Return the config of the Hugging Face model that a module of another kind holds; None of none and of several."""
    found = transformers_models(module)
    return from_module(found[0], aside=False).config if len(found) == 1 else None
