"""The rules that stretch rotary frequencies: what they hold, what they refuse, and how files are read for them."""

import math
import re
from dataclasses import fields, replace

import pytest
import transformers

from headwise.config.attention import Rotary
from headwise.config.families.rotary_scaling import ROPE_TYPES, read_scaling
from headwise.config.huggingface import read_config
from headwise.config.keys import Keys
from headwise.config.scaling import (
    DynamicNTKScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    RotaryScaling,
    YaRNScaling,
)
from headwise.errors import ConfigError

LONGROPE = LongRoPEScaling(short_factors=(1.0, 2.0), long_factors=(3.0, 4.0), original_max_positions=16, factor=8.0)
EVERY_RULE = (
    LinearScaling(factor=2.0),
    NTKScaling(factor=2.0),
    DynamicNTKScaling(factor=2.0, original_max_positions=7),
    YaRNScaling(factor=2.0, original_max_positions=7),
    Llama3Scaling(factor=2.0, original_max_positions=7),
    LONGROPE,
    ProportionalScaling(share=0.5),
)


def position_of(family, **settings):
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    sizes |= {"num_hidden_layers": 6, "max_position_embeddings": 52}
    return read_config({"model_type": family, **sizes, **settings}, name="m").blocks[-1].attention.position


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: type(rule).__name__)
def test_rules_compare_hash_and_stand_in_a_config(rule):
    config, same = Rotary(scaling=rule), Rotary(scaling=replace(rule))
    assert (config, hash(config)) == (same, hash(same))
    assert config != Rotary()
    assert config.reads_length == isinstance(rule, DynamicNTKScaling | LongRoPEScaling)
    assert isinstance(rule, RotaryScaling)


@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, field.name) for rule in EVERY_RULE for field in fields(rule)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("junk", [object(), "2", float("nan"), 0, -1, 10**400, True])
def test_no_number_of_a_rule_takes_what_is_of_no_use(rule, name, junk):
    if name == "truncate" and junk is True:
        junk = 1
    with pytest.raises(ConfigError, match=rf"^(a number in )?{name} must ") as caught:
        replace(rule, **{name: junk})
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Rotary(scaling="yarn"), "scaling must be None or one of LinearScaling, NTKScaling, .*; got 'yarn'"),
        (lambda: Rotary(scaling=LinearScaling), "scaling must be None or one of .*; got <class"),
        (
            lambda: Rotary(scaling=YaRNScaling(factor=2.0, original_max_positions=7), theta=1),
            "theta must be above 1 for YaRN, .*; got 1",
        ),
        (
            lambda: YaRNScaling(factor=2.0, original_max_positions=7, beta_fast=2.0, beta_slow=3.0),
            "beta_fast must be at least beta_slow; got 2.0 and 3.0",
        ),
        (
            lambda: Llama3Scaling(factor=2.0, original_max_positions=7, low_freq_factor=4.0),
            "high_freq_factor must be above low_freq_factor; got 4.0 and 4.0",
        ),
        (lambda: replace(LONGROPE, short_factors=[1.0, 2.0]), "short_factors must be a tuple of one number a pair"),
        (lambda: replace(LONGROPE, short_factors=()), r"short_factors must be a tuple .*; got \(\)"),
        (lambda: replace(LONGROPE, long_factors=(1.0, 0)), "a number in long_factors must be positive; got 0"),
        (
            lambda: replace(LONGROPE, long_factors=(1.0,)),
            "short_factors and long_factors must hold one number a pair each; got 2 and 1",
        ),
        (lambda: replace(LONGROPE, original_max_positions=1), "original_max_positions must be between 2 and"),
        (lambda: ProportionalScaling(share=1.5), "share must be above 0 and at most 1; got 1.5"),
    ],
)
def test_rules_that_cannot_be_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_factors_on_cosines_follow_from_the_stretch_unless_given():
    assert YaRNScaling(factor=math.e, original_max_positions=7).attention_factor == pytest.approx(1.1)
    assert YaRNScaling(factor=0.5, original_max_positions=7).attention_factor == 1
    assert YaRNScaling(factor=2.0, original_max_positions=7, attention_factor=1.25).attention_factor == 1.25
    assert LONGROPE.attention_factor == pytest.approx(math.sqrt(1 + 3 / 4))  # 8 = 2^3 and 16 = 2^4
    fresh = {"short_factors": (1.0,), "long_factors": (2.0,), "original_max_positions": 16}
    assert LongRoPEScaling(**fresh).attention_factor == LongRoPEScaling(**fresh, factor=0.5).attention_factor == 1
    assert LongRoPEScaling(**fresh, attention_factor=1.25).attention_factor == 1.25


