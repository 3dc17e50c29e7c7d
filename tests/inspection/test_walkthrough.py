import json
import math
import random
import subprocess
import sys

import pytest
import torch

from headwise.errors import ConfigError
from headwise.inspection.walkthrough.compute import walk_through
from headwise.inspection.walkthrough.variants import EXAMPLES, explain_example
from headwise.masks.patterns import Causal


def matrix(rows, columns, seed):
    draw = random.Random(seed)
    return [[draw.gauss(0, 1) for _ in range(columns)] for _ in range(rows)]


X, W_Q, W_K, W_V, W_O = matrix(5, 7, 1), matrix(7, 6, 2), matrix(7, 6, 3), matrix(7, 10, 4), matrix(10, 3, 5)


def close(values, expected):
    torch.testing.assert_close(
        torch.tensor(values, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-5
    )


def test_the_two_token_example_has_the_numbers_that_pencil_and_paper_give():
    example = explain_example()
    assert example["query"].values == ((1, 2), (1, 1))
    assert example["key"].values == ((1, 2), (0, 1))
    assert example["value"].values == ((1, 1), (1, 0))
    assert example["scores_before_scale"].values == ((5, 2), (3, 1))
    assert example["scale"].values == pytest.approx(1 / math.sqrt(2))
    close(example["scores"].values, [[3.5355, 1.4142], [2.1213, 0.7071]])
    close(example["weights"].values, [[0.8930, 0.1070], [0.8044, 0.1956]])
    close(example["output"].values, [[1.0, 0.8930], [1.0, 0.8044]])


def test_a_step_that_there_is_not_is_a_key_error_with_those_there_are():
    with pytest.raises(KeyError, match=r"there is no step 'nope'; there are x, w_q, .*, output"):
        explain_example()["nope"]


def test_steps_come_in_the_order_in_which_they_are_computed():
    names = [step.name for step in walk_through(X, W_Q, W_K, W_V, W_O, num_heads=2, mask=Causal()).steps]
    assert names == [
        "x", "w_q", "w_k", "w_v", "query", "key", "value", "scores_before_scale", "scale", "scores", "mask",
        "exponentials", "sums", "weights", "weighted_sum", "concatenated", "w_o", "output",
    ]  # fmt: skip


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("mask", [None, Causal()])
@pytest.mark.parametrize("w_o", [None, W_O])
def test_the_output_equals_torchs_attention_in_float64(num_heads, mask, w_o):
    x, w_q, w_k, w_v = (torch.tensor(values, dtype=torch.float64) for values in (X, W_Q, W_K, W_V))
    q, k, v = ((x @ weight).view(5, num_heads, -1).transpose(0, 1) for weight in (w_q, w_k, w_v))
    heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
    expected = heads.transpose(0, 1).reshape(5, 10)
    if w_o is not None:
        expected = expected @ torch.tensor(w_o, dtype=torch.float64)
    result = walk_through(X, W_Q, W_K, W_V, w_o, num_heads=num_heads, mask=mask)
    assert result.steps[-1].name == "output"
    torch.testing.assert_close(torch.tensor(result["output"].values, dtype=torch.float64), expected)


def test_shapes_are_those_of_the_numbers():
    result = walk_through(X, W_Q, W_K, W_V, W_O, num_heads=2, mask=Causal())
    for step in result.steps:
        assert torch.tensor(step.values).shape == step.shape, step.name
    assert result["weights"].shape == (2, 5, 5)
    assert walk_through(X, W_Q, W_K, W_V)["weights"].shape == (5, 5)


def test_a_token_that_may_read_nothing_has_weights_and_output_zero():
    result = walk_through(X, W_Q, W_K, W_V, mask=~Causal())
    assert result["weights"].values[4] == (0,) * 5
    assert result["output"].values[4] == (0,) * 10


def test_large_scores_do_not_overflow():
    result = walk_through([[1.0], [2.0]], [[1e6]], [[1.0]], [[1.0]])
    assert result["weights"].values == ((0, 1), (0, 1))


def test_a_scale_that_is_given_is_used():
    assert walk_through(X, W_Q, W_K, W_V, scale=1.0)["scores"].values == (
        walk_through(X, W_Q, W_K, W_V)["scores_before_scale"].values
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"w_q": matrix(6, 6, 0)}, "w_q must have a row for each of the 7 columns of x; got 6"),
        ({"w_k": matrix(7, 4, 0)}, "w_q and w_k must have as many columns; got 6 and 4"),
        ({"w_o": matrix(9, 3, 0)}, "w_o must have a row for each of the 10 columns of w_v; got 9"),
        ({"num_heads": 4}, "the columns of w_q must divide into 4 heads of the same size; got 6"),
        ({"num_heads": 0}, "num_heads must be between 1 and .*; got 0"),
        ({"num_heads": True}, "num_heads must be a whole number; got True"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x must be a matrix: rows of the same length"),
        ({"x": []}, "x must be a matrix: rows of the same length, at least one"),
        ({"x": [[math.nan] * 7]}, "x must hold finite numbers"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(change, text):
    arguments = {"x": X, "w_q": W_Q, "w_k": W_K, "w_v": W_V, "w_o": None, **change}
    with pytest.raises(ConfigError, match=text):
        walk_through(**arguments)


def test_the_text_shows_every_number_within_80_columns():
    text = explain_example().to_text()
    for line in ("    3.5355  1.4142", "    0.8930  0.1070", "    0.8044  0.1956", "    5  2", "    0.7071"):
        assert line in text.splitlines()
    wide = walk_through(
        matrix(3, 4, 0), matrix(4, 40, 1), matrix(4, 40, 2), matrix(4, 40, 3), num_heads=2, mask=Causal()
    )
    lines = wide.to_text().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines).split()
    for step in wide.steps[:4]:
        for number in torch.tensor(step.values).flatten().tolist():
            assert f"{number:.4f}" in shown


def test_the_result_is_plain_json():
    result = explain_example()
    steps = json.loads(json.dumps(result.to_dict()))["steps"]
    assert steps[0] == {"name": "x", "equation": "one row a token", "shape": [2, 2], "values": [[1.0, 1.0], [1.0, 0.0]]}


def test_a_walkthrough_needs_no_torch():
    code = """
import sys
from headwise.inspection.walkthrough.variants import explain_example
explain_example().to_text()
print("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_example_of_two_heads_is_torchs_attention_and_so_is_each_variant():
    example = EXAMPLES["two-heads"]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in example[:5]]

    def output(*, num_heads=2, is_causal=True, scale=None):
        x, w_q, w_k, w_v, w_o = tensors
        q, k, v = ((x @ weight).view(3, num_heads, -1).transpose(0, 1) for weight in (w_q, w_k, w_v))
        heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
        return heads.transpose(0, 1).flatten(1) @ w_o

    walkthrough = explain_example("two-heads")
    close(walkthrough["output"].values, output().tolist())
    expected = {
        "without the scale": output(scale=1.0),
        "without the mask": output(is_causal=False),
        "with one head": output(num_heads=1),
    }
    assert {variant.name for variant in walkthrough.variants} == set(expected)
    for variant in walkthrough.variants:
        close(variant.output, expected[variant.name].tolist())
        change = (expected[variant.name] - output()).abs().max().item()
        assert variant.largest_change == pytest.approx(change, abs=1e-12) and change > 0.1
        assert f"{variant.name}: the output changes by up to {change:.4f}" in walkthrough.to_text()


def test_an_example_that_there_is_not_is_named():
    with pytest.raises(ConfigError, match="example must be one of two-tokens, two-heads; got 'three'"):
        explain_example("three")
