"""The blocks that the text and the page of a fit list changes in, and the words of their reasons."""

import re

import pytest

from headwise.config.presets import preset
from headwise.cost.sharding.predict import predict_sharded_step
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError
from headwise.report.fit import fit_text
from headwise.report.fit_blocks import change_blocks, frees_something, plain_reason, reason_words, shorten_reason
from headwise.report.fit_page import render_fit_page

REASON = (
    "then the peak is at backward of the last layer (layer 11), where 11 x feed-forward hidden (32, 2048, 3072) "
    "float32, 8.25 GiB, 11 x feed-forward active (32, 2048, 3072) float32, 8.25 GiB are among 56.90 GiB"
)


@pytest.fixture
def make(synthetic_fit):
    return synthetic_fit.make_change


def changes_of(make):
    return (
        make("a", "change same", 10.0, peak_gib=90),
        make("b", "change alters", 10.0, peak_gib=90, list="alters"),
        make("c", "change sharded", 10.0, peak_gib=90, other_gpus=7),
        make("d", "change useless", 0.05, peak_gib=99.95, why="a reason"),
        make("e", "change worse", -0.05, peak_gib=100.05, why="a reason"),
        make("f", "change wasted", -5.0, peak_gib=105.0, other_gpus=7),
        make("g", "change impossible", applies=False, fits=None),
    )


def test_every_change_stands_in_one_block(make):
    blocks = {
        block.heading: "".join(change.key for change in block.changes) for block in change_blocks(changes_of(make))
    }
    assert blocks == {
        "The same result": "a",
        "Alters the model or the batch": "b",
        "Over more devices": "c",
        "Frees nothing": "def",
        "Not possible here": "g",
    }
    assert change_blocks(()) == []


def test_the_text_and_the_page_list_the_same_changes_in_the_same_blocks(make, synthetic_fit):
    plan = synthetic_fit.make_plan(changes=changes_of(make)[:5] + changes_of(make)[6:], path=(), paths=())
    for shown in (fit_text(plan), render_fit_page(plan).partition("What to change")[2]):
        headings = [shown.index(block.heading) for block in change_blocks(plan.changes)]
        places = {word: shown.index(f"change {word}") for word in re.findall(r"change (\w+)", shown)}
        assert headings == sorted(headings)
        assert headings[3] < places["useless"] < places["worse"] < headings[4] < places["impossible"]
        assert headings[0] < places["same"] < headings[1] < places["alters"] < headings[2] < places["sharded"]


@pytest.mark.parametrize(("frees_gib", "matters"), [(0.0, False), (0.0999, False), (0.1001, True), (-50.0, False)])
def test_a_thousandth_of_the_peak_is_the_least_that_counts(make, frees_gib, matters):
    assert frees_something(make("a", "a change", frees_gib, peak_gib=100 - frees_gib)) is matters


def test_what_a_change_takes_is_told_where_it_matters(make):
    assert reason_words(make("a", "a", -5.0, peak_gib=105.0, why="so")) == "takes 5.00 GiB more: so"
    assert reason_words(make("a", "a", -1e-6, peak_gib=100.0, why="so")) == "so"
    assert reason_words(make("a", "a", -5.0, peak_gib=105.0)) == "takes 5.00 GiB more"


@pytest.mark.parametrize("limit", range(20, len(REASON) + 1))
def test_a_reason_is_cut_between_words_and_never_in_a_shape(limit):
    short = shorten_reason(REASON, limit)
    kept = short.removesuffix(" ...")
    assert REASON.startswith(kept) and len(kept) <= limit
    assert kept.count("(") == kept.count(")")
    assert kept == REASON or REASON[len(kept)] in " ,;:"


def test_a_reason_without_a_place_to_cut_is_whole():
    assert shorten_reason("(1, 2, 3) of it", 5) == "(1, 2, 3) of it"
    assert shorten_reason("a  reason", 100) == "a reason"


@pytest.mark.parametrize(
    ("workload", "sharding", "words"),
    [
        (
            {},
            ("tensor", 5),
            "tensor parallel needs a number of heads that the number of devices divides; got 12 and 5: ",
        ),
        ({"attention": "eager"}, ("context", 2), "context parallel needs sdpa attention; got 'eager'"),
        (
            {"optimizer": "muon"},
            ("zero3", 2),
            "Muon turns whole matrices, and ZeRO-3 (FSDP2) leaves each device a part",
        ),
        ({"seq": 7}, ("sequence", 2), "tensor and sequence parallel needs a length that the number of devices divides"),
    ],
)
def test_a_reason_has_the_words_of_changes_in_place_of_names_of_arguments(workload, sharding, words):
    kind, num_devices = sharding
    with pytest.raises(UnsupportedError) as refused:
        predict_sharded_step(
            preset("bert-base"),
            Workload(**{"batch": 1, "seq": 8, **workload}),
            Sharding(kind=kind, num_devices=num_devices),
        )
    reason = plain_reason(str(refused.value))
    assert reason.startswith(words)
    assert not re.search(r"kind '|sharding '|num_|'zero", reason)
