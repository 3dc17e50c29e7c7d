"""`headwise count`: parameters, FLOPs and KV bytes."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer


def count(
    model: Annotated[str, typer.Argument(help="preset, config.json, checkpoint folder, .gguf, or package.module:name")],
    batch: Annotated[int, typer.Option(help="number of texts")] = 1,
    seq: Annotated[int | None, typer.Option(help="tokens per text [default: 512, or the model's positions]")] = None,
    dtype: Annotated[str | None, typer.Option(help="of the KV cache [default: the config's, else bfloat16]")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Count a model's parameters, FLOPs and KV-cache bytes."""
    from headwise.api.count import count as count_model
    from headwise.cli.output import print_json

    with redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        result = count_model(model, batch=batch, seq=seq, dtype=dtype)
    if json:
        print_json(result)
    else:
        from headwise.report.text import print_count

        print_count(result)
