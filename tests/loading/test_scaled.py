"""A config scaled down is small and of the same build."""

import pytest
import torch
import transformers

from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS
from headwise.errors import ConfigError
from headwise.loading.scaled import VOCAB_SIZE, scale_down
from headwise.masks.patterns import SlidingWindow


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_scaled_down_is_read_and_is_of_the_same_build(name):
    whole = read_config(PRESETS[name].config, name=name)
    small = read_config(scale_down(PRESETS[name].config), name=name)
    first, first_small = whole.blocks[0].attention, small.blocks[0].attention
    assert small.num_layers <= 6
    assert small.embed_dim <= 64
    assert small.vocab_size <= VOCAB_SIZE
    assert (small.model_type, small.kind) == (whole.model_type, whole.kind)
    assert first_small.queries_per_kv == min(first.queries_per_kv, 8)
    assert type(first_small.mask) is type(first.mask)
    assert {type(block.attention.mask) for block in small.blocks} == {
        type(block.attention.mask) for block in whole.blocks
    }
    is_even_share = first.head_dim * first.num_heads == whole.embed_dim
    assert (first_small.head_dim * first_small.num_heads == small.embed_dim) == is_even_share


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_scaled_down_can_be_instantiated(name):
    config = transformers.AutoConfig.for_model(**scale_down(PRESETS[name].config))
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000


def test_each_kind_of_layer_stays():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = {"num_attention_heads": 32, "num_key_value_heads": 16, "num_hidden_layers": 12, "layer_types": 2 * kinds}
    small = scale_down(config)
    assert small["layer_types"] == kinds
    assert small["num_hidden_layers"] == 6


def test_a_window_stays_a_window_and_none_stays_none():
    config = {"num_attention_heads": 4, "sliding_window": 4096, "hidden_size": 256}
    assert scale_down(config)["sliding_window"] == 7
    assert scale_down(config | {"sliding_window": None})["sliding_window"] is None
    assert scale_down(config | {"sliding_window": 3})["sliding_window"] == 3


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([], "a config must be an object with keys"),
        ({"hidden_size": 64}, "a config must say its number of heads"),
        ({"num_attention_heads": True}, "a config must say its number of heads"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 4},
            "must be a multiple of num_key_value_heads; got 6 and 4",
        ),
    ],
)
def test_a_config_without_readable_heads_is_refused(config, text):
    with pytest.raises(ConfigError, match=text):
        scale_down(config)


def test_windows_are_what_the_mask_says():
    config = read_config(scale_down(PRESETS["mistral-7b"].config), name="mistral")
    assert config.blocks[0].attention.mask == SlidingWindow(7)
