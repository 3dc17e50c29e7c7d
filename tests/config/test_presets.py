import subprocess
import sys

import pytest

from headwise.config.attention import AttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.presets import PRESETS, preset
from headwise.config.scaling import LinearScaling, Llama3Scaling, YaRNScaling
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, SlidingWindow


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_read_and_has_its_source(name):
    config, published = preset(name), PRESETS[name]
    assert config.name == name
    depth_keys = {"num_hidden_layers", "n_layer", "num_layers"} & set(published.config)
    assert [config.num_layers] == [published.config[key] for key in depth_keys]
    assert "model card" in published.source


# layers, width, query heads, key/value heads, head size: as in the models' papers and cards
SHAPES = {
    "bert-base": (12, 768, 12, 12, 64),
    "bert-large": (24, 1024, 16, 16, 64),
    "t5-small": (6, 512, 8, 8, 64),
    "vit-b-16": (12, 768, 12, 12, 64),
    "gpt2": (12, 768, 12, 12, 64),
    "gpt2-medium": (24, 1024, 16, 16, 64),
    "gpt2-large": (36, 1280, 20, 20, 64),
    "gpt2-xl": (48, 1600, 25, 25, 64),
    "llama-2-7b": (32, 4096, 32, 32, 128),
    "llama-2-13b": (40, 5120, 40, 40, 128),
    "llama-2-70b": (80, 8192, 64, 8, 128),
    "llama-3-8b": (32, 4096, 32, 8, 128),
    "llama-3-70b": (80, 8192, 64, 8, 128),
    "llama-3.2-1b": (16, 2048, 32, 8, 64),
    "llama-3.2-3b": (28, 3072, 24, 8, 128),
    "mistral-7b": (32, 4096, 32, 8, 128),
    "mistral-nemo-12b": (40, 5120, 32, 8, 128),
    "qwen2.5-7b": (28, 3584, 28, 4, 128),
    "qwen3-4b": (36, 2560, 32, 8, 128),
    "qwen3-8b": (36, 4096, 32, 8, 128),
    "gemma-2b": (18, 2048, 8, 1, 256),
    "gemma-7b": (28, 3072, 16, 16, 256),
    "gemma-2-9b": (42, 3584, 16, 8, 256),
    "gemma-3-27b": (62, 5376, 32, 16, 128),
    "mixtral-8x7b": (32, 4096, 32, 8, 128),
    "gpt-oss-20b": (24, 2880, 64, 8, 64),
    "gpt-oss-120b": (36, 2880, 64, 8, 64),
    "deepseek-v3": (61, 7168, 128, 128, 192),
    "qwen3-next-80b": (48, 2048, 16, 2, 256),
}


def last_attention(name: str):
    return preset(name).blocks[-1].attention  # of Qwen3-Next the first is none


def test_published_shapes():
    assert {
        name: (preset(name).num_layers, layer.embed_dim, layer.num_heads, layer.num_kv_heads, layer.head_dim)
        for name in PRESETS
        for layer in [last_attention(name)]
    } == SHAPES


def test_published_lengths_windows_and_rotary_bases():
    # positions, window of the first layer, base of the last
    assert {
        name: (preset(name).max_positions, getattr(preset(name).blocks[0].attention.mask, "window_size", None), theta)
        for name in PRESETS
        for theta in [getattr(last_attention(name).position, "theta", None)]
        if theta
    } == {
        "llama-2-7b": (4096, None, 1e4),
        "llama-2-13b": (4096, None, 1e4),
        "llama-2-70b": (4096, None, 1e4),
        "llama-3-8b": (8192, None, 5e5),
        "llama-3-70b": (8192, None, 5e5),
        "llama-3.2-1b": (131072, None, 5e5),
        "llama-3.2-3b": (131072, None, 5e5),
        "mistral-7b": (32768, 4096, 1e4),
        "mistral-nemo-12b": (131072, None, 1e6),
        "qwen2.5-7b": (131072, None, 1e6),
        "qwen3-4b": (40960, None, 1e6),
        "qwen3-8b": (40960, None, 1e6),
        "gemma-2b": (8192, None, 1e4),
        "gemma-7b": (8192, None, 1e4),
        "gemma-2-9b": (8192, 4096, 1e4),
        "gemma-3-27b": (131072, 1024, 1e4),
        "mixtral-8x7b": (32768, None, 1e6),
        "gpt-oss-20b": (131072, 128, 1.5e5),
        "gpt-oss-120b": (131072, 128, 1.5e5),
        "deepseek-v3": (163840, None, 1e4),
        "qwen3-next-80b": (262144, None, 1e7),
    }


def test_published_rules_of_scaled_rotary_frequencies():
    assert {
        name: rule for name in PRESETS for rule in [getattr(last_attention(name).position, "scaling", None)] if rule
    } == {
        "llama-3.2-1b": Llama3Scaling(factor=32.0, original_max_positions=8192),
        "llama-3.2-3b": Llama3Scaling(factor=32.0, original_max_positions=8192),
        "gpt-oss-20b": YaRNScaling(factor=32.0, original_max_positions=4096, truncate=False),
        "gpt-oss-120b": YaRNScaling(factor=32.0, original_max_positions=4096, truncate=False),
        "deepseek-v3": YaRNScaling(factor=40.0, original_max_positions=4096, attention_factor=1.0),
    }


def test_gemma_3_turns_windowed_layers_by_a_base_of_their_own():
    windowed, whole = (preset("gemma-3-27b").blocks[index].attention for index in (4, 5))
    assert (windowed.mask, whole.mask) == (SlidingWindow(1024), Causal())
    assert (windowed.position.theta, windowed.position.scaling) == (1e4, None)
    assert (whole.position.theta, whole.position.scaling) == (1e6, LinearScaling(factor=8.0))
    assert whole.scale == windowed.scale == 168**-0.5


def test_deepseek_v3_begins_with_three_dense_layers():
    feed_forwards = [block.feed_forward for block in preset("deepseek-v3").blocks]
    assert [layer.num_experts for layer in feed_forwards] == [1] * 3 + [256] * 58
    assert {layer.shared_hidden_dim for layer in feed_forwards[3:]} == {2048}


def test_qwen3_next_has_three_linear_layers_for_each_attention():
    kinds = [type(block.attention) for block in preset("qwen3-next-80b").blocks]
    assert kinds == ([LinearAttentionConfig] * 3 + [AttentionConfig]) * 12


def test_a_head_can_be_put_on_a_bare_preset():
    assert preset("bert-base").head is None
    headed = preset("bert-base", head=True)
    assert headed.head.kind == "language_model"
    assert not headed.pooler


@pytest.mark.parametrize(("name", "near"), [("bert-bse", "bert-base"), ("LLAMA-3-8B", "llama-3-8b"), ("gpt-2", "gpt2")])
def test_an_unknown_name_is_answered_with_near_ones(name, near):
    with pytest.raises(ConfigError, match=f"no preset '{name}'; did you mean .*{near}"):
        preset(name)


def test_a_name_far_from_all_is_answered_with_all():
    with pytest.raises(ConfigError, match=r"there are bert-base, .*mixtral-8x7b, .*"):
        preset("zzzzzz")


def test_presets_are_read_without_torch_or_transformers():
    code = (
        "import sys; from headwise.config.presets import preset; preset('gpt2'); "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
