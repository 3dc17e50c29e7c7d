"""The moments of a step: how many bytes of each kind are alive at each, what they are called, what is largest."""

import re
from itertools import accumulate
from typing import get_args

from headwise.config.model import ModelConfig
from headwise.cost.planning.results import Moment
from headwise.cost.results import Kind, Ledger, LedgerEntry

KV_CACHE = "kv_cache"
"""The field of a moment for what is kept between calls."""

PLACES = {
    "embeddings": "in the embeddings",
    "decoder embeddings": "in the decoder's embeddings",
    "encoder norm": "in the encoder's last norm",
    "head": "in the head",
    "loss": "at the loss",
}
"""What stands around the layers, as a ledger's moments name it, in words."""


def timeline(ledger: Ledger) -> tuple[Moment, ...]:
    """Return the bytes alive at each moment of a ledger, by kind."""
    kinds: tuple[str, ...] = (*get_args(Kind), KV_CACHE)
    changes = {kind: [0] * (len(ledger.moments) + 1) for kind in kinds}
    for entry in ledger.entries:
        of_kind = changes[KV_CACHE if entry.is_kv_cache else entry.kind]
        of_kind[entry.born] += entry.bytes
        of_kind[len(ledger.moments) if entry.freed is None else entry.freed] -= entry.bytes
    alive = {kind: list(accumulate(steps)) for kind, steps in changes.items()}
    return tuple(
        Moment(moment=label, **{kind: alive[kind][index] for kind in kinds})
        for index, label in enumerate(ledger.moments)
    )


def largest_at_peak(ledger: Ledger, n: int = 10) -> tuple[LedgerEntry, ...]:
    """Return the largest tensors alive at the peak, largest first."""
    return tuple(ledger.alive(ledger.peak)[:n])


def describe_moment(label: str, config: ModelConfig | None = None) -> str:
    """Say in words which part of a step a moment is, as it stands after "at"; an unknown label comes back as it is.

    Args:
        label: of the moment: "forward: layer 3", "backward: head", "optimizer step".
        config: of the model, to know which layer is the last one.
    """
    if label in ("loss", "optimizer step"):
        return f"the {label}"
    way, _, place = label.partition(": ")
    if way not in ("forward", "backward") or not place:
        return label
    if place in ("head", "loss"):
        edge = "the end of the forward pass" if way == "forward" else "the start of the backward pass"
        return f"{edge}, {PLACES[place]}"
    if place in PLACES:
        return f"the {way} pass, {PLACES[place]}"
    layer = re.fullmatch(r"(encoder )?layer (\d+)", place)
    return f"{way} of {_describe_layer(layer, config)}" if layer else f"the {way} pass, {place}"


def _describe_layer(layer: "re.Match[str]", config: ModelConfig | None) -> str:
    number = int(layer[2])
    stack = "encoder layer" if layer[1] else "layer"
    num_layers = 0
    if config is not None:
        num_layers = (len(config.encoder.blocks) if config.encoder else 0) if layer[1] else config.num_layers
    if num_layers > 1 and number == num_layers - 1:
        return f"the last {stack} ({stack} {number})"
    return f"the first {stack} ({stack} {number})" if number == 0 else f"{stack} {number}"