FOUR = [1, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"type": "linear", "factor": 2}, LinearScaling(factor=2.0)),
        (
            {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 13},
            DynamicNTKScaling(factor=2.0, original_max_positions=52),
        ),
        ({"rope_type": "yarn", "factor": 3.0}, YaRNScaling(factor=3.0, original_max_positions=52)),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 13, "truncate": False},
            YaRNScaling(factor=4.0, original_max_positions=13, truncate=False),
        ),
        (
            {"rope_type": "yarn", "factor": 3.0, "beta_fast": 7, "beta_slow": None, "attention_factor": 1.25},
            YaRNScaling(factor=3.0, original_max_positions=52, beta_fast=7.0, attention_factor=1.25),
        ),
        (
            {"rope_type": "yarn", "factor": math.e, "mscale": 2, "mscale_all_dim": 5},
            YaRNScaling(factor=math.e, original_max_positions=52, attention_factor=1.2 / 1.5),
        ),
        (
            {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 3},
            Llama3Scaling(factor=2.0, original_max_positions=52, high_freq_factor=3.0),
        ),
        (
            {"type": "su", "short_factor": FOUR, "long_factor": FOUR[::-1], "original_max_position_embeddings": 13},
            LongRoPEScaling(
                short_factors=tuple(FOUR), long_factors=tuple(FOUR[::-1]), original_max_positions=13, factor=4.0
            ),
        ),
        ({"rope_type": "proportional"}, ProportionalScaling(share=1.0)),
        (
            {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
            ProportionalScaling(share=0.25, factor=2.0),
        ),
        ({"rope_type": "default", "factor": "of no use"}, None),
    ],
)
def test_a_file_is_read_with_all_numbers_of_its_rule(settings, expected):
    for outer in ("rope_scaling", "rope_parameters"):
        position = position_of("llama", **{outer: settings})
        assert position.scaling == expected
        assert position.rotary_dim is None


def test_phi_3_names_the_original_length_beside_the_rule_and_longrope_by_other_names():
    rows = {"short_factor": FOUR, "long_factor": FOUR[::-1]}

    def settings(kind):  # anew for each reader: transformers writes into what it is given
        return {"original_max_position_embeddings": 13, "rope_scaling": {"type": kind, **rows}}

    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "pad_token_id": 0}
    theirs = transformers.Phi3Config(**sizes, **settings("longrope")).rope_parameters
    rule = position_of("phi3", **settings("longrope")).scaling
    assert (rule.original_max_positions, rule.factor) == (13, 4.0)
    assert theirs["original_max_position_embeddings"] == 13
    for kind in ("su", "yarn"):
        assert position_of("phi3", **settings(kind)).scaling == rule
    assert position_of("phi3", rope_scaling={"type": "su", **rows}).scaling.original_max_positions == 4096


def test_as_many_factors_are_read_as_pairs_are_turned():
    rows = {"short_factor": FOUR[:3], "long_factor": FOUR[:3]}
    rule = position_of("phi3", rope_scaling={"type": "longrope", **rows}, partial_rotary_factor=0.75).scaling
    assert rule.short_factors == (1.0, 2.0, 3.0)


