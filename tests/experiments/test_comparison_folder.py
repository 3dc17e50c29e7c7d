"""A folder holds the runs of one comparison: it is told from others, not overwritten, and read back whole."""

import dataclasses
import json
import runpy
from pathlib import Path

import pytest

from headwise.errors import OutputError
from headwise.experiments.comparison_folder import COMPARISON, keep_result, open_folder, read_result
from headwise.experiments.parts_folder import Parts, open_parts, part_folders, read_results

make_comparison = runpy.run_path(str(Path(__file__).parents[1] / "report" / "synthetic_comparison.py"))[
    "make_comparison"
]
IDENTITY = {"arms": [["a", {"rate": 0.1, "sizes": (1, 2)}]]}
BOTH = Parts(name="both", question="Which?", parts=("one", "two"))


def test_a_result_is_read_as_it_was_kept(tmp_path):
    for number, result in enumerate((make_comparison(), make_comparison(num_seeds=1, lost=True, claims=()))):
        folder = tmp_path / str(number)
        open_folder(folder, "heads", IDENTITY)
        keep_result(folder, "heads", IDENTITY, result)
        assert read_result(folder) == dataclasses.replace(result, folder=str(folder))


def test_a_folder_is_of_one_comparison_and_goes_on_only_where_that_is_asked_for(tmp_path):
    folder = tmp_path / "deep" / "er"
    open_folder(folder, "heads", IDENTITY, goes_on=False)
    open_folder(folder, "heads", IDENTITY)
    with pytest.raises(OutputError, match="another comparison, or of heads with other settings"):
        open_folder(folder, "heads", {"arms": []})
    with pytest.raises(OutputError, match="already, some of them not done; go on with them by --resume"):
        open_folder(folder, "heads", IDENTITY, goes_on=False)
    with pytest.raises(OutputError, match="holds runs of heads that are not all done"):
        read_result(folder)
    keep_result(folder, "heads", IDENTITY, make_comparison())
    with pytest.raises(OutputError, match="already, all of them done"):
        open_folder(folder, "heads", IDENTITY, goes_on=False)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    for goes_on in (True, False):
        with pytest.raises(OutputError, match="holds other files"):
            open_folder(tmp_path, "heads", IDENTITY, goes_on=goes_on)
        with pytest.raises(OutputError, match="holds other files"):
            open_parts(tmp_path, BOTH, goes_on=goes_on)
    with pytest.raises(OutputError, match="cannot write"):
        open_folder(tmp_path / "thesis.txt" / "runs", "heads", IDENTITY)
    assert [place.name for place in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is no record of a comparison"),
        (b"[", "is no record of a comparison"),
        (b'{"result": {}}', "is no record of a comparison"),
        (b"[]", "is no record of a comparison"),
        (b"null", "is no record of a comparison"),
        (b'{"name": "x", "result": {"name": "x"}}', "must be as this version writes it"),
        (b'{"name": "x", "result": {"name": "x", "arms": 3}}', "must be as this version writes it"),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(content, message, tmp_path):
    (tmp_path / COMPARISON).write_bytes(content)
    with pytest.raises(OutputError, match=message) as refused:
        read_result(tmp_path)
    assert "\n" not in str(refused.value)
    with pytest.raises(OutputError, match="must be the folder of a comparison"):
        read_result(tmp_path / "nowhere")


def test_several_parts_are_read_in_their_order_once_all_are_done(tmp_path):
    open_parts(tmp_path, BOTH, goes_on=False)
    open_parts(tmp_path, BOTH)
    with pytest.raises(OutputError, match="another comparison than both"):
        open_parts(tmp_path, dataclasses.replace(BOTH, parts=("one",)))
    with pytest.raises(OutputError, match="already; go on"):
        open_parts(tmp_path, BOTH, goes_on=False)
    for name, folder in zip(BOTH.parts, part_folders(tmp_path, BOTH.parts), strict=True):
        with pytest.raises(OutputError, match=f"not all done, {name} not begun"):
            read_results(tmp_path)
        open_folder(folder, name, IDENTITY)
        keep_result(folder, name, IDENTITY, make_comparison(name=name))
    parts, results = read_results(tmp_path)
    assert parts == BOTH and [result.name for result in results] == ["one", "two"]
    alone, (result,) = read_results(tmp_path / "two")
    assert alone.name == result.name == "two"


def test_a_part_that_was_begun_and_not_ended_is_not_done(tmp_path):
    open_parts(tmp_path, BOTH)
    for name in BOTH.parts:
        open_folder(tmp_path / name, name, IDENTITY)
    with pytest.raises(OutputError, match="not all done"):
        read_results(tmp_path)


def test_a_record_is_json_that_any_reader_takes(tmp_path):
    open_folder(tmp_path, "heads", IDENTITY)
    keep_result(tmp_path, "heads", IDENTITY, make_comparison())
    kept = json.loads((tmp_path / COMPARISON).read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert {"mean", "low", "high", "seeds", "metric"} <= set(kept["result"]["differences"][0])
