"""Which tensor has the size, and at which batch and length."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from headwise.config.dtypes import DTYPE_BYTES
from headwise.config.presets import preset
from headwise.cost.oom import search
from headwise.cost.oom.pairs import tensor_ranges
from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.solve import solve
from headwise.cost.oom.steps import Hints, compute_capability_of, list_suspects
from headwise.cost.step.play import play_step
from headwise.cost.workload import Workload
from headwise.results import format_bytes

FEW = Hints(phase="train", precision="fp32", checkpoint="none")  # fewer steps, for the sake of time
ONE = replace(FEW, attention="sdpa")
ROOT = Path(__file__).parents[3]
GIB = 2**30
BYTES = DTYPE_BYTES | {"int64": 8, "int32": 4, "uint8": 1, "bool": 1}


@pytest.fixture(autouse=True)
def few_are_weighed(monkeypatch):
    """A part of what is weighed as a rule: the type checks of the tests make every call ten times slower."""
    monkeypatch.setattr(search, "MAX_WEIGHED", 5_000)
    monkeypatch.setattr(search, "MAX_REFINED", 12)


def message(gib, *, backend="cuda", is_rounded_up=True, allocated=None, capacity=None, free=None, reserved=None):
    """A message with sizes in GiB as torch prints them, to two decimals."""
    return OomMessage(
        backend=backend,
        wording="test",
        requested_text=f"{gib:.2f} GiB",
        requested_low_bytes=int((gib - 0.005) * GIB),
        requested_high_bytes=int((gib + 0.005) * GIB),
        is_rounded_up=is_rounded_up,
        allocated_bytes=None if allocated is None else int(allocated * GIB),
        capacity_bytes=None if capacity is None else int(capacity * GIB),
        free_bytes=None if free is None else int(free * GIB),
        reserved_bytes=None if reserved is None else int(reserved * GIB),
    )


def pairs_of(candidate):
    return ((candidate.batch, candidate.seq), *candidate.alternatives)


@pytest.mark.parametrize(
    ("name", "gib", "shape"),
    [
        ("bert-base", 6.0, (32, 12, 2048, 2048)),
        ("bert-large", 8.0, (32, 16, 2048, 2048)),
        ("bert-large", 2.0, (32, 16, 1024, 1024)),
    ],
)
def test_six_gib_are_the_scores_of_bert_base_and_eight_those_of_bert_large(name, gib, shape):
    first = solve(message(gib), preset(name), hints=Hints(checkpoint="none", phase="train"))[0]
    assert "attention: attention scores" in first.members
    assert first.dtype == "float32"
    assert first.bytes == 4 * prod(shape) == gib * GIB
    assert (shape[0], shape[2]) in pairs_of(first)
    assert first.score == 1
    assert "layers 0 to" in first.owner


def test_the_logits_of_32k_tokens_are_18_5_gib_in_float32():
    first, second = solve(
        message(18.55), preset("qwen3-8b"), hints=Hints(phase="train", checkpoint="none", attention="sdpa")
    )[:2]
    for one in (first, second):
        assert one.owner == "head"
        assert one.shape[-1] == 151_936
        assert prod(one.shape[:-1]) == 32_768
        assert one.dtype == "float32"


def test_the_bytes_in_use_tell_the_batch_and_the_length():
    """BERT-base, batch 32, length 2048, on a V100 of 32 GB: the step is added up until a tensor finds no room."""
    config, room = preset("bert-base"), 31.74 * GIB - 2**29
    tape = play_step(config, config.blocks, Workload(batch=32, seq=2048, attention="eager", compute_capability=(7, 0)))
    events = [(record.born, record.bytes) for record in tape.records]
    events += [(record.freed, -record.bytes) for record in tape.records if record.freed is not None]
    in_use = 0
    for _, num_bytes in sorted(events):
        if in_use + num_bytes > room:
            break
        in_use += num_bytes
    assert num_bytes == 6 * GIB
    asked = message(6.0, allocated=in_use / GIB, capacity=31.74)
    first = solve(asked, config, hints=Hints(phase="train", checkpoint="none"))[0]
    assert (first.moment, first.dtype, first.batch, first.seq) == ("forward", "float32", 32, 2048)
    assert "attention: attention scores" in first.members
    assert f"{format_bytes(in_use)} of tensors are alive before it by the ledger" in first.why


def test_45_64_gib_of_a_silent_math_fallback_are_scores_of_some_27k_tokens():
    found = solve(message(45.64), None, operation="scores", batch=1)
    scores = [one for one in found if one.name == "attention scores"]
    assert any(27_000 <= one.seq <= 28_000 for one in scores)


@pytest.mark.parametrize(("length", "has_mask"), [(4096, True), (2048, False)])
def test_a_windowed_model_has_a_mask_from_its_window_on(length, has_mask):
    size = length * length  # of a mask of bytes
    asked = replace(message(1.0), requested_low_bytes=size, requested_high_bytes=size, is_rounded_up=False)
    hints = Hints(phase="prefill", attention="sdpa", precision="fp32")
    found = solve(asked, preset("mistral-7b"), hints=hints, batch=1, limit=100)
    assert any(one.name.startswith("attention mask") and one.seq == length for one in found) == has_mask


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("bert-base", message(6.0)),
        ("gpt2", message(1.5, allocated=20.0, capacity=23.69)),
        ("vit-b-16", message(20 / 1024)),
        ("llama-3.2-1b", message(0.75, backend="cpu", is_rounded_up=False)),
        ("gpt-oss-20b", message(1.0, backend="mps", allocated=30.0)),
    ],
)
def test_every_candidate_has_the_size_and_comes_once(name, asked):
    ranges = tensor_ranges(asked)
    hints = replace(FEW, attention="eager")
    found = solve(asked, preset(name), hints=hints, limit=40)
    assert found
    assert found[0].score == 1
    for one in found:
        assert one.bytes == prod(one.shape) * BYTES[one.dtype]
        assert any(low <= one.bytes <= high for low, high in ranges), one
        assert one.why
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    keys = [(one.name, one.shape, one.dtype, one.owner, one.moment) for one in found]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("config", [None, preset("llama-3.2-1b")], ids=["no model", "model"])
def test_a_given_batch_and_length_are_kept(config):
    for told in ({"batch": 6}, {"seq": 1536}, {"batch": 6, "seq": 1536}):
        for one in solve(message(1.125, allocated=20.0), config, hints=FEW, **told):
            for name, value in told.items():
                assert getattr(one, name) in (None, value)
            assert all(
                told.get("batch", batch) == batch and told.get("seq", seq) == seq for batch, seq in one.alternatives
            )


def test_the_order_of_the_steps_does_not_matter(monkeypatch):
    import headwise.cost.oom.solve as module

    config, asked = preset("gpt2"), message(1.5, allocated=20.0, capacity=23.69)
    before = solve(asked, config, hints=FEW)
    monkeypatch.setattr(module, "list_suspects", lambda *known: list_suspects(*known)[::-1])
    after = solve(asked, config, hints=FEW)
    assert [(one.shape, one.dtype, one.moment) for one in after] == [
        (one.shape, one.dtype, one.moment) for one in before
    ]
    assert [one.score for one in after] == pytest.approx([one.score for one in before])


def test_the_line_of_the_traceback_brings_what_it_makes_to_the_top():
    config = preset("gpt2")
    assert solve(message(1.5), config, hints=ONE, operation="backward")[0].moment == "backward"
    assert "feed-forward" in solve(message(1.5), config, hints=ONE, operation="feed-forward")[0].owner
    logits = solve(message(1.534), config, hints=ONE, operation="logits")[0]
    assert (logits.owner, logits.shape[-1]) == ("head", 50_257)
    assert "the traceback stands at logits" in logits.why


def test_a_hint_leaves_other_steps_out():
    hints = Hints(phase="prefill", precision="bf16", attention="eager")
    for one in solve(message(1.5), preset("gpt2"), hints=hints):
        assert (one.workload.phase, one.workload.precision, one.workload.attention) == ("prefill", "bf16", "eager")


def test_without_a_model_common_shapes_are_tried_and_the_models_named_that_have_them():
    found = solve(message(6.0), None, batch=32)
    twelve = next(one for one in found if one.shape == (32, 12, 2048, 2048))
    assert (twelve.name, twelve.dtype, twelve.workload) == ("attention scores", "float32", None)
    assert "as bert-base" in twelve.why
    assert any(one.shape[-1] == 151_936 for one in solve(message(18.55), None, operation="logits", seq=1024))


def test_a_family_without_a_closed_form_is_solved_from_its_shapes():
    config = replace(preset("llama-3-8b"), model_type="falcon")
    found = solve(message(7.83), config, operation="logits")
    assert found[0].name == "output scores"
    assert found[0].shape[-1] == 128_256
    assert found[0].workload is None


@pytest.mark.parametrize(
    "figures",
    [(None, None), (0, 0), (-(2**70), -1), (2**70, 2**80), (2**62, 2**62), (5, 1), (1, 2**62)],
)
@pytest.mark.parametrize("config", [None, preset("bert-base")], ids=["no model", "model"])
def test_hostile_sizes_answer_in_bounded_time(figures, config):
    asked = replace(message(1.0), requested_low_bytes=figures[0], requested_high_bytes=figures[1], is_rounded_up=False)
    started = time.process_time()
    found = solve(asked, config, hints=FEW, batch=2**40, seq=1)
    found += solve(asked, config, hints=FEW, batch=None if config else 2)
    assert time.process_time() - started < 20  # under the type checks of the tests
    assert len(found) <= 24


def test_a_deep_or_odd_model_answers():
    config = preset("llama-3-8b")
    deep = replace(config, blocks=config.blocks[:1] * 10_000)
    assert solve(message(1.0), deep, hints=ONE)[0].workload is not None
    block = config.blocks[0]
    odd = tuple(replace(block, feed_forward=replace(block.feed_forward, hidden_dim=128 + one)) for one in range(700))
    assert solve(message(1.0), replace(config, blocks=odd))[0].workload is None


def test_the_card_is_known_by_its_capacity():
    assert compute_capability_of(message(1.0, capacity=31.74)) == (7, 0)
    assert compute_capability_of(message(1.0, capacity=79.11)) == (9, 0)
    assert compute_capability_of(message(1.0, capacity=500.0)) == (8, 0)
    assert compute_capability_of(message(1.0)) == (8, 0)
    assert compute_capability_of(replace(message(1.0), capacity_bytes=5)) == (8, 0)


def test_a_round_batch_is_named_where_the_message_leaves_no_other():
    """BERT-base at batch 100 and length 384: scores of 675 MiB to the byte, and what is alive before those of layer 5.

    The scores alone leave (4, 1920), (25, 768) and (400, 192) too.
    """
    config, workload = preset("bert-base"), Workload(batch=100, seq=384, attention="eager")
    records = play_step(config, config.blocks, workload).records
    (born,) = (one.born for one in records if (one.owner, one.name) == ("layer 5 attention", "attention scores"))
    in_use = sum(one.bytes for one in records if one.born < born and (one.freed is None or one.freed >= born))
    asked = message(0.0, is_rounded_up=False, allocated=in_use / GIB, capacity=in_use / GIB + 1.0)
    size = 4 * 100 * 12 * 384 * 384
    asked = replace(asked, requested_low_bytes=size, requested_high_bytes=size)
    first = solve(asked, config, hints=replace(FEW, attention="eager"))[0]
    assert "attention: attention scores" in first.members
    assert (first.batch, first.seq) == (100, 384)


@pytest.mark.parametrize(("batch", "seq"), [(150, 128), (250, 200), (66, 500), (1000, 64)])
def test_logits_of_unusual_batches_are_found_from_their_size(batch, seq):
    size = 4 * batch * seq * 50_257
    asked = replace(message(0.0, is_rounded_up=False), requested_low_bytes=size, requested_high_bytes=size)
    for told in ({"batch": batch}, {"seq": seq}):
        first = solve(asked, preset("gpt2"), hints=replace(FEW, attention="sdpa"), operation="logits", **told)[0]
        assert (first.shape, first.dtype) == ((batch, seq, 50_257), "float32")


@pytest.mark.parametrize("told", ["the card", "its capacity"])
def test_a_card_without_bfloat16_has_no_tensor_in_it(told):
    asked = message(6.0, capacity=31.75 if told == "its capacity" else None)
    hints = Hints(compute_capability=(7, 0)) if told == "the card" else Hints()
    found = solve(asked, None, hints=hints, seq=2048, limit=40)
    assert (found[0].shape, found[0].dtype) == ((32, 12, 2048, 2048), "float32")
    assert {one.dtype for one in found} == {"float32", "float16"}
    known = replace(hints, phase="prefill", attention="eager")
    assert {one.dtype for one in solve(asked, preset("bert-base"), hints=known, seq=2048)} == {"float32", "float16"}
    assert {one.dtype for one in solve(message(6.0), None, seq=2048, limit=40)} == {"float32", "bfloat16"}


@pytest.mark.parametrize(("precision", "dtypes"), [("fp16", {"float16"}), ("amp-bf16", {"float32", "bfloat16"})])
def test_without_a_model_a_precision_gives_the_dtypes(precision, dtypes):
    found = solve(message(6.0), None, hints=Hints(precision=precision), seq=2048, limit=40)
    assert {one.dtype for one in found} == dtypes


def test_a_size_rounded_by_hand_is_solved_as_it_was_meant():
    """gpt2's scores of 16 texts of 1024 tokens and 16 heads are 1 GiB to the byte, which torch calls 1024.00 MiB."""
    meant = {"requested_text": "1.00 GiB", "requested_low_bytes": GIB + 1, "requested_high_bytes": 1_079_110_533}
    hints = replace(FEW, attention="eager")
    told = {"hints": hints, "batch": 16, "seq": 1024}
    config = preset("gpt2-medium")
    for asked in (message(1.0), message(1.0, allocated=20.0)):
        first = solve(replace(asked, **meant), config, **told)[0]
        assert (first.bytes, first.shape) == (GIB, (16, 16, 1024, 1024))
        assert "torch prints that as 1024.00 MiB: 1.00 GiB is taken for typed by hand" in first.why
    # A message with all its figures is torch's own: then it is a tensor of more than 1 GiB, where there is one.
    of_torch = solve(replace(message(1.0, allocated=20.0), **meant), config, hints=hints, limit=40)
    assert of_torch and all(one.bytes > GIB for one in of_torch)
    by_hand = solve(replace(message(1.0), **meant), config, hints=hints, limit=40)
    assert any(one.bytes == GIB for one in by_hand)


