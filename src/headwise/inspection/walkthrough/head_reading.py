"""One query of one head, read while the model runs: its query, keys and values, and what the layer puts out."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.errors import ModelError, TextError
from headwise.inspection.ablation.chosen_heads import projections_of
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import OneStack, open_reader
from headwise.inspection.texts.stack_tokens import told_kinds
from headwise.integrations.head_outputs import edit_heads
from headwise.integrations.input_projections import as_linear
from headwise.integrations.layer_weights import LayerWeights, ProjectedWeights, RowsOf
from headwise.integrations.output_projection import OutputProjection
from headwise.integrations.wrappers import unwrapped


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadReading:
    """One query of one head. Keys stand in the order of the text; padding, where there is some, behind it.

    None stands for what the layer did not tell.

    Args:
        layer, head: which one, from 0.
        kv_head: the key/value head that it reads.
        num_layers: layers of its stack.
        query: number of the query.
        num_queries: number of queries, without padding.
        num_keys: number of keys, without padding.
        is_cross: whether keys are of other tokens than queries (cross-attention).
        weights: of the query, as `read_weights` gives them.
        visible: which keys it may read.
        query_vector: (D,) positions already applied.
        keys: positions already applied.
        values: what the weights mix.
        scale, softcap: as of `ProjectedWeights`.
        bias: what is added to its scores.
        sink: the head's extra logit.
        output: (V,) what the output projection reads of this head.
        projection: (V, E) the head's rows of the output projection.
        attention: the module that holds the output projection, by its path; None = not known.
        notes: what a reader must know.
    """

    layer: int
    head: int
    kv_head: int | None
    num_layers: int
    query: int
    num_queries: int
    num_keys: int
    is_cross: bool = False
    weights: Float[Tensor, " keys"]
    visible: Bool[Tensor, " keys"]
    query_vector: Float[Tensor, " head_dim"] | None = None
    keys: Float[Tensor, "keys head_dim"] | None = None
    values: Float[Tensor, "keys v_head_dim"] | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: Float[Tensor, " keys"] | None = None
    sink: float | None = None
    output: Float[Tensor, " v_head_dim"] | None = None
    projection: Float[Tensor, "v_head_dim embed_dim"] | None = None
    attention: str | None = None
    notes: tuple[str, ...] = ()


def read_head(
    model: nn.Module,
    inputs: Inputs,
    *,
    query: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    stack: str | None = None,
    passed_over: Collection[int] = (0,),
) -> HeadReading:
    """Read one query of one head in the first text of a batch.

    Args:
        model: as of `open_reader`.
        inputs: of one forward pass. Padding is told as of `inspect_inputs`, of each stack's own tokens.
        query: number of the token that reads, without padding. Default: the last token where queries see earlier keys
            only, else the middle one.
        layer, head: which one, from 0. Default: of those that are left open the one that puts the largest weight on one
            token other than the query itself and those of `passed_over`.
        stack: as of `open_reader`.
        passed_over: numbers of tokens on which much weight says little: the first (a sink), separators. In
            cross-attention none is passed over.

    Raises:
        ModelError: the model's attention cannot be read, or there is no such layer or head.
        TextError: there is no such token.
    """
    model = unwrapped(model) if isinstance(model, nn.Module) else model
    reader = open_reader(model, inputs, stack=stack)
    places = _find_places(model, reader, inputs, query)
    catch = _Catch(places, layer, head, passed_over)
    notes: list[str] = []
    projections: Sequence[OutputProjection] = ()
    outputs: dict[int, Tensor] = {}

    def keep(projection: OutputProjection, heads: Tensor) -> Tensor:
        if heads.shape[1] > places.column:
            outputs[projection.layer] = heads[0, places.column].detach()
        return heads

    with ExitStack() as exits:
        try:
            projections = projections_of(model, stack)
        except ModelError as error:
            notes.append(f"What the output projection makes of the head is not shown: {error}.")
        else:
            exits.enter_context(edit_heads(model, projections, keep))
        reader.read(inputs, catch.observe)
    found, number, chosen = catch.require()
    return _to_reading(catch, found, (number, chosen), projections, outputs, (*reader.notes, *notes))


@dataclass(frozen=True, kw_only=True)
class _Places:
    """Where the tokens of the first text stand.

    Args:
        own: the queries without padding.
        own_keys: the keys without padding: the same tokens, or those of the other text.
        is_cross: whether they are of another text.
        query: number of the query among `own`.
        column: where it stands among all queries.
    """

    own: list[int]
    own_keys: list[int]
    is_cross: bool
    query: int
    column: int


def _find_places(model: nn.Module, reader: OneStack, inputs: Inputs, query: int | None) -> _Places:
    """Find the text's tokens among its padding, and the query among them, by one more pass, or two."""
    kinds = told_kinds(model, reader.reader, inputs)[reader.stack.name]
    own, own_keys = (real[0].nonzero().flatten().tolist() for real in (kinds.real, kinds.keys))
    if not own:
        raise TextError("a text must hold at least one token; this one is all padding")
    if query is None:
        query = len(own) // 2 if _sees_ahead(reader, inputs) else len(own) - 1
    if not 0 <= query < len(own):
        raise TextError(f"the token asked about must be one of the text's, from 0 to {len(own) - 1}; got {query}")
    return _Places(own=own, own_keys=own_keys, is_cross=kinds.is_cross, query=query, column=own[query])


