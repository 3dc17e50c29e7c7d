"""`headwise bench`: what attention takes on this machine, as a share of the machine's own limits."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    seq: Annotated[str, typer.Option(help="lengths, with commas between them")] = "512,1024,2048",
    batch: Annotated[int, typer.Option(help="batch rows")] = 1,
    num_heads: Annotated[int, typer.Option("--num-heads", "--heads", help="query heads")] = 8,
    num_kv_heads: Annotated[
        int | None, typer.Option("--num-kv-heads", "--kv-heads", help="key/value heads [default: as many]")
    ] = None,
    head_dim: Annotated[int, typer.Option(help="numbers of a head")] = 64,
    mask: Annotated[
        str, typer.Option(help="full, causal, window:256, longformer:512:16, ..., joined by & and |")
    ] = "causal",
    impl: Annotated[str, typer.Option(help="auto, reference, sdpa, ..., with commas between them")] = "auto,sdpa",
    phase: Annotated[str, typer.Option(help="forward, or train: with backward")] = "forward",
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, fp64")] = "fp32",
    device: Annotated[str, typer.Option(help="here (a GPU if there is one), cpu, cuda")] = "here",
    repeats: Annotated[int, typer.Option(help="turns of each implementation")] = 9,
    out: Annotated[Path | None, typer.Option(help="write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure attention on this machine, as a share of its own limits."""
    from headwise.api.bench import bench as bench_attention
    from headwise.cli.output import print_json, progress_bar

    with progress_bar() as progress:
        result = bench_attention(
            seq=seq,
            batch=batch,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            mask=mask,
            impl=impl,
            phase=phase,
            dtype=dtype,
            device=device,
            repeats=repeats,
            out=out,
            progress=progress,
        )
    if json:
        print_json(result)
    else:
        from headwise.report.bench import print_bench

        print_bench(result)
