"""A shape that was seen once, at a batch and a length with large prime factors, is known at every other."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.cost.oom.patterns import (
    PROBE_BATCH,
    PROBE_SEQ,
    Dim,
    batches_within,
    learn_pattern,
    length_at,
    seqs_within,
    value_at,
)

B, S = PROBE_BATCH, PROBE_SEQ


@pytest.mark.parametrize(
    ("seen", "shape_at_7_and_13"),
    [
        ((B, 12, S, S), (7, 12, 13, 13)),
        ((B, 12, S, S + 1), (7, 12, 13, 14)),
        ((B * S, 4096), (91, 4096)),
        ((B * S // 8, 50257), (12, 50257)),  # pieces of an eighth of the tokens: 91 / 8, rounded up
        ((4 * B * S, 2880), (364, 2880)),
        ((1, S), (1, 13)),
        ((B, S - 1, 5), (7, 12, 5)),
        ((30522, 768), (30522, 768)),
        ((), ()),
        ((0, B), (0, 7)),
    ],
)
def test_a_dimension_is_told_by_its_prime_factors(seen, shape_at_7_and_13):
    pattern = learn_pattern(seen, "bfloat16")
    assert pattern.shape_at(7, 13) == shape_at_7_and_13
    assert pattern.bytes_at(7, 13) == 2 * prod(shape_at_7_and_13)


def test_a_pattern_says_what_its_size_depends_on():
    assert (learn_pattern((B, 3), "bool").has_batch, learn_pattern((B, 3), "bool").has_seq) == (True, False)
    assert (learn_pattern((1, S), "bool").has_batch, learn_pattern((1, S), "bool").has_seq) == (False, True)


def test_the_polynomial_of_scores_with_a_sink_is_that_of_their_bytes():
    pattern = learn_pattern((B, 3, S, S + 1), "float32")
    assert pattern.poly == (0.0, 0.0, 0.0, 12.0, 0.0, 12.0)  # 4 x 3 x batch x (seq^2 + seq)
    assert value_at(pattern.poly, 7, 13) == pattern.bytes_at(7, 13) == 4 * 3 * 7 * 13 * 14


def test_a_tensor_of_a_higher_degree_than_any_of_a_model_has_no_polynomial():
    assert learn_pattern((B, B, S), "bool").poly is None


@given(batch=st.integers(1, 64), seq=st.integers(1, 4096), sink=st.booleans(), square=st.booleans())
def test_lengths_and_batches_are_found_from_the_exact_size(batch, seq, sink, square):
    shape = (B, 5, S, S + sink) if square else (B, 5, S + sink)
    pattern = learn_pattern(shape, "float32")
    size = pattern.bytes_at(batch, seq)
    first, last = seqs_within(pattern.poly, batch, size, size)
    assert first <= seq <= last
    assert last - first <= 1
    first, last = batches_within(pattern.poly, size, size, seq=seq)
    assert first <= batch <= last
    assert last - first <= 1


def test_a_dimension_is_rounded_up():
    assert Dim(1, 8, has_batch=True, has_seq=True).at(3, 3) == 2


@given(batch=st.integers(1, 64), seq=st.integers(1, 4096))
def test_the_length_of_a_value_is_the_one_that_gives_it(batch, seq):
    for poly in ((5.0, 3.0, 7.0, 2.0, 1.0, 4.0), (5.0, 3.0, 0.0, 2.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0, 4.0)):
        assert length_at(poly, batch, value_at(poly, batch, seq)) == pytest.approx(seq)
    assert length_at((5.0, 3.0, 0.0, 0.0, 0.0, 0.0), batch, 100) == 0
