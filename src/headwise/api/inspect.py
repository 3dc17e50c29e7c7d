"""`headwise.inspect`: what the heads of a model do on texts."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import check_flags, check_paths, check_progress
from headwise.api.inspect_results import InspectedModel
from headwise.api.progress import Progress, Steps
from headwise.api.subject import load, require_tokenizer, require_weights
from headwise.config.checks import require_instance, require_size, require_text, shown
from headwise.errors import ConfigError, ModelError, OutputError, TextError

if TYPE_CHECKING:
    from torch import nn

    from headwise.api.looking import Read
    from headwise.inspection.detail import Detail
    from headwise.inspection.roles.results import RoleProbe
    from headwise.loading.module import LoadedModule

LOADING, READING, PROBING, WRITING = "loading the model", "looking at the heads", "probing roles", "writing the page"
COMPARING = "looking at the other heads"
KINDS = (".html", ".svg", ".png", ".csv")
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def inspect(
    model: "str | os.PathLike[str] | nn.Module | None" = None,
    *,
    tokenizer: Any | None = None,
    text: Files | None = None,
    texts: Sequence[str] | None = None,
    target: Files | None = None,
    targets: Sequence[str] | None = None,
    generate: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    image: Any = None,
    processor: Callable[..., Any] | None = None,
    stack: str | None = None,
    against: "str | os.PathLike[str] | nn.Module | None" = None,
    against_text: Files | None = None,
    against_texts: Sequence[str] | None = None,
    window: int | None = None,
    max_length: int | None = None,
    map_tokens: int | None = None,
    costly: bool = False,
    detail: "Detail | None" = None,
    relations: str | os.PathLike[str] | None = None,
    roles: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> InspectedModel:
    """Say what every head of a model does, averaged over all tokens of texts, while the model stays on its fast path.

    A module in hand is looked at itself, on its own device and in its own dtype, and is as it was afterwards.
    Of an encoder-decoder all stacks are shown: the encoder's heads first, then the decoder's and cross-attention's,
    whose queries are the decoder's tokens and whose keys are the encoder's.

    Args:
        model: MODEL, in any form of the command line that has weights, or a module in hand; None = a small real BERT
            checkpoint that a package carries.
        tokenizer: the tokenizer of a Hugging Face model in hand; a checkpoint brings its own.
        text: file of UTF-8 text, or several; None = English prose that ships with Python.
        texts: texts in hand, in place of files.
        target: of an encoder-decoder: file of what the decoder reads beside the text, one for each text.
        targets: targets in hand, in place of files.
        generate: tokens that the model writes itself, at most: a decoder goes on from the first text, and what is shown
            is of both together; an encoder-decoder writes its target (default 32, where no target is given).
        inputs: keyword arguments of one forward pass, for a module that reads no texts. Default: random ones.
        image: what a vision model reads: a file (PNG; others with Pillow), a tensor or array of bytes, an image of
            Pillow. The maps of its heads lie over it on the page.
        processor: what makes pixels of an image, an image processor of transformers. Default: what a checkpoint's
            preprocessor_config.json says; without it the image is stretched and its pixels run from -1 to 1.
        stack: name of the stack of layers to show alone ("encoder", "decoder", "cross"), where the model has several.
        against: another model with the same layers and heads, which reads the same: a checkpoint of another step, say.
        against_text: file of another text, or several, that the same model reads: what its heads do differently.
        against_texts: other texts in hand, in place of files.
        window: tokens that are read at once, special tokens included. Default: the model's length.
        max_length: tokens of each text after which the rest is dropped. Default: 128 of the default text, 32,768 of
            another one.
        map_tokens: tokens of the first text that maps cover; 0 = no maps. Default: as many as let a page stay small;
            of a longer text an overview and each query's heaviest keys are kept, too.
        costly: whether to take the statistics, too, that take several times as long as the others.
        detail: what else is read: the top keys of each query, relations between tokens. Default: nothing.
        relations: JSON file of pairs of words that stand in a relation: `{"pronoun and noun": [["it", "cat"]]}`
            (`headwise.loading.relations.read_relations` says what it may hold). An untrained copy of the model reads
            the text, too, as their null.
        roles: whether to probe the roles of heads too, against an untrained model and shuffled texts
            (`probe_roles`); a second copy of the model is made. Of an encoder-decoder the encoder's are.
        out: file to write: a page (.html), the heads in one picture (.svg, .png) or the statistics as a table (.csv).
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written; a preset or a config has no weights;
            the heads that are compared are not as many.

    Example:
        >>> headwise.inspect(model, tokenizer=tokenizer, texts=["The cat sat on the mat."]).heads[0].entropy
    """
    started = time.perf_counter()
    wanted = _check_request(
        sizes={"window": window, "max_length": max_length, "generate": generate},
        flags={"costly": costly, "roles": roles},
        names={"stack": stack},
        map_tokens=map_tokens,
        inputs=inputs,
        detail=detail,
        processor=processor,
        relations=relations,
        out=out,
        progress=progress,
    )
    for each in (model, against):
        require_weights(each, what="heads are shown")
    if image is not None:
        others: dict[str, Any] = {"text": text, "texts": texts, "target": target, "targets": targets, "inputs": inputs}
        others |= {"generate": generate, "window": window, "max_length": max_length, "roles": roles or None}
        _require_image_alone(others | {"against_text": against_text, "against_texts": against_texts})
    _require_other_file(out, {"text": text, "target": target, "against_text": against_text, "relations": relations})
    _require_other_file(out, {"image": image if isinstance(image, str | os.PathLike) else None})
    own_texts = _read_texts("text", text, texts, inputs)
    other_texts = _read_texts("against_text", against_text, against_texts, inputs)
    if against is not None and other_texts is not None:
        raise TextError("heads are compared with another model's or on another text; got both against and against_text")
    asked = {
        "texts": own_texts,
        "targets": _read_texts("target", target, targets, inputs),
        "generate": generate,
        "inputs": inputs,
        "window": window,
        "max_length": max_length,
        "map_tokens": map_tokens,
        "stack": stack,
        "image": image,
        "processor": processor,
        "folder": model if isinstance(model, str | os.PathLike) else None,
    }
    has_other = against is not None or other_texts is not None
    steps = _steps(progress, has_other=has_other, roles=roles, out=out)
    steps.start(LOADING)
    loaded, source = load(model, tokenizer, aside=False)
    other = loaded if against is None else _load_other(against, tokenizer, loaded, inputs)
    if own_texts is not None or other_texts is not None:
        require_tokenizer(loaded)
    from headwise.api.inspect_parts import look_at_all
    from headwise.api.looking import Read
    from headwise.api.running import explained

    read = Read(**asked, detail=replace(wanted, costly=costly or wanted.costly), num_parts=2 if has_other else 1)
    steps.start(READING)
    with explained(loaded.name):
        names = (_name_of_texts(text, texts), _name_of_texts(against_text, against_texts))
        parts = look_at_all(
            loaded,
            read if relations is None else _with_relations(loaded, read, relations, other),
            other=other if has_other else None,
            other_texts=other_texts,
            names=names if against is None else (loaded.name, other.name),
            progress=steps.advance,
            before_other=lambda: steps.start(COMPARING),
        )
        probe = None
        if roles:
            steps.start(PROBING)
            probe = _probe(loaded, read, parts.main.stack, parts.main.key_tokens is not None, steps)
    known = {field.name: getattr(parts.main, field.name) for field in fields(parts.main)}
    known["notes"] = (*loaded.notes_on_looking, *known["notes"])
    result = InspectedModel(
        **known,
        model=loaded.name,
        source=source,
        seconds=round(time.perf_counter() - started, 2),
        page=None if out is None else os.fspath(out),
        probe=probe,
        part=parts.name,
        others=parts.others,
    )
    if out is not None:
        from headwise.report.inspect_page import write_inspection

        steps.start(WRITING)
        write_inspection(result, out)
    steps.finish()
    return result


def _check_request(
    *,
    sizes: Mapping[str, object],
    flags: Mapping[str, object],
    names: Mapping[str, object],
    map_tokens: object,
    inputs: object,
    detail: object,
    processor: object,
    relations: object,
    out: Any,
    progress: object,
) -> "Detail":
    """Refuse what cannot be meant, before a model is loaded; returns what else is read.

    Raises:
        HeadwiseError: a value is of another kind or size, or the file cannot be written.
    """
    from headwise.inspection.detail import NO_DETAIL, Detail

    check_progress(progress)
    check_flags(**flags)
    check_paths(relations=relations, out=out)
    _check_place(out)
    for name, size in sizes.items():
        if size is not None:
            require_size(name, size)
    if map_tokens is not None:
        require_size("map_tokens", map_tokens, minimum=0)
    for name, value in names.items():
        if value is not None:
            require_text(name, value)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise TextError(
            f"inputs must be a mapping of the keyword arguments of a forward pass; got {type(inputs).__name__}"
        )
    if processor is not None and not callable(processor):
        raise ConfigError(f"processor must be called as transformers' image processors are; got {shown(processor)}")
    if detail is None:
        return NO_DETAIL
    require_instance("detail", detail, Detail)
    assert isinstance(detail, Detail)
    return detail


def _steps(progress: Progress | None, *, has_other: bool, roles: bool, out: object) -> Steps:
    names = [LOADING, READING]
    for name, is_done in ((COMPARING, has_other), (PROBING, roles), (WRITING, out is not None)):
        names += [name] if is_done else []
    return Steps(progress, tuple(names))


def _require_image_alone(others: Mapping[str, Any]) -> None:
    """Raise TextError if something is asked for that goes with a text, or with inputs in hand."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise TextError(f"an image is read alone: leave out {', '.join(given)}")


