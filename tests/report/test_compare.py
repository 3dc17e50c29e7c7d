"""A comparison in words, at 80 columns, with numbers as people write them; axes with round numbers; pictures."""

import dataclasses
import re
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from headwise.experiments.intervals import paired_difference, paired_ratio, seed_values
from headwise.png import read_png
from headwise.report.compare import builtin_text, compare_text
from headwise.report.compare_axis import axis_of, round_values, tick_words
from headwise.report.compare_figures import (
    difference_words,
    format_difference,
    format_value,
    interval_words,
    length_buckets,
    mean_difference,
    range_words,
)
from headwise.report.compare_picture import compare_svg, notebook_html
from headwise.report.compare_plots import curve_drawings, further_drawing, length_drawing
from headwise.report.compare_png import compare_png
from headwise.report.compare_strips import arm_strips, difference_strips
from headwise.report.compare_tables import again_command, place_tables, run_command, setup_rows

MADE_UP = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic_comparison.py"))))
RESULT = MADE_UP.make_comparison()


def test_arms_differences_and_claims_are_told_in_80_columns():
    lines = compare_text([RESULT], page="page.html").splitlines()
    assert max(map(len, lines)) <= 80
    cells = [re.split(r"\s{2,}", line) for line in lines]
    assert ["8 heads", "0.932", "0.919 to 0.947", "60.45 K", "3.87 M", "15", "0.002"] in cells
    assert ["8 heads", "+0.622", "[+0.594, +0.651]", "5", "higher"] in cells
    assert ["8 heads", "0.932", "0.466", "0.311"] in cells and ["8 heads", "0.932", "0.832", "0.732"] in cells
    text = " ".join(" ".join(lines).split())
    assert (
        "supported: Eight heads read more places than one (an article) "
        "accuracy: 8 heads less 1 head +0.622 [+0.594, +0.651], 5 seeds " in text
    )
    assert "contradicted: Eight heads train slower than one" in text
    assert "16 heads less 8 heads -0.0024 [-0.031, +0.026], 5 seeds; the interval holds 0" in text
    assert "published: 8 heads 25.8 BLEU, 1 head 24.9 (Vaswani et al. 2017, table 3 (A))" in text
    assert "differs: translation, a larger model, one seed" in text
    assert lines[-1] == "page: page.html" and "note: A run of 1 head was interrupted." in lines


def test_few_seeds_and_lost_runs_claim_nothing():
    text = " ".join(compare_text([MADE_UP.make_comparison(num_seeds=3, lost=True)]).split())
    assert text.count("not enough seeds: ") == 4 and "supported" not in text and "higher" not in text
    assert "1 head, 3 layers – 0.629 to 0.642" in text
    assert "a run has no such number" not in text  # the length is known though the test is not
    lost = MADE_UP.make_comparison(lost=True)
    assert [difference.arm for difference in lost.differences] == ["8 heads", "16 heads"]


def test_a_linear_baseline_is_a_line_of_its_own_that_is_no_arm():
    with_it = dataclasses.replace(RESULT, baseline=MADE_UP.make_baseline(0.951))
    lines = compare_text([with_it]).splitlines()
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "(no arm) TF-IDF and 0.951 33.95 K logistic regression" in text
    assert (
        "TF-IDF and logistic regression is no arm but the plain rival of all: accuracy 0.951, macro F1 0.931, "
        "in 12.3 s. The best arm, 8 heads, loses to it: accuracy 0.932 against 0.951." in text
    )
    row = next(line for line in reversed(lines) if line.startswith("(no arm)"))
    assert row.split()[-3:] == ["0.951", "–", "0.851"]  # by length: none between 11 and 20
    assert "· 4 arms ·" in text
    beaten = dataclasses.replace(RESULT, baseline=MADE_UP.make_baseline(0.93))
    assert "rival of all" in compare_text([beaten]) and "loses to it" not in compare_text([beaten])


def test_a_baseline_without_the_metric_of_the_arms_is_told_by_its_accuracy():
    losing = dataclasses.replace(RESULT, metric="loss", baseline=MADE_UP.make_baseline(0.951))
    text = " ".join(compare_text([losing]).split())
    assert "(no arm) TF-IDF and – 33.95 K" in text
    assert "The best arm, 8 heads, loses to it: accuracy 0.932 against 0.951." in text


