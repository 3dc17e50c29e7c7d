"""The arithmetic of one query of one head, in float64, step by step: from `q . k` to what the head puts out."""

from collections.abc import Sequence

from torch import Tensor

from headwise.errors import TextError
from headwise.inspection.walkthrough.head_output import Mixed, mix_values
from headwise.inspection.walkthrough.head_parts import contrast_of, explain_score, sum_pairs
from headwise.inspection.walkthrough.head_reading import HeadReading
from headwise.inspection.walkthrough.head_scores import Scored, score_keys
from headwise.inspection.walkthrough.pairs import RotationPairs
from headwise.inspection.walkthrough.results import ExplainedKey, ExplainedScore, HeadExplanation, or_zero
from headwise.inspection.walkthrough.steps import KeptSteps

PADDING = "(padding)"
NOT_TOLD = (
    "The layer returns its weights alone, so that these cannot be shown: q, k, the products of their dimensions, the "
    "scale, terms added to scores, scores, exponentials, and what each key brings to the output."
)
NO_VALUES = "What each key brings to the output cannot be shown: the layer does not tell its values."
CHANGED_AFTER = (
    "Between this head and the output projection stands something more, a gate or a norm: what the projection reads is "
    "not the weighted sum of the values, and its norms are left out."
)


def explain_reading(
    reading: HeadReading,
    *,
    model: str,
    tokens: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    num_scores: int = 3,
    against: int | None = None,
    pairs: RotationPairs | None = None,
    notes: Sequence[str] = (),
) -> HeadExplanation:
    """Explain what one head's query reads: every step from its products with the keys to the head's output.

    `score_j = softcap * tanh(scale * q . k_j / softcap) + bias_j` (without a softcap `scale * q . k_j + bias_j`),
    `weight_j = exp(score_j) / (sum of exp(score) over visible keys + exp(sink))`, `output = sum_j weight_j v_j`.

    Args:
        reading: what was read of it.
        model: its name.
        tokens: the words of the queries.
        key_tokens: those of the keys, where they are others.
        num_scores: how many of the heaviest keys have their score taken apart.
        against: number of a key: why the heaviest of the others rather than this one.
        pairs: the head's rotation pairs, where its config tells them.
        notes: what else a reader must know.

    Raises:
        TextError: `against` is no key that the query may read, or there is no other.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1; Kobayashi et al. 2020, "Attention is Not
    Only a Weight", section 3.
    """
    labels = _labels(reading, key_tokens if key_tokens is not None else tokens)
    visible = reading.visible.nonzero().flatten()
    seen = visible.tolist()
    steps = KeptSteps()
    mass = reading.weights.double()[visible]
    scored = score_keys(reading, visible, steps)
    if scored is None:
        steps.add("mask", "1 = the query may read the key", reading.visible.double())
        steps.add("weights", "as the layer returns them", mass)
    heaviest = sorted(range(len(seen)), key=lambda at: (-or_zero(float(mass[at])), at))
    scores: tuple[ExplainedScore, ...] = ()
    if scored is not None:
        told = scored.by_key(seen)
        chosen = [seen[at] for at in heaviest[:num_scores]]
        scores = tuple(explain_score(reading, told[key], key, labels[key], pairs) for key in chosen)
        _add_parts(reading, chosen, pairs, steps)
    mixed = mix_values(reading, visible, mass if scored is None else scored.weights, steps)
    contrast = None
    if against is not None:
        order = [seen[at] for at in heaviest if seen[at] != against]
        _require_contrast(reading, against, seen, order, scored)
        assert scored is not None
        contrast = contrast_of(reading, scored.by_key(seen), order[0], against, labels, pairs)
    return HeadExplanation(
        steps=tuple(steps.found),
        notes=(*notes, *reading.notes, *_notes_on(reading, scored, seen, mixed)),
        model=model,
        layer=reading.layer,
        head=reading.head,
        kv_head=reading.kv_head,
        query=reading.query,
        tokens=tuple(tokens),
        key_tokens=None if key_tokens is None else tuple(key_tokens),
        keys=tuple(_key(at, index, labels[index], mass, scored, mixed) for at, index in enumerate(seen)),
        hidden=tuple((~reading.visible).nonzero().flatten().tolist()),
        scores=scores,
        scale=reading.scale,
        sink_weight=None if scored is None or scored.sink_weight is None else float(scored.sink_weight),
        contrast=contrast,
        output_norm=mixed.output_norm,
        written_norm=mixed.written_norm,
    )


def _add_parts(reading: HeadReading, chosen: Sequence[int], pairs: RotationPairs | None, steps: KeptSteps) -> None:
    assert reading.query_vector is not None and reading.keys is not None
    products = reading.query_vector.double() * reading.keys.double()[list(chosen)]
    numbers = ", ".join(map(str, chosen))
    steps.add("products", f"query * key, number by number, of keys {numbers}", products)
    if pairs is not None:
        equation = f"products summed over each rotation pair ({pairs.pairing}): only distances of positions count in it"
        steps.add("pair_products", equation, sum_pairs(products, pairs))


def _key(at: int, index: int, token: str, mass: Tensor, scored: Scored | None, mixed: Mixed) -> ExplainedKey:
    def number(tensor: Tensor | None) -> float | None:
        return None if tensor is None else float(tensor[at])

    return ExplainedKey(
        index=index,
        token=token,
        weight=float((mass if scored is None else scored.weights)[at]),
        product=number(None if scored is None else scored.products),
        bias=number(None if scored is None else scored.bias),
        score=number(None if scored is None else scored.scores),
        exponential=number(None if scored is None else scored.exponentials),
        value_norm=number(mixed.value_norms),
        contribution=number(mixed.contributions),
        written=number(mixed.written),
        share=number(mixed.shares),
    )


def _labels(reading: HeadReading, tokens: Sequence[str]) -> list[str]:
    return [*tokens, *[PADDING] * (len(reading.visible) - len(tokens))]


def _require_contrast(
    reading: HeadReading, against: int, seen: Sequence[int], others: Sequence[int], scored: Scored | None
) -> None:
    if scored is None:
        raise TextError("two keys are held against each other by their scores, and this layer only returns its weights")
    if not 0 <= against < reading.num_keys:
        raise TextError(f"the token held against must be a key, from 0 to {reading.num_keys - 1}; got {against}")
    if against not in seen:
        raise TextError(f"token {reading.query} may not read token {against}, which so has no score to hold against")
    if not others:
        raise TextError(f"token {reading.query} reads token {against} alone: there is no other to hold against it")


def _notes_on(reading: HeadReading, scored: Scored | None, seen: Sequence[int], mixed: Mixed) -> list[str]:
    notes = []
    if not seen:
        notes.append("The query may read no key: it has no weights, and the head puts out 0 for it.")
    if scored is None:
        notes.append(NOT_TOLD)
    elif reading.values is None:
        notes.append(NO_VALUES)
    elif mixed.is_changed_after:
        notes.append(CHANGED_AFTER)
    if scored is not None and (num_bad := int((~scored.scores.isfinite()).sum())):
        notes.append(f"{num_bad} of {len(seen)} scores are not finite.")
    return notes
