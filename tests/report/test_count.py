"""A count in the terminal."""

import re

import pytest
from rich.cells import cell_len

import headwise
from headwise.api.results import ComparedFigure, Count, FlopsByPhase, Verification
from headwise.cost.workload import Workload
from headwise.report.count import count_renderable, count_text, print_count
from headwise.report.text import plain_text


def test_a_count_shows_every_part_rounded_and_exact(synthetic, capsys):
    report = synthetic.make_report()
    count = Count(
        model=report.model,
        batch=1,
        seq=512,
        dtype="bfloat16",
        parameters=report.parameters.predicted,
        flops=FlopsByPhase(forward=report.flops.forward, train=report.flops.train),
        kv_cache_bytes=3 * 2**20,
        kv_cache_bytes_per_token=6144,
        notes=("a note",),
    )
    text = count_text(count)
    assert text == plain_text(count_renderable(count))
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert re.search(r"Total +22\.71 M +22,713,216", text)
    assert re.search(r"Training step, dense +17\.22 GFLOP +17,216,962,560", text)
    assert re.search(r"Key/value cache, bfloat16 +3\.0 MiB +3,145,728\n", text)
    assert "1 text × 512 tokens" in text and text.endswith("note: a note")
    print_count(count)
    assert re.search(r"Total +22\.71 M", capsys.readouterr().out)


@pytest.mark.parametrize("name", ["bert-base", "gemma-2-9b", "deepseek-v3", "qwen3-next-80b", "t5-small"])
def test_every_kind_of_layer_and_cache_has_its_line_in_80_columns(name):
    count = headwise.count(name, seq=100, page_tokens=16)
    text = count_text(count)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for kind in count.layers:
        assert re.search(rf"^{re.escape(kind.name)} +{kind.num_layers} ", text, re.MULTILINE)
    for kind in {entry.kind for entry in count.kv_layers}:
        assert re.search(rf"^{kind} +\d", text, re.MULTILINE)


def test_multiply_adds_stand_in_the_place_of_flops():
    text = count_text(headwise.count("bert-base", seq=7, macs=True))
    flops = headwise.count("bert-base", seq=7).flops.forward.dense
    assert f"{flops // 2:,}" in text and "MAC" in text
    assert f" {flops:,}" not in text


def test_what_a_step_really_runs_is_told_where_it_differs():
    plain = headwise.count("gpt2", seq=100, attention="eager")
    again = headwise.count("gpt2", seq=100, attention="eager", checkpoint="full")
    assert "as run" not in count_text(plain)
    assert f"{again.flops.hardware.dense:,}" in count_text(again)
    assert f"{again.flops.recomputed.dense:,}" in count_text(again)


def test_paths_that_differ_are_said_to(synthetic):
    model = synthetic.make_report().model
    figures = (
        ComparedFigure(what="parameters", closed_form=7, traced=None, measured=7, tolerance=0.0, holds=True),
        ComparedFigure(what="peak", closed_form=90, traced=99, measured=100, tolerance=0.01, holds=False),
    )
    verification = Verification(model=model, workload=Workload(batch=2, seq=3, device="cpu"), figures=figures)
    count = Count(
        model=model,
        batch=1,
        seq=2,
        dtype="float32",
        parameters=headwise.count("gpt2").parameters,
        flops=None,
        kv_cache_bytes=None,
        kv_cache_bytes_per_token=None,
        verification=verification,
    )
    assert not verification.holds and verification.to_dict()["holds"] is False
    text = count_text(count)
    assert re.search(r"parameters +7 +– +7 +equal", text)
    assert re.search(r"peak +90 +99 +100 +differs", text)
