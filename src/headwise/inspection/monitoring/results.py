"""What the training monitor answers with: the figures of every head at one step, and what it warns of."""

from dataclasses import dataclass
from typing import Literal

from headwise.results import Result

ONLY_STACK = "self"  # the name of a model's one stack of self-attention

WEIGHT_EDGES = (0.0, *(10.0 ** (power / 2) for power in range(-12, 1)))
"""Edges of the histogram of weights: 0, then half decades from 1e-6 to 1; the last bin holds 1, too."""


@dataclass(frozen=True, kw_only=True)
class MonitoredHead(Result):
    """What one head did in one training step: means over the real queries that were looked at.

    Args:
        stack: "self" in a model of one stack of self-attention; else "encoder", "decoder", "cross" and the like.
        layer, head: which one of its stack, from 0.
        entropy: of a query's weights, in nats.
        normalized_entropy: entropy / log(visible keys), over queries that see two keys or more.
        sparsity: share of the visible keys that hold less than a tenth of the uniform weight 1 / (visible keys).
        sink_mass: mean weight on the first real token.
        padding_mass: mean weight on padding; 0 where padding is hidden or unknown.
        mean_abs_score: mean of |score| over a query's visible keys; scores are what the softmax reads. None, as the
            next, where a layer returned its weights and no scores.
        max_abs_score: largest |score| of the pairs that were looked at.
        weight_counts: how many weights lie between two `WEIGHT_EDGES`, an estimate for all real queries.
        gradient_norm: root of the summed squares of the gradients of the head's rows of the query, key and value
            projections (weights and biases) and its columns of the output projection; heads that share a key/value
            head all count its rows. None: those projections are not known, or none has a gradient.
        is_dead: its gradient is nothing beside the largest of all heads, so that it does not learn.
        is_collapsed: nearly all weight of each query is on one key, and that key is mostly not the first token.
    """

    stack: str
    layer: int
    head: int
    entropy: float
    normalized_entropy: float
    sparsity: float
    sink_mass: float
    padding_mass: float
    mean_abs_score: float | None
    max_abs_score: float | None
    weight_counts: tuple[float, ...]
    gradient_norm: float | None
    is_dead: bool
    is_collapsed: bool


AlarmKind = Literal["entropy collapse", "score overflow", "attention to padding"]


@dataclass(frozen=True, kw_only=True)
class Alarm(Result):
    """One warning: which head, what kind, the figure, and a sentence that says what to do."""

    step: int
    stack: str
    layer: int
    head: int
    kind: AlarmKind
    figure: float
    text: str

    def to_text(self) -> str:
        """Return the warning as one line."""
        stack = "" if self.stack == ONLY_STACK else f"{self.stack}, "
        return f"step {self.step}, {stack}layer {self.layer}, head {self.head}: {self.kind}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class MonitorSample(Result):
    """All heads at one training step.

    Args:
        step: number of the step.
        heads: one per layer and head, in the order in which layers attend.
        alarms: what is new to warn of.
        num_queries: queries that were looked at in each layer, the most of any.
        seconds: time that looking took, as the host saw it; on a GPU, what it waited for at the end included.
    """

    step: int
    heads: tuple[MonitoredHead, ...]
    alarms: tuple[Alarm, ...]
    num_queries: int
    seconds: float
