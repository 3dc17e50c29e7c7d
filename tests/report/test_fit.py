"""A fit in the terminal."""

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len

from headwise.api.fit import fit
from headwise.config.presets import preset
from headwise.cost.memory import predict_ledger
from headwise.cost.planning.moments import describe_moment
from headwise.cost.planning.results import FrontierPoint, Sweep, SweepPoint
from headwise.cost.results import Device, Ledger, LedgerEntry, Unmodelled
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Lora, Workload
from headwise.report.fit import fit_renderable, fit_text, print_fit
from headwise.report.fit_figures import (
    answer_sentence,
    beside_tensors,
    format_extra,
    format_range,
    format_seconds,
    need_high_bytes,
    need_low_bytes,
    parts_of,
    step_facts,
    thin,
)
from headwise.report.fit_page import render_fit_page
from headwise.report.text import plain_text
from headwise.results import format_bytes

GIB, MIB = 2**30, 2**20
HOSTILE = "\x1b[31m[bold]name[/bold]\r\n" + "very-long" * 30 + "注意" * 40 + "\ud800"


def lines_of(plan, **settings):
    return fit_text(plan, **settings).splitlines()


def line_with(plan, start):
    return next(line for line in lines_of(plan) if line.startswith(start))


def flat(text):
    """Text with the breaks of lines and the gaps of columns taken out."""
    return " ".join(text.split())


def one_tensor(num_bytes):
    entry = LedgerEntry(
        name="all", kind="saved", bytes=num_bytes, shape=(num_bytes,), dtype="uint8", owner="model", born=0, freed=None
    )
    return Ledger(moments=("forward",), entries=(entry,))


@pytest.mark.parametrize(
    ("peak_gib", "words"),
    [
        (10, "Fits, 19.00 to 21.00 GiB to spare: needs 11.00 to 13.00 GiB of 32.00 GiB."),
        (30, "Tight: needs 31.00 to 33.00 GiB of 32.00 GiB; memory beside tensors decides."),
        (205, "Does not fit, by 174.00 to 176.00 GiB: needs 206.00 to 208.00 GiB of 32.00 GiB."),
    ],
)
def test_the_answer_stands_in_one_line_under_the_name(synthetic_fit, peak_gib, words):
    beside = (Unmodelled(what="context", low=GIB, high=3 * GIB, source="a source"),)
    plan = synthetic_fit.make_plan(one_tensor(peak_gib * GIB), unmodelled=beside)
    assert plan.fits == {"F": "yes", "T": "tight", "D": "no"}[words[0]]
    assert lines_of(plan)[:2] == ["bert-base on v100-32gb", words]


def test_what_the_allocator_reserves_counts_to_what_is_needed_at_most(synthetic_fit):
    plan = synthetic_fit.make_plan(one_tensor(10 * GIB), reserved_bytes=12 * GIB, unmodelled=())
    text = fit_text(plan)
    assert "Fits, 20.00 to 22.00 GiB to spare: needs 10.00 to 12.00 GiB of 32.00 GiB." in text
    assert "╱ reserved beside them up to 2.00 GiB" in text and "not modelled" not in text
    assert "Peak of the tensors: 10.00 GiB, for which torch reserves 12.00 GiB, at" in text


