"""How one small attention changes without its scale, without its mask, with one head: for `headwise explain`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headwise.errors import ConfigError
from headwise.inspection.results import Variant, Walkthrough
from headwise.inspection.walkthrough.compute import (
    EXAMPLE_NOTE,
    EXAMPLE_W_K,
    EXAMPLE_W_Q,
    EXAMPLE_W_V,
    EXAMPLE_X,
    Matrix,
    walk_through,
)
from headwise.masks.patterns import Causal, Mask


class Example(NamedTuple):
    """What is walked through: the arguments of `walk_through`."""

    x: Matrix
    w_q: Matrix
    w_k: Matrix
    w_v: Matrix
    w_o: Matrix | None = None
    num_heads: int = 1
    mask: Mask | None = None
    notes: tuple[str, ...] = ()


EXAMPLES: Mapping[str, Example] = {
    "two-tokens": Example(EXAMPLE_X, EXAMPLE_W_Q, EXAMPLE_W_K, EXAMPLE_W_V, notes=(EXAMPLE_NOTE,)),
    "two-heads": Example(
        x=((1.0, 0.0, 2.0, 0.0), (0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 0.0, 0.0)),
        w_q=((1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0), (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0)),
        w_k=((1.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0), (1.0, 0.0, 0.0, 1.0)),
        w_v=((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0)),
        w_o=((1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 1.0, 0.0), (0.0, 1.0, -1.0, 0.0), (1.0, 0.0, 0.0, -1.0)),
        num_heads=2,
        mask=Causal(),
        notes=(
            "Each head has half of the columns of w_q, w_k and w_v, so two heads have as many parameters as one; w_o "
            "mixes what they found.",
        ),
    ),
}
"""The examples, by name: small enough to check by hand."""


def explain_example(name: str = "two-tokens") -> Walkthrough:
    """Walk through an example of EXAMPLES, and say how its result changes with each part left out.

    Raises:
        ConfigError: there is no such example.
    """
    if not isinstance(name, str) or name not in EXAMPLES:
        raise ConfigError(f"example must be one of {', '.join(EXAMPLES)}; got {name!r}")
    example = EXAMPLES[name]
    whole = _walk(example)
    changes: list[tuple[str, dict[str, Any]]] = [("without the scale", {"scale": 1.0})]
    if example.mask is None:
        changes.append(("with a causal mask", {"mask": Causal()}))
    else:
        changes.append(("without the mask", {"mask": None}))
    if example.num_heads > 1:
        changes.append(("with one head", {"num_heads": 1}))
    return replace(whole, variants=tuple(_variant(what, whole, _walk(example, **given)) for what, given in changes))


def _walk(example: Example, **changes: Any) -> Walkthrough:
    return walk_through(**{**example._asdict(), **changes})


def _variant(what: str, whole: Walkthrough, changed: Walkthrough) -> Variant:
    output = changed["output"].values
    pairs = zip(whole["output"].values, output, strict=True)
    return Variant(
        name=what,
        weights=changed["weights"].values,
        output=output,
        largest_change=max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True)),
    )
