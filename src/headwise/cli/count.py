"""`headwise count`: parameters, FLOPs, memory and KV bytes."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from headwise.collector import without_collections


@without_collections()  # a short run, that makes no garbage
def count(
    model: Annotated[
        str, typer.Argument(help="preset, config.json, checkpoint folder, .gguf, package.module:name or file.py:name")
    ],
    batch: Annotated[int, typer.Option(help="number of texts")] = 1,
    seq: Annotated[int | None, typer.Option(help="tokens per text [default: 512, or the model's positions]")] = None,
    image: Annotated[int | None, typer.Option(help="pixels of an image's side, for a PatchEncoder or a C3TR")] = None,
    stride: Annotated[int | None, typer.Option(help="of a C3TR: pixels a place of its map [default: 32]")] = None,
    dtype: Annotated[str | None, typer.Option(help="of the KV cache [default: the config's, else bfloat16]")] = None,
    page_tokens: Annotated[int | None, typer.Option(help="tokens in a page of a paged KV cache")] = None,
    precision: Annotated[str, typer.Option(help="of the training step: fp32, bf16, fp16, amp-bf16, amp-fp16")] = "fp32",
    optimizer: Annotated[
        str, typer.Option(help="sgd, momentum, adam, adamw, adamw8bit, adafactor, lion, muon")
    ] = "adamw",
    attention: Annotated[str | None, typer.Option(help="sdpa or eager [default: what transformers takes]")] = None,
    checkpoint: Annotated[str, typer.Option(help="what backward computes again: none, selective, full")] = "none",
    loss: Annotated[str, typer.Option(help="sum, cross_entropy or chunked_cross_entropy")] = "sum",
    device: Annotated[str, typer.Option(help="what the training step runs on: cuda or cpu")] = "cuda",
    macs: Annotated[bool, typer.Option("--macs", help="multiply-adds too, half the FLOPs")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="trace a step's memory where it has no closed form")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="run a small model of this kind and compare")] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Count a model's parameters, FLOPs, memory and KV-cache bytes."""
    from headwise.api.count import count as count_model
    from headwise.cli.output import print_json

    with redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        result = count_model(
            model,
            batch=batch,
            seq=seq,
            image=image,
            stride=stride,
            dtype=dtype,
            page_tokens=page_tokens,
            macs=macs,
            trace=trace,
            verify=verify,
            precision=precision,
            optimizer=optimizer,
            checkpoint=checkpoint,
            loss=loss,
            device=device,
            **({} if attention is None else {"attention": attention}),
        )
    if json:
        print_json(result)
    else:
        from headwise.report.count import print_count

        print_count(result)
    if result.verification is not None and not result.verification.holds:
        raise typer.Exit(1)
