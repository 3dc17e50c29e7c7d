"""What an explanation of one head answers with, and how its numbers are written, in the terminal and on the page."""

import math
from dataclasses import dataclass

from headwise.inspection.results import Walkthrough
from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class ExplainedKey(Result):
    """One key that the query may read. None stands for what the layer did not tell.

    Args:
        index: its number among the tokens.
        token: the word it stands for.
        weight: of the query on it.
        product: `q . k`, before the scale.
        bias: what is added to its scaled (and capped) score; None = nothing is.
        score: what the softmax reads.
        exponential: `exp(score - the largest)`.
        value_norm: `||v||`.
        contribution: `weight * ||v||`.
        written: `weight * ||v @ w_o||`, w_o being the head's rows of the output projection.
        share: of what the head puts out, the part along it that this key brings: `c . o / (o . o)` of the key's
            contribution c and the sum o; shares sum to 1, and one that pulls the other way is below 0.

    Source: Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3 (written: the norm of a weighted,
    transformed vector).
    """

    index: int
    token: str
    weight: float
    product: float | None = None
    bias: float | None = None
    score: float | None = None
    exponential: float | None = None
    value_norm: float | None = None
    contribution: float | None = None
    written: float | None = None
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class ScorePart(Result):
    """What one dimension of a head, or two that are turned together, adds to a score.

    Args:
        dimensions: one number, or the two of a rotation pair.
        products: `q_d * k_d` of each.
        score: their sum times the scale.
        wavelength: tokens after which the pair has turned once; None = it is no such pair.
    """

    dimensions: tuple[int, ...]
    products: tuple[float, ...]
    score: float
    wavelength: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExplainedScore(Result):
    """How the score of one key came about.

    Args:
        index, token: the key.
        score: what the softmax reads.
        scaled: `scale * q . k`: the sum of all parts.
        parts: all of them, the largest first, whichever its sign.
    """

    index: int
    token: str
    score: float
    scaled: float
    parts: tuple[ScorePart, ...]


@dataclass(frozen=True, kw_only=True)
class Contrast(Result):
    """Why the query gives one key more weight than another.

    Args:
        index, token: the one key.
        against, against_token: the other.
        score: difference of their scores.
        scaled: difference of `scale * q . k`: the sum of all parts.
        bias: difference of what is added; 0 where nothing is.
        ratio: weight of the one over that of the other, `exp(score)`; None where that is no finite number.
        parts: differences by dimension or pair, the largest first.
    """

    index: int
    token: str
    against: int
    against_token: str
    score: float
    scaled: float
    bias: float
    ratio: float | None
    parts: tuple[ScorePart, ...]


@dataclass(frozen=True, kw_only=True)
class HeadExplanation(Walkthrough):
    """One query of one head of a real model, from its products with the keys to what it puts out.

    `steps` hold every number, in the order in which it is computed; the rest says it by key.

    Args:
        model: its name.
        layer, head: which one, from 0.
        kv_head: the key/value head that it reads; None where that is not known.
        query: number of the token that reads.
        tokens: the words that the queries stand for.
        key_tokens: those of the keys, where they are others (cross-attention); None = the same.
        keys: those that the query may read, in the order of the text.
        hidden: numbers of the keys that it may not read; they have a weight of 0 and no score.
        scores: how the largest scores came about, the heaviest key first.
        scale: factor on `q . k`; None where a layer only returns its weights.
        sink_weight: what a learned sink takes of the weight; None = there is none.
        contrast: why the one key rather than another, where that was asked for.
        output_norm: norm of what the head puts out for the query.
        written_norm: norm of what the output projection makes of it.
        page: the file that was written; None = none.
    """

    model: str
    layer: int
    head: int
    kv_head: int | None
    query: int
    tokens: tuple[str, ...]
    key_tokens: tuple[str, ...] | None = None
    keys: tuple[ExplainedKey, ...]
    hidden: tuple[int, ...]
    scores: tuple[ExplainedScore, ...] = ()
    scale: float | None = None
    sink_weight: float | None = None
    contrast: Contrast | None = None
    output_norm: float | None = None
    written_norm: float | None = None
    page: str | None = None

    def to_text(self) -> str:
        """Return the explanation as tables within 80 columns."""
        from headwise.inspection.walkthrough.head_text import write_explanation

        return write_explanation(self)


def or_zero(number: float | None) -> float:
    """Return a number, 0 for None and NaN."""
    return 0.0 if number is None or math.isnan(number) else number


def order_keys(told: HeadExplanation) -> list[ExplainedKey]:
    """Return the keys, the heaviest first."""
    return sorted(told.keys, key=lambda key: (-or_zero(key.weight), key.index))


def order_brought(told: HeadExplanation) -> list[ExplainedKey]:
    """Return the keys, first the one that brings most: by what is written where that is known."""
    return sorted(order_keys(told), key=lambda key: -or_zero(key.contribution if key.written is None else key.written))


def format_signed(number: float | None, decimals: int = 3) -> str:
    """Write a number with its sign where that is minus; large or tiny ones with a power of ten; – for None."""
    if number is None:
        return "–"
    if math.isfinite(number) and number and not 10**-decimals / 2 <= abs(number) < 10**5:
        return f"{number:.2e}"
    return f"{number:.{decimals}f}"


def format_percent(share: float | None) -> str:
    """Write a share as percent, what rounds to nothing without a sign; – for None."""
    return "–" if share is None else f"{round(100 * share, 1) + 0.0:.1f}%"  # -0.0 + 0.0 = 0.0


def format_wavelength(wavelength: float | None) -> str:
    """Write after how many tokens a pair has turned once: 6.283 tokens, 213,546 tokens; nothing for None."""
    if wavelength is None:
        return ""
    return f"{wavelength:.4g} tokens" if wavelength < 1000 else f"{wavelength:,.0f} tokens"


def format_number(number: float, *, whole: bool | None = None) -> str:
    """Write a number with four decimals, or none where it is whole: with `whole` where all its neighbours are."""
    return str(int(number)) if (number == int(number) if whole is None else whole) else f"{number:.4f}"
