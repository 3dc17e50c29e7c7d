"""A report in the terminal."""

import re
from dataclasses import replace

from rich.cells import cell_len

from headwise.api.results import MemorySection
from headwise.report.text import (
    held_roles_table,
    plain_text,
    print_report,
    report_text,
    safe_text,
)


def test_a_report_fits_80_columns_and_says_the_answers(synthetic):
    text = report_text(synthetic.make_report(synthetic.make_inspection()))
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for words in ("22.71 M", "equal", "−0.4 %", "Fits A100-40GB: yes", "Peak of the step"):
        assert words in text
    assert re.search(r"layer 0 head 2 +previous token +0\.99\d", text)


def test_markup_and_escape_sequences_in_a_name_are_text(synthetic):
    report = synthetic.make_report(name="[red]x[/red]\x1b[2J注意")
    assert report_text(report).splitlines()[0] == "[red]x[/red]\ufffd[2J注意"
    assert safe_text("a\udc80\nb").plain == "a\ufffd\ufffdb"


def test_a_report_of_predictions_alone_has_no_empty_rows(synthetic):
    report = synthetic.make_report()
    memory = MemorySection(
        predicted_for=None,
        predicted=None,
        measured=None,
        saved_gap_percent=None,
        peak_gap_percent=None,
        kv_cache_bytes=2**20,
        kv_cache_bytes_per_token=64,
        kv_cache_dtype="bfloat16",
        score_matrix_bytes=None,
        fit=None,
        notes=("no module",),
    )
    text = report_text(replace(report, memory=memory, heads_notes=("no text", "no module")))
    assert re.search(r"Key/value cache, bfloat16 +1\.0 MiB", text) and "One score matrix" not in text
    assert "Does it fit? cannot tell: nothing is predicted without a config." in text and "Fits" not in text
    assert text.count("note: no module") == 1 and "note: no text" in text


def test_long_lists_of_roles_are_cut_and_say_so(synthetic):
    inspection = synthetic.make_inspection(1, 2, tokens=("one",))
    text = plain_text(held_roles_table(inspection, limit=4))
    assert text.count("layer 0") == 4 and "and 2 more" in text
    without = replace(inspection, heads=tuple(replace(head, roles=()) for head in inspection.heads))
    assert plain_text(held_roles_table(without)) == "No head of 2 holds a positional role here."


def test_printing_a_report_writes_it_to_stdout_with_the_page(synthetic, capsys):
    print_report(replace(synthetic.make_report(), page="out/page.html"))
    captured = capsys.readouterr()
    assert "22.71 M" in captured.out and "page: out/page.html" in captured.out and captured.err == ""
