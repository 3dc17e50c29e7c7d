"""`headwise fit`: does a step fit, why not, and which single change frees how much."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.collector import without_collections


@without_collections()  # a short run, that makes no garbage
def fit(
    model: Annotated[
        str, typer.Argument(help="preset, config.json, checkpoint folder, .gguf, package.module:name or file.py:name")
    ],
    batch: Annotated[int, typer.Option(help="texts in one pass on one device")] = 1,
    seq: Annotated[int | None, typer.Option(help="tokens per text [default: 512, or the model's positions]")] = None,
    image: Annotated[int | None, typer.Option(help="pixels of an image's side, for a PatchEncoder or a C3TR")] = None,
    stride: Annotated[int | None, typer.Option(help="of a C3TR: pixels a place of its map [default: 32]")] = None,
    gpu: Annotated[str, typer.Option(help="the device; here = this machine")] = "here",
    gpu_memory: Annotated[str | None, typer.Option(help="memory of a device of your own, such as 24GiB")] = None,
    phase: Annotated[str, typer.Option(help="train, prefill or decode")] = "train",
    precision: Annotated[str, typer.Option(help="fp32, bf16, fp16, amp-bf16, amp-fp16")] = "fp32",
    optimizer: Annotated[
        str, typer.Option(help="sgd, momentum, adam, adamw, adamw8bit, adafactor, lion, muon")
    ] = "adamw",
    optimizer_step: Annotated[
        str | None, typer.Option(help="foreach, fused or loop [default: what torch takes]")
    ] = None,
    attention: Annotated[str | None, typer.Option(help="sdpa or eager [default: what transformers takes]")] = None,
    checkpoint: Annotated[str, typer.Option(help="what backward computes again: none, selective, full")] = "none",
    accumulation: Annotated[int, typer.Option(help="passes of --batch texts per optimizer step")] = 1,
    loss: Annotated[
        str | None,
        typer.Option(help="sum, cross_entropy, chunked_cross_entropy [default: cross_entropy of a language model]"),
    ] = None,
    head: Annotated[bool, typer.Option("--head", help="read a bare model as its family's language model")] = False,
    dropout: Annotated[bool, typer.Option("--dropout/--no-dropout", help="the config's dropout is active")] = True,
    lora_rank: Annotated[int | None, typer.Option(help="train adapters of this rank on queries and values")] = None,
    frozen_layers: Annotated[int, typer.Option(help="first layers that do not learn, embeddings with them")] = 0,
    kv_cache: Annotated[str, typer.Option(help="numbers in the KV cache: model or int8")] = "model",
    shard: Annotated[
        str | None, typer.Option(help="over --num-gpus: zero1 (DDP), zero2, zero3 (FSDP2), tensor, sequence, context")
    ] = None,
    num_gpus: Annotated[int, typer.Option(help="devices to shard over, and that changes may shard over")] = 8,
    sweep: Annotated[
        tuple[str, str] | None,
        typer.Option(help="a grid, batch=1..64 seq=512..32768, or image=320..1280", metavar="BATCH SEQ"),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="make the changes to a small copy and run it here")] = False,
    history: Annotated[Path | None, typer.Option(help="steps that headwise.track kept, to show beside")] = None,
    out: Annotated[Path | None, typer.Option(help="write a page")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Say whether a step fits a device, what fills it, and which single change frees how much."""
    from headwise.api.fit import fit as fit_model
    from headwise.cli.output import print_json, progress_bar

    given: dict[str, Any] = {"optimizer_step": optimizer_step, "attention": attention, "loss": loss}
    with progress_bar() as progress, redirect_stdout(sys.stderr):  # a user's module may print; stdout is the answer's
        result = fit_model(
            model,
            batch=batch,
            seq=seq,
            image=image,
            stride=stride,
            gpu=gpu,
            gpu_memory=gpu_memory,
            head=head,
            lora_rank=lora_rank,
            shard=shard,
            num_gpus=num_gpus,
            sweep=sweep,
            verify=verify,
            history=history,
            out=out,
            progress=progress,
            phase=phase,
            precision=precision,
            optimizer=optimizer,
            checkpoint=checkpoint,
            accumulation=accumulation,
            dropout=dropout,
            frozen_layers=frozen_layers,
            kv_cache=kv_cache,
            **{name: value for name, value in given.items() if value is not None},
        )
    if json:
        print_json(result)
    else:
        from headwise.report.fit import print_fit

        print_fit(result)
    is_verified = result.verification is None or result.verification.holds
    if result.fits != "yes" or not is_verified:
        raise typer.Exit(1)
