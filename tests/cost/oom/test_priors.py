"""Round batches and lengths come first."""

import pytest

from headwise.cost.oom.priors import (
    batch_prior,
    likely_batches,
    likely_seqs,
    other_batches,
    roundest,
    seq_prior,
    tokens_prior,
)


def test_powers_of_two_come_before_multiples_of_64_and_those_before_odd_lengths():
    assert seq_prior(512) > seq_prior(576) > seq_prior(577)
    assert seq_prior(640) > seq_prior(576)  # 640 is a multiple of 128 too


def test_the_models_longest_length_is_likelier_and_what_is_beyond_it_less_likely():
    assert seq_prior(1000, 1000) > seq_prior(1000) > seq_prior(1000, 512)


def test_powers_of_two_are_the_likeliest_batches_up_to_64():
    assert batch_prior(32) > batch_prior(24) > batch_prior(23)
    assert batch_prior(64) > batch_prior(256) > batch_prior(1024)


def test_steps_of_more_than_128k_tokens_are_rarer():
    assert tokens_prior(2**17) == 1
    assert tokens_prior(2**20) == 1 / 8


def test_every_batch_up_to_64_is_tried():
    assert likely_batches()[:64] == tuple(range(1, 65))
    assert max(likely_batches()) == 2**20


@pytest.mark.parametrize("step", [8, 10, 25, 50])
def test_every_round_batch_up_to_512_is_tried_and_some_beyond(step):
    assert set(range(step, 513, step)) <= set(likely_batches())
    assert {600, 750, 1000, 1500, 2000, 5000} <= set(likely_batches())
    assert not set(other_batches()) & set(likely_batches())
    assert set(range(1, 513)) <= {*other_batches(), *likely_batches()}


def test_round_batches_come_before_their_neighbours_and_after_powers_of_two():
    for batch in (100, 150, 250, 300, 1000):
        assert batch_prior(batch) > 2 * batch_prior(batch + 1)
        assert batch_prior(batch) < batch_prior(2 ** (batch.bit_length() - 1))


def test_any_batch_is_tried_at_round_lengths_and_at_the_models_longest():
    assert {128, 384, 500, 512, 1000, 4096, 5000, 2**17} <= set(likely_seqs(None))
    assert 1234 in likely_seqs(1234) and 1234 not in likely_seqs(None)


def test_the_roundest_numbers_of_a_range_come_first():
    assert roundest(1000, 1100)[0] == 1024
    assert roundest(1000, 1100, 1001)[0] == 1001
    assert roundest(7, 8) == [7, 8]
    assert roundest(9, 8) == []
    assert roundest(1, 2**60)[0] == 2**60
    assert set(roundest(1, 2**60)) <= set(range(2**55, 2**60 + 1, 2**55)) | {2**60}
