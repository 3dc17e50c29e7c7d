"""`headwise explain`: one small attention, every number shown, or one token of one head of a real model."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer


def explain(
    model: Annotated[
        str | None,
        typer.Argument(
            help="checkpoint folder, .gguf, package.module:name or file.py:name [default: an example, or with any "
            "option about a model a small real BERT checkpoint]"
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="from 0 [default: where the token looks most sharply]")] = None,
    head: Annotated[int | None, typer.Option(help="from 0 [default: as for --layer]")] = None,
    token: Annotated[
        int | None, typer.Option(help="number of the token that reads [default: the last or the middle one]")
    ] = None,
    word: Annotated[str | None, typer.Option(help="the token that reads, by its word")] = None,
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to read [default: English prose]")] = None,
    sentence: Annotated[str | None, typer.Option(help="what to read, in place of a file")] = None,
    against_token: Annotated[int | None, typer.Option(help="why the heaviest other key rather than this token")] = None,
    against_word: Annotated[str | None, typer.Option(help="the same, by its word")] = None,
    stack: Annotated[str | None, typer.Option(help="of a model with several: encoder, decoder, cross")] = None,
    keys: Annotated[int | None, typer.Option(help="keys whose score is taken apart [default: 3]")] = None,
    example: Annotated[str | None, typer.Option(help="two-tokens, or two-heads (causal)")] = None,
    out: Annotated[Path | None, typer.Option(help="write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Walk through one small attention, or explain what one token of one head of a model reads."""
    from headwise.api.explain import explain as explain_attention
    from headwise.cli.output import print_json, progress_bar
    from headwise.errors import TextError

    for by_number, by_word, option in ((token, word, "token"), (against_token, against_word, "against-token")):
        if by_number is not None and by_word is not None:
            raise TextError(
                f"a token is given by its number or by its word; got both --{option} {by_number} and {by_word!r}"
            )
    with progress_bar() as progress, redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        explanation = explain_attention(
            model,
            layer=layer,
            head=head,
            query=word if token is None else token,
            against=against_word if against_token is None else against_token,
            text=text,
            sentence=sentence,
            stack=stack,
            keys=keys,
            example=example,
            out=out,
            progress=progress,
        )
    if json:
        print_json(explanation)
    else:
        from headwise.report.explain import print_walkthrough

        print_walkthrough(explanation)
