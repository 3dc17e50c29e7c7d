"""Attention through all layers at once: rollout, which multiplies them, and flow, which asks what they let through."""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.config.checks import require_choice, shown
from headwise.errors import ConfigError, ModelError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import OneStack, open_reader
from headwise.integrations.layer_weights import LayerWeights

COMBINATIONS = ("mean", "max", "min")
Combination = Literal["mean", "max", "min"]
MAX_FLOW_TOKENS = 64  # every pair of tokens is a problem of its own on a graph of layers x tokens x tokens edges


def attention_rollout(
    model: nn.Module, inputs: Inputs, *, heads: Combination, stack: str | None = None
) -> Float[Tensor, "batch seq_len seq_len"]:
    """Multiply the attention of all layers, residual connections included, from the first layer to the last.

    `R_l = A_l R_(l-1)`, `R_0 = I`, `A_l = (W_l + I) / 2` with each row divided by its sum, and `W_l` the mean, maximum
    or minimum over the layer's heads of their weights. Row i of the result says how much of what stands at token i
    after the last layer came from each token of the text, if values and feed-forwards only passed on what they got.

    Weights come in blocks of queries: two (B, T, T) are held, whatever the number of layers and heads, of a model that
    does not return its weights whole. A query that may read no key keeps what it has.

    Args:
        model: as of `inspect_inputs`; it runs once, in evaluation mode, after what it takes to find how to read it.
        inputs: keyword arguments of its forward pass as a mapping, or positional ones as a tuple.
        heads: how the heads of a layer become one: "mean", "max" or "min". There is no default, as it is a choice that
            changes the picture: the mean drowns heads that see one thing.
        stack: name of the stack of layers. Default: the only one of self-attention.

    Returns:
        (B, T, T); rows sum to 1.

    Raises:
        ModelError: the attention cannot be read, or a layer's keys are not the tokens of its queries (cross-attention).
        ConfigError: another word for `heads`.

    Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3 (mean); maximum and minimum:
    Gildenblat 2020, "Exploring Explainability for Vision Transformers".
    """
    rolled: Tensor | None = None  # the layers so far

    def roll(_: int, layer: LayerWeights) -> None:
        nonlocal rolled
        product: Tensor | None = None
        start = 0
        for rows in _mixed_blocks(layer, heads):
            if product is None:
                product = rows.new_empty(len(rows), layer.shape[2], rows.shape[2])
            stop = start + rows.shape[1]
            if rolled is None:
                product[:, start:stop] = rows
            else:
                torch.matmul(rows, rolled, out=product[:, start:stop])
            start = stop
        rolled = product

    require_choice("heads", heads, COMBINATIONS)
    _open(model, inputs, stack).read(inputs, roll)
    assert rolled is not None
    return rolled


