"""`headwise.inspect`: what the heads of a model do on texts."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import check_progress
from headwise.api.inspect_results import InspectedModel
from headwise.api.progress import Progress, Steps
from headwise.api.subject import find_on_paper, load
from headwise.config.checks import require_size
from headwise.errors import ModelError, OutputError, TextError

if TYPE_CHECKING:
    from torch import nn

    from headwise.inspection.detail import Detail
    from headwise.inspection.roles.results import RoleProbe
    from headwise.loading.module import LoadedModule

LOADING, READING, PROBING, WRITING = "loading the model", "looking at the heads", "probing roles", "writing the page"
KINDS = (".html", ".svg", ".png", ".csv")


def inspect(
    model: "str | os.PathLike[str] | nn.Module | None" = None,
    *,
    tokenizer: Any | None = None,
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    texts: Sequence[str] | None = None,
    inputs: Mapping[str, Any] | None = None,
    window: int | None = None,
    max_length: int | None = None,
    map_tokens: int | None = None,
    costly: bool = False,
    detail: "Detail | None" = None,
    roles: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> InspectedModel:
    """Say what every head of a model does, averaged over all tokens of texts, while the model stays on its fast path.

    Args:
        model: MODEL, in any form of the command line that has weights, or a module in hand; None = a small real BERT
            checkpoint that a package carries.
        tokenizer: the tokenizer of a Hugging Face model in hand; a checkpoint brings its own.
        text: file of UTF-8 text, or several; None = English prose that ships with Python.
        texts: texts in hand, in place of files.
        inputs: keyword arguments of one forward pass, for a module that reads no texts. Default: random ones.
        window: tokens that are read at once, special tokens included. Default: the model's length.
        max_length: tokens of each text after which the rest is dropped. Default: 128 of the default text, 32,768 of
            another one.
        map_tokens: tokens of the first text that maps cover; 0 = no maps. Default: as many as let a page stay small.
        costly: whether to take the statistics, too, that take several times as long as the others.
        detail: what else is read: the top keys of each query, relations between tokens. Default: nothing.
        roles: whether to probe the roles of heads too, against an untrained model and shuffled texts
            (`probe_roles`); a second copy of the model is made.
        out: file to write: a page (.html), the heads in one picture (.svg, .png) or the statistics as a table (.csv).
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written; a preset or a config has no weights.

    Example:
        >>> headwise.inspect(model, tokenizer=tokenizer, texts=["The cat sat on the mat."]).heads[0].entropy
    """
    started = time.perf_counter()
    check_progress(progress)
    _check_place(out)
    for name, size in (("window", window), ("max_length", max_length)):
        if size is not None:
            require_size(name, size)
    if map_tokens is not None:
        require_size("map_tokens", map_tokens, minimum=0)
    paper = find_on_paper(model, kinds=("preset", "config")) if model is not None else None
    if paper is not None:
        raise ModelError(f"heads are shown of a model with weights, and {paper[0].name} has none: give a checkpoint")
    read = _read_texts(text, texts, inputs)
    steps = Steps(
        progress, (LOADING, READING, *((PROBING,) if roles else ()), *((WRITING,) if out is not None else ()))
    )
    steps.start(LOADING)
    loaded, source = load(model, tokenizer)
    if read is not None and loaded.tokenizer is None:
        raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")
    steps.start(READING)
    from headwise.api.looking import look_at_heads
    from headwise.api.running import explained
    from headwise.inspection.detail import NO_DETAIL

    wanted = NO_DETAIL if detail is None else detail
    with explained(loaded.name):
        inspection = look_at_heads(
            loaded,
            read,
            inputs=inputs,
            window=window,
            max_length=max_length,
            map_tokens=map_tokens,
            detail=replace(wanted, costly=costly or wanted.costly),
            progress=steps.advance,
        )
        probe = None
        if roles:
            steps.start(PROBING)
            probe = _probe(loaded, read, window, steps)
    known = {field.name: getattr(inspection, field.name) for field in fields(inspection)}
    known["notes"] = (*loaded.notes, *known["notes"])
    seconds = round(time.perf_counter() - started, 2)
    page = None if out is None else os.fspath(out)
    result = InspectedModel(**known, model=loaded.name, source=source, seconds=seconds, page=page, probe=probe)
    if out is not None:
        from headwise.report.inspect_page import write_inspection

        steps.start(WRITING)
        write_inspection(result, out)
    steps.finish()
    return result


def _probe(loaded: "LoadedModule", texts: Sequence[str] | None, window: int | None, steps: Steps) -> "RoleProbe":
    from headwise.inspection.roles.probe import probe_roles

    if loaded.tokenizer is None:
        raise TextError(f"roles are probed with a tokenizer, and {loaded.name} comes without one; leave them out")
    return probe_roles(loaded.module, loaded.tokenizer, texts, window=window, progress=steps.advance)


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


def _read_texts(
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    texts: Sequence[str] | None,
    inputs: Mapping[str, Any] | None,
) -> Sequence[str] | None:
    """Return the texts that were asked for; None: none were."""
    if sum(one is not None for one in (text, texts, inputs)) > 1:
        raise TextError("one of text, texts and inputs says what is read; got more than one")
    if texts is not None or text is None:
        return texts
    from headwise.loading.text import read_text

    files = [text] if isinstance(text, str | os.PathLike) else list(text)
    return [read_text(Path(file)) for file in files] or None
