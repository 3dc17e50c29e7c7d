"""`headwise inspect`: what the heads of a model do."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer


def inspect(
    model: Annotated[
        str | None,
        typer.Argument(
            help="checkpoint folder, .gguf, package.module:name or file.py:name [default: a small real BERT checkpoint]"
        ),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="UTF-8 text to read; may be given often [default: English prose]")
    ] = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(help="what a decoder reads beside its encoder's text; one for each text"),
    ] = None,
    generate: Annotated[
        int | None, typer.Option(help="tokens that the model writes itself and that are shown, too")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="image that a vision model reads: .png; others need Pillow")
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="stack of layers to show alone: encoder, decoder, cross [default: all]")
    ] = None,
    against: Annotated[str | None, typer.Option(help="another model of the same shape to compare heads with")] = None,
    against_text: Annotated[
        list[Path] | None, typer.Option(help="another UTF-8 text to compare heads on; may be given often")
    ] = None,
    window: Annotated[int | None, typer.Option(help="tokens read at once [default: the model's length]")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="tokens of each text [default: 32768; 128 of the default text]")
    ] = None,
    map_tokens: Annotated[
        int | None, typer.Option(help="tokens that maps cover; 0 = no maps [default: what keeps a page small]")
    ] = None,
    costly: Annotated[bool, typer.Option("--costly", help="also statistics that take several times as long")] = False,
    relations: Annotated[
        Path | None, typer.Option(help="JSON file of words that belong together: which heads follow them")
    ] = None,
    roles: Annotated[
        bool, typer.Option("--roles", help="probe roles against an untrained model and shuffled texts")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="write a page (.html), a picture (.svg, .png) or a table (.csv)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show what the heads of a model do: statistics, roles, maps."""
    from headwise.api.inspect import inspect as inspect_model
    from headwise.cli.output import print_json, progress_bar

    with progress_bar() as progress, redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        result = inspect_model(
            model,
            text=text,
            target=target,
            generate=generate,
            image=image,
            stack=stack,
            against=against,
            against_text=against_text,
            window=window,
            max_length=max_length,
            map_tokens=map_tokens,
            costly=costly,
            relations=relations,
            roles=roles,
            out=out,
            progress=progress,
        )
    if json:
        print_json(result)
    else:
        from headwise.report.inspect import print_inspection

        print_inspection(result)
