"""A walkthrough as plain text: one paragraph a step, its numbers in columns."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from headwise.inspection.results import Step, Variant, Walkthrough
from headwise.inspection.walkthrough.results import format_number

COLUMNS = 80
INDENT = "    "


def write_walkthrough(walkthrough: Walkthrough) -> str:
    """Write every step with its equation, shape and numbers, within 80 columns."""
    paragraphs = ["\n".join(_write_step(step)) for step in walkthrough.steps]
    paragraphs += [textwrap.fill(note, COLUMNS) for note in walkthrough.notes]
    paragraphs += ["\n".join(_write_variant(variant)) for variant in walkthrough.variants]
    return "\n\n".join(paragraphs)


def _write_variant(variant: Variant) -> Iterator[str]:
    yield f"{variant.name}: the output changes by up to {format_number(variant.largest_change, whole=False)}"
    yield "  weights"
    yield from _write_heads(variant.weights)
    yield "  output"
    yield from _write_matrix(variant.output)


def _write_step(step: Step) -> Iterator[str]:
    shape = "×".join(map(str, step.shape)) or "a number"
    yield from textwrap.wrap(f"{step.name} = {step.equation}  [{shape}]", COLUMNS, subsequent_indent=INDENT)
    if not step.shape:
        yield INDENT + format_number(step.values, whole=False)
    else:
        yield from _write_heads(step.values)


def _write_heads(values: Sequence[Any]) -> Iterator[str]:
    """Write a matrix, or one a head."""
    if not isinstance(values[0][0], Sequence):
        yield from _write_matrix(values)
        return
    for number, head in enumerate(values):
        yield f"  head {number}"
        yield from _write_matrix(head)


def _write_matrix(matrix: Sequence[Sequence[float]]) -> Iterator[str]:
    whole = all(number == int(number) for row in matrix for number in row)
    cells = [[format_number(number, whole=whole) for number in row] for row in matrix]
    width = max(len(cell) for row in cells for cell in row)
    for row in cells:
        line = "  ".join(cell.rjust(width) for cell in row)
        yield from (
            textwrap.wrap(line, COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT + "  ", drop_whitespace=True)
            if len(INDENT + line) > COLUMNS
            else [INDENT + line]
        )
