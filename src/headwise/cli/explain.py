"""`headwise explain`: one small attention, every number shown."""

from pathlib import Path
from typing import Annotated

import typer


def explain(
    example: Annotated[str, typer.Option(help="two-tokens, or two-heads (causal)")] = "two-tokens",
    out: Annotated[Path | None, typer.Option(help="write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Walk through one small attention, step by step, with every number shown."""
    from headwise.api.explain import explain as explain_attention
    from headwise.cli.output import print_json

    walkthrough = explain_attention(example=example, out=out)
    if json:
        print_json(walkthrough)
    else:
        print(walkthrough.to_text())
