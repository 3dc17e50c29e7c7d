"""The page of a walkthrough: every number of every step, and what changes."""

import re

import pytest

from headwise.inspection.walkthrough.variants import EXAMPLES, explain_example
from headwise.report.explain_page import format_number, render_explanation


def numbers_of(values):
    return [values] if isinstance(values, float) else [number for one in values for number in numbers_of(one)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_number_of_every_step_stands_on_the_page_in_its_order(name):
    walkthrough = explain_example(name)
    page = render_explanation(walkthrough, name)
    shown = re.findall(r"<td>(.*?)</td>", page)
    expected = [number for step in walkthrough.steps for number in numbers_of(step.values)]
    expected += [n for variant in walkthrough.variants for n in numbers_of((variant.weights, variant.output))]
    assert shown == [format_number(number) for number in expected]
    assert all(step.name in page for step in walkthrough.steps)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
