"""The page as text: what it says, that it needs nothing else, and that it escapes what it is given."""

import base64
import hashlib
import re
import sys
from dataclasses import replace

import pytest

from headwise.api.results import FlopsSection, MemorySection, ParametersSection
from headwise.errors import MissingExtraError, OutputError
from headwise.report import html
from headwise.report.page import render_page, write_page

HOSTILE = '<b onclick="x">&\'"</b>{{ 1 }}\u2028注意'


def test_the_page_names_no_other_place(synthetic, elements_of):
    page = render_page(synthetic.make_report(synthetic.make_inspection()))
    tags = elements_of(page).tags
    assert {tag for tag, _ in tags}.isdisjoint({"img", "iframe", "object", "embed", "video", "audio", "base"})
    for tag, attributes in tags:
        assert not {"src", "srcset", "action", "formaction", "ping", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        if "href" in attributes:
            assert attributes["href"] in ("data:,", "#main")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []
    assert "@import" not in page and "url(" not in page


def test_the_policy_allows_this_style_and_this_script_alone(synthetic, elements_of):
    elements = elements_of(render_page(synthetic.make_report(synthetic.make_inspection())))
    policy = next(a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for kind in ("style", "script"):
        digest = hashlib.sha256(elements.texts[kind][-1].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_hostile_words_of_a_report_stand_as_text(synthetic, elements_of):
    report = synthetic.make_report(synthetic.make_inspection(1, 1, notes=(HOSTILE,)), name=HOSTILE)
    report = replace(
        report,
        model=replace(report.model, source=HOSTILE, model_type=HOSTILE),
        heads_notes=(HOSTILE,),
        parameters=replace(report.parameters, notes=(HOSTILE,)),
        memory=replace(report.memory, notes=(HOSTILE,), fit=replace(report.memory.fit, reason=HOSTILE)),
    )
    elements = elements_of(render_page(report))
    assert sum(HOSTILE in text for text in elements.texts[""]) == 9  # 8 places and the title
    assert "b" not in {tag for tag, _ in elements.tags}


def test_predicted_and_measured_stand_side_by_side_with_their_gap(synthetic, elements_of):
    words = elements_of(render_page(synthetic.make_report())).words
    assert "equal to the last weight, 22,713,216" in words
    assert "Saved for backward what the forward pass keeps, parameters aside 70.8 MiB 74,200,064 71.0 MiB" in words
    assert "−0.4 %" in words and "−0.5 %" in words
    assert "Does it fit A100-40GB ? Yes" in words
    assert "total memory that the driver reports , 2026-11-29" in words
    assert "Jain and Wallace 2019" in words and "Serrano and Smith 2019" in words


def test_a_peak_is_called_predicted_only_where_it_is(synthetic, elements_of):
    report = synthetic.make_report()
    assert "Peak, predicted for this device" in elements_of(render_page(report)).words
    measured_alone = replace(report.memory, predicted=None, saved_gap_percent=None, peak_gap_percent=None)
    words = elements_of(render_page(replace(report, memory=measured_alone))).words
    assert "Peak, measured on this machine" in words and "predicted for this device" not in words


def test_the_key_value_cache_names_its_dtype(synthetic, elements_of):
    report = synthetic.make_report()
    memory = replace(report.memory, kv_cache_bytes=3 * 2**20, kv_cache_bytes_per_token=6144, kv_cache_dtype="bfloat16")
    words = elements_of(render_page(replace(report, memory=memory))).words
    assert "Key/value cache, bfloat16 6,144 bytes a token 3.0 MiB 3,145,728" in words


def test_sections_without_numbers_show_why(synthetic, elements_of):
    nothing = {"predicted": None, "counted": None}
    report = synthetic.make_report(
        None,
        parameters=ParametersSection(**nothing, notes=("no config",)),
        flops=FlopsSection(forward=None, train=None, counted_forward=None, notes=("no flops",)),
        memory=MemorySection(
            predicted_for=None,
            predicted=None,
            measured=None,
            saved_gap_percent=None,
            peak_gap_percent=None,
            kv_cache_bytes=None,
            kv_cache_bytes_per_token=None,
            kv_cache_dtype=None,
            score_matrix_bytes=None,
            fit=None,
            notes=("no memory",),
        ),
        heads_notes=("a preset has no weights",),
        seconds=None,
    )
    page = render_page(report)
    words = elements_of(page).words
    for line in ("no config", "no flops", "no memory", "a preset has no weights", "No head was looked at."):
        assert line in words
    assert "Does it fit? Cannot tell: nothing is predicted without a config." in words
    assert 'id="heads-data"' not in page and "<dialog" not in page


def test_the_text_the_window_and_the_role_heads_are_stated(synthetic, elements_of):
    words = elements_of(render_page(synthetic.make_report(synthetic.make_inspection(notes=("cut at 126",))))).words
    assert "averaged over 2,881 tokens of 24 texts, each of at most 126 tokens" in words
    assert "cut at 126" in words
    assert "layer 0 head 2 previous token" in words


@pytest.mark.parametrize("fits", ["yes", "tight", "no"])
def test_the_bar_of_the_verdict_never_leaves_its_box(synthetic, fits):
    report = synthetic.make_report()
    fit = replace(report.memory.fit, fits=fits, peak_bytes=90 * 2**30)
    page = render_page(replace(report, memory=replace(report.memory, fit=fit)))
    drawing = page[page.index('class="capacity"') :]
    widths = [float(width) for width in re.findall(r'(?:width|x1)="([0-9.]+)%"', drawing[: drawing.index("</svg>")])]
    assert max(widths) == 100 and min(widths) > 0


def test_without_jinja2_the_error_is_the_line_that_brings_it(synthetic, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html.template_environment.cache_clear()  # what other tests have read
    with pytest.raises(MissingExtraError, match=re.escape('pip install "headwise[report]"')):
        render_page(synthetic.make_report())


def test_a_page_is_written_from_a_report_or_from_its_text(synthetic, tmp_path):
    report = synthetic.make_report()
    one, other = write_page(report, tmp_path / "one.html"), write_page(render_page(report), tmp_path / "other.html")
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(OutputError):
        write_page(report, tmp_path)
