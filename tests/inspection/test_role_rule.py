import math

import pytest

from headwise.inspection.roles.rule import Score, holds, is_clearly_above

LOW, UNKNOWN = Score(0.02, 1000), Score(None, 0)


@pytest.mark.parametrize(("score", "expected"), [(0.5, True), (0.49, False), (None, False), (math.nan, False)])
def test_a_role_can_hold_from_one_half_on(score, expected):
    assert holds("induction", Score(score, 1000), (LOW, LOW)) is expected


@pytest.mark.parametrize("nulls", [(Score(0.41, 1000), LOW), (LOW, Score(0.41, 1000))])
def test_a_role_holds_only_above_both_nulls(nulls):
    assert not holds("induction", Score(0.8, 1000), nulls)
    assert holds("induction", Score(0.82, 1000), nulls)


def test_a_null_over_no_query_says_nothing_but_one_there_must_be():
    assert holds("self", Score(0.8, 1000), (LOW, UNKNOWN))
    assert holds("self", Score(0.8, 1000), (UNKNOWN, LOW))
    assert not holds("self", Score(0.8, 1000), (UNKNOWN, UNKNOWN))


def test_few_queries_must_differ_by_more():
    # sqrt(log(100) / 2 * (1 / 4 + 1 / 4)) = 1.073: more than two means between 0 and 1 can differ
    assert not is_clearly_above(Score(1.0, 4), Score(0.0, 4))
    # sqrt(log(100) / 2 * (1 / 16 + 1 / 16)) = 0.5365
    assert is_clearly_above(Score(0.54, 16), Score(0.0, 16))
    assert not is_clearly_above(Score(0.53, 16), Score(0.0, 16))


def test_uniform_needs_nine_tenths_and_no_null_since_it_is_what_an_untrained_head_does():
    assert holds("uniform", Score(0.9, 10), (Score(0.99, 10), UNKNOWN))
    assert not holds("uniform", Score(0.89, 10), (LOW, UNKNOWN))
