"""What the heads of a model do: the doors from texts and from plain inputs to an Inspection."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.errors import ModelError, TextError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import open_reader
from headwise.inspection.capture.reading import Batch, Progress, read_batches
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.maps import MAX_MAP_TOKENS
from headwise.inspection.relations import Relation, require_tokens
from headwise.inspection.results import Inspection
from headwise.inspection.statistics.kinds import TokenKinds, told_padding
from headwise.inspection.windows import Window, cut_into_windows, model_length, require_window, turns_positions
from headwise.integrations.layer_weights import LayerWeights
from headwise.integrations.transformers_attention import is_transformers_model

MANY_UNKNOWN = 0.1  # share of unknown tokens from which a text is foreign to the tokenizer


def inspect_texts(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    max_length: int | None = None,
    window: int | None = None,
    show: int = 0,
    max_map_tokens: int = MAX_MAP_TOKENS,
    batch_size: int = 8,
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure what every head of a Hugging Face model does on texts, averaged over all their tokens.

    A text longer than the model reads at once is read in windows that follow one another without overlap.

    Args:
        model: a Hugging Face model of one stack of self-attention layers.
        tokenizer: its tokenizer.
        texts: what to read.
        max_length: tokens of each text after which the rest is dropped, special tokens included. Default: nothing is.
        window: tokens per window, special tokens included. Default: the model's length.
        show: number of the text whose tokens and maps are returned, those of its first window.
        max_map_tokens: tokens of the shown text that its maps cover (default 512); 0 = no maps.
        batch_size: windows per forward pass; memory depends on it, results do not.
        progress: called with the windows that are done and how many there are.
        detail: what is taken beside statistics that cost little; relations are of the first window of a text.

    Raises:
        TextError: there is no text, one holds no token, `show` is none of them, or a window has no room for a token or
            is longer than the model's length (of a model with rotary positions and no table of them any is read).
        ModelError: it is no Hugging Face model, or its attention cannot be read.
    """
    if not is_transformers_model(model):
        raise ModelError(
            f"texts are read by a Hugging Face model and its tokenizer; {type(model).__name__} is none: "
            "give its inputs to inspect_inputs"
        )
    longest = model_length(model, tokenizer)
    if window is None:
        window = longest
    require_window(window, None if turns_positions(model) else longest)
    windows, num_cut = cut_into_windows(tokenizer, texts, window=window, max_length=max_length)
    _require_shown(show, len(texts))
    shown = next(number for number, each in enumerate(windows) if each.text == show)
    notes = []
    if window is not None and longest is not None and window > longest:
        notes.append(
            f"Up to {window} tokens are read at once, more than the {longest} that the model is made for: its rotary "
            "positions go on, but what it makes of such a text says little."
        )
    if num_cut:
        notes.append(f"{num_cut} of {len(texts)} texts were cut at {max_length} tokens.")
    if len(windows) > len(texts):
        notes.append(f"Read in {len(windows)} windows of up to {window} tokens: statistics depend on the window.")
    unknown_id = tokenizer.unk_token_id
    num_tokens = sum(len(each.ids) for each in windows)
    num_unknown = sum(each.ids.count(unknown_id) for each in windows) if unknown_id is not None else 0
    if num_unknown > MANY_UNKNOWN * num_tokens:
        notes.append(
            f"{100 * num_unknown // num_tokens} % of the tokens are {tokenizer.unk_token}: the tokenizer does not know "
            "this language, and what heads do on such a text says little about them."
        )
    pad_id = tokenizer.pad_token_id or 0  # any id will do: padding is masked and never counts
    device = next(model.parameters()).device
    batches = [
        _pad(windows[start : start + batch_size], pad_id, device) for start in range(0, len(windows), batch_size)
    ]
    return read_batches(
        open_reader(model, batches[0].inputs),
        batches,
        shown=shown,
        tokens=windows[shown].labels,
        max_map_tokens=max_map_tokens,
        num_texts=len(texts),
        notes=notes,
        progress=progress,
        detail=replace(detail, relations=_on_windows(detail.relations, windows)),
    )