def attention_flow(
    model: nn.Module,
    inputs: Inputs,
    *,
    heads: Combination,
    queries: Sequence[int] | None = None,
    stack: str | None = None,
) -> Float[Tensor, "batch num_queries seq_len"]:
    """Return how much can flow from each token of the text to tokens after the last layer.

    The layers are a graph with a node for each token before the first layer and after each: an edge leads from query i
    after layer l to key j before it, with capacity `A_l[i, j]` as of `attention_rollout`. The flow of (i, j) is the
    maximum flow from token i after the last layer to token j before the first.

    For short texts: every pair is a maximum-flow problem of its own (by networkx).

    Args:
        model, inputs, heads, stack: as of `attention_rollout`; at most 64 tokens.
        queries: tokens after the last layer. Default: all.

    Returns:
        (B, queries, T), float64.

    Raises:
        ModelError: as of `attention_rollout`; weights that are NaN.
        ConfigError: another word for `heads`; a longer text; queries that do not exist.

    Source: Abnar and Zuidema 2020, section 3.
    """
    layers: list[Tensor] = []

    def keep(number: int, layer: LayerWeights) -> None:
        seq_len = layer.shape[2]
        if seq_len > MAX_FLOW_TOKENS:
            raise ConfigError(
                f"inputs must hold at most {MAX_FLOW_TOKENS} tokens for the flow, a problem for each pair of them; "
                f"got {seq_len}: attention_rollout takes any length"
            )
        layers.append(torch.cat(list(_mixed_blocks(layer, heads)), dim=1))
        if not layers[-1].isfinite().all():
            raise ModelError(f"weights must be numbers for a flow; those of layer {number} of the model hold NaN")

    require_choice("heads", heads, COMBINATIONS)
    _open(model, inputs, stack).read(inputs, keep)
    seq_len = layers[0].shape[-1]
    tops = range(seq_len) if queries is None else queries
    is_known = isinstance(tops, Sequence) and all(type(query) is int and 0 <= query < seq_len for query in tops)
    if not is_known or not tops:
        raise ConfigError(f"queries must be numbers of tokens, from 0 to {seq_len - 1}; got {shown(queries)}")
    texts = torch.stack(layers).transpose(0, 1).tolist()  # (B, L, T, T)
    return torch.tensor([_flows(text, list(tops)) for text in texts], dtype=torch.float64)


def _open(model: nn.Module, inputs: Inputs, stack: str | None) -> OneStack:
    """Find the way to a stack of self-attention.

    Raises:
        ModelError: the stack is one of cross-attention, as many keys as there may be.
    """
    reader = open_reader(model, inputs, stack=stack)
    if reader.stack.is_cross:
        raise ModelError(
            "each layer's queries and keys must be the same tokens to be followed from layer to layer; "
            f"stack {reader.stack.name!r} is cross-attention, whose keys are of another text"
        )
    return reader


def _mixed_blocks(layer: LayerWeights, heads: Combination) -> Iterator[Float[Tensor, "batch rows seq_len"]]:
    """Yield `(W + I) / 2` of a layer, each row divided by its sum, a block of queries at a time.

    Raises:
        ModelError: the layer's keys are not the tokens of its queries.
    """
    _, _, query_len, key_len = layer.shape
    if query_len != key_len:
        raise ModelError(
            "each layer's queries and keys must be the same tokens to be followed from layer to layer; "
            f"got {query_len} queries and {key_len} keys"
        )
    for block in layer.blocks():
        if heads == "mean":
            combined = block.weights.mean(dim=1)
        else:
            combined = block.weights.amax(dim=1) if heads == "max" else block.weights.amin(dim=1)
        combined = torch.nn.functional.pad(combined, (0, key_len - combined.shape[-1]))
        rows = torch.arange(combined.shape[1], device=combined.device)
        combined[:, rows, block.start + rows] += 1.0  # the factor 1/2 goes with the division
        yield combined / combined.sum(dim=-1, keepdim=True)


def _flows(text: list[list[list[float]]], tops: Sequence[int]) -> list[list[float]]:
    """Return the maximum flow from each of some tokens after the last layer to every token before the first.

    Args:
        text: capacities of a text's layers, (L, T, T).
        tops: tokens after the last layer.
    """
    import networkx as nx
    from networkx.algorithms import flow

    graph = nx.DiGraph()
    seq_len = len(text[0])
    for layer, rows in enumerate(text):
        for query, row in enumerate(rows):
            for key, capacity in enumerate(row):
                if capacity > 0:
                    graph.add_edge((layer + 1, query), (layer, key), capacity=capacity)
    graph.add_nodes_from((0, key) for key in range(seq_len))
    residual = flow.build_residual_network(graph, "capacity")

    def flow_between(query: int, key: int) -> float:
        ends = (len(text), query), (0, key)
        # its number of steps is bounded by the graph's size, whatever the capacities' rounding
        found = flow.shortest_augmenting_path(graph, *ends, residual=residual, value_only=True)
        return float(found.graph["flow_value"])

    return [[flow_between(query, key) for key in range(seq_len)] for query in tops]
