"""What the heads of a model do: the doors from texts and from plain inputs to an Inspection."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.errors import ModelError, TextError
from headwise.inspection.capture.quiet_passes import Inputs, count_texts
from headwise.inspection.capture.readers import OneStack, StackReader, open_reader, open_stacks, require_stack
from headwise.inspection.capture.reading import Batch, Progress, ShownTokens, read_stacks
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.maps import MAX_MAP_TOKENS
from headwise.inspection.relations.relation import require_tokens
from headwise.inspection.results import Inspection
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.texts.batches import TextReading, require_shown
from headwise.inspection.texts.prepare import prepare_texts
from headwise.inspection.texts.stack_tokens import kinds_of, side_of, told_kinds
from headwise.integrations.transformers_attention import is_transformers_model


def inspect_texts(
    model: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    targets: Sequence[str] | None = None,
    generate: int | None = None,
    stack: str | None = None,
    max_length: int | None = None,
    window: int | None = None,
    show: int = 0,
    max_map_tokens: int = MAX_MAP_TOKENS,
    batch_size: int = 8,
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure what every head of one stack of a Hugging Face model does on texts, averaged over all their tokens.

    A text longer than the model reads at once is read in windows that follow one another without overlap; the texts of
    an encoder-decoder, each of which belongs to a target, are cut instead.

    Args:
        model: a Hugging Face model.
        tokenizer: its tokenizer.
        texts: what to read.
        targets: of an encoder-decoder: what its decoder reads beside each text. Default: what it writes itself.
        generate: tokens that the model writes itself, at most. A decoder continues the first text, which alone is read,
            and what it has written is read with it; an encoder-decoder writes a target for each text (default 32).
        stack: name of the stack of layers, as of `open_reader`. Default: the only one of self-attention.
        max_length: tokens of each text after which the rest is dropped, special tokens included. Default: nothing is.
        window: tokens per window, special tokens included. Default: the model's length.
        show: number of the text whose tokens and maps are returned, those of its first window.
        max_map_tokens: tokens of the shown text that its maps cover (default 512); 0 = no maps.
        batch_size: windows per forward pass; memory depends on it, results do not.
        progress: called with the windows that are done and how many there are.
        detail: what is taken beside statistics that cost little; relations are of the first window of a text.

    Raises:
        TextError: there is no text, one holds no token, `show` is none of them, a window has no room for a token or
            is longer than the model's length (of a model with rotary positions and no table of them any is read), or
            targets or `generate` do not go with the model.
        ModelError: it is no Hugging Face model, it has no such stack, it cannot generate, or its attention cannot be
            read.
    """
    reading = prepare_texts(
        model,
        tokenizer,
        texts,
        targets=targets,
        generate=generate,
        max_length=max_length,
        window=window,
        show=show,
        batch_size=batch_size,
    )
    return inspect_reading(model, reading, stack=stack, max_map_tokens=max_map_tokens, progress=progress, detail=detail)