def test_a_predicted_peak_stands_beside_the_measured_one():
    lines = compare_text([MADE_UP.with_predictions(RESULT)]).splitlines()
    assert max(map(len, lines)) <= 80
    cells = [re.split(r"\s{2,}", line) for line in lines]
    assert ["memory of a step", "measured", "predicted", "off by"] in cells
    assert ["8 heads", "3.0 MiB", "3.0 MiB", "-0.42 %"] in cells and ["1 head, 3 layers", "3.0 MiB", "–", "–"] in cells
    assert ["mean of the runs", "loss gap", "time", "to 0.5"] in cells
    old = compare_text([RESULT])
    assert "predicted" not in old and re.search(r"mean of the runs +loss gap +memory +time +to 0.5", old)


def test_parts_stand_one_below_the_other():
    text = compare_text([RESULT, dataclasses.replace(RESULT, name="other", question="")])
    assert text.index("heads: Do more heads") < text.index("\nother\n")


def test_the_list_of_comparisons_has_their_questions():
    lines = builtin_text([("heads", "Do more heads help?"), ("scale", "Why divide?")]).splitlines()
    assert lines[1].split(maxsplit=1) == ["heads", "Do more heads help?"]
    assert "headwise compare NAME --quick" in lines[-1]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("accuracy", 0.98765, "0.988"),
        ("accuracy", 0.0, "0.000"),
        ("loss", 0.00123, "0.0012"),
        ("loss", 123.45, "123.5"),
        ("peak_bytes", 3 * 2**20, "3.0 MiB"),
        ("predicted_peak_bytes", 3 * 2**20, "3.0 MiB"),
        ("peak_gap", -0.03847, "-3.85 %"),
        ("peak_gap", -1e-9, "+0.00 %"),
        ("seconds_to_0.9", 12.34, "12.3 s"),
        ("steps_per_second", 1234.5, "1.23e+03"),
        ("accuracy", None, "–"),
    ],
)
def test_numbers_are_written_with_their_units(name, value, words):
    assert format_value(name, value) == words


def test_differences_and_ratios_are_written_as_what_they_are():
    difference = paired_difference((0.5, 0.75), (0.25, 0.5), metric="accuracy", arm="a", other="b")
    assert mean_difference(difference) == "+0.250" and interval_words(difference) == "[+0.250, +0.250]"
    assert difference_words(difference, "2x") == "accuracy on 2x: a less b +0.250 in every seed alike, 2 seeds"
    spread = paired_difference((0.5, 0.5), (0.25, 0.375), metric="accuracy", arm="a", other="b")
    assert difference_words(spread).startswith("accuracy: a less b +0.188 [-0.607, +0.982]")
    ratio = paired_ratio((1.0,), (2.0,), metric="steps_per_second", arm="a", other="b")
    assert difference_words(ratio) == "steps a second: a by b 0.500 ×, 1 seed"
    for value, words in (
        (0.99986, "0.99986"),
        (1.0, "1.000"),
        (1.000071, "1.000071"),
        (0.9993, "0.999"),
        (12.3, "12.3"),
    ):
        ratio = paired_ratio((value,), (1.0,), metric="peak_bytes", arm="a", other="b")
        assert mean_difference(ratio) == f"{words} ×"
    seconds = paired_difference((9.0,), (12.5,), metric="seconds_to_0.5")
    assert mean_difference(seconds) == "-3.5 s" and format_difference(seconds, None) == "–"
    assert range_words("accuracy", seed_values((0.5, 0.5))) == "0.500"
    assert range_words("accuracy", seed_values((0.7, 0.5, None))) == "0.500 to 0.700"


def test_buckets_stand_from_short_to_long():
    names = (">40", "11-20", "<=10", "21-40")
    arm = dataclasses.replace(RESULT.arms[0], by_length={}, length_counts=dict.fromkeys(names, 1))
    assert length_buckets([arm]) == ["<=10", "11-20", "21-40", ">40"]


