import math

import pytest
import torch

from headwise.ops.dropout import drop, keep_mask, keep_pairs, key_states, query_states

SIZES = (2, 3, 211, 223)  # batch, heads, queries, keys


def places(sizes=SIZES):
    shapes = ((-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1))
    return [torch.arange(size).view(shape) for size, shape in zip(sizes, shapes, strict=True)]


def deviations(kept, dropout_p):
    """Each pair as a number of mean 0 and variance 1, if the drawing is fair."""
    return (kept.double() - (1 - dropout_p)) / math.sqrt(dropout_p * (1 - dropout_p))


def is_like_noise(numbers):
    """The sum of n independent numbers of mean 0 and variance 1 is within 5 standard deviations of 0."""
    return abs(numbers.sum().item()) < 5 * math.sqrt(numbers.numel())


@pytest.mark.parametrize("dropout_p", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_each_pair_is_kept_with_its_probability_and_independently_of_its_neighbours(seed, dropout_p):
    x = deviations(keep_mask(seed, dropout_p, *places()), dropout_p)
    assert x.shape == SIZES
    assert is_like_noise(x)
    for dim, lags in enumerate(((1,), (1, 2), (1, 2, 16, 64), (1, 2, 16, 64))):
        for lag in lags:
            rest = x.shape[dim] - lag
            assert is_like_noise(x.narrow(dim, 0, rest) * x.narrow(dim, lag, rest))
    # A pair is mixed from a number of its query and one of its key: four pairs of two of each must not tell.
    assert is_like_noise(x[:, :, 1:, 1:] * x[:, :, 1:, :-1] * x[:, :, :-1, 1:] * x[:, :, :-1, :-1])
    for dim in (2, 3):  # kept in a row, or a column: their number varies as that of independent draws
        sums = x.sum(dim) / math.sqrt(x.shape[dim])
        excess = (sums.square() - 1) / math.sqrt(2 + (1 / (dropout_p * (1 - dropout_p)) - 6) / x.shape[dim])
        assert is_like_noise(excess)


def test_seeds_that_differ_in_any_bit_draw_independently():
    base = deviations(keep_mask(5, 0.5, *places()), 0.5)
    for bit in (0, 1, 15, 31, 32, 47, 62):
        assert is_like_noise(base * deviations(keep_mask(5 ^ 2**bit, 0.5, *places()), 0.5))


def test_batch_head_query_and_key_play_different_parts():
    """Where two of them change places the drawing is another one."""
    one, other, zero = (
        torch.arange(211).view(-1, 1),
        torch.arange(211).view(1, -1),
        torch.zeros(1, 1, dtype=torch.int64),
    )
    tables = [
        deviations(keep_mask(3, 0.5, *arguments), 0.5)
        for arguments in (
            (one, other, zero, zero),
            (other, one, zero, zero),
            (one, zero, other, zero),
            (zero, one, other, zero),
            (zero, zero, one, other),
            (zero, zero, other, one),
        )
    ]
    for i, table in enumerate(tables):
        assert all(is_like_noise(table * another) for another in tables[:i])


def test_a_part_of_the_pairs_is_what_the_whole_says_of_them():
    batch, head, query, key = places((2, 3, 17, 19))
    whole = keep_mask(9, 0.3, batch, head, query, key)
    part = keep_mask(9, 0.3, batch[1:], head[:, 2:], query[:, :, 5:7], key[..., 11:])
    assert torch.equal(part, whole[1:, 2:, 5:7, 11:])
    one = keep_mask(9, 0.3, *(torch.tensor(place) for place in (1, 2, 5, 11)))
    assert one.shape == () and one == whole[1, 2, 5, 11]
    queries, keys = query_states(9, batch, head, query), key_states(9, key)
    assert torch.equal(keep_pairs(queries[..., 5:7, :], keys[..., 11:], 0.3), whole[:, :, 5:7, 11:])
    assert torch.equal(keep_mask(torch.tensor(9), 0.3, batch, head, query, key), whole)


def test_the_kind_of_integers_does_not_matter_and_inputs_stay_as_they_are():
    arguments = places((2, 3, 5, 7))
    whole = keep_mask(4, 0.5, *arguments)
    narrow = [place.to(torch.int32) for place in arguments]
    assert torch.equal(keep_mask(4, 0.5, *narrow), whole)
    assert all(torch.equal(place, other) for place, other in zip(arguments, narrow, strict=True))
    queries, keys = query_states(4, *arguments[:3]), key_states(4, arguments[3])
    copies = queries.clone(), keys.clone()
    keep_pairs(queries, keys, 0.5)
    assert torch.equal(queries, copies[0]) and torch.equal(keys, copies[1])


def test_without_dropout_all_are_kept():
    assert keep_mask(1, 0.0, *places()).all()


def test_the_drawing_of_a_seed_never_changes():
    """Written down once: another drawing would change the results of everyone who gave a seed."""
    kept = keep_mask(2026, 0.5, *places((1, 1, 4, 8)))[0, 0]
    rows = ["".join("x" if one else "." for one in row) for row in kept.tolist()]
    assert rows == ["x.xx...x", "..xxxxx.", ".xxxxx..", ".xxxxx.."]


def test_dropped_weights_are_0_and_the_others_grow():
    weights = torch.tensor([0.5, 0.25, torch.nan], dtype=torch.float64)
    kept = torch.tensor([True, False, False])
    assert drop(weights, kept, 0.2).tolist() == [0.625, 0.0, 0.0]