def inspect_reading(
    model: nn.Module,
    reading: TextReading,
    *,
    stack: str | None = None,
    max_map_tokens: int = MAX_MAP_TOKENS,
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure one stack of a model on texts that `prepare_texts` has made; all else as of `inspect_texts`."""
    reader = open_reader(model, reading.batches[0].inputs, stack=stack)
    names, notes = [reader.stack.name], _notes_on_choice(reader)
    return _look_at_texts(reader.reader, names, reading, notes, max_map_tokens, progress, detail)[names[0]]


def inspect_stacks(
    model: nn.Module,
    reading: TextReading,
    *,
    stack: str | None = None,
    max_map_tokens: int = MAX_MAP_TOKENS,
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> dict[str, Inspection]:
    """Measure all stacks of a model in one pass over texts, or the one that `stack` names; arguments as above.

    Returns:
        What the heads of each stack do, by its name, in the order in which they run; cross-attention comes last.

    Raises:
        HeadwiseError: as of `inspect_texts`; there are relations, and a stack's keys are of another text.
    """
    reader = open_stacks(model, reading.batches[0].inputs)
    names = [each.name for each in reader.stacks]
    if stack is not None:
        names = [require_stack(reader, stack, type(model).__name__).name]
    return _look_at_texts(reader, names, reading, (), max_map_tokens, progress, detail)


def _look_at_texts(
    reader: StackReader,
    names: Sequence[str],
    reading: TextReading,
    notes: Sequence[str],
    max_map_tokens: int,
    progress: Progress | None,
    detail: Detail,
) -> dict[str, Inspection]:
    """Read texts once, and return what the heads of the stacks of these names do."""
    sides = {name: side_of(name, reader.stacks) for name in names}
    written = reading.target_tokens
    tokens = {
        name: ShownTokens(
            tokens=reading.tokens if side == "source" or written is None else written,
            key_tokens=reading.tokens if side == "cross" and written is not None else None,
        )
        for name, side in sides.items()
    }
    if detail.relations and any(each.key_tokens is not None for each in tokens.values()):
        raise TextError("a relation is between tokens of one text; name a stack of self-attention, or leave it out")
    found = read_stacks(
        reader,
        [
            Batch(batch.inputs, {name: kinds_of(side, batch.source, batch.target) for name, side in sides.items()})
            for batch in reading.batches
        ],
        tokens,
        shown=reading.shown,
        max_map_tokens=max_map_tokens,
        num_texts=reading.num_texts,
        notes=(*reading.notes, *notes),
        progress=progress,
        detail=replace(detail, relations=reading.relations(detail.relations)),
    )
    return {
        name: each if written is not None and sides[name] == "source" else _as_written(each, reading.num_prompt_tokens)
        for name, each in found.items()
    }


def inspect_inputs(
    module: nn.Module,
    inputs: Inputs,
    *,
    stack: str | None = None,
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    real_keys: Bool[Tensor, "batch key_len"] | None = None,
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
    show: int = 0,
    max_map_tokens: int = MAX_MAP_TOKENS,
    notes: Sequence[str] = (),
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Measure what every head of one stack of a module does in one forward pass on given inputs.

    Args:
        module: a module with `nn.MultiheadAttention`s or headwise's `MultiHeadAttention`s, or a Hugging Face model.
        inputs: keyword arguments of its forward pass as a mapping, or positional ones as a tuple.
        stack: name of the stack of layers, as of `open_reader`. Default: the only one of self-attention.
        real_tokens: (B, T) which tokens are no padding, of cross-attention those whose queries read. Default: the masks
            of padding of a Hugging Face model; else what the first layer is told, for which the module runs once more.
        real_keys: (B, S) of cross-attention: which tokens of the other text are no padding. Default: the same.
        tokens: the shown text's tokens as words. Default: their numbers from 0.
        key_tokens: of cross-attention: the words of the other text. Default: numbers.
        show: number of the text whose tokens and maps are returned.
        max_map_tokens: tokens of the shown text that its maps cover (default 512); 0 = no maps.
        notes: what a reader of the result must know about the inputs.
        detail: what is taken beside statistics that cost little.

    Raises:
        ModelError: the module's attention cannot be read, it has no such stack, or its layers read texts of other
            sizes.
        TextError: a text is all padding, `show` is none of the texts, or the tokens do not match.
    """
    if stack is None and (real_keys is not None or key_tokens is not None):
        raise TextError("real_keys and key_tokens are of cross-attention: give the name of its stack, too")
    reader = open_reader(module, inputs, stack=stack)
    name = reader.stack.name
    if real_tokens is not None and not reader.stack.is_cross:
        own = real_tokens.cpu()
        kinds = TokenKinds(own, torch.zeros_like(own))
    else:
        kinds = told_kinds(module, reader.reader, inputs, real_tokens=real_tokens, real_keys=real_keys)[name]
        if stack is None:
            _require_whole_texts(module, inputs, len(kinds.real))
    return _look_at_inputs(
        reader.reader,
        inputs,
        {name: kinds},
        tokens={name: tokens},
        key_tokens=key_tokens,
        show=show,
        max_map_tokens=max_map_tokens,
        notes=(*notes, *_notes_on_choice(reader)),
        detail=detail,
    )[name]


def inspect_stacks_of_inputs(
    module: nn.Module,
    inputs: Inputs,
    *,
    stack: str | None = None,
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    real_keys: Bool[Tensor, "batch key_len"] | None = None,
    tokens: Mapping[str, Sequence[str] | None] | None = None,
    key_tokens: Sequence[str] | None = None,
    show: int = 0,
    max_map_tokens: int = MAX_MAP_TOKENS,
    notes: Sequence[str] = (),
    detail: Detail = NO_DETAIL,
) -> dict[str, Inspection]:
    """Measure all stacks of a module in one forward pass, or the one that `stack` names.

    Args:
        tokens: words by the name of a stack.
        module, inputs, stack, real_tokens, real_keys, key_tokens, show, max_map_tokens, notes, detail: as of
            `inspect_inputs`.

    Raises:
        HeadwiseError: as of `inspect_inputs`; there are relations, and a stack's keys are of another text.
    """
    reader = open_stacks(module, inputs)
    if stack is not None:
        require_stack(reader, stack, type(module).__name__)
    told = told_kinds(module, reader, inputs, real_tokens=real_tokens, real_keys=real_keys)
    return _look_at_inputs(
        reader,
        inputs,
        told if stack is None else {stack: told[stack]},
        tokens={} if tokens is None else tokens,
        key_tokens=key_tokens,
        show=show,
        max_map_tokens=max_map_tokens,
        notes=notes,
        detail=detail,
    )


def _look_at_inputs(
    reader: StackReader,
    inputs: Inputs,
    kinds: Mapping[str, TokenKinds],
    *,
    tokens: Mapping[str, Sequence[str] | None],
    key_tokens: Sequence[str] | None,
    show: int,
    max_map_tokens: int,
    notes: Sequence[str],
    detail: Detail,
) -> dict[str, Inspection]:
    """Read inputs once, and return what the heads of the stacks do whose tokens are told."""
    shown = {}
    for name, each in kinds.items():
        require_shown(show, len(each.real))
        _require_real(each.real)
        _require_real(each.keys)
        if detail.relations and each.is_cross:
            raise TextError("a relation is between tokens of one text; name a stack of self-attention, or leave it out")
        require_tokens(detail.relations, each.real.sum(dim=1).tolist())
        shown[name] = ShownTokens(
            tokens=_labels(tokens.get(name), each.real[show]),
            key_tokens=_labels(key_tokens, each.keys[show]) if each.is_cross else None,
        )
    return read_stacks(
        reader,
        [Batch(inputs, kinds)],
        shown,
        shown=show,
        max_map_tokens=max_map_tokens,
        notes=notes,
        detail=detail,
    )


def _notes_on_choice(reader: OneStack) -> tuple[str, ...]:
    """Return what is said of the choice of a stack, beside what its reader says in any case."""
    return tuple(note for note in reader.notes if note not in reader.reader.notes)


def _require_whole_texts(module: nn.Module, inputs: Inputs, num_pieces: int) -> None:
    """Refuse a Hugging Face model whose layers read windows of its texts or images.

    Raises:
        ModelError: they do.
    """
    is_told = isinstance(inputs, Mapping) and "attention_mask" in inputs
    if is_transformers_model(module) and not is_told and num_pieces != count_texts(inputs):
        raise ModelError(
            "every attention layer must read each text or image by itself and whole; the first of "
            f"{type(module).__name__} reads {num_pieces} pieces of {count_texts(inputs)}, as windows do"
        )


def _as_written(inspection: Inspection, num_prompt_tokens: int | None) -> Inspection:
    """Say how many tokens of the shown text were given, and refuse what is not what the model weighed as it wrote.

    Raises:
        ModelError: a query sees later keys, which were not there when it was written.
    """
    if num_prompt_tokens is None:
        return inspection
    if not inspection.is_causal and inspection.key_tokens is None:
        raise ModelError(
            "what a model weighs as it writes is shown where queries see earlier keys alone; here one sees a later "
            "key: leave generate out"
        )
    return replace(inspection, num_prompt_tokens=num_prompt_tokens)


def _require_real(real_tokens: Tensor) -> None:
    for row, is_real in enumerate(real_tokens.any(dim=1).tolist()):
        if not is_real:
            raise TextError(f"a text must hold at least one token; text {row + 1} of {len(real_tokens)} is all padding")


def _labels(tokens: Sequence[str] | None, real: Tensor) -> Sequence[str]:
    num_tokens = int(real.sum())
    if tokens is None:
        return [str(number) for number in range(num_tokens)]
    if len(tokens) != num_tokens:
        raise TextError(
            f"tokens must hold a word for each of the {num_tokens} tokens that are shown; got {len(tokens)}"
        )
    return tokens
