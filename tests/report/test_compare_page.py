"""The page of a comparison: everything is in it, nothing is loaded, names are text."""

import dataclasses
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

from headwise.report.compare_page import render_compare_page

MADE_UP = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic_comparison.py"))))
RESULT = MADE_UP.make_comparison()
PAGE = render_compare_page([RESULT])


def words_of(page):
    body = page[page.index("<main") : page.index("</main>")]
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_every_claim_arm_seed_and_figure_is_on_the_page():
    words = words_of(PAGE)
    for claim in RESULT.claims:
        assert claim.text in words and claim.source in words
    for arm in RESULT.arms:
        for value in arm.metrics["accuracy"].values:
            assert f"{value:.3f}" in words
    assert words.count("Supported") == 1 and words.count("Contradicted") == 1 and words.count("Not decided") == 2
    assert "Vaswani et al. 2017" in words and "What differs: translation" in words
    assert "A run of 1 head was interrupted." in words
    assert "0.700 taken" in words  # the learning rate
    assert "1,030 texts" in words and "64 tokens" in words
    assert "torch 2.13.0" in words and "runs at once 2" in words
    assert "headwise compare --folder headwise-compare/heads --out page.html" in words


def test_every_dot_of_every_strip_is_drawn():
    assert PAGE.count('class="dot"') == (4 + 3) * 5
    assert PAGE.count('class="span"') == 4 + 3 == PAGE.count('class="mean"')
    assert PAGE.count('class="neutral"') == 3


def test_the_linear_baseline_and_the_predicted_peaks_are_on_the_page():
    result = dataclasses.replace(MADE_UP.with_predictions(RESULT), baseline=MADE_UP.make_baseline(0.951))
    page = render_compare_page([result])
    words = words_of(page)
    assert "TF-IDF and logistic regression is no arm but the plain rival of all: accuracy 0.951" in words
    assert "The best arm, 8 heads, loses to it: accuracy 0.932 against 0.951." in words
    assert "(no arm) TF-IDF and logistic regression 6,788 words, accuracy 0.951 33.95 K – – – – – – – 12.3 s –" in words
    assert "(no arm) TF-IDF and logistic regression 0.951 – 0.851" in words  # by length
    assert "Memory Predicted Off by" in words and words.count("3.0 MiB 3.0 MiB -0.42 %") == 3
    assert page.count('class="dot"') == PAGE.count('class="dot"')  # it is no arm
    assert "no arm" not in words_of(PAGE) and "Off by" not in words_of(PAGE)


def test_the_page_loads_nothing():
    assert re.search(r"(?:src|href)=\"(?!#|data:)", PAGE) is None and "url(" not in PAGE
    assert "default-src 'none'" in PAGE


def test_names_are_text_and_not_html():
    arms = (dataclasses.replace(RESULT.arms[0], name="<img src=x>"), *RESULT.arms[1:])
    page = render_compare_page([dataclasses.replace(RESULT, name="<i>", arms=arms, question="&amp;")])
    assert "<img" not in page and "<i>" not in page and "&lt;img src=x&gt;" in page


def test_parts_have_sections_of_their_own_and_ids_that_differ():
    other = MADE_UP.make_comparison(name="other", num_seeds=3, lost=True, num_arms=7, claims=())
    page = render_compare_page([RESULT, other], name="both", question="Which?")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert 'id="part-2"' in page and 'href="#part-2"' in page
    words = words_of(page)
    assert "other: 8 heads less 1 head" in words and "not enough seeds" in words
    assert page.count("hollow") > 3  # the sixth arm has a colour once more, and a mark that is not filled


def test_a_comparison_of_one_seed_without_anything_else_has_a_page():
    bare = MADE_UP.make_comparison(
        num_seeds=1, claims=(), published=(), setup={}, environment={}, notes=(), question=""
    )
    assert words_of(render_compare_page([bare])).count("Published") == 0