def _load_other(model: Any, tokenizer: Any, first: "LoadedModule", inputs: Mapping[str, Any] | None) -> "LoadedModule":
    """Load the model that is compared with, which reads what the first one does; it may borrow its tokenizer.

    Raises:
        ModelError: the first one reads texts, and this one does not.
    """
    from headwise.integrations.transformers_attention import is_transformers_model

    loaded, _ = load(model, tokenizer, aside=False)
    if first.tokenizer is None:
        return replace(loaded, tokenizer=None)
    if inputs is None and not is_transformers_model(loaded.module):
        raise ModelError(
            f"heads are compared on the same text: {loaded.name} must read texts, as {first.name} does; it is no "
            "Hugging Face model"
        )
    return loaded if loaded.tokenizer is not None else replace(loaded, tokenizer=first.tokenizer)


def _with_relations(
    loaded: "LoadedModule", read: "Read", path: str | os.PathLike[str], other: "LoadedModule"
) -> "Read":
    from headwise.api.relations_file import with_relations

    return with_relations(loaded, read, path, other=other)


def _probe(loaded: "LoadedModule", read: Any, stack: str | None, is_cross: bool, steps: Steps) -> "RoleProbe":
    from headwise.inspection.roles.probe import probe_roles

    if loaded.tokenizer is None:
        raise TextError(f"roles are probed with a tokenizer, and {loaded.name} comes without one; leave roles out")
    if is_cross:
        raise ModelError(
            f"a role is which token of its own text a head reads, and {stack!r} reads another text: leave roles out, "
            "or give the name of another stack"
        )
    return probe_roles(
        loaded.module, loaded.tokenizer, read.texts, stack=stack, window=read.window, progress=steps.advance
    )


