"""`headwise compare`: a controlled experiment."""

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer


def compare(
    comparison: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="built-in comparison or TOML file [default: a list of them]"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="minutes: fewer steps and seeds; decides nothing")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="where runs are kept; alone: show what it holds [default: headwise-compare/NAME]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write a page (.html) or a picture (.svg, .png)")] = None,
    workers: Annotated[int | None, typer.Option(help="runs at once [default: as many as cores]")] = None,
    threads: Annotated[int | None, typer.Option(help="threads of each run [default: 1]")] = None,
    seeds: Annotated[int | None, typer.Option(help="how many seeds [default: the comparison's]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the runs of the folder")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Compare models in a controlled experiment: same data, same seeds, each at its own learning rate."""
    from headwise.api.compare import compare as run_compare
    from headwise.api.compare import list_comparisons
    from headwise.cli.output import print_json, progress_bar

    if comparison is None and folder is None:
        listed = list_comparisons()
        if json:
            print_json(listed)
        else:
            print(listed)
        return
    try:
        with progress_bar(with_remaining=True) as progress, redirect_stdout(sys.stderr):  # a library's chatter
            result = run_compare(
                comparison,
                quick=quick,
                out=out,
                folder=folder,
                workers=workers if workers is not None or comparison is None else _num_cores(),
                threads=threads,
                seeds=seeds,
                resume=resume,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("headwise: stopped; the same command with --resume goes on from here", file=sys.stderr)
        raise
    if json:
        print_json(result)
    else:
        from headwise.report.compare import print_comparison

        print_comparison(result.parts, page=result.page)


def _num_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
