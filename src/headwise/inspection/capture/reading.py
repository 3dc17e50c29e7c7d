"""Batches of texts read one after another, their statistics summed up, the maps of one text kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headwise.config.checks import require_instance, require_size
from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import StackReader
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.maps import LayerMaps, LayerOverviews, LayerTopKeys
from headwise.inspection.relations.relation import RelationSums, to_scores
from headwise.inspection.results import AttentionMap, HeadStatistics, Inspection, TopKeys
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.similarity import ModelDivergence
from headwise.inspection.statistics.sums import LayerSums, Look
from headwise.integrations.layer_weights import LayerWeights

Progress = Callable[[int, int], None]
"""Called with the texts (or windows of texts) that are done and how many there are."""

MAX_LABEL = 64  # characters of a token that are shown: a vocabulary may make one token of a megabyte
HEAVIEST = "each query's heaviest keys"
FEW_TOKENS = 32  # below this, a mean over queries says little about a head


@dataclass(frozen=True, eq=False)
class Batch:
    """What one forward pass reads: the model's inputs, and what their tokens are.

    Args:
        inputs: of the model.
        kinds: what the tokens are of every stack that is read, by its name.
    """

    inputs: Inputs
    kinds: Mapping[str, TokenKinds]

    @property
    def num_texts(self) -> int:
        """Number of texts."""
        return len(next(iter(self.kinds.values())).real)


@dataclass(frozen=True, kw_only=True)
class ShownTokens:
    """The words of the text that is shown, as one stack of layers reads it.

    Args:
        tokens: of queries.
        key_tokens: of keys, where they are of another text.
    """

    tokens: Sequence[str]
    key_tokens: Sequence[str] | None = None


def read_stacks(
    reader: StackReader,
    batches: Sequence[Batch],
    shown_tokens: Mapping[str, ShownTokens],
    *,
    shown: int,
    max_map_tokens: int,
    num_texts: int | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> dict[str, Inspection]:
    """Read every batch once and return what the heads of several stacks do, by the names of the stacks.

    Args:
        reader: the way to the model's attention.
        batches: what to read.
        shown_tokens: of every stack that is read, the shown text's words.
        shown: number of the text, counted through all batches, whose maps are kept.
        max_map_tokens: tokens of that text that its maps cover; 0 = no maps.
        num_texts: how many texts the windows in the batches are of. Default: each is one.
        notes: what a reader of the result must know already.
        progress: called after every batch.
        detail: what is taken beside statistics that cost little. The texts of its relations are those of the batches.

    Raises:
        ModelError: a layer reads something else than the batch's texts.
        TextError: the null of the relations has others, or other heads, or a text is too long for what is asked.
        ConfigError: a number of tokens is none, or `detail` is no Detail.
    """
    require_size("max_map_tokens", max_map_tokens, minimum=0)
    require_instance("detail", detail, Detail)
    stacks = {stack: _StackSums(stack, tokens, shown, max_map_tokens, detail) for stack, tokens in shown_tokens.items()}
    num_windows = sum(batch.num_texts for batch in batches)
    done = 0
    for batch in batches:
        for name, each in stacks.items():
            each.start_batch(batch.kinds[name], first_text=done)

        def observe(stack: str, number: int, layer: LayerWeights) -> None:
            if stack in stacks:
                stacks[stack].add(number, layer)

        reader.read(batch.inputs, observe)
        for each in stacks.values():
            each.finish_batch()
        done += batch.num_texts
        if progress is not None:
            progress(done, num_windows)
    has_others = len(reader.stacks) > 1
    return {
        name: each.to_inspection(num_texts, (*notes, *reader.notes), name if has_others else None)
        for name, each in stacks.items()
    }


class _StackSums:
    """What is summed up and kept of one stack of layers."""

    def __init__(self, stack: str, shown_tokens: ShownTokens, shown: int, max_map_tokens: int, detail: Detail):
        self.stack = stack
        self.shown_tokens = shown_tokens
        self.shown = shown
        self.max_map_tokens = max_map_tokens
        self.detail = detail
        self.sums: list[LayerSums] = []
        self.relations: list[RelationSums] = []
        self.across = ModelDivergence() if detail.across_layers else None
        self.shown_text = _ShownText(max_map_tokens, detail)
        self.kinds: list[TokenKinds] = []
        self.first_text = 0

    def start_batch(self, kinds: TokenKinds, *, first_text: int) -> None:
        self.kinds.append(kinds)
        self.first_text = first_text

    def add(self, number: int, layer: LayerWeights) -> None:
        """Add a layer of the batch."""
        kinds = self.kinds[-1]
        require_shape(layer, kinds.shape)
        if number == len(self.sums):
            self.sums.append(LayerSums(layer.shape[1], detailed=self.detail.costly))
            self.relations.append(RelationSums(layer.shape[1], self.detail.relations))
        looks: list[Look] = []
        if self.detail.relations:
            looks.append(partial(self.relations[number].add, first_text=self.first_text))
        row = self.shown - self.first_text
        if 0 <= row < len(kinds.real):
            looks += self.shown_text.looks(number, layer, row, kinds)
        self.sums[number].add(layer, kinds, looks=looks)
        self.shown_text.finish_layer()
        if self.across is not None:
            self.across.keep(layer)

    def finish_batch(self) -> None:
        if self.across is not None:
            self.across.finish_batch(self.kinds[-1])

    def to_inspection(self, num_texts: int | None, notes: Sequence[str], stack: str | None = None) -> Inspection:
        detail, is_cross = self.detail, self.kinds[0].is_cross
        lengths = [int(length) for kinds in self.kinds for length in kinds.real.sum(dim=1)]
        key_lengths = [int(length) for kinds in self.kinds for length in kinds.keys.sum(dim=1)]
        key_tokens = self.shown_tokens.key_tokens
        rest = [name for name, is_kept in (("tiles", detail.overview_cells), (HEAVIEST, detail.top_keys)) if is_kept]
        shown = max(lengths[self.shown], key_lengths[self.shown])
        notes_on_size = _notes_on_size(lengths, shown, lengths[self.shown] == shown, self.max_map_tokens, rest)
        heads = tuple(head for layer, each in enumerate(self.sums) for head in each.to_statistics(layer))
        return Inspection(
            heads=heads,
            maps=tuple(self.shown_text.maps),
            tokens=tuple(map(shorten, self.shown_tokens.tokens)),
            num_texts=len(lengths) if num_texts is None else num_texts,
            num_windows=len(lengths),
            num_tokens=sum(lengths),
            window=max(lengths),
            is_causal=not is_cross and not any(each.looks_ahead for each in self.sums),
            notes=(*notes, *notes_on_size, *_notes_on_weights(heads, sum(lengths))),
            divergences=tuple(each.to_divergence(layer) for layer, each in enumerate(self.sums))
            if detail.costly
            else (),
            divergence_across_layers=None if self.across is None else self.across.to_result(),
            overviews=tuple(self.shown_text.overviews),
            top_keys=tuple(self.shown_text.top_keys),
            relations=to_scores(detail.relations, self.relations, detail.null),
            stack=stack,
            key_tokens=None if key_tokens is None else tuple(map(shorten, key_tokens)),
        )


class _ShownText:
    """What is kept of one text, layer by layer."""

    def __init__(self, max_map_tokens: int, detail: Detail):
        self.max_map_tokens = max_map_tokens
        self.detail = detail
        self.maps: list[AttentionMap] = []
        self.overviews: list[AttentionMap] = []
        self.top_keys: list[TopKeys] = []
        self.at_work: list[LayerMaps | LayerOverviews | LayerTopKeys] = []

    def looks(self, number: int, layer: LayerWeights, row: int, kinds: TokenKinds) -> list[Look]:
        """Return what looks at the blocks of a layer, in which the text is a row of the batch."""
        if self.max_map_tokens:
            self.at_work.append(LayerMaps(number, row=row, kinds=kinds, max_tokens=self.max_map_tokens))
        if self.detail.overview_cells:
            cells = self.detail.overview_cells
            self.at_work.append(LayerOverviews(number, layer.shape[1], row=row, kinds=kinds, max_cells=cells))
        if self.detail.top_keys:
            self.at_work.append(LayerTopKeys(number, row=row, kinds=kinds, count=self.detail.top_keys))
        return [each.add for each in self.at_work]

    def finish_layer(self) -> None:
        """Keep what has looked at all blocks of a layer."""
        for each in self.at_work:
            match each:
                case LayerMaps():
                    self.maps += each.to_maps()
                case LayerOverviews():
                    self.overviews += each.to_maps()
                case LayerTopKeys():
                    self.top_keys += each.to_top_keys()
        self.at_work = []


def shorten(label: str) -> str:
    """Cut a token's word to what is shown of it."""
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


