"""What `inspection` answers with: statistics of heads, their roles, small maps, and a computation step by step."""

import struct
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
    """What one head does on texts, averaged over their real (not padded) queries where nothing else is said.

    None stands for what was not measured. `w_ij` is the weight of query i on key j, `n_i` the number of keys that i may
    read.

    Args:
        layer, head: which one, from 0.
        entropy: of a query's weights, in nats.
        normalized_entropy: entropy / log(visible keys), over queries that see two keys or more; 0: one key, 1: uniform.
            Weights beside a sink sum to less than 1, and may then have more: n / (e log n), 1.06 for n = 2 keys.
        sparsity: share of the visible keys that hold less than a tenth of the uniform weight 1 / (visible keys).
        distance: mean |query index - key index|, weighted by attention, in tokens. None, as all that is measured along
            a text, where the keys are of another one (cross-attention).
        sink_mass: mean weight on the first token.
        max_weight: mean of the largest weight of a query.
        roles: score of every positional role.
        num_effective_keys: exp(entropy): how many keys, alike in weight, would have this entropy.
        num_keys_for_90_percent: least number of keys that hold 90 % of a query's weight. Costly: None by default.
        patch_distance: mean Euclidean distance on the grid of an image, in patches, from a query's patch to those that
            it reads, weighted by attention on patches alone; None where tokens are no patches.
        distance_spread: standard deviation of |query index - key index| under a query's weights, in tokens.
        variability: sum_x sum_ij |w_ij(x) - mean_ij| / (2 sum_x sum_ij w_ij(x)) over the first 10 tokens of the first
            100 texts x that have them; 0: the same map for all texts; None for fewer than two such texts.
        diagonal_mass: mean weight on the 5 keys with |i - j| <= 2.
        uniform_diagonal_mass: what it would be for uniform weights: the mean share of those keys in the visible ones.
        block_mass: mean weight on the keys of a query's own block, of 16 tokens counted from the text's first one.
        uniform_block_mass: what it would be for uniform weights.
        padding_mass: mean weight on padding, as the model itself weighs it; 0 where the model masks padding.
        mean_abs_score: mean of |score| over a query's visible keys; scores are what the softmax reads. None, as the
            next two, where a layer returned its weights and no scores.
        max_abs_score: largest |score| of all visible pairs.
        score_spread: standard deviation of a query's scores over its visible keys.
        stable_rank: mean over texts of ||A||_F^2 / ||A||_2^2, A being a text's map. Costly: None by default.
        num_nan_queries: real queries with a NaN among their weights; statistics of such weights are NaN.
        num_empty_queries: real queries that may read no real key; they count in no mean.

    Source: Vig and Belinkov 2019, "Analyzing the Structure of Attention in a Transformer Language Model" (distance,
    variability); Voita et al. 2019, "Analyzing Multi-Head Self-Attention" (max_weight: confidence);
    Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse" (entropy).
    """

    layer: int
    head: int
    entropy: float
    normalized_entropy: float
    sparsity: float
    distance: float | None
    sink_mass: float
    max_weight: float
    roles: tuple[Role, ...]
    num_effective_keys: float | None = None
    num_keys_for_90_percent: float | None = None
    distance_spread: float | None = None
    variability: float | None = None
    diagonal_mass: float | None = None
    uniform_diagonal_mass: float | None = None
    block_mass: float | None = None
    uniform_block_mass: float | None = None
    padding_mass: float | None = None
    mean_abs_score: float | None = None
    max_abs_score: float | None = None
    score_spread: float | None = None
    stable_rank: float | None = None
    num_nan_queries: int | None = None
    num_empty_queries: int | None = None
    patch_distance: float | None = None


@dataclass(frozen=True, kw_only=True)
class HeadDivergence(Result):
    """How far apart heads are: the mean Jensen-Shannon divergence between the weights of every two.

    Args:
        heads: (layer, head) of each row and column.
        divergence: in nats, symmetric, 0 on the diagonal; log 2 = 0.69 for heads that never read the same key.
    """

    heads: tuple[tuple[int, int], ...]
    divergence: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class AttentionMap(Result):
    """Weights of one head on one text, 8 bits each: `weight = (byte / 255) ** 2`, row by row (queries x keys).

    The square keeps small weights apart: the step next to 0 is 1.5e-5, next to 1 it is 0.008.

    Args:
        layer, head: which one, from 0.
        num_queries, num_keys: rows and columns.
        weights: the bytes.
        tile: tokens that a row and a column stand for. Above 1, a weight is that of all keys of the column together,
            the mean over the queries of the row; the last row and column may stand for fewer.
    """

    layer: int
    head: int
    num_queries: int
    num_keys: int
    weights: bytes
    tile: int = 1


