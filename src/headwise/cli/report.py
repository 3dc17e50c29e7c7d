"""`headwise report`: the main job, one page about one model."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer


def report(
    model: Annotated[
        str | None,
        typer.Argument(
            help="preset, config.json, checkpoint folder, .gguf, or package.module:name or file.py:name "
            "[default: a small real BERT checkpoint]"
        ),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to look at heads with [default: English prose]")] = None,
    batch: Annotated[int, typer.Option(help="texts in the step that is counted and weighed")] = 1,
    seq: Annotated[int | None, typer.Option(help="tokens per text [default: 512, or the model's positions]")] = None,
    gpu: Annotated[str, typer.Option(help="device that a training step should fit; here = this machine")] = "here",
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("headwise-report.html"),
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Report what a model's attention costs, whether it fits, and what its heads do."""
    from headwise.api.report import make_report
    from headwise.cli.output import print_json, progress_bar

    with progress_bar() as progress, redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        result = make_report(model, text=text, batch=batch, seq=seq, gpu=gpu, out=out, progress=progress)
    if json:
        print_json(result)
    else:
        from headwise.report.text import print_report

        print_report(result)
