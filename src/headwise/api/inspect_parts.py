"""All that `headwise.inspect` shows beside one another: stacks of layers, or another text or checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headwise.api.inspect_results import InspectedPart
from headwise.api.looking import MAIN, Read, look_at_stacks
from headwise.inspection.changes import head_changes, require_same_heads
from headwise.inspection.results import Inspection
from headwise.loading.module import LoadedModule


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is shown.

    Args:
        name: what the main part is called; None where it stands alone.
        main: the main part.
        others: what stands beside it.
    """

    name: str | None
    main: Inspection
    others: tuple[InspectedPart, ...] = ()


def look_at_all(
    loaded: LoadedModule,
    read: Read,
    *,
    other: LoadedModule | None,
    other_texts: Sequence[str] | None,
    names: tuple[str, str],
    progress: Callable[[int, int], None],
    before_other: Callable[[], None],
) -> Parts:
    """Look at the stacks of a model, or at one of them twice: on two texts, or in two models.

    In a comparison the stack that `read` names is looked at, else the first.

    Args:
        loaded: the model.
        read: what it reads.
        other: the model that is compared with, the same one for another text; None: nothing is compared.
        other_texts: what it reads; None: the same.
        names: what both are called.
        progress: as of `look_at_stacks`.
        before_other: called before the other is looked at.

    Raises:
        HeadwiseError: as of `look_at_stacks`; the heads that are compared are not as many.
    """
    found = look_at_stacks(loaded, read, progress=progress)
    first = next(iter(found))
    main = found[first]
    if other is None:
        others = [each for each in found.items() if each[0] != first]
        parts = tuple(InspectedPart(name=name, inspection=each, comparable=False) for name, each in others)
        return Parts(name=first if parts else None, main=main, others=parts)
    before_other()
    stack = None if first == MAIN else first
    # targets belong to the first texts; on others the decoder reads what it writes
    again = replace(read, stack=stack)
    if other_texts is not None:
        # relations are between tokens of the first texts
        detail = replace(read.detail, relations=(), null=None)
        again = replace(again, texts=other_texts, targets=None, detail=detail)
    (against,) = look_at_stacks(other, again, progress=progress).values()
    require_same_heads(main, against)
    name, other_name = names if names[0] != names[1] else (names[0], f"{names[1]} (the other)")
    part = InspectedPart(name=other_name, inspection=against, comparable=True, changes=head_changes(main, against))
    return Parts(name=name, main=main, others=(part,))