@pytest.mark.parametrize(
    ("low", "high", "most", "values"),
    [
        (0.0, 1.0, 6, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.33, 0.7, 5, [-0.2, 0.0, 0.2, 0.4, 0.6]),
        (-0.33, 0.7, 4, [-0.25, 0.0, 0.25, 0.5]),
        (0.301, 0.309, 5, [0.302, 0.304, 0.306, 0.308]),
        (0, 1500, 5, [0, 500, 1000, 1500]),
    ],
)
def test_an_axis_has_round_numbers_and_not_too_many(low, high, most, values):
    assert round_values(low, high, most=most) == pytest.approx(values, abs=1e-12)


def test_numbers_of_an_axis_have_the_same_decimals():
    assert tick_words([-0.25, 0.0, 0.25], sign=True) == ["-0.25", "0.00", "+0.25"]
    assert tick_words([0.0, 500.0]) == ["0", "500"]
    assert tick_words([0.302, 0.304]) == ["0.302", "0.304"]


@pytest.mark.parametrize("values", [(0.5,), (0.5, 0.5), (0.0, 0.0), (-1e9, 1e9), (0.1, 0.1 + 1e-17), (1e-12, 3e-12)])
def test_any_values_have_an_axis_that_holds_them(values):
    axis = axis_of(values, first=10.0, last=90.0)
    places = [axis.place(value) for value in values]
    assert all(10 < place < 90 for place in places) and axis.ticks(5)
    assert [a <= b for a, b in pairwise(places)] == [a <= b for a, b in pairwise(values)]


def test_a_dot_stands_where_its_value_is():
    strips = arm_strips(RESULT)
    ticks = {float(words): place for place, words in strips.ticks}
    (low, at_low), (high, at_high) = sorted(ticks.items())[:2]
    for strip, arm in zip(strips.strips, RESULT.arms, strict=True):
        values = arm.metrics["accuracy"].values
        expected = [at_low + (value - low) / (high - low) * (at_high - at_low) for value in values]
        assert strip.dots == pytest.approx(expected, abs=1e-6)
        assert strip.low < strip.mean < strip.high
    differences = difference_strips(RESULT)
    assert differences.neutral == {words: place for place, words in differences.ticks}["0.0"]
    assert "16 heads less 1 head, seed by seed: +0.62, +0.62, +0.62, +0.62, +0.62" in differences.strips[1].label


def test_a_share_has_no_axis_above_one():
    arms = tuple(MADE_UP.make_arm(name, 1.0, (0.0,) * 5) for name in "ab")
    words = [float(words) for _, words in arm_strips(dataclasses.replace(RESULT, arms=arms)).ticks]
    assert words and max(words) <= 1


def test_a_far_interval_of_few_seeds_does_not_squeeze_the_dots():
    """Two seeds at 0.4 and 0.6: the interval reaches from -0.77 to 1.77, the axis does not."""
    arms = tuple(MADE_UP.make_arm(name, 0.5, (-0.1, 0.1), seeds=(0, 1)) for name in "ab")
    strips = arm_strips(dataclasses.replace(RESULT, arms=arms, seeds=(0, 1)))
    dots = strips.strips[0].dots
    assert dots[1] - dots[0] > 50
    assert 0 <= strips.strips[0].low <= 100 and 0 <= strips.strips[0].high <= 100


def test_curves_have_a_line_an_arm_and_a_thin_one_a_seed():
    train, validation, accuracy = curve_drawings(RESULT)
    assert (train.title, validation.title, accuracy.title) == (
        "Training loss",
        "Validation loss",
        "Validation: accuracy",
    )
    assert [len(line.seeds) for line in train.series] == [5] * 4
    for drawing, falls in ((train, True), (accuracy, False)):
        heights = [point.y for point in drawing.series[1].points]
        assert len(heights) == 5 and all((a < b) == falls for a, b in pairwise(heights))  # y grows downwards


def test_a_loss_that_flew_off_does_not_flatten_the_others():
    runs = RESULT.arms[0].runs
    wild = dataclasses.replace(runs[0], curve=(*runs[0].curve[:-1], {**runs[0].curve[-1], "train_loss": 1e30}))
    lost = dataclasses.replace(runs[1], curve=(*runs[1].curve[:-1], {**runs[1].curve[-1], "train_loss": None}))
    arms = (dataclasses.replace(RESULT.arms[0], runs=(wild, lost, *runs[2:])), *RESULT.arms[1:])
    drawing = curve_drawings(dataclasses.replace(RESULT, arms=arms))[0]
    heights = [point.y for point in drawing.series[1].points]
    assert max(heights) - min(heights) > 150
    assert [point.label.split(":")[0] for point in drawing.series[0].points] == ["100", "200", "300", "400"]