def _sees_ahead(reader: OneStack, inputs: Inputs) -> bool:
    """Tell whether the first query of the first text may read a later key."""
    found = False

    def look(number: int, layer: LayerWeights) -> None:
        nonlocal found
        if number == 0:
            found = bool(layer.block(0, 1).visible[0, :, 0, 1:].any())

    reader.read(inputs, look)
    return found


class _Catch:
    """Keeps the head that is asked for, or the best of those that are left open."""

    def __init__(self, places: _Places, layer: int | None, head: int | None, passed_over: Collection[int]):
        self.places = places
        self.layer, self.head = layer, head
        self.passed_over = [places.own[token] for token in {*passed_over, places.query} if token < len(places.own)]
        self.num_layers = 0
        self.best = -torch.inf
        self.kept: tuple[LayerWeights, int, int] | None = None
        self.shape: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.num_kv_heads: int | None = None

    def observe(self, number: int, layer: LayerWeights) -> None:
        self.num_layers = number + 1
        if self.layer not in (None, number):
            return
        num_texts, num_heads, query_len, key_len = layer.shape
        if query_len <= self.places.column:
            raise ModelError(
                f"every attention layer must read the text as it is given; layer {number} reads {query_len} tokens"
            )
        if self.head is not None and not 0 <= self.head < num_heads:
            raise ModelError(f"head must be a number from 0 to {num_heads - 1}; got {self.head}")
        column = torch.tensor([[self.places.column]] * num_texts, device=layer.device)
        weights = layer.of_rows(column).block(0, 1).weights[0, :, 0].nan_to_num(-1.0)  # (H, S)
        if not self.places.is_cross and key_len > len(set(self.passed_over)):
            weights[:, self.passed_over] = -1.0
        strongest = weights.amax(dim=-1)
        head = int(strongest.argmax()) if self.head is None else self.head
        if self.kept is None or float(strongest[head]) > self.best:
            self.best = float(strongest[head])
            self.kept = layer.of_head(0, head).of_rows(column[:1]), number, head
            self.shape = layer.shape
            self.num_kv_heads = layer.key.shape[1] if isinstance(layer, ProjectedWeights) else None

    def require(self) -> tuple[LayerWeights, int, int]:
        """Return the head that was kept: its weights, layer and number."""
        if self.kept is None:
            raise ModelError(f"layer must be a number from 0 to {self.num_layers - 1}; got {self.layer}")
        return self.kept


def _to_reading(
    catch: _Catch,
    found: LayerWeights,
    place: tuple[int, int],
    projections: Sequence[OutputProjection],
    outputs: dict[int, Tensor],
    notes: tuple[str, ...],
) -> HeadReading:
    layer, head = place
    _, num_heads, _, key_len = catch.shape
    block = found.block(0, 1)
    places = catch.places
    padding = sorted(set(range(key_len)) - set(places.own_keys))
    columns = torch.tensor([*places.own_keys, *padding], device=block.weights.device)
    told: dict[str, object] = {}
    kv_head = None
    if isinstance(found, ProjectedWeights):
        assert catch.num_kv_heads is not None
        kv_head = head // (num_heads // catch.num_kv_heads)
        told = {
            "query_vector": found.query[0, 0, 0],
            "keys": found.key[0, 0, columns],
            "values": None if found.value is None else found.value()[0, 0, columns],
            "scale": found.scale,
            "softcap": found.softcap,
            "bias": None if found.bias is None else _row(found.bias, key_len)[columns],
            "sink": None if found.sink is None else float(found.sink[0]),
        }
    output, projection, name = _output_of(projections, outputs, layer, head)
    return HeadReading(
        layer=layer,
        head=head,
        kv_head=kv_head,
        num_layers=catch.num_layers,
        query=places.query,
        num_queries=len(places.own),
        num_keys=len(places.own_keys),
        is_cross=places.is_cross,
        weights=block.weights[0, 0, 0, columns],
        visible=block.visible[0, 0, 0, columns],
        output=output,
        projection=projection,
        attention=name,
        notes=notes,
        **told,  # type: ignore[arg-type]
    )


def _output_of(
    projections: Sequence[OutputProjection], outputs: dict[int, Tensor], layer: int, head: int
) -> tuple[Tensor | None, Tensor | None, str | None]:
    """Return what a head's output projection reads of it, the head's rows of that, and where the layer stands."""
    if layer not in outputs or layer >= len(projections) or head >= projections[layer].num_heads:
        return None, None, None
    module, size = projections[layer].module, projections[layer].head_dim
    holder = projections[layer].name
    if isinstance(module, nn.MultiheadAttention):
        module = module.out_proj
    else:
        holder = holder.rpartition(".")[0]
    linear = as_linear(module)
    rows = None
    if linear is not None and linear.weight.is_floating_point():
        by_input = linear.weight if linear.is_transposed else linear.weight.T
        rows = by_input.detach()[head * size : (head + 1) * size]
    return outputs[layer][head], rows if rows is not None and len(rows) == size else None, holder


def _row(term: Tensor | RowsOf, key_len: int) -> Float[Tensor, " keys"]:
    """Return the one row of a bias of one query of one head."""
    row = term if isinstance(term, Tensor) else term(torch.arange(1))
    return row.expand(1, 1, 1, key_len)[0, 0, 0]
