import math

import pytest
import torch

from headwise.config.position import T5Bias
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal
from headwise.ops.attention import attention
from headwise.ops.bias import Bias
from headwise.positions.bias import ALiBiBias, T5RelativeBias, alibi_slopes, t5_buckets

T5_BUCKETS = [
    T5Bias(),
    T5Bias(is_bidirectional=False),
    T5Bias(num_buckets=8, max_distance=20),
    T5Bias(num_buckets=8, max_distance=20, is_bidirectional=False),
    T5Bias(num_buckets=4, max_distance=2),
    T5Bias(num_buckets=31, max_distance=77),
]


def places(num_heads, query_position, key_position):
    return (
        torch.zeros(1, 1, 1, 1, dtype=torch.int64),
        torch.arange(num_heads).view(1, -1, 1, 1),
        query_position.view(1, 1, -1, 1),
        key_position.view(1, 1, 1, -1),
    )


def slopes_by_recursion(num_heads):
    """The authors' rule: a power of two, and then every other slope of twice that power."""
    power = 2 ** math.floor(math.log2(num_heads))
    row = [2 ** (-(2 ** -(math.log2(power) - 3)) * (place + 1)) for place in range(power)]
    return row if power == num_heads else row + slopes_by_recursion(2 * power)[0::2][: num_heads - power]


def test_slopes_of_8_and_16_heads_are_those_of_the_paper():
    assert alibi_slopes(torch.arange(8), 8).tolist() == [1 / 2**place for place in range(1, 9)]
    sixteen = [2 ** (-place / 2) for place in range(1, 17)]
    assert alibi_slopes(torch.arange(16), 16).tolist() == pytest.approx(sixteen, rel=2**-22)


@pytest.mark.parametrize("num_heads", [*range(1, 34), 40, 71, 112])
def test_slopes_of_any_number_of_heads_are_those_of_the_authors_code(num_heads):
    found = alibi_slopes(torch.arange(num_heads), num_heads)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(slopes_by_recursion(num_heads), rel=2**-21)


def test_alibi_falls_with_the_distance_on_either_side():
    bias = ALiBiBias(2)
    found = bias(*places(2, torch.tensor([5, 3]), torch.tensor([0, 4, 9])))
    assert found.tolist() == [[[[-slope * abs(i - j) for j in (0, 4, 9)] for i in (5, 3)] for slope in (2**-4, 2**-8)]]


def test_alibi_survives_a_change_of_dtype_and_far_positions():
    bias = ALiBiBias(12).to(torch.bfloat16)
    arguments = places(12, torch.tensor([100_003]), torch.tensor([100_000, 2]))
    exact = torch.tensor([[-slope * distance for distance in (3, 100_001)] for slope in slopes_by_recursion(12)])
    torch.testing.assert_close(bias(*arguments)[0, :, 0], exact, rtol=2**-20, atol=0)
    assert bias.tensors == () and not list(bias.parameters()) and not list(bias.buffers())


@pytest.mark.parametrize("config", T5_BUCKETS, ids=str)
def test_buckets_are_those_of_transformers(config):
    transformers = pytest.importorskip("transformers")
    attention_class = transformers.models.t5.modeling_t5.T5Attention
    distance = torch.arange(-300, 301)
    expected = attention_class._relative_position_bucket(
        distance,
        bidirectional=config.is_bidirectional,
        num_buckets=config.num_buckets,
        max_distance=config.max_distance,
    )
    found = t5_buckets(distance, config)
    assert torch.equal(found, expected)
    assert found.min() == 0 and found.max() < config.num_buckets


def test_near_distances_have_a_bucket_each_and_far_ones_share():
    """Of 8 buckets a side has 4: 0 and 1 alone, then up to 4, and the rest: 2 * (20 / 2) ** (1 / 2) = 6.3."""
    both = T5Bias(num_buckets=8, max_distance=20)
    distances = torch.tensor([-99, -7, -6, -2, -1, 0, 1, 2, 6, 7, 99])
    assert t5_buckets(distances, both).tolist() == [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]
    past = T5Bias(num_buckets=8, max_distance=20, is_bidirectional=False)
    assert t5_buckets(torch.tensor([5, 1, 0, -1, -3, -4, -99]), past).tolist() == [0, 0, 0, 1, 3, 4, 7]


@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_the_bias_of_t5_is_transformers_own(is_bidirectional):
    transformers = pytest.importorskip("transformers")
    settings = transformers.T5Config(
        d_model=12, d_kv=4, num_heads=3, is_decoder=not is_bidirectional, relative_attention_num_buckets=8
    )
    theirs = transformers.models.t5.modeling_t5.T5Attention(settings, has_relative_attention_bias=True, layer_idx=0)
    ours = T5RelativeBias(T5Bias(num_buckets=8, is_bidirectional=is_bidirectional), 3)
    with torch.no_grad():
        ours.table.copy_(theirs.relative_attention_bias.weight)
    expected = theirs.compute_bias(5, 11, past_seen_tokens=6)
    found = ours(*places(3, torch.arange(6, 11), torch.arange(11)), *ours.tensors)
    assert torch.equal(found, expected)


def test_the_table_of_t5_learns_through_attention():
    bias = T5RelativeBias(T5Bias(num_buckets=8, max_distance=20), 2)
    query = torch.randn(1, 2, 9, 4)
    attention(query, query, query, bias=bias, mask=Causal(), scale=1.0).output.square().sum().backward()
    # a causal query meets no later key: those buckets, 4 and above, learn nothing, and bucket 0 to 3 all do
    has_gradient = bias.table.grad.abs().sum(-1) > 0
    assert has_gradient.tolist() == [True] * 4 + [False] * 4
    assert bias.tensors == (bias.table,)


@pytest.mark.parametrize("make", [lambda: ALiBiBias(6), lambda: T5RelativeBias(T5Bias(), 6)])
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_both_are_biases_that_attention_takes_and_positions_may_restart(make, impl):
    torch.manual_seed(0)
    bias = make()
    assert isinstance(bias, Bias)
    query, key = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 5, 4)
    whole = attention(query, key, key, bias=bias, mask=Causal(), impl=impl).output
    shifted = torch.arange(5) + 40  # distances alone matter
    moved = attention(
        query, key, key, bias=bias, mask=Causal(), query_positions=shifted, key_positions=shifted, impl=impl
    ).output
    torch.testing.assert_close(moved, whole, rtol=0, atol=1e-5)
    stretched = attention(
        query, key, key, bias=bias, mask=Causal(), query_positions=2 * shifted, key_positions=2 * shifted, impl=impl
    ).output
    assert (stretched[:, :, 1:] - whole[:, :, 1:]).abs().amax(-1).gt(1e-4).all()


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match=r"num_heads.*0"):
        ALiBiBias(0)
    with pytest.raises(ConfigError, match=r"num_buckets must be at least 4.*got 3 and 128"):
        T5RelativeBias(T5Bias(num_buckets=3), 2)
    with pytest.raises(ConfigError, match=r"max_distance above.*, 8; got 32 and 8"):
        T5RelativeBias(T5Bias(max_distance=8), 2)


def test_the_print_shows_the_settings():
    assert repr(ALiBiBias(3)) == "ALiBiBias(num_heads=3)"
    assert "num_heads=2, config=T5Bias(num_buckets=32" in repr(T5RelativeBias(T5Bias(), 2))