def test_where_the_batch_is_known_a_weights_copy_is_weighed_at_the_length_of_the_bytes_in_use():
    """The copy of gpt2's token table for autocast, made in every forward pass, at an unusual length."""
    config, known = preset("gpt2"), Hints(phase="train", precision="amp-bf16", attention="sdpa", checkpoint="none")
    workload = Workload(batch=2, seq=1000, precision="amp-bf16", loss="cross_entropy")
    tape = play_step(config, config.blocks, workload)
    (copy,) = (one for one in tape.records if one.name == "token table, bfloat16")
    in_use = sum(
        one.bytes for one in tape.records if one.born < copy.born and (one.freed is None or one.freed >= copy.born)
    )
    asked = replace(
        message(0.0, is_rounded_up=False, allocated=in_use / GIB, capacity=(in_use + copy.bytes) / GIB + 0.4),
        requested_low_bytes=copy.bytes,
        requested_high_bytes=copy.bytes,
    )
    first = solve(asked, config, hints=known, batch=2)[0]
    assert ("head: token table, bfloat16" in first.members, first.moment) == (True, "forward")


def test_of_random_steps_that_fail_the_true_tensor_is_first_or_second():
    """8 cases of `benchmarks.oom`, without the type checks of the tests, which would make it ten times slower.

    `python -m benchmarks.oom --small --cases 8 --seed 1` draws the same cases each time: on 2026-11-30 the tensor was
    first in 7, and batch and length listed in 7. Of the 500 cases that the benchmark records 98.6 % are first or
    second, 96.8 % first, and 92.9 % have batch and length listed. By these shares 2 or more of 8 are not first or
    second in one drawing of 193, 3 or more not first in one of 615, and 3 or more not listed in one of 65.
    """
    words = ["-m", "benchmarks.oom", "--json", "--small", "--cases", "8", "--seed", "1"]
    run = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    summary = json.loads(run.stdout)["summary"]
    assert summary["cases"] == 8
    assert summary["first or second"]["all"] >= 7 / 8, summary
    assert summary["first"]["all"] >= 6 / 8, summary
    assert summary["batch and length listed"] >= 6 / 8, summary
