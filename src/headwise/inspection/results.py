"""What `inspection` answers with: statistics of heads, their roles, small maps, and a computation step by step."""

from dataclasses import dataclass
from typing import Any

from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class Role(Result):
    """One positional role of a head: the mean weight that real queries put on the role's key.

    `score` is that mean over the queries that have such a key and another to choose from, None where no query has;
    `holds` says whether it is high enough to name the head.
    """

    name: str
    score: float | None
    holds: bool


@dataclass(frozen=True, kw_only=True)
class HeadStatistics(Result):
    """What one head does on a text, averaged over its real (not padded) queries.

    Args:
        layer, head: which one, from 0.
        entropy: of a query's weights, in nats.
        normalized_entropy: entropy / log(visible keys), over queries that see two keys or more; 0: one key, 1: uniform.
        sparsity: share of the visible keys that hold less than a tenth of the uniform weight 1 / (visible keys).
        distance: mean |query index - key index|, weighted by attention, in tokens.
        sink_mass: mean weight on the first token.
        max_weight: mean of the largest weight of a query.
        roles: score of every positional role.
    """

    layer: int
    head: int
    entropy: float
    normalized_entropy: float
    sparsity: float
    distance: float
    sink_mass: float
    max_weight: float
    roles: tuple[Role, ...]


@dataclass(frozen=True, kw_only=True)
class AttentionMap(Result):
    """Weights of one head on one text, 8 bits each: `weight = (byte / 255) ** 2`, row by row (queries x keys).

    The square keeps small weights apart: the step next to 0 is 1.5e-5, next to 1 it is 0.008.
    """

    layer: int
    head: int
    num_queries: int
    num_keys: int
    weights: bytes


@dataclass(frozen=True, kw_only=True)
class Inspection(Result):
    """What the heads of a model do on a text.

    Args:
        heads: one per layer and head, layer by layer.
        maps: maps of the text that is shown, one per layer and head; empty where none were asked for.
        tokens: the shown text's tokens as the words they stand for.
        num_texts: texts that the statistics average over.
        num_windows: windows that they were read in, at least one a text.
        is_example: whether the module read example input instead of texts.
        num_tokens: real tokens in them.
        window: longest window that the text was read in, special tokens included.
        is_causal: whether queries see earlier keys only.
        notes: what a reader must know: windows, eager mode, random input, truncation.
    """

    heads: tuple[HeadStatistics, ...]
    maps: tuple[AttentionMap, ...]
    tokens: tuple[str, ...]
    num_texts: int
    num_windows: int
    num_tokens: int
    window: int
    is_causal: bool
    is_example: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step(Result):
    """One step of a computation, every number of it.

    Args:
        name: what is computed, as later steps call it.
        equation: how, in terms of earlier steps.
        shape: sizes of `values`; () = a single number.
        values: the numbers, nested as the shape says.
    """

    name: str
    equation: str
    shape: tuple[int, ...]
    values: Any


@dataclass(frozen=True, kw_only=True)
class Variant(Result):
    """The same attention with one thing changed.

    Args:
        name: what is changed.
        weights: (T, S) or (H, T, S), as nested tuples.
        output: (T, any).
        largest_change: of a number of the output.
    """

    name: str
    weights: Any
    output: Any
    largest_change: float


@dataclass(frozen=True, kw_only=True)
class Walkthrough(Result):
    """One attention computed step by step, from the tokens to the output.

    `notes` say what to watch out for, `variants` how the result changes where a part is left out.
    """

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()

    def __getitem__(self, name: str) -> Step:
        """Return the step of that name.

        Raises:
            KeyError: there is no such step; the text names those there are.
        """
        by_name = {step.name: step for step in self.steps}
        if name not in by_name:
            raise KeyError(f"there is no step {name!r}; there are {', '.join(by_name)}")
        return by_name[name]

    def to_text(self) -> str:
        """Return every step with its equation, shape and numbers, within 80 columns."""
        from headwise.inspection.walkthrough_text import write_walkthrough

        return write_walkthrough(self)
