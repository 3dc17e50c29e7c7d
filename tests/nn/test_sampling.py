"""Tokens are drawn from what the settings leave, with the probabilities that transformers' own processors give."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from headwise.errors import ConfigError, ModelError
from headwise.nn.sampling import Sampling, choose_tokens, probabilities

BATCH, VOCAB = 3, 23


def scores_of(seed):
    return 4 * torch.randn(BATCH, VOCAB, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=60, deadline=None, derandomize=True)  # no draw on the edge of top_p
@given(
    seed=st.integers(0, 999),
    temperature=st.floats(0.1, 4),
    top_k=st.none() | st.integers(1, VOCAB + 2),
    top_p=st.floats(0.05, 1),
    min_p=st.just(0.0) | st.floats(0.01, 1),
    penalty=st.just(1.0) | st.floats(0.5, 3),
)
def test_probabilities_are_those_of_transformers_processors(seed, temperature, top_k, top_p, min_p, penalty):
    from transformers.generation import logits_process as peers

    scores = scores_of(seed)
    ids = torch.randint(VOCAB, (BATCH, 5), generator=torch.Generator().manual_seed(seed))
    seen = torch.zeros(BATCH, VOCAB, dtype=torch.bool).scatter(1, ids, True)
    steps = [peers.RepetitionPenaltyLogitsProcessor(penalty), peers.TemperatureLogitsWarper(temperature)]
    if top_k is not None:
        steps.append(peers.TopKLogitsWarper(top_k))
    if top_p < 1:
        steps.append(peers.TopPLogitsWarper(top_p))
    if min_p > 0:
        steps.append(peers.MinPLogitsWarper(min_p))
    expected = scores
    for step in steps:
        expected = step(ids, expected)
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    found = probabilities(scores, sampling, seen=seen)
    # A sum of 23 float32 probabilities is off by some 23 ulps; on the edge of top_p either choice would do.
    torch.testing.assert_close(found, expected.softmax(-1), rtol=1e-5, atol=1e-7)


def test_greedy_takes_the_highest_score_after_the_penalty():
    scores = torch.tensor([[3.0, 2.0, -1.0]])
    seen = torch.tensor([[True, False, False]])
    assert choose_tokens(scores, Sampling()).item() == 0
    assert choose_tokens(scores, Sampling(repetition_penalty=1.6), seen=seen).item() == 1
    assert choose_tokens(-scores, Sampling(repetition_penalty=4.0), seen=torch.tensor([[0, 0, 1]]).bool()).item() == 2


def test_draws_come_with_their_probabilities_and_a_seed_repeats_them():
    scores = scores_of(0)[:1].expand(20_000, -1)
    sampling = Sampling(temperature=1.5, top_k=7, seed=5)
    drawn = [choose_tokens(scores, sampling, generator=sampling.make_generator(scores.device)) for _ in range(2)]
    assert torch.equal(*drawn)
    share = drawn[0].bincount(minlength=VOCAB) / len(scores)
    expected = probabilities(scores[:1], sampling)[0]
    assert (share[expected == 0] == 0).all() and int((expected > 0).sum()) == 7
    # Five deviations of a share: sqrt(p (1 - p) / n).
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / len(scores)).sqrt()).all()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0; got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a finite number; got nan"),
        ({"top_k": 0}, "top_k must be between 1 and 2147483647; got 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1; got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1; got 1.5"),
        ({"min_p": -1.0}, "min_p must be from 0 to 1; got -1.0"),
        ({"repetition_penalty": 0}, "repetition_penalty must be positive; got 0"),
        ({"seed": -1}, "seed must be between 0 and 9223372036854775807; got -1"),
        ({"seed": True}, "seed must be a whole number; got True"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, text):
    with pytest.raises(ConfigError) as caught:
        Sampling(**wrong)
    assert str(caught.value) == text


def test_as_many_tokens_are_kept_as_top_k_says_also_of_equal_scores():
    for dtype in (torch.float32, torch.bfloat16):
        scores = torch.ones(2, 7, dtype=dtype)
        kept = probabilities(scores, Sampling(temperature=1.0, top_k=3)) > 0
        assert kept.sum(-1).tolist() == [3, 3]


def test_of_equal_probabilities_no_more_are_kept_than_top_p_needs():
    kept = probabilities(torch.zeros(1, 10), Sampling(temperature=1.0, top_p=0.3 - 1e-6)) > 0
    assert kept[0].tolist() == [True] * 3 + [False] * 7


def test_a_penalty_counts_in_float32_whatever_the_scores_are():
    scores = torch.tensor([[2.0, 2.59375]], dtype=torch.bfloat16)  # 2.59375 / 1.3 = 1.9952, which bfloat16 calls 2
    seen = torch.tensor([[False, True]])
    assert choose_tokens(scores, Sampling(repetition_penalty=1.3), seen=seen).tolist() == [0]


def test_the_lowest_temperature_takes_the_highest_score():
    scores = torch.tensor([[1.0, 3.0, 2.0], [-1e30, -2e30, -3e30]])
    assert choose_tokens(scores, Sampling(temperature=1e-320)).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[1.0, torch.nan], [-torch.inf, -torch.inf]])
def test_scores_that_are_no_numbers_are_named(temperature, row):
    with pytest.raises(ModelError, match="the model's scores must be numbers"):
        choose_tokens(torch.tensor([[0.0, 1.0], row]), Sampling(temperature=temperature))
