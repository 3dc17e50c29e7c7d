"""The line of a traceback tells which allocations it can make."""

import pytest

from headwise.cost.oom import at_work
from headwise.cost.oom.births import Birth
from headwise.cost.oom.operations import OPERATIONS, operation_factor
from headwise.cost.oom.patterns import ZERO, learn_pattern
from headwise.cost.workload import Workload


def birth(name, owner="attention", moment="forward", kind="temporary"):
    return Birth(name, kind, owner, None, moment, learn_pattern((3,), "float32"), ZERO, ZERO, "never", 1)


MADE_BY = {
    "scores": birth("attention scores, scaled"),
    "softmax": birth("attention weights"),
    "attention output": birth("attention output"),
    "repeated keys": birth("key of each head"),
    "sdpa": birth("attention output"),
    "rotary": birth("query, rotated"),
    "projection": birth("query"),
    "mask": birth("attention mask, bool", "embeddings"),
    "logits": birth("output scores", "head"),
    "feed-forward": birth("up", "feed-forward"),
    "embedding": birth("token embeddings", "embeddings"),
    "norm": birth("attention input"),
    "optimizer": birth("root of the second moment", moment="optimizer"),
    "backward": birth("gradient of up", "feed-forward", "backward"),
    "cache": birth("cached keys"),
    "weights": birth("token table", "embeddings", "loading", "parameter"),
    "inputs": birth("token ids", "inputs", "loading", "input"),
    "gradients": birth("gradient of token table", "embeddings", "backward", "gradient"),
}


def test_every_operation_that_a_traceback_names_is_known():
    assert set(OPERATIONS) == set(at_work.OPERATIONS) == set(MADE_BY)


@pytest.mark.parametrize("operation", MADE_BY)
def test_an_operation_makes_its_own_tensor_and_hardly_another(operation):
    assert operation_factor(operation, MADE_BY[operation]) == 1
    other = "inputs" if operation != "inputs" else "logits"
    assert operation_factor(operation, MADE_BY[other]) < 0.1


def test_without_a_line_every_tensor_is_as_likely():
    assert all(operation_factor(None, one) == 1 for one in MADE_BY.values())


def test_an_operation_that_nobody_knows_says_nothing():
    assert operation_factor("convolution", MADE_BY["scores"]) == 1


def test_a_fused_call_makes_attention_where_that_is_fused():
    scores = MADE_BY["scores"]
    assert operation_factor("sdpa", scores, Workload(batch=1, seq=1)) == 1
    assert operation_factor("sdpa", scores, Workload(batch=1, seq=1, attention="eager")) < 0.1


def test_a_checkpointed_layer_runs_its_forward_pass_again_in_backward():
    again = birth("up", "feed-forward", "backward")
    assert operation_factor("feed-forward", again, Workload(batch=1, seq=1, checkpoint="full")) == 1
    assert operation_factor("feed-forward", again, Workload(batch=1, seq=1)) < 0.1
