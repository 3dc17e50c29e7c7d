"""Batches of texts read one after another, their statistics summed up, the maps of one text kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from headwise.errors import ModelError
from headwise.inspection.capture.quiet_passes import Inputs
from headwise.inspection.capture.readers import Reader
from headwise.inspection.detail import NO_DETAIL, Detail
from headwise.inspection.maps import LayerMaps, LayerOverviews, LayerTopKeys
from headwise.inspection.relations import RelationSums, to_scores
from headwise.inspection.results import AttentionMap, Inspection, TopKeys
from headwise.inspection.statistics.kinds import TokenKinds
from headwise.inspection.statistics.similarity import ModelDivergence
from headwise.inspection.statistics.sums import LayerSums, Look
from headwise.integrations.layer_weights import LayerWeights

Progress = Callable[[int, int], None]
"""Called with the texts (or windows of texts) that are done and how many there are."""

MAX_LABEL = 64  # characters of a token that are shown: a vocabulary may make one token of a megabyte
FEW_TOKENS = 32  # below this, a mean over queries says little about a head


@dataclass(frozen=True, eq=False)
class Batch:
    """What one forward pass reads: the model's inputs, and what their tokens are."""

    inputs: Inputs
    kinds: TokenKinds

    @property
    def num_texts(self) -> int:
        """Number of texts."""
        return len(self.kinds.real)


def read_batches(
    reader: Reader,
    batches: Sequence[Batch],
    *,
    shown: int,
    tokens: Sequence[str],
    max_map_tokens: int,
    num_texts: int | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
    detail: Detail = NO_DETAIL,
) -> Inspection:
    """Read every batch once and return the statistics of all heads over all of them.

    Args:
        reader: the way to the model's attention.
        batches: what to read.
        shown: number of the text, counted through all batches, whose maps are kept.
        tokens: that text's tokens as words.
        max_map_tokens: tokens of that text that its maps cover; 0 = no maps.
        num_texts: how many texts the windows in the batches are of. Default: each is one.
        notes: what a reader of the result must know already.
        progress: called after every batch.
        detail: what is taken beside statistics that cost little. The texts of its relations are those of the batches.

    Raises:
        ModelError: a layer reads something else than the batch's texts.
        TextError: the null of the relations has others, or other heads, or a text is too long for what is asked.
    """
    sums: list[LayerSums] = []
    relations: list[RelationSums] = []
    across = ModelDivergence() if detail.across_layers else None
    shown_text = _ShownText(max_map_tokens, detail)
    num_windows = sum(batch.num_texts for batch in batches)
    done = 0
    for batch in batches:
        row = shown - done

        def observe(number: int, layer: LayerWeights, batch: Batch = batch, row: int = row, done: int = done) -> None:
            require_shape(layer, (batch.num_texts, batch.kinds.real.shape[1]))
            if number == len(sums):
                sums.append(LayerSums(layer.shape[1], detailed=detail.costly))
                relations.append(RelationSums(layer.shape[1], detail.relations))
            looks: list[Look] = []
            if detail.relations:
                looks.append(partial(relations[number].add, first_text=done))
            if 0 <= row < batch.num_texts:
                looks += shown_text.looks(number, layer, row, batch.kinds.real[row])
            sums[number].add(layer, batch.kinds, looks=looks)
            shown_text.finish_layer()
            if across is not None:
                across.keep(layer)

        reader.read(batch.inputs, observe)
        if across is not None:
            across.finish_batch(batch.kinds)
        done += batch.num_texts
        if progress is not None:
            progress(done, num_windows)
    lengths = [int(length) for batch in batches for length in batch.kinds.real.sum(dim=1)]
    return Inspection(
        heads=tuple(head for layer, layer_sums in enumerate(sums) for head in layer_sums.to_statistics(layer)),
        maps=tuple(shown_text.maps),
        tokens=tuple(map(shorten, tokens)),
        num_texts=num_windows if num_texts is None else num_texts,
        num_windows=num_windows,
        num_tokens=sum(lengths),
        window=max(lengths),
        is_causal=not any(layer_sums.looks_ahead for layer_sums in sums),
        notes=(*notes, *reader.notes, *_notes_on_size(lengths, lengths[shown], max_map_tokens)),
        divergences=tuple(each.to_divergence(layer) for layer, each in enumerate(sums)) if detail.costly else (),
        divergence_across_layers=None if across is None else across.to_result(),
        overviews=tuple(shown_text.overviews),
        top_keys=tuple(shown_text.top_keys),
        relations=to_scores(detail.relations, relations, detail.null),
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

    def looks(self, number: int, layer: LayerWeights, row: int, real: Tensor) -> list[Look]:
        """Return what looks at the blocks of a layer, in which the text is a row of the batch."""
        if self.max_map_tokens:
            self.at_work.append(LayerMaps(number, row=row, real=real, max_tokens=self.max_map_tokens))
        if self.detail.overview_cells:
            cells = self.detail.overview_cells
            self.at_work.append(LayerOverviews(number, layer.shape[1], row=row, real=real, max_cells=cells))
        if self.detail.top_keys:
            self.at_work.append(LayerTopKeys(number, row=row, real=real, count=self.detail.top_keys))
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


def require_shape(layer: LayerWeights, expected: tuple[int, int]) -> None:
    """Refuse a layer that reads something else than the texts: so many, of so many tokens.

    Raises:
        ModelError: it does.
    """
    num_texts, _, query_len, key_len = layer.shape
    if (num_texts, query_len) != expected or (num_texts, key_len) != expected:
        raise ModelError(
            f"every attention layer must read the texts as they are given, {expected[0]} of {expected[1]} tokens; "
            f"one reads {num_texts} with {query_len} queries and {key_len} keys"
        )


def _notes_on_size(lengths: Sequence[int], shown_length: int, max_map_tokens: int) -> list[str]:
    notes = []
    if sum(lengths) < FEW_TOKENS:
        notes.append(f"The text has {sum(lengths)} tokens only: means over so few queries say little about a head.")
    if 0 < max_map_tokens < shown_length:
        notes.append(f"Maps show the first {max_map_tokens} of {shown_length} tokens.")
    return notes
