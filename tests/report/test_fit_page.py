"""The page of a fit as text: what it says, what its drawing is made of, and that it needs nothing else."""

import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.results import Ledger, LedgerEntry
from headwise.cost.workload import Workload
from headwise.errors import MissingExtraError, OutputError
from headwise.report import html
from headwise.report.fit_heat import NUM_SHADES, heat_map
from headwise.report.fit_page import render_fit_page, write_fit_page
from headwise.report.fit_timeline import HEIGHT, MAX_COLUMNS, draw_timeline, timeline_data
from headwise.results import format_bytes

GIB = 2**30
HOSTILE = '<b onclick="x">&\'"</b>{{ 1 }}</script><!--\u2028注意'


@pytest.fixture
def full_plan(synthetic_fit):
    return synthetic_fit.make_plan(
        sweep=synthetic_fit.make_sweep(),
        verification=synthetic_fit.make_verification(),
        history=synthetic_fit.make_history(),
    )


def test_the_page_names_no_other_place(full_plan, elements_of):
    page = render_fit_page(full_plan)
    tags = elements_of(page).tags
    assert {tag for tag, _ in tags}.isdisjoint({"img", "iframe", "object", "embed", "video", "audio", "base"})
    for tag, attributes in tags:
        assert not {"src", "srcset", "action", "formaction", "ping", "style"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        if "href" in attributes:
            assert attributes["href"] in ("data:,", "#main")
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []
    assert "@import" not in page and "url(" not in page


def test_the_policy_allows_this_style_and_this_script_alone(full_plan, elements_of):
    elements = elements_of(render_fit_page(full_plan))
    policy = next(a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for kind in ("style", "script"):
        digest = hashlib.sha256(elements.texts[kind][-1].encode()).digest()
        assert f"{kind}-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_every_id_is_there_once(full_plan, elements_of):
    ids = [attributes["id"] for _, attributes in elements_of(render_fit_page(full_plan)).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_hostile_words_of_a_fit_stand_as_text(full_plan, elements_of):
    entries = tuple(replace(entry, name=HOSTILE, owner=HOSTILE) for entry in full_plan.ledger.entries)
    moments = (HOSTILE,) * len(full_plan.timeline)
    plan = replace(
        full_plan,
        model=replace(full_plan.model, name=HOSTILE, source=HOSTILE, model_type=HOSTILE),
        device=replace(full_plan.device, name=HOSTILE, description=HOSTILE, source=HOSTILE),
        reason=HOSTILE,
        peak_label=HOSTILE,
        ledger=replace(full_plan.ledger, entries=entries, moments=moments),
        timeline=tuple(replace(moment, moment=HOSTILE) for moment in full_plan.timeline),
        changes=tuple(replace(change, change=HOSTILE, why=HOSTILE) for change in full_plan.changes),
        unmodelled=tuple(replace(part, what=HOSTILE, source=HOSTILE) for part in full_plan.unmodelled),
        notes=(HOSTILE,),
        history=tuple(replace(step, model=HOSTILE, device=HOSTILE, when=HOSTILE) for step in full_plan.history),
    )
    elements = elements_of(render_fit_page(plan))
    assert sum(HOSTILE in text for text in elements.texts[""]) > 25
    assert "b" not in {tag for tag, _ in elements.tags}
    data = json.loads(next(text for text in elements.texts["script"] if text.startswith("{")))
    assert data["columns"][0]["name"] == HOSTILE and data["tensors"][0][1:3] == [HOSTILE, HOSTILE]


def test_the_answers_stand_on_top(full_plan, elements_of):
    words = elements_of(render_fit_page(full_plan)).words
    assert "Fits v100-32gb? Tight needs 31.10 to 32.89 GiB of 32.00 GiB, memory beside tensors decides" in words
    assert "Peak of the tensors 30.85 GiB backward of layer 3" in words
    assert "Largest batch 31 at length 2,048; length 2,011 at batch 32" in words
    assert "Least time of a step 3.5 s bound by FLOPs: 3.2 s at 15.7 TFLOP/s, 1.3 s at 900 GB/s" in words


def test_changes_stand_in_blocks_with_their_reasons(full_plan, elements_of):
    words = elements_of(render_fit_page(full_plan)).words
    assert "Frees nothing Less than 1/1,000 of the peak, or it takes more. fused optimizer step the peak is in" in words
    assert "a window of 256 tokens takes 512.0 MiB more: eager attention masks, it skips nothing" in words
    assert "Fits Peak then FLOPs per token 1 fused attention" in words
    assert "ZeRO-3 (FSDP) over 8 devices 102.4 MiB no 31.20 GiB 0 % 4.00 GiB weights: all-gather 3.00 GiB" in words
    assert "Not possible here What stands in the way of each. bfloat16 a V100 has no units for bfloat16" in words
    assert (
        "What makes it fit fused attention + full checkpointing (peak 3.00 GiB, +33 % FLOPs per token, fits) ." in words
    )


def test_what_makes_it_fit_stands_before_every_section(full_plan):
    page = render_fit_page(full_plan)
    assert page.index('class="need"') < page.index("What makes it fit") < page.index("<section id=")


def test_the_bar_and_the_headline_tell_one_need(synthetic_fit, elements_of):
    plan = synthetic_fit.make_plan(reserved_bytes=31 * GIB)
    page = render_fit_page(plan)
    words = elements_of(page).words
    assert "needs 31.10 to 33.04 GiB of 32.00 GiB" in words
    reserved = format_bytes(31 * GIB - plan.peak_bytes)
    assert f"Reserved beside them up to {reserved} Not modelled 256.0 MiB to 2.04 GiB" in words
    assert "for which torch reserves 31.00 GiB, at backward of layer 3" in words
    bars = [a for tag, a in elements_of(page).tags if tag == "rect" and a["class"].startswith("kind ")]
    assert sum(float(bar["width"].rstrip("%")) for bar in bars) == pytest.approx(100, abs=0.001 * len(bars))


def test_names_of_phases_stand_where_a_screen_has_room_for_them(synthetic_fit):
    def shown(lengths):
        names = [name for name, length in lengths.items() for _ in range(length)]
        ledger = Ledger(moments=tuple(f"{name}: {i}" for i, name in enumerate(names)), entries=())
        return {phase.name: phase.shown for phase in draw_timeline(synthetic_fit.make_plan(ledger)).phases}

    usual = shown({"forward": 14, "loss": 1, "backward": 14, "optimizer step": 1})
    assert usual == {"forward": "always", "loss": "always", "backward": "always", "optimizer step": "wide"}
    assert shown({"forward": 200, "backward": 1, "loss": 1}) == {
        "forward": "always",
        "backward": "never",
        "loss": "always",
    }
    assert shown({"forward": 3}) == {"forward": "always"}


def test_what_is_not_modelled_has_its_bounds_and_source(full_plan, elements_of):
    words = elements_of(render_fit_page(full_plan)).words
    assert "CUDA context pytorch/pytorch#86509 256.0 MiB 2.00 GiB" in words
    assert "not all as predicted" not in words and "all as predicted" in words


def test_sections_without_anything_to_say_are_left_out(synthetic_fit):
    plan = synthetic_fit.make_plan(
        Ledger(moments=("forward",), entries=()), kernel=None, time=None, changes=(), path=(), paths=(), notes=()
    )
    page = render_fit_page(replace(plan, ledger=Ledger(moments=(), entries=()), timeline=()))
    assert "No moment of the step is known." in page and 'id="fit-data"' not in page
    assert 'id="sweep"' not in page and 'id="checked"' not in page and "Kernel of the attention" not in page


def areas_of(timeline):
    """Bytes by kind and column, read back from the outlines."""
    heights = {}
    for layer in timeline.layers:
        places = re.findall(r"V([0-9.]+)H([0-9]+)", layer.path)
        half = len(places) // 2
        upper = [float(y) for y, _ in places[:half]]
        lower = [float(y) for y, _ in reversed(places[half:])]
        assert [int(x) for _, x in places] == [*range(1, half + 1), *reversed(range(half))]
        heights[layer.key] = [
            (low - high) / HEIGHT * timeline.top_bytes for low, high in zip(lower, upper, strict=True)
        ]
    return heights


def test_the_drawing_stacks_the_bytes_of_every_moment(synthetic_fit):
    plan = synthetic_fit.make_plan()
    timeline = draw_timeline(plan)
    areas = areas_of(timeline)
    for column, moment in enumerate(plan.timeline):
        for key, area in areas.items():
            # each edge is rounded to a tenth of a unit of the height
            assert area[column] == pytest.approx(getattr(moment, key), abs=0.1 / HEIGHT * timeline.top_bytes)
    tops = [[float(y) for y in re.findall(r"V([0-9.]+)H", layer.path)] for layer in timeline.layers]
    columns = timeline.num_columns
    for lower, upper in pairwise(tops):
        assert upper[columns:] == lower[:columns][::-1]  # each kind stands on the one before it
    assert timeline.peak == plan.ledger.peak
    assert [phase.name for phase in timeline.phases] == ["forward", "loss", "backward", "optimizer step"]
    assert [phase.start for phase in timeline.phases][1:] == [phase.end for phase in timeline.phases][:-1]


def test_the_capacity_is_a_line_where_the_drawing_reaches_it(synthetic_fit):
    plan = synthetic_fit.make_plan()
    small = draw_timeline(replace(plan, capacity_bytes=plan.peak_bytes // 4))
    assert small.limit == pytest.approx(HEIGHT * 3 / 4, abs=0.1)
    above = draw_timeline(replace(plan, capacity_bytes=plan.peak_bytes * 5 // 4))
    assert above.limit == 0 and above.top_bytes == plan.peak_bytes * 5 // 4
    far = replace(plan, capacity_bytes=plan.peak_bytes * 10)
    assert draw_timeline(far).limit is None and draw_timeline(far).top_bytes == plan.peak_bytes
    assert "far above this drawing" in render_fit_page(far)


def test_every_column_lists_the_tensors_alive_then(synthetic_fit):
    plan = synthetic_fit.make_plan()
    data = timeline_data(draw_timeline(plan))
    assert len(data["columns"]) == len(plan.timeline) and data["peak"] == plan.ledger.peak
    for moment, column in enumerate(data["columns"]):
        names = {data["tensors"][index][2] for index in column["tensors"]}
        assert names == {entry.name for entry in plan.ledger.alive(moment)}
    peak = [data["tensors"][index] for index in data["columns"][data["peak"]]["tensors"]]
    scores = ["saved", "layers 0-3 attention", "attention scores", "(32, 12, 2048, 2048)", "float32"]
    assert list(peak[0]) == [*scores, "4 × 6.00 GiB", "24.00 GiB"]


def test_many_moments_become_few_columns_that_keep_the_peak(synthetic_fit):
    entries = tuple(
        LedgerEntry(
            name="a", kind="saved", bytes=1000 + (i == 777), shape=(1,), dtype="u", owner="b", born=i, freed=i + 1
        )
        for i in range(1000)
    )
    plan = synthetic_fit.make_plan(Ledger(moments=tuple(f"forward: {i}" for i in range(1000)), entries=entries))
    timeline = draw_timeline(plan)
    assert timeline.num_columns == MAX_COLUMNS
    assert timeline.columns[timeline.peak].name == "forward: 777"
    assert timeline.columns[timeline.peak].moment.total == 1001


@pytest.mark.parametrize(("name", "seq"), [("llama-3-70b", 8192), ("deepseek-v3", 4096)])
def test_the_page_of_a_large_model_stays_small(synthetic_fit, name, seq):
    ledger = predict_ledger(preset(name), Workload(batch=1, seq=seq, loss="cross_entropy"))
    assert len(render_fit_page(synthetic_fit.make_plan(ledger))) < 500_000


def test_the_heat_map_draws_its_line_between_what_fits_and_what_does_not(synthetic_fit):
    heat = heat_map(synthetic_fit.make_sweep(), 5 * GIB)
    assert heat.seqs == (512, 1024, 2048)
    assert [batch for batch, _, _ in heat.rows] == [1, 2, 4]
    edges = [[cell.edges for cell in cells] for _, cells, _ in heat.rows]
    assert edges == [[(), (), ("below",)], [(), ("right", "below"), ()], [("right",), (), ()]]
    shades = [[cell.shade for cell in cells] for _, cells, _ in heat.rows]
    assert shades == [[2, 3, 5], [3, 5, NUM_SHADES], [5, NUM_SHADES, NUM_SHADES]]
    assert [frontier.largest_seq for _, _, frontier in heat.rows] == [2500, 1250, 625]


def test_a_grid_with_holes_is_drawn(synthetic_fit):
    sweep = synthetic_fit.make_sweep()
    heat = heat_map(replace(sweep, points=sweep.points[1:], frontier=()), 0)
    assert heat.rows[0][1][0] is None and heat.rows[0][2] is None
    assert 'id="sweep"' in render_fit_page(synthetic_fit.make_plan(sweep=replace(sweep, points=sweep.points[1:])))


def test_without_jinja2_the_error_is_the_line_that_brings_it(synthetic_fit, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html.template_environment.cache_clear()  # what other tests have read
    with pytest.raises(MissingExtraError, match=re.escape('pip install "headwise[report]"')):
        render_fit_page(synthetic_fit.make_plan())


def test_a_page_is_written_from_a_plan_or_from_its_text(synthetic_fit, tmp_path):
    plan = synthetic_fit.make_plan()
    one, other = write_fit_page(plan, tmp_path / "one.html"), write_fit_page(render_fit_page(plan), tmp_path / "2.html")
    assert one.read_bytes() == other.read_bytes()
    with pytest.raises(OutputError):
        write_fit_page(plan, tmp_path)