@pytest.mark.parametrize("reserved_gib", [None, 30.5])
@pytest.mark.parametrize("peak_gib", [3, 30, 300])
def test_headline_bar_and_spare_bytes_are_one_need(synthetic_fit, peak_gib, reserved_gib):
    reserved = None if reserved_gib is None or peak_gib != 30 else int(reserved_gib * GIB)
    beside = (Unmodelled(what="context", low=GIB // 4, high=2 * GIB, source="a source"),)
    plan = synthetic_fit.make_plan(one_tensor(peak_gib * GIB), reserved_bytes=reserved, unmodelled=beside)
    most = plan.capacity_bytes - plan.spare_bytes
    assert need_high_bytes(plan) == most == (reserved or plan.peak_bytes) + 2 * GIB
    parts = parts_of(plan.timeline[0])
    assert sum(part.bytes for part in parts) + sum(part.high for part in beside_tensors(plan)) == most
    assert sum(part.bytes for part in parts) + sum(part.low for part in beside_tensors(plan)) == need_low_bytes(plan)
    assert f"to {format_bytes(most)} of 32.00 GiB" in answer_sentence(plan)
    assert line_with(plan, "needs").endswith(format_bytes(most))
    if plan.fits != "tight":
        assert format_bytes(abs(plan.spare_bytes)).split()[0] in answer_sentence(plan).split(":")[0]


def test_a_real_plan_fits_where_its_spare_bytes_are_not_negative():
    whole = preset("bert-base")
    config = replace(whole, blocks=whole.blocks[:1])
    device = Device(name="d", description="d", memory_bytes=2**40, kind="cpu", source="a source", date="2026-01-01")
    # the allowance for holes is a share of the peak, not of the device: the need is the same on every device
    most = 2**40 - fit(config, seq=8, gpu=device).spare_bytes
    for memory_bytes, fits in ((most - MIB, "tight"), (most - 1, "tight"), (most, "yes"), (most + 1, "yes")):
        plan = fit(config, seq=8, gpu=replace(device, memory_bytes=memory_bytes))
        assert (plan.fits, plan.spare_bytes) == (fits, memory_bytes - most)
        assert f"to {format_bytes(most)} of" in answer_sentence(plan)


def test_what_makes_it_fit_and_how_far_it_goes_stand_before_every_table(synthetic_fit):
    lines = lines_of(synthetic_fit.make_plan())
    first_table = next(place for place, line in enumerate(lines) if "alive then" in line)
    for start in ("What makes it fit: ", "or: ", "Largest found to fit: ", "At least "):
        place = next(place for place, line in enumerate(lines) if line.startswith(start))
        assert place < 16 and place < first_table


def test_the_bar_shows_each_kind_by_its_share_and_the_capacity_on_the_same_scale(synthetic_fit):
    sizes = {"parameter": 8, "gradient": 4, "optimizer": 2, "saved": 16, "temporary": 30}
    entries = [
        LedgerEntry(
            name=kind, kind=kind, bytes=size * GIB, shape=(size,), dtype="uint8", owner=kind, born=0, freed=None
        )
        for kind, size in sizes.items()
    ]
    beside = (Unmodelled(what="context", low=0, high=4 * GIB, source="a source"),)
    plan = synthetic_fit.make_plan(Ledger(moments=("all",), entries=tuple(entries)), unmodelled=beside)
    needs, holds = line_with(plan, "needs"), line_with(plan, "holds")
    width = 80 - len("needs  ") - len("64.00 GiB") - 2
    assert needs.endswith("  64.00 GiB") and holds.endswith(" 32.00 GiB") and len(needs) == len(holds) == 80
    assert sum(needs.count(glyph) for glyph in "█▓▒▚░·") == width
    for glyph, size in zip("█▓▒▚░·", (8, 4, 2, 16, 30, 4), strict=True):
        assert abs(needs.count(glyph) - width * size / 64) <= 1
    assert holds.count("━") == round(width / 2)
    legend = flat(fit_text(plan))
    assert "█ parameters 8.00 GiB ▓ gradients 4.00 GiB ▒ optimizer 2.00 GiB ▚ saved 16.00 GiB" in legend


def test_the_bar_of_a_step_that_fits_is_a_part_of_the_capacity(synthetic_fit):
    plan = synthetic_fit.make_plan(one_tensor(8 * GIB), unmodelled=())
    width = line_with(plan, "holds").count("━")
    assert width > 50 and line_with(plan, "needs").count("▚") == round(width / 4)


def test_the_peak_has_its_moment_and_its_largest_tensors_with_equal_ones_together(synthetic_fit):
    config = replace(preset("bert-base"), max_positions=2048, position_table_size=2048)
    ledger = predict_ledger(config, Workload(batch=32, seq=2048, attention="eager"))
    label = describe_moment(ledger.moments[ledger.peak], config)
    text = fit_text(synthetic_fit.make_plan(ledger, peak_label=label))
    assert "Peak of the tensors: 204.84 GiB, at backward of the last layer (layer 11)." in text
    assert re.search(r"12 × 6\.00 GiB +layers 0-11: attention weights +32×12×2048×2048 fp32", text)
    rows = re.findall(r"^ *(?:\d+ × )?[0-9.]+ [KMG]iB \S", text, re.MULTILINE)
    assert len(rows) == 10
    shown = sum(int(row.split(" × ")[0]) if "×" in row else 1 for row in rows)
    assert f"... and {len(ledger.alive(ledger.peak)) - shown:,} more (--json)" in text


def test_the_timeline_rises_and_falls_with_the_bytes_and_marks_the_peak(synthetic_fit):
    plan = synthetic_fit.make_plan()
    lines = lines_of(plan)
    at = next(place for place, line in enumerate(lines) if line and set(line) <= set("▁▂▃▄▅▆▇█"))
    line, phases, mark = lines[at : at + 3]
    repeats = len(line) // len(plan.timeline)
    assert len(line) == repeats * len(plan.timeline)
    levels = ["▁▂▃▄▅▆▇█".index(letter) for letter in line[::repeats]]
    totals = [moment.total for moment in plan.timeline]
    assert levels == [min(7, total * 8 // max(totals)) for total in totals]
    assert mark.index("^") == repeats * totals.index(max(totals)) and "peak 30.85 GiB" in mark
    assert phases.index("|backward") == repeats * 6 and phases.index("|forward") == 0


def test_of_thousands_of_moments_the_fullest_of_each_column_is_drawn(synthetic_fit):
    entries = [
        LedgerEntry(name=str(i), kind="saved", bytes=MIB, shape=(1,), dtype="uint8", owner="a", born=i, freed=i + 1)
        for i in range(5000)
    ]
    spike = replace(entries[4321], bytes=GIB, name="spike")
    ledger = Ledger(moments=tuple(f"forward: {i}" for i in range(5000)), entries=(*entries, spike))
    lines = lines_of(synthetic_fit.make_plan(ledger))
    drawn = next(line for line in lines if line and set(line) <= set("▁▂▃▄▅▆▇█"))
    assert drawn.count("█") == 1 and drawn.index("█") == 4321 * 72 // 5000


def test_changes_are_ranked_in_blocks_with_what_they_free_and_cost(synthetic_fit):
    text = fit_text(synthetic_fit.make_plan())
    assert "FLOPs are those of a step for each token; --json lists all." in text
    assert re.search(r"#  The same result +frees +peak then +FLOPs +fits\n1  fused attention", text)
    assert re.search(r"\n2  full checkpointing +17\.50 GiB +13\.80 GiB +\+33 % +tight\n", text)
    assert re.search(r"#  Alters the model or the batch .*\n1  batch 16 in place of 32 +15\.60 GiB .* −50 % +yes", text)
    assert re.search(r"ZeRO-3 \(FSDP\) over 8 devices +102\.4 MiB +31\.20 GiB +no\nall-gather 3\.00 GiB", text)
    assert "Over more devices; what each sends" in text
    assert "all-gather 3.00 GiB, reduce-scatter 1.00 GiB" in flat(text)


def test_a_change_that_frees_nothing_or_cannot_be_made_says_why(synthetic_fit):
    text = fit_text(synthetic_fit.make_plan())
    nothing, impossible = text.index("Frees nothing"), text.index("Not possible here")
    assert nothing < text.index("- fused optimizer step: the peak is in backward, not there") < impossible
    assert "- a window of 256 tokens: takes 512.0 MiB more: eager attention masks" in text[nothing:impossible]
    assert "- bfloat16: a V100 has no units for bfloat16" in text[impossible:]


def test_long_lists_are_cut_and_say_how_many_more_there_are(synthetic_fit):
    make = synthetic_fit.make_change
    changes = [make(f"c{i}", f"change {i}", 1.0, peak_gib=30) for i in range(20)]
    changes += [make(f"z{i}", f"nothing {i}", why="a reason") for i in range(20)]
    changes += [make(f"n{i}", f"impossible {i}", applies=False, fits=None, why="a reason") for i in range(20)]
    changes += [make(f"s{i}", f"sharded {i}", 1.0, peak_gib=30, other_gpus=3) for i in range(20)]
    lines = lines_of(synthetic_fit.make_plan(changes=tuple(changes)))
    assert len(lines) <= 70
    for what in ("change", "nothing", "impossible", "sharded"):
        shown = [line for line in lines if re.search(rf"\b{what} \d", line)]
        assert 1 <= len(shown) < 10
        assert any(f" ({len(shown)} of 20)" in line for line in lines)


def test_the_path_is_told_with_its_figures_and_others_beside_it(synthetic_fit):
    text = flat(fit_text(synthetic_fit.make_plan()))
    assert (
        "What makes it fit: fused attention + full checkpointing (peak 3.00 GiB, +33 % FLOPs per token, fits)." in text
    )
    assert "or: fused attention + batch 16 in place of 32 (peak 4.00 GiB, tight)." in text
    assert text.count("full checkpointing (peak") == 1
    alone = fit_text(synthetic_fit.make_plan(paths=(), path=("a key",)))
    assert "What makes it fit: a key." in alone
    none = fit_text(synthetic_fit.make_plan(paths=(), path=()))
    assert "No list of these changes that makes it fit was found." in none
    fits = synthetic_fit.make_plan(one_tensor(GIB), paths=(), path=())
    assert "makes it fit" not in fit_text(fits)


def test_limits_time_and_what_is_not_modelled_are_told(synthetic_fit):
    text = flat(fit_text(synthetic_fit.make_plan()))
    assert "Largest found to fit: batch 31 at length 2,048; length 2,011 at batch 32." in text
    assert "At least 3.5 s a step: FLOPs bind, at 15.7 TFLOP/s and 1.3 s of moving bytes." in text
    assert "· not modelled 256.0 MiB to 2.04 GiB" in text
    assert "Not modelled: CUDA context 256.0 MiB to 2.00 GiB, cuBLAS workspace 0 B to 40.0 MiB." in text
    assert "attention kernel: math; flash is not taken: it needs compute capability 8.0" in text
    none = fit_text(synthetic_fit.make_plan(largest_batch=0, largest_seq=None, time=None, kernel=None))
    assert "Largest found to fit: not even one text at length 2,048." in none
    assert "At least" not in none and "attention kernel" not in none
    time = replace(synthetic_fit.make_plan().time, binds="bandwidth")
    assert "bandwidth binds, at 900 GB/s and 3.2 s of computing" in fit_text(synthetic_fit.make_plan(time=time))


def test_a_sweep_is_a_table_with_marks_and_its_frontier_drawn(synthetic_fit):
    text = fit_text(synthetic_fit.make_plan(sweep=synthetic_fit.make_sweep()))
    rows = ["batch +512 +1,024 +2,048", r" 1 +1 ✓ +2 ✓ +4 ~", r" 2 +2 ✓ +4 ~ +8 ✗", r" 4 +4 ~ +8 ✗ +16 ✗"]
    assert re.search(r"\n *".join(rows), text)
    bars = [line for line in text.splitlines() if line.startswith("batch ") and "━" in line]
    assert [line.split(" ")[-3:] if "more" in line else line.split(" ")[-1] for line in bars] == [
        ["2,500", "or", "more"],
        "1,250",
        "625",
    ]
    cells = [line.count("━") for line in bars]
    # every doubling of the length is as wide as the next
    assert cells[0] - cells[1] == pytest.approx(cells[1] - cells[2], abs=1) and cells[2] > 0


def test_a_sweep_of_any_size_keeps_to_the_width_and_says_what_it_leaves_out(synthetic_fit):
    points = tuple(
        SweepPoint(batch=batch, seq=seq, peak_bytes=batch * seq * 2**40, fits="no")
        for batch in range(1, 41)
        for seq in range(1000, 21000, 1000)
    )
    frontier = tuple(FrontierPoint(batch=batch, largest_seq=0 if batch > 2 else None) for batch in range(1, 41))
    text = fit_text(synthetic_fit.make_plan(sweep=Sweep(points=points, frontier=frontier)))
    assert max(map(cell_len, text.splitlines())) <= 80
    assert f"... and {40 * 20 - 8 * 7} more (--json)" in text
    assert "not even one token" in text and text.count("not even") == 8


def test_runs_stand_beside_their_predictions(synthetic_fit):
    verification = synthetic_fit.make_verification(holds=False)
    text = fit_text(synthetic_fit.make_plan(verification=verification))
    assert re.search(r"as it is +9\.5 MiB +9\.5 MiB +3\.8 MiB +3\.8 MiB +within 1%", text)
    assert re.search(r"full checkpointing +6\.7 MiB +8\.6 MiB +976\.6 KiB +976\.6 KiB +differs", text)
    assert text.endswith("note: random weights")


def test_tracked_steps_show_their_gap_and_the_latest_are_kept(synthetic_fit):
    text = fit_text(synthetic_fit.make_plan(history=synthetic_fit.make_history()))
    assert re.search(r"2026-11-01 12:00 +bert-base, cpu, 2 × 128 +990\.0 MiB +1000\.0 MiB +−1\.0 %", text)
    assert re.search(r"2026-11-02 12:00 +bert-base, cpu, 2 × 128 +– +1000\.0 MiB +–", text)
    many = fit_text(synthetic_fit.make_plan(history=synthetic_fit.make_history(12)))
    assert "2026-11-12" in many and "2026-11-01" not in many and "... and 7 more (--json)" in many


def test_the_usual_case_takes_about_a_screen(synthetic_fit):
    config = replace(preset("bert-base"), max_positions=2048, position_table_size=2048)
    ledger = predict_ledger(config, Workload(batch=32, seq=2048, attention="eager"))
    assert len(lines_of(synthetic_fit.make_plan(ledger))) <= 60


@pytest.mark.parametrize("width", [80, 60, 120])
def test_hostile_names_move_no_cursor_and_break_no_column(synthetic_fit, width):
    plan = synthetic_fit.make_plan()
    entry = replace(plan.ledger.entries[0], owner=HOSTILE, name=HOSTILE, bytes=10**15, shape=(10**9,) * 12)
    ledger = replace(plan.ledger, entries=(entry,), moments=tuple(HOSTILE for _ in plan.ledger.moments))
    plan = synthetic_fit.make_plan(
        ledger,
        model=replace(plan.model, name=HOSTILE, model_type=HOSTILE),
        device=replace(plan.device, name=HOSTILE, description=HOSTILE),
        changes=tuple(replace(change, change=HOSTILE, why=HOSTILE) for change in plan.changes),
        path=(HOSTILE,),
        history=(replace(synthetic_fit.make_history()[0], model=HOSTILE, device=HOSTILE, when=HOSTILE),),
        verification=replace(synthetic_fit.make_verification(), notes=(HOSTILE,)),
        page=HOSTILE,
        notes=(HOSTILE,),
    )
    lines = lines_of(plan, width=width)
    assert max(map(cell_len, lines)) <= width
    assert not [letter for line in lines for letter in line if not letter.isprintable()]
    assert "[bold]name[/bold]" in "\n".join(lines)


@pytest.mark.parametrize("num_bytes", [0, 1, 2**60, 2**100])
def test_no_size_is_too_small_or_too_large_to_print(synthetic_fit, num_bytes):
    plan = synthetic_fit.make_plan(
        one_tensor(num_bytes),
        workload=Workload(batch=2**20, seq=2**20),
        largest_batch=2**40,
        largest_seq=2**40,
        changes=(synthetic_fit.make_change("a", "a change", 2.0**40, peak_gib=2.0**60, flops=1e30),),
    )
    assert max(map(cell_len, lines_of(plan))) <= 80


def test_a_step_without_moments_is_told_without_a_drawing(synthetic_fit):
    plan = synthetic_fit.make_plan()
    empty = replace(plan, ledger=Ledger(moments=(), entries=()), timeline=())
    assert "Peak of the tensors" not in fit_text(empty)


def test_a_stream_without_blocks_gets_ascii_alone(synthetic_fit, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_fit(synthetic_fit.make_plan(sweep=synthetic_fit.make_sweep()))
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")
    assert "needs  " in text and "SSSS" in text and "TTTT" in text and "holds  ====" in text
    assert "32 texts x 2,048 tokens | training" in text and "4 x 6.00 GiB" in text
    assert "?" not in text


def test_print_and_text_show_the_same(synthetic_fit, capsys):
    plan = synthetic_fit.make_plan(page="fit.html")
    assert fit_text(plan) == plain_text(fit_renderable(plan)) == plan.to_text()
    assert "page: fit.html" in fit_text(plan)
    print_fit(plan)
    assert "Tight: needs" in capsys.readouterr().out


def test_the_step_is_described_in_the_words_of_the_command(synthetic_fit):
    training = Workload(
        batch=1, seq=7, precision="amp-bf16", optimizer="adamw8bit", checkpoint="full", accumulation=3, dropout=False
    )
    assert step_facts(training) == [
        "1 text × 7 tokens",
        "training in autocast to bf16",
        "8-bit AdamW (foreach)",
        "sdpa attention",
        "loss sum",
        "3 passes a step",
        "full checkpointing",
        "no dropout",
    ]
    adapters = step_facts(Workload(batch=2, seq=7, lora=Lora(rank=5)), Sharding(kind="zero3", num_devices=4))
    assert adapters[-2:] == ["LoRA of rank 5", "ZeRO-3 (FSDP2) over 4 devices"]
    assert adapters[0] == "2 texts × 7 tokens on each device, 8 in all"
    assert step_facts(Workload(batch=2, seq=8), Sharding(kind="tensor", num_devices=4))[0] == "2 texts × 8 tokens"
    decode = step_facts(Workload(batch=2, seq=7, phase="decode", kv_cache="int8", precision="bf16"))
    assert decode == ["2 texts × 7 tokens", "one more token in bf16", "sdpa attention", "int8 KV cache"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (format_extra(None), "–"),
        (format_extra(0.0), "0 %"),
        (format_extra(1 / 3), "+33 %"),
        (format_extra(-0.042), "−4.2 %"),
        (format_extra(0.0001), "under +0.1 %"),
        (format_range(GIB, GIB), "1.00 GiB"),
        (format_range(GIB, 3 * GIB // 2), "1.00 to 1.50 GiB"),
        (format_range(512 * MIB, GIB), "512.0 MiB to 1.00 GiB"),
        (format_seconds(0.0125), "12.5 ms"),
        (format_seconds(4e-6), "4 µs"),
        (format_seconds(7200.0), "2 h"),
        (thin(list(range(1, 8)), 3), [1, 4, 7]),
        (thin([5, 6], 3), [5, 6]),
    ],
)
def test_figures_are_written_in_few_characters(written, text):
    assert written == text


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_what_is_kept_between_calls_is_told_as_the_cache(phase, elements_of):
    """12 layers keep a key and a value of 768 numbers for each of 3 x 512 tokens, a decode one layer's old ones too."""
    plan = fit("gpt2", gpu="t4", phase=phase, batch=3, seq=512)
    sizes = [
        re.search(r"KV cache ([\d.]+) MiB", text)[1]
        for text in (fit_text(plan), elements_of(render_fit_page(plan)).words)
    ]
    kept = 12 * 2 * 768 * 4 * 3 * 512 / 2**20
    assert kept == 108 and sizes[0] == sizes[1] and kept <= float(sizes[0]) <= kept * 13 / 12
    page = elements_of(render_fit_page(plan))
    titles = {attributes.get("title") for tag, attributes in page.tags if tag == "span"}
    assert "KV cache" in titles and "kv_cache" not in titles
    assert "KV cache" not in fit_text(fit("gpt2", gpu="t4", batch=3, seq=512))