def inspect_inputs(
    module: nn.Module,
    inputs: Inputs,
    *,
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    tokens: Sequence[str] | None = None,
    show: int = 0,
    max_map_tokens: int = MAX_MAP_TOKENS,
    notes: Sequence[str] = (),
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure what every head of a module does in one forward pass on given inputs.

    Args:
        module: a module with `nn.MultiheadAttention`s or headwise's `MultiHeadAttention`s, or a Hugging Face model.
        inputs: keyword arguments of its forward pass as a mapping, or positional ones as a tuple.
        real_tokens: (B, T) which tokens are no padding. Default: a Hugging Face model's `attention_mask`; else what the
            first attention layer is told, for which the module runs once more.
        tokens: the shown text's tokens as words. Default: their numbers from 0.
        show: number of the text whose tokens and maps are returned.
        max_map_tokens: tokens of the shown text that its maps cover (default 512); 0 = no maps.
        notes: what a reader of the result must know about the inputs.
        detail: what is taken beside statistics that cost little.

    Raises:
        ModelError: the module's attention cannot be read, or its layers read texts of other sizes.
        TextError: a text is all padding, `show` is none of the texts, or the tokens do not match.
    """
    reader = open_reader(module, inputs)
    if real_tokens is None:
        real_tokens = told_padding(module, inputs)
    if real_tokens is None:
        found: list[Tensor] = []

        def look(number: int, layer: LayerWeights) -> None:
            if number == 0:
                batch, _, query_len, _ = layer.shape
                everything = torch.ones(batch, query_len, dtype=torch.bool)
                found.append(everything if layer.real_tokens is None else layer.real_tokens.cpu())

        reader.read(inputs, look)
        real_tokens = found[0]
    _require_shown(show, len(real_tokens))
    require_tokens(detail.relations, real_tokens.sum(dim=1).tolist())
    labels = [str(number) for number in range(int(real_tokens[show].sum()))]
    return read_batches(
        reader,
        [Batch(inputs, _kinds(real_tokens, torch.zeros_like(real_tokens)))],
        shown=show,
        tokens=_labels(tokens, labels),
        max_map_tokens=max_map_tokens,
        notes=notes,
        detail=detail,
    )


def _on_windows(relations: Sequence[Relation], windows: Sequence[Window]) -> tuple[Relation, ...]:
    """Return relations between tokens of texts as relations between tokens of the first window of each."""
    first: dict[int, int] = {}
    for number, window in enumerate(windows):
        first.setdefault(window.text, number)
    require_tokens(relations, [len(windows[number].ids) for number in first.values()])
    return tuple(
        replace(relation, pairs=tuple((first[text], start, end) for text, start, end in relation.pairs))
        for relation in relations
    )


def _pad(windows: Sequence[Window], pad_id: int, device: torch.device) -> Batch:
    """Put windows under one another, padded on the right to the longest."""
    shape = (len(windows), max(len(window.ids) for window in windows))
    input_ids = torch.full(shape, pad_id)
    real = torch.zeros(shape, dtype=torch.bool)
    separators = torch.zeros(shape, dtype=torch.bool)
    for row, window in enumerate(windows):
        input_ids[row, : len(window.ids)] = torch.tensor(window.ids)
        real[row, : len(window.ids)] = True
        separators[row, : len(window.ids)] = torch.tensor(window.separators)
    inputs = {"input_ids": input_ids.to(device), "attention_mask": real.long().to(device)}
    return Batch(inputs, _kinds(real, separators))


def _kinds(real: Tensor, separators: Tensor) -> TokenKinds:
    for row, is_real in enumerate(real.any(dim=1).tolist()):
        if not is_real:
            raise TextError(f"a text must hold at least one token; text {row + 1} of {len(real)} is all padding")
    return TokenKinds(real.cpu(), separators.cpu())


def _labels(tokens: Sequence[str] | None, default: list[str]) -> Sequence[str]:
    if tokens is not None and len(tokens) != len(default):
        raise TextError(
            f"tokens must hold a word for each of the {len(default)} tokens that are shown; got {len(tokens)}"
        )
    return default if tokens is None else tokens


def _require_shown(show: int, num_texts: int) -> None:
    if not 0 <= show < num_texts:
        raise TextError(f"show must be the number of a text, from 0 to {num_texts - 1}; got {show}")
