"""Exact weights of chosen layers, heads and rows: a model is read once more, and nothing but these is computed."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.config.checks import shown
from headwise.errors import ModelError, TextError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import Reader, open_reader
from headwise.inspection.texts.stack_tokens import told_kinds
from headwise.integrations.layer_weights import LayerWeights


def read_weights(
    model: nn.Module,
    inputs: Inputs,
    *,
    layer: int,
    head: int,
    rows: Sequence[int] | None = None,
    text: int = 0,
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
    stack: str | None = None,
) -> Float[Tensor, "rows keys"]:
    """Return the exact weights of one head on one text.

    The model runs three times: to find the way to its attention, to hear whose padding is whose, and to be read.
    `weights_of_heads` takes a way and padding that are known.

    Args:
        model: as of `open_reader`.
        inputs: keyword arguments of its forward pass as a mapping, or positional ones as a tuple.
        layer, head: which one, from 0.
        rows: numbers of the queries, in the order of the result; tokens of the text without its padding count from 0.
            Default: all.
        text: row of the batch.
        real_tokens: (B, T) which tokens are no padding. Default: as of `inspect_inputs`.
        stack: as of `open_reader`.

    Returns:
        The weights of these queries on all tokens of the text, in float32 or better; a query that sees none has 0.

    Raises:
        ModelError: the model's attention cannot be read, or there is no such layer or head.
        TextError: there is no such text or row, or `real_tokens` are not of these texts.
    """
    reader = open_reader(model, inputs, stack=stack)
    kinds = told_kinds(model, reader.reader, inputs)[reader.stack.name]
    real_tokens = kinds.real if real_tokens is None else real_tokens
    found = weights_of_heads(
        reader, inputs, [(layer, head)], rows=rows, text=text, real_tokens=real_tokens, real_keys=kinds.real_keys
    )
    return found[layer, head]


def weights_of_heads(
    reader: Reader,
    inputs: Inputs,
    heads: Sequence[tuple[int, int]],
    *,
    rows: Sequence[int] | None = None,
    text: int = 0,
    real_tokens: Bool[Tensor, "batch query_len"] | None = None,
    real_keys: Bool[Tensor, "batch key_len"] | None = None,
) -> dict[tuple[int, int], Float[Tensor, "rows keys"]]:
    """Return the exact weights of some heads on one text, in one pass over the model.

    Args:
        reader: the way to the model's attention.
        inputs: as of `read_weights`.
        heads: (layer, head) of each.
        rows, text: as of `read_weights`.
        real_tokens: (B, T) which queries are no padding. Default: what a layer of self-attention is told, else all.
        real_keys: (B, S) which keys of cross-attention are no padding. Default: what the layer is told, else all.

    Raises:
        ModelError: there is no such layer or head.
        TextError: there is no such text or row.
    """
    found: dict[tuple[int, int], Tensor] = {}
    num_layers = 0

    def observe(number: int, layer: LayerWeights) -> None:
        nonlocal num_layers
        num_layers = number + 1
        for of_layer, head in heads:
            if _is_number(of_layer, num_layers) and of_layer == number:
                weights = _rows_of_head(layer, head, rows, text, real_tokens, real_keys)  # which must be a number
                found[number, head] = weights

    reader.read(inputs, observe)
    for number, _ in heads:
        if not _is_number(number, num_layers):
            raise ModelError(f"layer must be a number from 0 to {num_layers - 1}; got {shown(number)}")
    return {place: found[place] for place in heads}


def _rows_of_head(
    layer: LayerWeights,
    head: int,
    rows: Sequence[int] | None,
    text: int,
    real_tokens: Tensor | None,
    real_keys: Tensor | None,
) -> Tensor:
    num_texts, num_heads, query_len, key_len = layer.shape
    if not _is_number(head, num_heads):
        raise ModelError(f"head must be a number from 0 to {num_heads - 1}; got {shown(head)}")
    if not _is_number(text, num_texts):
        raise TextError(f"text must be a row of the batch, from 0 to {num_texts - 1}; got {shown(text)}")
    is_cross = real_keys is not None or query_len != key_len
    told = layer.real_tokens
    own = _places((num_texts, query_len), real_tokens, None if is_cross else told, text=text)
    own_keys = _places((num_texts, key_len), real_keys, told, text=text) if is_cross else own
    if rows is not None and (not isinstance(rows, Sequence) or not all(_is_number(row, len(own)) for row in rows)):
        raise TextError(f"rows must be numbers of tokens of the text, from 0 to {len(own) - 1}; got {shown(rows)}")
    queries = own if rows is None else [own[row] for row in rows]
    of_head = layer.of_head(text, head)
    if rows is not None or len(own) < query_len:
        of_head = of_head.of_rows(torch.tensor([queries], dtype=torch.int64, device=layer.device))
    weights = of_head.block(0, len(queries)).weights[0, 0]
    return weights if len(own_keys) == key_len else weights[:, own_keys]


def _is_number(value: object, count: int) -> bool:
    """Tell whether a value is a whole number from 0 to `count - 1`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _places(shape: tuple[int, int], *known: Tensor | None, text: int) -> list[int]:
    """Return the real tokens of a text by the first mask that is known; all of them where none is.

    Raises:
        TextError: the mask is of other texts.
    """
    real = next((each for each in known if each is not None), None)
    if real is None:
        return list(range(shape[1]))
    if not isinstance(real, Tensor) or tuple(real.shape) != shape:
        got = tuple(real.shape) if isinstance(real, Tensor) else shown(real)
        raise TextError(f"real_tokens must say of each token whether it is real, a tensor of {shape}; got {got}")
    places: list[int] = real[text].nonzero().flatten().tolist()
    return places
