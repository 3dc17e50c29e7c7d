import ast
import importlib.util
from pathlib import Path

import pytest
import torch

from headwise.errors import ConfigError
from headwise.inspection.monitoring.log import open_log
from headwise.inspection.monitoring.results import WEIGHT_EDGES, MonitoredHead, MonitorSample

COUNTS = (0.0, 3.0, *(0.0,) * 9, 4.0, 1.0)


def head(number, **settings):
    return MonitoredHead(
        **{
            "stack": "self",
            "layer": 2,
            "head": number,
            "entropy": 1.5,
            "normalized_entropy": 0.25 * (number + 1),
            "sparsity": 0.1,
            "sink_mass": 0.2,
            "padding_mass": 0.0,
            "mean_abs_score": 3.0,
            "max_abs_score": 7.0 + number,
            "weight_counts": COUNTS,
            "gradient_norm": 0.5,
            "is_dead": number == 1,
            "is_collapsed": False,
            **settings,
        }
    )


SAMPLE = MonitorSample(step=150, heads=(head(0), head(1)), alarms=(), num_queries=128, seconds=0.1)


class Writer:
    def __init__(self):
        self.scalars = {}
        self.histograms = {}

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars[tag] = (scalar_value, global_step)


class RawWriter(Writer):
    def add_histogram_raw(self, tag, **keywords):
        self.histograms[tag] = keywords


class ValueWriter(Writer):
    def add_histogram(self, tag, values, global_step=None):
        self.histograms[tag] = (values, global_step)


class Run:
    def __init__(self):
        self.rows = []

    def log(self, values):
        self.rows.append(values)


def test_a_tensorboard_writer_gets_numbers_at_the_step():
    writer = Writer()
    open_log(writer)(SAMPLE)
    assert writer.scalars["attention_entropy/layer_2/head_0"] == (1.5, 150)
    assert writer.scalars["attention_gradient_norm/layer_2/head_1"] == (0.5, 150)
    assert writer.scalars["attention/dead_heads"] == (1.0, 150)
    assert writer.scalars["attention/lowest_normalized_entropy"] == (0.25, 150)
    assert writer.scalars["attention/max_abs_score"] == (8.0, 150)


def test_a_tensorboard_writer_gets_the_histogram_as_it_is():
    writer = RawWriter()
    open_log(writer)(SAMPLE)
    raw = writer.histograms["attention_weights/layer_2/head_0"]
    assert (raw["min"], raw["max"]) == (WEIGHT_EDGES[1], 1.0)
    assert (raw["num"], raw["global_step"]) == (8.0, 150)
    middles = [(WEIGHT_EDGES[1] + WEIGHT_EDGES[2]) / 2, (WEIGHT_EDGES[11] + WEIGHT_EDGES[12]) / 2, (10**-0.5 + 1) / 2]
    assert raw["sum"] == pytest.approx(3 * middles[0] + 4 * middles[1] + middles[2])
    assert raw["sum_squares"] == pytest.approx(3 * middles[0] ** 2 + 4 * middles[1] ** 2 + middles[2] ** 2)
    assert raw["bucket_limits"] == list(WEIGHT_EDGES[1:])
    assert raw["bucket_counts"] == list(COUNTS)


def test_the_raw_histogram_has_the_arguments_of_torchs_writer():
    writer = RawWriter()
    open_log(writer)(SAMPLE)
    home = Path(importlib.util.find_spec("torch").origin).parent / "utils" / "tensorboard" / "writer.py"
    functions = [node for node in ast.walk(ast.parse(home.read_text())) if isinstance(node, ast.FunctionDef)]
    theirs = next(node for node in functions if node.name == "add_histogram_raw")
    given = writer.histograms["attention_weights/layer_2/head_0"]
    assert {argument.arg for argument in theirs.args.args} - {"self", "tag", "walltime"} == set(given)


def test_a_writer_without_raw_histograms_gets_values_of_the_same_shares():
    writer = ValueWriter()
    open_log(writer)(SAMPLE)
    values, step = writer.histograms["attention_weights/layer_2/head_1"]
    got = torch.histogram(values, torch.tensor(WEIGHT_EDGES)).hist
    assert step == 150
    torch.testing.assert_close(got / got.sum(), torch.tensor(COUNTS) / 8, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["log", "function", "list"])
def test_anything_else_gets_one_dict(kind):
    run, rows = Run(), []
    open_log({"log": run, "function": rows.append, "list": [run, rows.append]}[kind])(SAMPLE)
    assert len(run.rows) == (kind != "function")
    assert len(rows) == (kind != "log")
    values = (run.rows + rows)[0]
    assert values["attention/step"] == 150
    assert values["attention_max_abs_score/layer_2/head_1"] == 8.0
    assert values["attention_weights/layer_2/head_0"] == [count / 8 for count in COUNTS]


def test_what_is_not_known_is_left_out():
    unknown = head(0, mean_abs_score=None, max_abs_score=None, gradient_norm=None)
    rows = []
    open_log(rows.append)(MonitorSample(step=0, heads=(unknown,), alarms=(), num_queries=1, seconds=0.0))
    assert not [name for name in rows[0] if "score" in name or "gradient" in name]


def test_the_stack_stands_in_names_where_a_model_has_several():
    rows = []
    cross = head(0, stack="decoder cross")
    open_log(rows.append)(MonitorSample(step=0, heads=(cross,), alarms=(), num_queries=1, seconds=0.0))
    assert "attention_entropy/decoder_cross/layer_2/head_0" in rows[0]


@pytest.mark.parametrize("target", [3, "runs", [print, 3]])
def test_what_cannot_be_logged_to_is_refused(target):
    with pytest.raises(ConfigError, match="log must be a TensorBoard SummaryWriter"):
        open_log(target)
