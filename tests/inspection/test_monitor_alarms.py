import dataclasses

import pytest
import torch

from headwise.inspection.monitoring.alarms import find_alarms, is_collapsed
from headwise.inspection.monitoring.results import MonitoredHead

HEAD = MonitoredHead(
    stack="self",
    layer=3,
    head=5,
    entropy=1.0,
    normalized_entropy=0.5,
    sparsity=0.1,
    sink_mass=0.2,
    padding_mass=0.0,
    mean_abs_score=1.0,
    max_abs_score=2.0,
    weight_counts=(1.0,),
    gradient_norm=1.0,
    is_dead=False,
    is_collapsed=False,
)


def alarms(*, largest_product=10.0, dtype=torch.float16, **settings):
    head = dataclasses.replace(HEAD, **settings)
    found = find_alarms(head, step=50, largest_product=largest_product, dtype=dtype, collapse_below=0.01)
    return {alarm.kind: alarm for alarm in found}


@pytest.mark.parametrize(
    ("entropy", "sink_mass", "expected"),
    [(0.005, 0.1, True), (0.01, 0.1, False), (0.02, 0.1, False), (0.005, 0.9, False), (float("nan"), 0.1, False)],
)
def test_a_head_is_collapsed_if_each_query_reads_one_key_that_is_no_sink(entropy, sink_mass, expected):
    assert is_collapsed(entropy, sink_mass, below=0.01) is expected


def test_a_healthy_head_gives_no_alarm():
    assert alarms() == {}


def test_an_alarm_names_the_step_the_head_the_figure_and_what_to_do():
    alarm = alarms(is_collapsed=True, normalized_entropy=0.004)["entropy collapse"]
    assert alarm.to_text().startswith("step 50, layer 3, head 5: entropy collapse: the entropy is 0.004 of a uniform")
    assert "below 0.01" in alarm.text
    assert alarm.figure == 0.004


def test_the_stack_is_named_where_there_are_several():
    alarm = alarms(is_collapsed=True, stack="decoder")["entropy collapse"]
    assert alarm.to_text().startswith("step 50, decoder, layer 3, head 5: ")


@pytest.mark.parametrize(
    ("product", "dtype", "expected"),
    [
        (32_700.0, torch.float16, False),
        (32_800.0, torch.float16, True),
        (float("inf"), torch.float16, True),
        (float("nan"), torch.float16, True),
        (1e30, torch.bfloat16, False),
        (2e38, torch.bfloat16, True),
        (1e30, torch.float32, False),
        (float("nan"), torch.float32, True),
        (float("nan"), None, False),
    ],
)
def test_a_product_from_half_of_what_the_dtype_holds_is_told(product, dtype, expected):
    assert ("score overflow" in alarms(largest_product=product, dtype=dtype)) is expected


def test_an_overflow_of_float16_advises_bfloat16():
    alarm = alarms(largest_product=4e4)["score overflow"]
    assert "is 4e+04, and float16 ends at 6.55e+04" in alarm.text
    assert "train in bfloat16" in alarm.text
    assert "train in bfloat16" not in alarms(largest_product=2e38, dtype=torch.bfloat16)["score overflow"].text


def test_weight_on_padding_is_told_from_a_thousandth():
    assert alarms(padding_mass=9e-4) == {}
    assert "put 0.25 of their weight on padding" in alarms(padding_mass=0.25)["attention to padding"].text


def test_two_thousandths_of_the_weight_on_padding_are_too_much():
    assert set(alarms(padding_mass=2e-3)) == {"attention to padding"}
    assert not alarms(padding_mass=5e-4)
