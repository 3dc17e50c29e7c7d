import subprocess
import sys

import pytest

from headwise.config.presets import PRESETS, preset
from headwise.errors import ConfigError


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_read_and_has_its_source(name):
    config = preset(name)
    assert config.name == name
    assert config.num_layers == PRESETS[name].config.get("num_hidden_layers", PRESETS[name].config.get("n_layer"))
    assert "model card" in PRESETS[name].source


def test_published_shapes():
    # layers, width, query heads, key/value heads, head size, feed-forward width: as in the models' papers
    shapes = {
        name: (config.num_layers, attention.embed_dim, attention.num_heads, attention.num_kv_heads, attention.head_dim)
        for name in PRESETS
        for config in [preset(name)]
        for attention in [config.blocks[0].attention]
    }
    assert shapes == {
        "bert-base": (12, 768, 12, 12, 64),
        "bert-large": (24, 1024, 16, 16, 64),
        "gpt2": (12, 768, 12, 12, 64),
        "gpt2-medium": (24, 1024, 16, 16, 64),
        "gpt2-large": (36, 1280, 20, 20, 64),
        "gpt2-xl": (48, 1600, 25, 25, 64),
        "llama-2-7b": (32, 4096, 32, 32, 128),
        "llama-2-70b": (80, 8192, 64, 8, 128),
        "llama-3-8b": (32, 4096, 32, 8, 128),
        "llama-3-70b": (80, 8192, 64, 8, 128),
        "llama-3.2-1b": (16, 2048, 32, 8, 64),
        "mistral-7b": (32, 4096, 32, 8, 128),
        "mistral-nemo-12b": (40, 5120, 32, 8, 128),
        "qwen3-4b": (36, 2560, 32, 8, 128),
        "gemma-2b": (18, 2048, 8, 1, 256),
        "mixtral-8x7b": (32, 4096, 32, 8, 128),
    }


def test_published_lengths_windows_and_rotary_bases():
    settings = {
        name: (config.max_positions, getattr(attention.mask, "window_size", None), attention.position.theta)
        for name in PRESETS
        for config in [preset(name)]
        for attention in [config.blocks[0].attention]
        if attention.position
    }
    assert settings == {
        "llama-2-7b": (4096, None, 1e4),
        "llama-2-70b": (4096, None, 1e4),
        "llama-3-8b": (8192, None, 5e5),
        "llama-3-70b": (8192, None, 5e5),
        "llama-3.2-1b": (131072, None, 5e5),
        "mistral-7b": (32768, 4096, 1e4),
        "mistral-nemo-12b": (131072, None, 1e6),
        "qwen3-4b": (40960, None, 1e6),
        "gemma-2b": (8192, None, 1e4),
        "mixtral-8x7b": (32768, None, 1e6),
    }
    assert preset("llama-3.2-1b").blocks[0].attention.position.scaling == "llama3"


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
    with pytest.raises(ConfigError, match=r"there are bert-base, .*mixtral-8x7b"):
        preset("zzzzzz")


def test_presets_are_read_without_torch_or_transformers():
    code = (
        "import sys; from headwise.config.presets import preset; preset('gpt2'); "
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
