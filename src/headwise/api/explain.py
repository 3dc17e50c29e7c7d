"""`headwise.explain`: one small attention with every number shown, or one token of one head of a real model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import check_progress
from headwise.api.progress import Progress, Steps
from headwise.config.checks import require_size
from headwise.errors import ConfigError, ModelError, TextError
from headwise.inspection.results import Walkthrough
from headwise.inspection.walkthrough.variants import explain_example

if TYPE_CHECKING:
    from torch import nn

DEFAULT_EXAMPLE = "two-tokens"
LOADING, READING, WRITING = "loading the model", "looking at the head", "writing the page"


def explain(
    model: "str | os.PathLike[str] | nn.Module | None" = None,
    *,
    tokenizer: Any | None = None,
    text: str | os.PathLike[str] | None = None,
    sentence: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: int | str | None = None,
    against: int | str | None = None,
    stack: str | None = None,
    keys: int | None = None,
    example: str | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Walkthrough:
    """Walk through one small attention step by step, or explain what one token of one head of a real model reads.

    Without a model, and without anything that asks for one, an example is walked through: projections, scores, scale,
    mask, softmax, weighted sum, heads. Else the answer is a `HeadExplanation`: a score for each key and its weight,
    which dimensions of `q . k` made the largest, and what each key brings to the head's output.

    Args:
        model: MODEL, in any form of the command line that has weights, or a module in hand; None with anything below
            but `example` and `out` = a small real BERT checkpoint that a package carries.
        tokenizer: the tokenizer of a Hugging Face model in hand; a checkpoint brings its own.
        text: file of UTF-8 text.
        sentence: a text in hand, in its place. Default: the beginning of English prose that ships with Python.
        inputs: keyword arguments of one forward pass, for a module that reads no texts. Default: random ones.
        layer, head: which one, from 0. Default: where the token puts the largest weight on one token other than
            itself, the first and separators.
        query: the token that reads: its number, or a word that stands in one place. Default: the last token where
            tokens see earlier ones only, else the middle one.
        against: a key, as `query`: why the heaviest of the others rather than this one.
        stack: name of the stack of layers, where the model has several ("encoder", "decoder", "cross").
        keys: how many of the heaviest keys have their score taken apart. Default: 3.
        example: "two-tokens" (one head of two dimensions; the default) or "two-heads" (three tokens, causal, an output
            projection).
        out: where to write it as a page; None = no page.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written; a preset or a config has no weights.
    """
    check_progress(progress)
    of_model = (model, tokenizer, text, sentence, inputs, layer, head, query, against, stack, keys)
    is_example = all(one is None for one in of_model)
    if example is not None and not is_example:
        raise ConfigError(
            "an example is walked through without a model and what is asked of one; give one or the other"
        )
    if out is not None:
        from headwise.report.files import check_page_place

        check_page_place(out)
    if is_example:
        name = DEFAULT_EXAMPLE if example is None else example
        walkthrough = explain_example(name)
        if out is not None:
            from headwise.report.explain_page import write_explanation

            write_explanation(walkthrough, name, out)
        return walkthrough
    if sum(one is not None for one in (text, sentence, inputs)) > 1:
        raise TextError("one of text, sentence and inputs says what is read; got more than one")
    keys = 3 if keys is None else keys
    _check(layer, head, keys, (query, against))
    words = sentence
    if text is not None:
        from headwise.loading.text import read_text

        words = read_text(Path(text))

    from headwise.api.subject import find_on_paper, load

    paper = find_on_paper(model, kinds=("preset", "config")) if model is not None else None
    if paper is not None:
        raise ModelError(
            f"heads are explained of a model with weights, and {paper[0].name} has none: give a checkpoint"
        )
    steps = Steps(progress, (LOADING, READING, *((WRITING,) if out is not None else ())))
    steps.start(LOADING)
    loaded, _ = load(model, tokenizer)
    if words is not None and loaded.tokenizer is None:
        raise TextError(f"a text needs a tokenizer, and {loaded.name} comes without one; leave the text out")

    from headwise.api.explain_head import Asked, explain_head
    from headwise.api.running import explained

    asked = Asked(query=query, layer=layer, head=head, stack=stack, against=against, keys=keys)
    steps.start(READING)
    with explained(loaded.name):
        explanation = explain_head(loaded, asked, text=words, inputs=inputs)
    if out is not None:
        from headwise.report.explain_head_page import write_head

        steps.start(WRITING)
        explanation = replace(explanation, page=os.fspath(out))
        write_head(explanation, out)
    steps.finish()
    return explanation


def _check(layer: int | None, head: int | None, keys: int, tokens: Sequence[Any]) -> None:
    """Refuse numbers that are none, before a model is loaded."""
    require_size("keys", keys)
    for name, number in (("layer", layer), ("head", head)):
        if number is not None:
            require_size(name, number, minimum=0)
    for token in tokens:
        if token is not None and (isinstance(token, bool) or not isinstance(token, int | str)):
            raise TextError(f"a token is given by its number or by its word; got {token!r:.60}")
