import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.config.attention import AttentionConfig, Rotary
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal


def test_missing_sizes_follow_from_the_width_and_the_heads():
    config = AttentionConfig(embed_dim=35, num_heads=5)
    assert (config.num_kv_heads, config.head_dim, config.v_head_dim) == (5, 7, 7)
    assert (config.key_dim, config.value_dim) == (35, 35)
    assert config.scale == 7**-0.5


def test_a_head_dim_of_its_own_lifts_the_rule_that_heads_divide_the_width():
    config = AttentionConfig(embed_dim=13, num_heads=6, num_kv_heads=2, head_dim=5)
    assert (config.head_dim, config.v_head_dim, config.queries_per_kv) == (5, 5, 3)
    with pytest.raises(ConfigError, match=r"embed_dim must be a multiple of num_heads.*13 and 6"):
        AttentionConfig(embed_dim=13, num_heads=6)


def test_value_width_follows_the_key_width():
    config = AttentionConfig(embed_dim=6, num_heads=3, key_dim=11)
    assert config.value_dim == 11


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"embed_dim": "8"}, "embed_dim must be a whole number; got '8'"),
        ({"embed_dim": True}, "embed_dim must be a whole number; got True"),
        ({"embed_dim": 8.0}, "embed_dim must be a whole number; got 8.0"),
        ({"num_heads": 0}, "num_heads must be between 1 and"),
        ({"num_heads": -2}, "num_heads must be between 1 and .*; got -2"),
        ({"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads.*got 4 and 3"),
        ({"head_dim": 10**5000}, "head_dim must be between"),
        ({"dropout_p": 1.0}, "dropout_p must be at least 0 and below 1; got 1.0"),
        ({"dropout_p": float("nan")}, "dropout_p must be a finite number; got nan"),
        ({"scale": float("inf")}, "scale must be a finite number; got inf"),
        ({"scale": 10**400}, "scale must be a finite number"),
        ({"projection_bias": "all"}, "projection_bias must be True, False or \"qkv\"; got 'all'"),
        ({"projection_bias": 0}, 'projection_bias must be True, False or "qkv"; got 0'),
        ({"projection_bias": 1.0}, 'projection_bias must be True, False or "qkv"; got 1.0'),
        ({"qk_norm": "no"}, "qk_norm must be True or False; got 'no'"),
        ({"qk_norm": 1}, "qk_norm must be True or False; got 1"),
        ({"qk_norm_eps": 0}, "qk_norm_eps must be positive; got 0"),
        ({"qk_norm_eps": "1e-6"}, "qk_norm_eps must be a finite number; got '1e-6'"),
        ({"position": "rope"}, "position must be Rotary, ALiBi, T5Bias or None; got 'rope'"),
        ({"mask": "causal"}, "mask of a layer must be a structural mask.*got 'causal'"),
        ({"mask": None}, "mask of a layer must be a structural mask"),
        ({"head_dim": 3, "position": Rotary()}, "head_dim must be even for rotary positions.*got 3"),
    ],
)
def test_a_layer_that_cannot_be_is_refused_with_what_must_hold_and_what_came(keywords, text):
    with pytest.raises(ConfigError, match=text):
        AttentionConfig(**{"embed_dim": 8, "num_heads": 4, **keywords})


@pytest.mark.parametrize("theta", [0, -1.0, float("nan"), float("inf"), "1e4", None, True, 10**400])
def test_the_rotary_base_is_a_positive_number(theta):
    with pytest.raises(ConfigError, match="theta must be"):
        Rotary(theta=theta)


def test_the_rotary_pairing_is_one_of_two():
    with pytest.raises(ConfigError, match='pairing must be "half" or "interleaved"; got \'both\''):
        Rotary(pairing="both")


def test_none_asks_for_the_default():
    given = AttentionConfig.from_keywords(embed_dim=8, num_heads=2, num_kv_heads=None, head_dim=None, scale=None)
    assert given == AttentionConfig(embed_dim=8, num_heads=2)


def test_equal_layers_compare_and_hash_equal():
    first, second = (AttentionConfig(embed_dim=8, num_heads=2, mask=Causal(), position=Rotary()) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_junk_for_a_size_ends_in_one_short_line(junk):
    try:
        AttentionConfig(embed_dim=junk, num_heads=1)
    except ConfigError as error:
        assert len(str(error)) < 160
        assert "\n" not in str(error)
