"""The relations that a user's file labels, made ready to be read: between tokens, beside an untrained model."""

import os
from dataclasses import replace
from pathlib import Path

from headwise.api.looking import Read, look_at_stacks
from headwise.errors import ModelError, TextError
from headwise.inspection.detail import Detail
from headwise.inspection.relations.labelled import relations_between_words
from headwise.inspection.relations.relation import Relation
from headwise.inspection.results import Inspection
from headwise.inspection.roles.untrained import untrained_twin
from headwise.inspection.texts.pairs import is_encoder_decoder
from headwise.inspection.texts.windows import model_length
from headwise.loading.module import LoadedModule
from headwise.loading.relations import read_relations

SEED = 0  # of the untrained model's weights


def with_relations(
    loaded: LoadedModule, read: Read, path: str | os.PathLike[str], *, other: LoadedModule | None = None
) -> Read:
    """Return what is read with the relations that a file labels in its texts, held against an untrained model.

    The null is the same model with random weights, which reads the texts once; where it cannot be built there is none.

    Args:
        loaded: the model, with its tokenizer.
        read: what it reads.
        path: the file, as `loading.relations.read_relations` describes it.
        other: another model that reads the same.

    Raises:
        TextError: there is no tokenizer, the model has several stacks, the file is not as it should be, or the other
            model cuts the words into other tokens.
    """
    if loaded.tokenizer is None or read.inputs is not None or read.image is not None:
        raise TextError("relations are labelled between words of a text, and no text is read here: leave them out")
    if is_encoder_decoder(loaded.module):
        raise TextError(
            f"relations are labelled in a file for a model of one stack, and {loaded.name} is an encoder-decoder; "
            'in Python give stack="encoder", detail=headwise.Detail(relations=(headwise.Relation(...),))'
        )
    relations = _between_tokens(loaded, read, path)
    if other is not None and _between_tokens(other, read, path) != relations:
        raise TextError(
            f"the words of relations must be the same tokens in both models; {loaded.name} and {other.name} cut the "
            "text otherwise: look at them one by one"
        )
    null = _untrained_null(loaded, read, relations)
    return replace(read, detail=replace(read.detail, relations=(*read.detail.relations, *relations), null=null))


def _between_tokens(loaded: LoadedModule, read: Read, path: str | os.PathLike[str]) -> tuple[Relation, ...]:
    texts = read.own_texts
    return relations_between_words(
        loaded.tokenizer,
        texts,
        read_relations(Path(path), texts),
        window=model_length(loaded.module, loaded.tokenizer) if read.window is None else read.window,
        max_length=read.length_of_texts(loaded),
    )


def _untrained_null(loaded: LoadedModule, read: Read, relations: tuple[Relation, ...]) -> Inspection | None:
    """Return what an untrained model makes of the relations; None where none can be built, or a null is given."""
    if read.detail.null is not None or read.detail.relations:
        return read.detail.null
    try:
        twin = untrained_twin(loaded.module, seed=SEED)
    except ModelError:
        return None
    plain = replace(read, map_tokens=0, generate=None, detail=Detail(relations=relations))
    (null,) = look_at_stacks(replace(loaded, module=twin), plain, only_one=True).values()
    return null
