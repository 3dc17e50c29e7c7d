"""An explained out-of-memory message in the terminal."""

import re
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest
from rich.cells import cell_len

from headwise.cost.oom.results import OomKind, OomMessage
from headwise.report.oom import BACKENDS, KINDS, oom_renderable, oom_text, print_oom
from headwise.report.text import plain_text

HOSTILE = "\x1b[2J[red]" + "x" * 200 + "\u202e\r"


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("kind", get_args(OomKind))
def test_the_kind_stands_first_in_a_sentence_with_its_evidence(synthetic_fit, kind):
    lines = oom_text(synthetic_fit.make_oom(kind=kind)).splitlines()
    assert lines[0] == f"CUDA ran out of memory: {KINDS[kind]}."
    assert lines[1] == "It asked for 6.00 GiB at once, 19 % of the card."


def test_the_figures_of_the_message_and_its_line_are_told(synthetic_fit):
    text = flat(oom_text(synthetic_fit.make_oom()))
    assert "asked for 6.00 GiB · capacity 32.00 GiB · free 3.00 GiB · in tensors 27.00 GiB · reserved 28.00 GiB" in text
    assert "raised in modeling_bert.py, line 137, forward: scores = query @ key.mT" in text


def test_the_likeliest_tensor_is_named_with_its_shape_batch_and_length(synthetic_fit):
    text = flat(oom_text(synthetic_fit.make_oom()))
    words = "6.00 GiB = attention scores of one layer, (32, 12, 2048, 2048) float32, at batch 32 and length 2048."
    assert f"Likeliest: {words} The line names scores." in text
    assert "Of that size too at batch × length 128 × 1024." in text
    assert re.search(r"6\.00 GiB head: logits 32×2048×24576 fp32 32 2048 0\.20", text)


def test_sizes_that_depend_on_neither_are_told_without_them(synthetic_fit):
    answer = synthetic_fit.make_oom()
    candidate = replace(answer.candidates[0], batch=None, seq=None, alternatives=())
    text = flat(oom_text(replace(answer, candidates=(candidate,), evidence=())))
    assert "(32, 12, 2048, 2048) float32. The line" in text and "at batch" not in text


def test_what_else_was_alive_and_what_to_do_follow(synthetic_fit):
    text = oom_text(synthetic_fit.make_oom())
    places = [
        text.index(words)
        for words in (
            "Likeliest",
            "What to do",
            "- Take a kernel that builds no score matrix.",
            "What makes it fit: fused attention",
            "  others",
            "alive in forward: layer 3",
            "layers 0-3: attention scores",
            "Changes of bert-base: 32 texts × 2,048 tokens",
            "The same result",
            "note: the batch and the length",
        )
    ]
    assert places == sorted(places)
    assert "What makes it fit: fused attention (sdpa) + checkpoint every layer: peak 3.00 GiB." in flat(text)


def test_a_message_without_a_size_or_a_model_gets_no_empty_table(synthetic_fit):
    answer = synthetic_fit.make_oom(
        candidates=(), alive=(), changes=(), path=(), model=None, workload=None, peak_moment=None, notes=()
    )
    assert "No tensor of that size was found." in oom_text(answer)
    message = replace(
        answer.message, requested_text=None, requested_low_bytes=None, requested_high_bytes=None, traceback=()
    )
    text = oom_text(replace(answer, requested_bytes=None, message=message, advice=(), evidence=()))
    assert "The message names no size." in text and "asked for" not in text and "raised in" not in text
    assert "What to do" not in text and "Changes" not in text


def test_a_message_without_figures_leaves_no_gap_and_its_class_keeps_its_name(synthetic_fit):
    answer = synthetic_fit.make_oom()
    message = OomMessage(
        backend="cuda", wording="cut short", requested_text=None, requested_low_bytes=None, requested_high_bytes=None
    )
    evidence = ("torch.OutOfMemoryError without its text",)
    bare = replace(answer, message=message, evidence=evidence, candidates=(), requested_bytes=None)
    lines = oom_text(bare).splitlines()
    assert lines[1:4] == ["torch.OutOfMemoryError without its text.", "", "The message names no size."]
    assert all(line or following for line, following in pairwise(lines))


def test_a_candidate_that_is_hardly_likely_is_not_told_as_impossible(synthetic_fit):
    answer = synthetic_fit.make_oom()
    candidates = (answer.candidates[0], replace(answer.candidates[1], score=1e-6))
    assert "below 0.01" in oom_text(replace(answer, candidates=candidates))


def test_other_candidates_are_cut(synthetic_fit):
    answer = synthetic_fit.make_oom()
    many = answer.candidates + answer.candidates[1:] * 10
    assert "... and 6 more (--json)" in oom_text(replace(answer, candidates=many))


def test_hostile_words_stay_inside_the_columns(synthetic_fit):
    answer = synthetic_fit.make_oom()
    frame = replace(answer.message.traceback[0], file=HOSTILE, function=HOSTILE, code=HOSTILE)
    candidates = tuple(
        replace(one, name=HOSTILE, owner=HOSTILE, why=HOSTILE, batch=2**60, seq=2**60) for one in answer.candidates
    )
    text = oom_text(
        replace(
            answer,
            message=replace(answer.message, traceback=(frame,), requested_text=HOSTILE),
            candidates=candidates,
            evidence=(HOSTILE,),
            advice=(HOSTILE,),
            notes=(HOSTILE,),
            peak_moment=HOSTILE,
        )
    )
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert all(letter.isprintable() for line in lines for letter in line)


def test_print_and_text_show_the_same(synthetic_fit, capsys):
    answer = synthetic_fit.make_oom()
    assert oom_text(answer) == plain_text(oom_renderable(answer)) == answer.to_text()
    print_oom(answer)
    assert "ran out of memory" in capsys.readouterr().out


def test_every_backend_has_a_name():
    assert set(BACKENDS) == set(get_args(OomMessage.__annotations__["backend"]))