@dataclass(frozen=True, kw_only=True)
class TopKeys(Result):
    """The keys with the largest weights of every query of one text in one head, exactly.

    Args:
        layer, head: which one, from 0.
        num_queries: queries, one per token.
        num_keys: keys kept of each, the heaviest first.
        keys: their numbers, as 4-byte little-endian integers row by row (queries x keys); -1: the query has no more.
        weights: their weights, as 4-byte little-endian floats in the same order.
    """

    layer: int
    head: int
    num_queries: int
    num_keys: int
    keys: bytes
    weights: bytes

    def of_query(self, query: int) -> tuple[tuple[int, float], ...]:
        """Return (key, weight) of a query's heaviest keys.

        Raises:
            IndexError: there is no such query.
        """
        if not 0 <= query < self.num_queries:
            raise IndexError(f"query must be a number from 0 to {self.num_queries - 1}; got {query}")
        offset = 4 * query * self.num_keys
        keys = struct.unpack_from(f"<{self.num_keys}i", self.keys, offset)
        weights = struct.unpack_from(f"<{self.num_keys}f", self.weights, offset)
        return tuple((key, weight) for key, weight in zip(keys, weights, strict=True) if key >= 0)

    def remainder(self, query: int) -> float:
        """Return the weight of a query on all other keys (and on a sink, where there is one)."""
        return max(0.0, 1.0 - sum(weight for _, weight in self.of_query(query)))


@dataclass(frozen=True, kw_only=True)
class HeadRelation(Result):
    """How one head follows a relation.

    Args:
        layer, head: which one, from 0.
        share: of pairs whose first token puts its strongest weight on the second; equal strongest weights share it.
        weight: mean weight of the first token on the second.
        null_share: the same head's share in the null; None without a null.
    """

    layer: int
    head: int
    share: float
    weight: float
    null_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class RelationScores(Result):
    """How heads follow one relation, beside what the best fixed offset follows.

    Args:
        name: of the relation.
        num_pairs: labelled pairs.
        best_offset: number of tokens from the first to the second token in most pairs.
        offset_share: share of pairs with that offset: what a head that always looks there follows.
        heads: one per layer and head, layer by layer.
    """

    name: str
    num_pairs: int
    best_offset: int
    offset_share: float
    heads: tuple[HeadRelation, ...]

    def to_text(self) -> str:
        """Return the five heads that follow most pairs, beside the best offset and the null."""
        pairs = f"{self.num_pairs} pair{'' if self.num_pairs == 1 else 's'}"
        away = abs(self.best_offset)
        where = f"{away} token{'' if away == 1 else 's'} {'before' if self.best_offset < 0 else 'after'}"
        lines = [
            f"{self.name}: {pairs}; always looking {where if away else 'at the token itself'} follows "
            f"{self.offset_share:.0%} of them"
        ]
        for head in sorted(self.heads, key=lambda head: -head.share)[:5]:
            null = "" if head.null_share is None else f" (null {head.null_share:.0%})"
            lines.append(f"  layer {head.layer}, head {head.head}: {head.share:.0%}{null}")
        if any(head.null_share is not None for head in self.heads):
            lines.append("  null: the same head of the model held against, an untrained one by default")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class PatchGrid(Result):
    """Which tokens of a text are patches of an image, row by row from the top left.

    Args:
        rows, columns: patches down and across.
        first: number of the first token that is a patch; those before and after all patches are no patches ([CLS],
            registers).
        picture: the image as a PNG.
    """

    rows: int
    columns: int
    first: int
    picture: bytes


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
        divergences: one per layer, how far apart its heads are; empty where costly statistics were not asked for.
        divergence_across_layers: the same for all heads of the model; None where it was not asked for.
        overviews: whole maps of the shown text, down-sampled, one per layer and head; empty where none were asked for.
        top_keys: the heaviest keys of the shown text's queries, one per layer and head; empty as well.
        relations: one per relation that the caller has labelled.
        stack: name of the stack of layers that was read, where the model has several.
        key_tokens: the shown text's keys as words, where they are others than the queries (cross-attention); else None.
        num_prompt_tokens: of the shown text, how many tokens were given; the model wrote the rest itself, each token
            reading those before it. None: all were given.
        patches: the image that the shown text's tokens are patches of; None: they are of none.
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
    divergences: tuple[HeadDivergence, ...] = ()
    divergence_across_layers: HeadDivergence | None = None
    overviews: tuple[AttentionMap, ...] = ()
    top_keys: tuple[TopKeys, ...] = ()
    relations: tuple[RelationScores, ...] = ()
    stack: str | None = None
    key_tokens: tuple[str, ...] | None = None
    num_prompt_tokens: int | None = None
    patches: PatchGrid | None = None


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
        from headwise.inspection.walkthrough.text import write_walkthrough

        return write_walkthrough(self)