def require_shape(layer: LayerWeights, expected: tuple[int, int] | tuple[int, int, int]) -> None:
    """Refuse a layer that reads something else than the texts: so many, of so many tokens, and keys if they differ.

    Raises:
        ModelError: it does.
    """
    num_texts, _, query_len, key_len = layer.shape
    if (num_texts, query_len, key_len) == (*expected[:2], expected[-1]):
        return
    given = f"{expected[0]} of {expected[1]} tokens"
    if expected[1] != expected[-1]:
        given += f" that read {expected[-1]}"
    raise ModelError(
        f"every attention layer must read the texts as they are given, {given}; "
        f"one reads {num_texts} with {query_len} queries and {key_len} keys"
    )


def _notes_on_size(
    lengths: Sequence[int], shown: int, is_of_queries: bool, max_map_tokens: int, rest: Sequence[str]
) -> list[str]:
    notes = []
    if sum(lengths) < FEW_TOKENS:
        read = "1 token was" if sum(lengths) == 1 else f"{sum(lengths)} tokens were"
        notes.append(f"Only {read} read: means over so few queries say little about a head.")
    if 0 < max_map_tokens < shown:
        what = "tokens" if is_of_queries else "tokens that are read"
        more = f" one by one; all are shown by {' and '.join(rest)}" if rest else ""
        notes.append(f"Maps show the first {max_map_tokens} of {shown} {what}{more}.")
    return notes


def _notes_on_weights(heads: Sequence[HeadStatistics], num_queries: int) -> list[str]:
    """Say so where statistics are of nothing: weights that are NaN, queries that may read no key."""
    notes = []
    for name, what in (
        ("num_nan_queries", "have NaN among their weights: statistics of these heads are NaN"),
        ("num_empty_queries", "may read no token: they count in no mean"),
    ):
        found = [(getattr(head, name) or 0, head) for head in heads]
        found = [(count, head) for count, head in found if count]
        if found:
            most, head = max(found, key=lambda each: each[0])
            where = f"layer {head.layer} head {head.head}"
            where += f", the most of {len(found)} heads with such queries," if len(found) > 1 else ""
            notes.append(f"In {where} {most} of {num_queries} queries {what}.")
    return notes