def test_further_tests_stand_at_the_logarithm_of_their_length():
    drawing = further_drawing(RESULT)
    assert [tick.words for tick in drawing.x_ticks] == ["32", "64", "128", "256"]
    places = [tick.place for tick in drawing.x_ticks]
    gaps = [b - a for a, b in pairwise(places)]
    assert gaps == pytest.approx([gaps[0]] * 3)
    same = dataclasses.replace(RESULT, test_lengths={"training": 32, "test": 32, "2x": 32, "4x": 32, "8x": 32})
    assert [tick.words for tick in further_drawing(same).x_ticks] == ["test", "2x", "4x", "8x"]
    first = dataclasses.replace(RESULT, test_lengths={"training": 32, "test": 32, "2x": 32, "4x": 64, "8x": 128})
    assert [tick.words for tick in further_drawing(first).x_ticks] == ["32", "64", "128"]
    assert [tick.words for tick in length_drawing(RESULT).x_ticks] == ["<=10", "11-20", ">20"]


def test_a_comparison_without_buckets_and_tests_has_no_such_drawing():
    arms = tuple(dataclasses.replace(arm, by_length={}, length_counts={}, further={}, runs=()) for arm in RESULT.arms)
    bare = dataclasses.replace(RESULT, arms=arms)
    assert (length_drawing(bare), further_drawing(bare), curve_drawings(bare)) == (None, None, [])
    assert list(place_tables(bare)) == [] and "by length" not in compare_text([bare])
    nothing = tuple(dataclasses.replace(arm, metrics={}, mean=None) for arm in arms)
    lost = dataclasses.replace(bare, arms=nothing, differences=())
    assert arm_strips(lost) is None and difference_strips(lost) is None
    assert compare_svg([lost]) and compare_png([lost])


def test_the_picture_has_every_dot_and_takes_any_name():
    root = ET.fromstring(compare_svg([RESULT, RESULT]))
    dots = [one for one in root.iter() if one.get("class") == "dot"]
    assert len(dots) == 2 * (4 + 3) * 5
    width, height = float(root.get("width")), float(root.get("height"))
    for one in root.iter():
        for name, most in (("x", width), ("cx", width), ("x2", width), ("y", height), ("cy", height), ("y2", height)):
            if one.get(name) is not None:
                assert 0 <= float(one.get(name)) <= most
    arms = (dataclasses.replace(RESULT.arms[0], name="<b>\x00 &"), *RESULT.arms[1:])
    odd = dataclasses.replace(RESULT, name="a<b", arms=arms, differences=())
    assert "<b>� &" in [one.text for one in ET.fromstring(compare_svg([odd])).iter()]
    shown = notebook_html([odd], "1 < 2")
    assert "<b>" not in shown and "1 &lt; 2" in shown


def test_the_png_is_a_picture_with_a_dot_for_every_seed():
    picture = read_png(compare_png([RESULT]))
    assert picture.width > picture.height > 100
    ink = bytes((58, 79, 196))
    pixels = [picture.values[start : start + 3] for start in range(0, len(picture.values), 3)]
    assert pixels.count(ink) > (4 + 3) * 60  # a disc of radius 5 has 81 pixels, and some lie on others


def test_how_it_was_made_is_said_in_words_and_commands():
    rows = dict(setup_rows(RESULT.setup))
    assert rows["task"] == "multi offset copy: vocab_size 32, seq_len 32, offsets 1 3 7"
    assert rows["recipe"] == "steps 500, batch_size 64, warmup_steps 100"  # each arm has a learning rate of its own
    assert rows["texts"] == "256 to choose the best state on, 512 to test it on, once"
    assert again_command(RESULT) == "headwise compare --folder headwise-compare/heads --out page.html"
    assert again_command(dataclasses.replace(RESULT, folder="a b")).split(" --")[1] == "folder 'a b'"
    assert run_command(RESULT, "heads") == "headwise compare heads --seeds 5 --folder NEW"
