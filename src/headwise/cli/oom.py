"""`headwise oom`: which tensor an out-of-memory message is about, and what to change."""

import sys
from typing import Annotated, Any

import typer

from headwise.collector import without_collections


@without_collections()  # a short run, that makes no garbage
def oom(
    message: Annotated[
        str | None,
        typer.Argument(help="the message, with the traceback around it or without; a log file; - or nothing: stdin"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="MODEL that ran, in any form of the other verbs")] = None,
    batch: Annotated[int | None, typer.Option(help="texts in the step that failed, where it is known")] = None,
    seq: Annotated[int | None, typer.Option(help="tokens per text, where it is known")] = None,
    gpu: Annotated[str | None, typer.Option(help="the device [default: one of the capacity that is told]")] = None,
    phase: Annotated[str | None, typer.Option(help="train, prefill or decode, where it is known")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16")] = None,
    optimizer: Annotated[str | None, typer.Option(help="as of fit")] = None,
    optimizer_step: Annotated[str | None, typer.Option(help="foreach, fused, loop")] = None,
    attention: Annotated[str | None, typer.Option(help="sdpa or eager")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="none, selective, full")] = None,
    loss: Annotated[str | None, typer.Option(help="sum, cross_entropy, chunked_cross_entropy")] = None,
    num_gpus: Annotated[int, typer.Option(help="devices of the shardings among the changes")] = 8,
    head: Annotated[bool, typer.Option("--head", help="read a bare model as its family's language model")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Read an out-of-memory message: what kind it is, which tensor it is about, and what to change."""
    from headwise.api.oom import oom as explain
    from headwise.api.oom import read_stream, read_text
    from headwise.cli.output import print_json

    step: dict[str, Any] = {
        "phase": phase,
        "precision": precision,
        "optimizer": optimizer,
        "optimizer_step": optimizer_step,
        "attention": attention,
        "checkpoint": checkpoint,
        "loss": loss,
    }
    text = read_stream(sys.stdin) if message is None or message == "-" else read_text(message)
    result = explain(
        text,
        model=model,
        batch=batch,
        seq=seq,
        gpu=gpu,
        head=head,
        num_gpus=num_gpus,
        **{name: value for name, value in step.items() if value is not None},
    )
    if json:
        print_json(result)
    else:
        from headwise.report.oom import print_oom

        print_oom(result)
