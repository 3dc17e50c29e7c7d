"""Round batches and lengths come first."""

from headwise.cost.oom.priors import batch_prior, likely_batches, roundest, seq_prior, tokens_prior


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


def test_the_roundest_numbers_of_a_range_come_first():
    assert roundest(1000, 1100)[0] == 1024
    assert roundest(1000, 1100, 1001)[0] == 1001
    assert roundest(7, 8) == [7, 8]
    assert roundest(9, 8) == []
    assert roundest(1, 2**60)[0] == 2**60
    assert set(roundest(1, 2**60)) <= set(range(2**55, 2**60 + 1, 2**55)) | {2**60}
