"""What a plan says beside its figures: how many devices would do, what is copied, what a prompt's scores cost."""

import re
from dataclasses import replace

import pytest

import headwise
from headwise.config.presets import preset

GIB = 2**30


def shallow(name, num_layers, **settings):
    config = preset(name, **settings)
    return replace(config, blocks=config.blocks[:num_layers])


def notes_of(plan):
    return " ".join(plan.notes)


def test_a_sharded_step_that_does_not_fit_says_over_how_many_devices_it_would():
    step = {"shard": "zero3", "batch": 3, "seq": 64, "gpu": "t4"}
    config = replace(shallow("llama-3-8b", 12), vocab_size=1009)  # what belongs to no layer is gathered whole
    plan = headwise.fit(config, num_gpus=2, **step)
    assert plan.fits == "no"
    number, on_each, in_all = map(
        int, re.search(r"Over (\d+) devices it fits, with (\d) of (\d+) ", notes_of(plan)).groups()
    )
    assert (on_each, in_all) == (3, 3 * number)
    assert headwise.fit(config, num_gpus=number, **step).fits == "yes"
    half = headwise.fit(config, num_gpus=number // 2, **step)
    assert half.fits != "yes" and f"Over {number} devices it fits" in notes_of(half)


def test_texts_that_all_devices_share_are_not_told_as_each_ones_own():
    config = replace(shallow("llama-3-8b", 12), vocab_size=1009)
    plan = headwise.fit(config, shard="tensor", num_gpus=2, batch=3, seq=64, gpu="t4")
    assert plan.fits == "no" and re.search(r"Over \d+ devices it fits\.", notes_of(plan))


def test_a_number_of_devices_that_is_tight_is_told_where_none_is_enough():
    plan = headwise.fit(shallow("llama-3-8b", 6), shard="zero3", num_gpus=2, batch=3, seq=64, gpu="t4")
    assert plan.fits == "no" and "Over 8 devices it is tight, with 3 of 24 texts on each." in plan.notes
    plan = headwise.fit(shallow("llama-3-8b", 6), shard="zero3", num_gpus=8, batch=3, seq=64, gpu="t4")
    assert plan.fits == "tight" and "Over more devices it does not fit so either: 16, twice" in notes_of(plan)


def test_where_no_number_of_devices_is_enough_the_numbers_that_were_tried_are_told():
    config = shallow("gpt2", 1)  # its activations do not grow less
    for num_gpus, tried in ((200, "400, twice as many, and so on to 1,024 were tried"), (1000, "none were tried")):
        plan = headwise.fit(config, shard="zero3", num_gpus=num_gpus, batch=64, seq=1024, gpu="t4")
        assert f"Over more devices it does not fit so either: {tried}." in plan.notes


def test_nothing_of_devices_is_said_of_a_step_that_fits_or_is_not_spread():
    for settings in ({"shard": "zero3", "num_gpus": 2}, {"batch": 512}):
        assert "devices it" not in notes_of(headwise.fit(shallow("gpt2", 1), gpu="t4", **settings))


@pytest.mark.parametrize(("num_gpus", "copies"), [(8, None), (16, 2), (32, 4)])
def test_key_value_heads_fewer_than_devices_are_said_to_be_copied(num_gpus, copies):
    config = shallow("llama-3-8b", 1)  # 32 heads on 8
    sentence = (
        f"each of 8 key/value heads is taken to be copied on {copies} devices, which the implementation has to do"
    )
    plan = headwise.fit(config, shard="tensor", num_gpus=num_gpus, gpu="h100-80gb")
    assert (f"E{sentence[1:]}." in plan.notes) if copies else "copied" not in notes_of(plan)
    rows = {change.key: change.why or "" for change in headwise.fit(config, num_gpus=num_gpus, gpu="h100-80gb").changes}
    for key in ("tensor", "sequence"):
        assert (sentence in rows[key]) if copies else "copied" not in rows[key]
    assert "copied" not in rows["zero3"]


def test_the_scores_of_a_prompt_are_told_with_what_keeping_the_last_frees():
    """Without them the peak is in the layer, where the model without a head has it: the head is tied, and adds none."""
    plan = headwise.fit(shallow("gpt2", 1), phase="prefill", batch=1, seq=1024, gpu="t4")
    bare = headwise.fit(replace(shallow("gpt2", 1), head=None), phase="prefill", batch=1, seq=1024, gpu="t4")
    (note,) = (note for note in plan.notes if "logits_to_keep=1" in note)
    scores = 1024 * 50257 * 4
    assert f"scores of all 1,024 tokens of a prompt are reckoned, {scores / 2**20:.1f} MiB at the peak" in note
    saved, peak = (float(size) for size in re.search(r"peak is ([\d.]+) MiB lower then, ([\d.]+) MiB", note).groups())
    assert saved + peak == pytest.approx(plan.peak_bytes / 2**20, abs=0.11)
    assert peak == pytest.approx(bare.peak_bytes / 2**20, abs=0.06)


@pytest.mark.parametrize(
    ("model", "step"),
    [
        ("gpt2", {"phase": "train"}),
        ("gpt2", {"phase": "decode"}),
        ("gpt2", {"phase": "prefill", "seq": 16}),  # a hundredth of the weights
        ("bert-base", {"phase": "prefill", "head": True}),  # gives every word, and generates nothing
        ("t5-small", {"phase": "prefill", "head": True}),  # of which transformers cannot ask it
    ],
)
def test_nothing_is_said_of_scores_where_they_are_few_or_all_wanted(model, step):
    assert "logits_to_keep" not in notes_of(headwise.fit(model, gpu="h100-80gb", **{"seq": 512, **step}))


def test_a_longer_table_of_positions_does_not_change_what_the_model_is():
    plan = headwise.fit(shallow("gpt2", 1), seq=2048, gpu="t4")
    assert plan.model.max_positions == 1024
    assert "1,024 positions, reckoned with 2,048" in " ".join(plan.to_text().split())
    assert "positions, reckoned with" not in headwise.fit(shallow("gpt2", 1), seq=1024, gpu="t4").to_text()


def test_lengths_beyond_the_position_table_are_said_to_be_so_whoever_names_them():
    gpt2 = shallow("gpt2", 1)
    plan = headwise.fit(gpt2, gpu="t4", seq=64, sweep=("batch=1", "seq=64,2048"))
    assert plan.largest_seq > 1024
    beyond = (
        "Lengths above 1,024 (the largest that fits, the sweep's, the sweep's edge) are reckoned with a longer table"
    )
    assert beyond in notes_of(plan)
    rotary = headwise.fit(shallow("llama-3-8b", 1), gpu="t4", seq=64)
    assert "longer table" not in notes_of(rotary)


def test_what_a_sweep_leaves_out_is_counted():
    """A length that four devices do not divide cannot be told."""
    gpt2 = shallow("gpt2", 1)
    step = {"gpu": "a100-80gb", "precision": "bf16", "dropout": False, "shard": "context", "num_gpus": 4}
    plan = headwise.fit(gpt2, seq=64, sweep=("seq=30,64,96",), **step)
    assert [point.seq for point in plan.sweep.points] == [64, 96]
    assert "Of the sweep 1 of 3 points and the edges of 0 batches were not told, or not in time." in notes_of(plan)