def _check_place(out: str | os.PathLike[str] | None) -> None:
    """Raise OutputError, before any work, if the file cannot be written or has no ending that is known."""
    if out is None:
        return
    from headwise.files import check_writable
    from headwise.report.files import check_page_place

    kind = Path(out).suffix.lower()
    if kind not in KINDS:
        raise OutputError(f"out must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}; got {os.fspath(out)!r}")
    (check_page_place if kind == ".html" else check_writable)(out)


def _require_other_file(out: Any, read: Mapping[str, Files | None]) -> None:
    """Raise OutputError if the file that is written is one that is read, which would be lost."""
    if out is None or not Path(out).exists():
        return
    for name, files in read.items():
        for file in _files(files) if isinstance(files, str | os.PathLike | Sequence) else ():
            if file.exists() and file.samefile(out):
                raise OutputError(
                    f"out must be another file than {name}, which is read; got {os.fspath(out)!r} for both"
                )


def _files(files: Files) -> list[Path]:
    return [Path(files)] if isinstance(files, str | os.PathLike) else [Path(file) for file in files]


def _read_texts(
    name: str, files: Files | None, texts: Sequence[str] | None, inputs: Mapping[str, Any] | None
) -> Sequence[str] | None:
    """Return the texts that were asked for; None: none were."""
    if sum(one is not None for one in (files, texts, inputs)) > 1:
        raise TextError(f"one of {name}, {name}s and inputs says what is read; got more than one")
    from headwise.inspection.texts.windows import require_texts

    if texts is not None:
        require_texts(texts, name=f"{name}s")
        return texts
    if files is None:
        return None
    is_path = isinstance(files, str | os.PathLike)
    if not is_path and not (isinstance(files, Sequence) and all(isinstance(each, str | os.PathLike) for each in files)):
        raise TextError(f"{name} must be a file or several; got {shown(files)}")
    from headwise.loading.text import read_text

    return [read_text(file) for file in _files(files)] or None


def _name_of_texts(files: Files | None, texts: Sequence[str] | None) -> str:
    """Return what to call texts where others stand beside them."""
    if files is not None and _files(files):
        first, *others = _files(files)
        return f"{first.name} and {len(others)} more" if others else first.name
    if texts is None:
        return "default text"
    return f"{len(texts)} texts in hand" if len(texts) > 1 else "text in hand"
