"""The changes of a fit block by block, as its text and its page both list them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headwise.cost.planning.results import Change
from headwise.report.fit_figures import SHARDINGS
from headwise.results import format_bytes

_SHARDING = re.compile(r"\bsharding '(\w+)'")
_ATTENTION = re.compile(r"\battention '(sdpa|eager)'")
LEAST_SHARE = 1000
"""A change that frees less than one part in so many of the peak frees nothing that matters."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Changes of one kind in their order, under a heading. `form`: ranked by figures, or told by their reasons."""

    heading: str
    about: str
    changes: tuple[Change, ...]
    form: Literal["ranked", "sharded", "reasons"] = "ranked"


def change_blocks(changes: Sequence[Change]) -> list[Block]:
    """Return every change in one block: same result, altered, over more devices, of no use, not possible."""
    applied = [change for change in changes if change.applies]
    useful = [change for change in applied if frees_something(change)]
    alone = [change for change in useful if not change.other_gpus]
    blocks = (
        Block(
            heading="The same result",
            about="The same model, batch and mathematics, but for rounding.",
            changes=tuple(change for change in alone if change.list == "same"),
        ),
        Block(
            heading="Alters the model or the batch",
            about="Another model, another batch or an approximation: what comes out is not the same.",
            changes=tuple(change for change in alone if change.list == "alters"),
        ),
        Block(
            heading="Over more devices",
            about="What each device holds, and what it sends to the others in one step.",
            changes=tuple(change for change in useful if change.other_gpus),
            form="sharded",
        ),
        Block(
            heading="Frees nothing",
            about=f"Less than 1/{LEAST_SHARE:,} of the peak, or it takes more.",
            changes=tuple(change for change in applied if not frees_something(change)),
            form="reasons",
        ),
        Block(
            heading="Not possible here",
            about="What stands in the way of each.",
            changes=tuple(change for change in changes if not change.applies),
            form="reasons",
        ),
    )
    return [block for block in blocks if block.changes]


def frees_something(change: Change) -> bool:
    """Say whether a change frees a share of the peak that matters."""
    return change.frees_bytes > 0 and _matters(change)


def reason_words(change: Change) -> str:
    """Say what a change that frees nothing takes, where that matters, and why it does not help."""
    takes = f"takes {format_bytes(-change.frees_bytes)} more" if change.frees_bytes < 0 and _matters(change) else ""
    return ": ".join(words for words in (takes, plain_reason(change.why or "")) if words)


def plain_reason(why: str) -> str:
    """Return a reason with the words of the changes in place of the names of arguments, which an error speaks of."""
    why = _SHARDING.sub(lambda match: SHARDINGS.get(match[1], match[0]), why)
    return _ATTENTION.sub(r"\1 attention", why)


def shorten_reason(why: str, limit: int) -> str:
    """Return as much of a reason as a limit of letters holds: whole clauses, or whole words, and no part of a shape."""
    why = " ".join(why.split())
    if len(why) <= limit:
        return why
    clause = word = depth = 0
    for place, letter in enumerate(why[:limit]):
        depth += (letter in "([") - (letter in ")]")
        if letter == " " and depth <= 0:
            word = place
            if why[place - 1] in ",;:":
                clause = place
    cut = clause or word
    return f"{why[:cut].rstrip(',;: ')} ..." if cut else why


def _matters(change: Change) -> bool:
    before = 0 if change.peak_bytes is None else change.peak_bytes + change.frees_bytes
    return abs(change.frees_bytes) * LEAST_SHARE >= before