def test_gemma_3_scales_each_kind_of_layer_by_itself():
    by_kind = {
        "full_attention": {"rope_type": "longrope", "short_factor": FOUR, "long_factor": FOUR},
        "sliding_attention": {"rope_type": "linear", "factor": 2.0},
    }
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8}
    blocks = read_config(
        {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_parameters": by_kind, **sizes}, name="m"
    ).blocks
    assert [type(block.attention.position.scaling) for block in blocks] == [LinearScaling] * 5 + [LongRoPEScaling]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"type": "linear"}, "factor in rope_scaling must be a finite number; got None"),
        ({"type": "linear", "factor": 0}, "factor in rope_scaling must be positive; got 0"),
        ({"type": "dynamic", "factor": "2"}, "factor in rope_scaling must be a finite number; got '2'"),
        (
            {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2.5},
            "original_max_position_embeddings in rope_scaling must be a whole number; got 2.5",
        ),
        ({"type": "yarn", "factor": 2.0, "truncate": 1}, "truncate in rope_scaling must be True or False; got 1"),
        (
            {"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2},
            "beta_fast in rope_scaling must be at least beta_slow; got 1.0 and 2.0",
        ),
        ({"type": "yarn", "factor": 2.0, "mscale": -1}, "mscale must be between 0 and 1000; got -1"),
        ({"type": "yarn", "factor": 2.0, "rope_theta": 1}, "rope_theta must be above 1 for yarn; got 1"),
        (
            {"type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4},
            "high_freq_factor in rope_scaling must be above low_freq_factor; got 4.0 and 4.0",
        ),
        ({"type": "llama3", "factor": 2.0, "low_freq_factor": 4}, "high_freq_factor in rope_scaling must be a finite"),
        (
            {"type": "longrope", "short_factor": FOUR[:3], "long_factor": FOUR},
            "short_factor in rope_scaling must be a list of one number for each of the 4 pairs .*; got 3 of them",
        ),
        ({"type": "longrope", "short_factor": FOUR}, "long_factor in rope_scaling must be a list .*; got None"),
        (
            {"type": "longrope", "short_factor": FOUR, "long_factor": [1, 2, 3, "4"]},
            "a number of long_factor in rope_scaling must be a finite number; got '4'",
        ),
        (
            {
                "type": "longrope",
                "short_factor": FOUR,
                "long_factor": FOUR,
                "factor": 2.0,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings must be at least 2 for longrope; got 1",
        ),
        (
            {"type": "proportional", "partial_rotary_factor": 2},
            "partial_rotary_factor in rope_scaling must be at most 1; got 2",
        ),
    ],
)
def test_a_file_whose_rule_lacks_a_number_is_refused_in_its_own_words(settings, text):
    with pytest.raises(ConfigError, match=f"^m: {text}"):
        position_of("llama", rope_scaling=settings)


NUMBERS = {
    "factor": 40,
    "original_max_position_embeddings": 13,
    "partial_rotary_factor": 0.5,
    "mscale": 1,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": False,
    "attention_factor": 1.5,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "short_factor": [1.5, 2],
    "long_factor": [2, 3.5],
}
JUNK = (None, True, -1, 0, 3, 10**12, 10**5000, 2.5, math.nan, math.inf, 1e300, -1e300, 1e308, 1e-300)
JUNK += ("", "7", "x\ny", [], [1], [[1], {}], ["1", None], [1e300, 1e-300], {}, {"a": [1]})


@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_any_value_for_any_number_of_a_rule_ends_in_a_rule_or_in_one_short_line(kind):
    keys = Keys({"max_position_embeddings": 52}, {"max_position_embeddings": None})
    refused = 0
    for name in NUMBERS:
        for junk in JUNK:
            try:
                rule = read_scaling(kind, "rope_scaling", {**NUMBERS, name: junk}, keys, num_pairs=2)
                assert (rule is None) == (kind == "default")
            except ConfigError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) < 300
                assert not re.search(r"\b(original_max_positions|short_factors|long_factors|share)\b", str(error)), (
                    error
                )
    assert (refused > 10) == (kind != "default")
