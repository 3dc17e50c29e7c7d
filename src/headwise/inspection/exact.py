"""Exact weights of chosen layers, heads and rows: a model is read once more, and nothing but these is computed."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.errors import ModelError, TextError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import Reader, open_reader
from headwise.inspection.statistics.kinds import told_padding
from headwise.integrations.layer_weights import GivenWeights, LayerWeights


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

    The model runs twice: once to find the way to its attention. `weights_of_heads` takes a way that is known.

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
        TextError: there is no such text or row.
    """
    if real_tokens is None:
        real_tokens = told_padding(model, inputs)
    reader = open_reader(model, inputs, stack=stack)
    found = weights_of_heads(reader, inputs, [(layer, head)], rows=rows, text=text, real_tokens=real_tokens)
    return found[layer, head]


def weights_of_heads(
    reader: Reader,
    inputs: Inputs,
    heads: Sequence[tuple[int, int]],
    *,
    rows: Sequence[int] | None = None,
    text: int = 0,
    real_tokens: Bool[Tensor, "batch seq_len"] | None = None,
) -> dict[tuple[int, int], Float[Tensor, "rows keys"]]:
    """Return the exact weights of some heads on one text, in one pass over the model.

    Args:
        reader: the way to the model's attention.
        inputs: as of `read_weights`.
        heads: (layer, head) of each.
        rows, text: as of `read_weights`.
        real_tokens: (B, T) which tokens are no padding. Default: what the layer is told, else all.

    Raises:
        ModelError: there is no such layer or head.
        TextError: there is no such text or row.
    """
    found: dict[tuple[int, int], Tensor] = {}
    num_layers = 0

    def observe(number: int, layer: LayerWeights) -> None:
        nonlocal num_layers
        num_layers = number + 1
        chosen = dict.fromkeys(head for of_layer, head in heads if of_layer == number)
        for head in chosen:
            found[number, head] = _rows_of_head(layer, head, rows, text, real_tokens)

    reader.read(inputs, observe)
    for number, _ in heads:
        if not 0 <= number < num_layers:
            raise ModelError(f"layer must be a number from 0 to {num_layers - 1}; got {number}")
    return {place: found[place] for place in heads}


def _rows_of_head(
    layer: LayerWeights, head: int, rows: Sequence[int] | None, text: int, real_tokens: Tensor | None
) -> Tensor:
    num_texts, num_heads, query_len, _ = layer.shape
    if not 0 <= head < num_heads:
        raise ModelError(f"head must be a number from 0 to {num_heads - 1}; got {head}")
    if not 0 <= text < num_texts:
        raise TextError(f"text must be a row of the batch, from 0 to {num_texts - 1}; got {text}")
    real = layer.real_tokens if real_tokens is None else real_tokens
    own = list(range(query_len)) if real is None else real[text].nonzero().flatten().tolist()
    for row in rows or ():
        if not 0 <= row < len(own):
            raise TextError(f"rows must be tokens of the text, from 0 to {len(own) - 1}; got {row}")
    queries = own if rows is None else [own[row] for row in rows]
    of_head = layer.of_head(text, head)
    if rows is not None or len(own) < query_len:
        device = (layer.weights if isinstance(layer, GivenWeights) else layer.query).device
        of_head = of_head.of_rows(torch.tensor([queries], dtype=torch.int64, device=device))
    weights = of_head.block(0, len(queries)).weights[0, 0]
    return weights if len(own) == layer.shape[3] else weights[:, own]
