"""`headwise.explain`: one small attention with every number shown, or one token of one head of a real model."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.api.fit_door import check_progress
from headwise.api.progress import Progress, Steps
from headwise.config.checks import require_size, shown
from headwise.errors import ConfigError, ModelError, OutputError, TextError
from headwise.inspection.results import Walkthrough
from headwise.inspection.walkthrough.variants import explain_example

if TYPE_CHECKING:
    from torch import nn

DEFAULT_EXAMPLE = "two-tokens"
ENDINGS = (".html", ".htm")
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
        out: where to write it as a page, a name that ends in .html; None = no page.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for cannot be found, read, run or written; a preset or a config has no weights.
    """
    check_progress(progress)
    _check_kinds(text, sentence, inputs, out)
    of_model = (model, tokenizer, text, sentence, inputs, layer, head, query, against, stack, keys)
    is_example = all(one is None for one in of_model)
    if example is not None and not is_example:
        raise ConfigError(
            "an example is walked through without a model and what is asked of one; give one or the other"
        )
    if out is not None:
        from headwise.report.files import check_page_place

        if Path(out).suffix.lower() not in ENDINGS:
            raise OutputError(f"the page must have a name that ends in {' or '.join(ENDINGS)}; got {os.fspath(out)!r}")
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

    from headwise.api.subject import load, require_tokenizer, require_weights

    require_weights(model, what="heads are explained")
    steps = Steps(progress, (LOADING, READING, *((WRITING,) if out is not None else ())))
    steps.start(LOADING)
    loaded, _ = load(model, tokenizer, aside=False)
    if words is not None:
        require_tokenizer(loaded)

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


def _check_kinds(text: Any, sentence: Any, inputs: Any, out: Any) -> None:
    """Refuse what is of another kind than it must be."""
    for name, value in (("text", text), ("out", out)):
        if value is not None and not isinstance(value, str | os.PathLike):
            raise TextError(f"{name} must be the path of a file; got {shown(value)}")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ModelError(
            f"inputs must be keyword arguments of the forward pass, a mapping; got {type(inputs).__name__}"
        )
    if sentence is not None and not isinstance(sentence, str):
        raise TextError(f"sentence must be a str; got {shown(sentence)}")
    if sentence is not None:
        from headwise.inspection.texts.windows import require_texts

        require_texts([sentence], name="sentence")


def _check(layer: int | None, head: int | None, keys: int, tokens: Sequence[Any]) -> None:
    """Refuse numbers that are none, before a model is loaded."""
    require_size("keys", keys)
    for name, number in (("layer", layer), ("head", head)):
        if number is not None:
            require_size(name, number, minimum=0)
    for token in tokens:
        if token is not None and (isinstance(token, bool) or not isinstance(token, int | str)):
            raise TextError(f"a token is given by its number or by its word; got {token!r:.60}")
