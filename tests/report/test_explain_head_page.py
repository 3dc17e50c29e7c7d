"""The page of one head: every key, every part of a score, escaped."""

import html
import re
from dataclasses import replace

import pytest
import torch

import headwise
from headwise.inspection.walkthrough.results import HeadExplanation
from headwise.masks.patterns import Causal
from headwise.report.explain_head_page import part_rows, render_head, write_number, write_percent, write_wavelength

HOSTILE = "<script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def told():
    torch.manual_seed(0)
    layer = headwise.MultiHeadAttention(24, 2, mask=Causal())
    plain = headwise.explain(layer, inputs={"query": torch.randn(1, 7, 24)}, head=1, query=5, against=0)
    words = (HOSTILE, "مرحبا", "漢字", "d", "e", "f", "g")
    keys = tuple(replace(key, token=words[key.index]) for key in plain.keys)
    scores = tuple(replace(score, token=words[score.index]) for score in plain.scores)
    return replace(plain, tokens=words, keys=keys, scores=scores, model=HOSTILE, notes=(HOSTILE,))


def test_every_key_and_part_stands_on_the_page_and_words_are_escaped(told):
    page = render_head(told)
    assert HOSTILE not in page and html.escape(HOSTILE) in page
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    cells = re.findall(r"<td>(.*?)</td>", page, flags=re.S)
    for key in told.keys:
        for number, decimals in ((key.product, 2), (key.score, 3), (key.weight, 3), (key.value_norm, 2)):
            assert write_number(number, decimals) in cells
        assert write_percent(key.share) in cells
    for score in told.scores:
        for part in score.parts[:8]:
            assert write_number(part.score) in cells
        assert "4 others" in page  # 12 dimensions, of which 8 have a row
    assert "1 key is hidden by the mask." in page and "hidden-key" in page
    assert isinstance(told, HeadExplanation)


def test_a_head_of_given_weights_has_a_page_without_scores(told):
    bare = replace(told, scale=None, scores=(), contrast=None, output_norm=None)
    bare = replace(
        bare, keys=tuple(replace(key, product=None, score=None, contribution=None, written=None) for key in told.keys)
    )
    page = render_head(bare)
    assert "What made the scores" not in page and "What the head puts out" not in page
    assert all(write_number(key.weight) in page for key in told.keys)


def test_bars_stand_on_either_side_of_the_middle_and_what_is_left_out_is_summed(told):
    parts = told.scores[0].parts
    rows, left = part_rows(parts)
    assert sum(part.score for part in parts[8:]) == left
    assert rows[0].length == 0.5
    for row in rows:
        edge = row.start + row.length if row.part.score < 0 else row.start
        assert edge == pytest.approx(0.5)
        assert row.length == pytest.approx(0.5 * abs(row.part.score / parts[0].score))
    assert rows[-1].total == pytest.approx(sum(part.score for part in parts[:8]))


def test_numbers_are_written_as_they_are_read():
    assert write_number(0.0) == "0.000" and write_number(-1.25, 2) == "−1.25" and write_number(None) == "–"
    assert (
        write_number(1.38e-05) == "1.38·10⁻⁵"
        and write_number(2e7) == "2.00·10⁷"
        and write_number(-3e-9) == "−3.00·10⁻⁹"
    )
    assert write_number(float("nan")) == "nan" and write_percent(None) == "–" and write_percent(-0.013) == "−1.3 %"
    assert write_percent(-1e-5) == "0.0 %" and write_wavelength(2 * 3.14159) == "6.283 tokens"
    assert write_wavelength(213546.4) == "213,546 tokens" and write_wavelength(None) == "–"
