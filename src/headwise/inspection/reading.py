"""Batches of texts read one after another, their statistics summed up, the maps of one text kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwise.errors import ModelError
from headwise.inspection.capture import Inputs, Reader
from headwise.inspection.kinds import TokenKinds
from headwise.inspection.maps import maps_of_layer
from headwise.inspection.results import AttentionMap, Inspection
from headwise.inspection.statistics import LayerSums
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

    Raises:
        ModelError: a layer reads something else than the batch's texts.
    """
    sums: list[LayerSums] = []
    kept_maps: list[AttentionMap] = []
    num_windows = sum(batch.num_texts for batch in batches)
    done = 0
    for batch in batches:
        row = shown - done

        def observe(number: int, layer: LayerWeights, batch: Batch = batch, row: int = row) -> None:
            _require_shape(layer, batch)
            if number == len(sums):
                sums.append(LayerSums(layer.shape[1]))
            sums[number].add(layer, batch.kinds)
            if max_map_tokens and 0 <= row < batch.num_texts:
                real = batch.kinds.real[row]
                kept_maps.extend(maps_of_layer(number, layer, row=row, real=real, max_tokens=max_map_tokens))

        reader.read(batch.inputs, observe)
        done += batch.num_texts
        if progress is not None:
            progress(done, num_windows)
    lengths = [int(length) for batch in batches for length in batch.kinds.real.sum(dim=1)]
    return Inspection(
        heads=tuple(head for layer, layer_sums in enumerate(sums) for head in layer_sums.to_statistics(layer)),
        maps=tuple(kept_maps),
        tokens=tuple(token if len(token) <= MAX_LABEL else token[: MAX_LABEL - 1] + "…" for token in tokens),
        num_texts=num_windows if num_texts is None else num_texts,
        num_windows=num_windows,
        num_tokens=sum(lengths),
        window=max(lengths),
        is_causal=not any(layer_sums.looks_ahead for layer_sums in sums),
        notes=(*notes, *reader.notes, *_notes_on_size(lengths, lengths[shown], max_map_tokens)),
    )


def _require_shape(layer: LayerWeights, batch: Batch) -> None:
    num_texts, _, query_len, key_len = layer.shape
    expected = tuple(batch.kinds.real.shape)
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
