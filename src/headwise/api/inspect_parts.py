"""All that `headwise.inspect` shows beside one another: stacks of layers, or another text or checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwise.api.inspect_results import InspectedPart
from headwise.api.looking import MAIN, Read, look_at_stacks
from headwise.api.running import explained
from headwise.errors import ModelError
from headwise.inspection.changes import head_changes, require_same_heads
from headwise.inspection.results import Inspection
from headwise.inspection.texts.pairs import is_encoder_decoder
from headwise.integrations.transformers_attention import is_transformers_model
from headwise.loading.module import LoadedModule

ENCODER = "encoder"
ONE_COMPARED = "Compared are the heads of the stack {} alone; give stack to compare those of another."


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

    In a comparison the stack that `read` names is looked at, else the first, of an encoder-decoder that reads texts the
    encoder alone: its decoder then has nothing to read or to write.

    Args:
        loaded: the model.
        read: what it reads.
        other: the model that is compared with, the same one for another text; None: nothing is compared.
        other_texts: what it reads; None: the same.
        names: what both are called.
        progress: as of `look_at_stacks`.
        before_other: called before the other is looked at.

    Raises:
        HeadwiseError: as of `look_at_stacks`; the models that are compared read other things, or have other heads.
    """
    encoder_alone = False
    if other is not None:
        _require_same_kind(loaded, other)
        encoder_alone = _reads_pairs(loaded, read)
    if other is not None and encoder_alone:
        loaded, other = _encoder_of(loaded), _encoder_of(other)
        read = replace(read, targets=None, generate=None)
    found = look_at_stacks(loaded, read, progress=progress)
    if encoder_alone:
        (alone,) = found.values()
        found = {ENCODER: replace(alone, stack=ENCODER)}
    first = next(iter(found))
    main = found[first]
    if other is None:
        others = [each for each in found.items() if each[0] != first]
        parts = tuple(InspectedPart(name=name, inspection=each, comparable=False) for name, each in others)
        return Parts(name=first if parts else None, main=main, others=parts)
    before_other()
    if encoder_alone or len(found) > 1:
        main = replace(main, notes=(ONE_COMPARED.format(first), *main.notes))
    stack = None if encoder_alone or first == MAIN else first
    # targets belong to the first texts; on others the decoder reads what it writes
    again = replace(read, stack=stack)
    if other_texts is not None:
        # relations are between tokens of the first texts
        detail = replace(read.detail, relations=(), null=None)
        again = replace(again, texts=other_texts, targets=None, detail=detail)
    with explained(other.name):
        (against,) = look_at_stacks(other, again, progress=progress).values()
    if encoder_alone:
        against = replace(against, stack=ENCODER)
    require_same_heads(main, against)
    name, other_name = names if names[0] != names[1] else (names[0], f"{names[1]} (the other)")
    part = InspectedPart(name=other_name, inspection=against, comparable=True, changes=head_changes(main, against))
    return Parts(name=name, main=main, others=(part,))


def _reads_pairs(loaded: LoadedModule, read: Read) -> bool:
    """Tell whether a model would read texts in its encoder, and others in its decoder, and no stack is named."""
    reads_texts = loaded.tokenizer is not None and read.inputs is None and read.image is None
    return reads_texts and read.stack is None and is_encoder_decoder(loaded.module)


def _encoder_of(loaded: LoadedModule) -> LoadedModule:
    encoder: Any = loaded.module.get_encoder()  # type: ignore[operator]
    return replace(loaded, module=encoder, config=None)  # what the config says is of both


def _require_same_kind(loaded: LoadedModule, other: LoadedModule) -> None:
    """Refuse models that cannot read the same.

    Raises:
        ModelError: one is an encoder-decoder and the other is not, or one reads images and the other texts.
    """
    models: list[Any] = [loaded.module, other.module]
    if not all(is_transformers_model(model) for model in models):
        return
    reads = [model.main_input_name for model in models]
    if reads[0] != reads[1]:
        raise ModelError(
            f"heads are compared on what both models read; {loaded.name} reads {reads[0]}, {other.name} {reads[1]}"
        )
    are_pairs = [is_encoder_decoder(model) for model in models]
    if are_pairs[0] != are_pairs[1]:
        kinds = ["is an encoder-decoder" if is_pair else "has one stack of layers" for is_pair in are_pairs]
        raise ModelError(
            f"heads are compared with a model of the same layers and heads; {loaded.name} {kinds[0]}, {other.name} "
            f"{kinds[1]}"
        )
