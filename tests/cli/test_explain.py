"""`headwise explain`: text in 80 columns, JSON, a page, one-line refusals."""

import json

from headwise.cli.main import main


def test_an_example_as_text_json_and_page(capsys, tmp_path):
    page = tmp_path / "page.html"
    assert main(["explain", "--example", "two-heads", "--out", str(page)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert page.read_text().startswith("<!doctype html>")
    assert main(["explain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["steps"][-1]["name"] == "output"
    assert [variant["name"] for variant in answer["variants"]] == ["without the scale", "with a causal mask"]


def test_an_unknown_example_is_one_line(capsys):
    assert main(["explain", "--example", "three"]) == 2
    assert "example must be one of two-tokens, two-heads; got 'three'" in capsys.readouterr().err
