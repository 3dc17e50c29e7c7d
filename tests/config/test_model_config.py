from dataclasses import fields, replace

import pytest

from headwise.config.attention import AttentionConfig, Rotary, T5Bias
from headwise.config.latent import LatentAttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import (
    MAX_LAYERS,
    BlockConfig,
    EncoderConfig,
    FeedForwardConfig,
    ModelConfig,
    OutputHead,
    PatchConfig,
)
from headwise.errors import ConfigError


def block(embed_dim: int = 6) -> BlockConfig:
    return BlockConfig(
        attention=AttentionConfig(embed_dim=embed_dim, num_heads=2),
        feed_forward=FeedForwardConfig(embed_dim=embed_dim, hidden_dim=7),
    )


def model(**changes) -> ModelConfig:
    settings = {
        "name": "m",
        "model_type": "headwise",
        "kind": "decoder",
        "embed_dim": 6,
        "vocab_size": 11,
        "max_positions": 5,
        "blocks": (block(),),
    }
    return ModelConfig(**{**settings, **changes})


def test_block_groups_count_layers_that_share_one_object():
    first, second = block(), block()
    groups = model(blocks=(first, second, first)).block_groups
    assert [(id(found), count) for found, count in groups] == [(id(first), 2), (id(second), 1)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": 3}, "name must be of type str; got 3"),
        ({"model_type": None}, "model_type must be of type str; got None"),
        ({"kind": ["decoder"]}, "kind of a model must be"),
        ({"embedding_norm": 1}, "embedding_norm must be True or False; got 1"),
        ({"final_norm": None}, "final_norm must be True or False; got None"),
        ({"pooler": "yes"}, "pooler must be True or False; got 'yes'"),
        ({"head": "lm"}, "head must be of type OutputHead; got 'lm'"),
        ({"blocks": [block()]}, r"blocks must be of type tuple; got \[BlockConfig"),
        ({"blocks": 2}, "blocks must be of type tuple; got 2"),
        ({"blocks": (block(), 2)}, "layer 1 must be of type BlockConfig; got 2"),
        ({"blocks": ()}, "number of layers must be between 1"),
        ({"blocks": (block(),) * (MAX_LAYERS + 1)}, "number of layers must be between 1 and 10000; got 10001"),
        ({"blocks": (block(), block(8))}, "every layer must have the model's embed_dim 6; layer 1 has 8"),
        ({"kind": "both"}, 'kind of a model must be "encoder" or "decoder" or "encoder-decoder"; got \'both\''),
        ({"dtype": "float7"}, "dtype must be one of float64.*got 'float7'"),
        ({"dtype": ["float32"]}, "dtype must be one of"),
        ({"vocab_size": 0}, "vocab_size must be between 1"),
        ({"position_table_size": -1}, "position_table_size must be between 0"),
        ({"position_table_size": 5, "sinusoid_scale": 1.0}, "or a table of them, not both; got sinusoid_scale 1.0"),
        ({"embedding_dropout_p": 2}, "embedding_dropout_p must be at least 0 and below 1; got 2"),
        ({"head": OutputHead(kind="language_model", num_outputs=13, tied=True)}, "num_outputs must equal vocab_size"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        model(**changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"attention": 3}, "attention must be an AttentionConfig, .*; got 3"),
        ({"feed_forward": None}, "feed_forward must be of type FeedForwardConfig; got None"),
        ({"norm_eps": -1}, "norm_eps must be positive; got -1"),
        ({"norm_eps": 0.0}, "norm_eps must be positive; got 0.0"),
        ({"norm": "batchnorm"}, 'norm must be "layernorm" or "rmsnorm"; got \'batchnorm\''),
        ({"norm_placement": "mid"}, 'norm_placement must be "pre" or "post" or "both" or "output"; got \'mid\''),
        ({"norm_eps": "small"}, "norm_eps must be a finite number"),
        ({"feed_forward": FeedForwardConfig(embed_dim=8, hidden_dim=7)}, "same embed_dim; got 6 and 8"),
    ],
)
def test_a_block_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        replace(block(), **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation": 5}, "activation must be a string; got 5"),
        ({"activation": ""}, "activation must not be empty"),
        ({"gated": "no"}, "gated must be True or False; got 'no'"),
        ({"bias": 0}, "bias must be True or False; got 0"),
        ({"hidden_dim": 0}, "hidden_dim must be between 1"),
    ],
)
def test_a_feed_forward_that_cannot_be_is_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        FeedForwardConfig(**{"embed_dim": 6, "hidden_dim": 7, **changes})


@pytest.mark.parametrize("name", ["per_token", "tied", "bias", "transform"])
def test_a_choice_of_a_head_is_true_or_false(name):
    with pytest.raises(ConfigError, match=f"{name} must be True or False; got 1"):
        OutputHead(kind="classifier", num_outputs=2, **{name: 1})


def latent(**changes) -> LatentAttentionConfig:
    sizes = {"embed_dim": 6, "num_heads": 3, "q_lora_rank": 5, "kv_lora_rank": 7, "qk_nope_head_dim": 2}
    return LatentAttentionConfig(**{**sizes, "qk_rope_head_dim": 4, "v_head_dim": 9, **changes})


def linear(**changes) -> LinearAttentionConfig:
    sizes = {"embed_dim": 6, "num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 3, "value_head_dim": 5}
    return LinearAttentionConfig(**{**sizes, **changes})


def cross_block() -> BlockConfig:
    return replace(block(), cross_attention=AttentionConfig(embed_dim=6, num_heads=3))


EVERY_CONFIG = (
    Rotary(),
    T5Bias(),
    latent(),
    linear(),
    PatchConfig(image_size=9, patch_size=3),
    EncoderConfig(blocks=(block(),)),
    model(kind="encoder-decoder", encoder=EncoderConfig(blocks=(block(),)), blocks=(cross_block(),)),
    block().attention,
    block().feed_forward,
    block(),
    OutputHead(kind="classifier", num_outputs=2),
    model(),
)


@pytest.mark.parametrize(
    ("config", "name"), [(config, field.name) for config in EVERY_CONFIG for field in fields(config)]
)
def test_no_field_of_any_config_takes_an_object_of_no_use(config, name):
    with pytest.raises(ConfigError, match=r"\bmust( not)?\b"):
        replace(config, **{name: object()})


def test_no_more_experts_are_active_than_there_are():
    with pytest.raises(ConfigError, match="num_active_experts must not exceed num_experts; got 3 and 2"):
        FeedForwardConfig(embed_dim=6, hidden_dim=7, num_experts=2, num_active_experts=3)


def test_a_head_is_a_language_model_or_a_classifier():
    with pytest.raises(ConfigError, match="kind of a head"):
        OutputHead(kind="pooler", num_outputs=2)


def reader(kv_layer: int, **changes) -> BlockConfig:
    return replace(block(), attention=AttentionConfig(embed_dim=6, num_heads=2, kv_layer=kv_layer, **changes))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: latent(qk_rope_head_dim=3), "qk_rope_head_dim must be even, since pairs are turned; got 3"),
        (lambda: linear(num_value_heads=3), "num_value_heads must be a multiple of num_key_heads.*got 3 and 2"),
        (lambda: PatchConfig(image_size=3, patch_size=4), "patch_size must not exceed image_size; got 4 and 3"),
        (lambda: EncoderConfig(blocks=(cross_block(),)), "an encoder must have no cross_attention"),
        (lambda: model(blocks=(cross_block(),)), "cross_attention needs an encoder; got kind 'decoder'"),
        (
            lambda: model(
                kind="encoder-decoder", encoder=EncoderConfig(blocks=(block(),)), blocks=(cross_block(), block())
            ),
            "every layer of an encoder-decoder's decoder must have a cross_attention; got one without",
        ),
        (lambda: EncoderConfig(blocks=(block(), reader(0))), "an encoder must have keys of its own; got kv_layer 0"),
        (
            lambda: replace(block(), cross_attention=AttentionConfig(embed_dim=6, num_heads=3, kv_layer=1)),
            "cross_attention must have no kv_layer, it reads the encoder; got 1",
        ),
        (lambda: model(kind="encoder-decoder"), 'encoder must be given for kind "encoder-decoder"'),
        (lambda: model(encoder=EncoderConfig(blocks=(block(),))), "for no other; got EncoderConfig"),
        (
            lambda: model(kind="encoder-decoder", encoder=EncoderConfig(blocks=(block(8),))),
            "every layer must have the model's embed_dim 6; layer 1 has 8",
        ),
        (lambda: model(vocab_size=0), "vocab_size must be between 1"),
        (lambda: model(blocks=(reader(0),)), "kv_layer must be the index of an earlier attention layer.*layer 0 has 0"),
        (lambda: model(blocks=(block(), reader(0), reader(1))), "keys and values of its own; layer 2 has 1"),
        (
            lambda: model(blocks=(block(), reader(0, num_kv_heads=1))),
            r"layer 1 has \(1, 3, 3\), layer 0 has \(2, 3, 3\)",
        ),
        (lambda: replace(block(), shared_norm=True), "shared_norm must be False where the block is not parallel"),
        (
            lambda: replace(block(), parallel=True, norm_placement="post"),
            "must have norm_placement \"pre\"; got 'post'",
        ),
        (lambda: replace(cross_block(), parallel=True), "a parallel block must have no cross_attention"),
        (
            lambda: replace(block(), cross_attention=AttentionConfig(embed_dim=8, num_heads=2)),
            "cross_attention must have the attention's embed_dim; got 8 and 6",
        ),
        (
            lambda: FeedForwardConfig(embed_dim=6, hidden_dim=7, shared_hidden_dim=3),
            "must be off where num_experts is 1",
        ),
        (
            lambda: FeedForwardConfig(embed_dim=6, hidden_dim=7, num_experts=2, shared_gate=True),
            "shared_gate must be False where shared_hidden_dim is 0",
        ),
        (
            lambda: FeedForwardConfig(embed_dim=6, hidden_dim=7, num_experts=2, shared_bias=True),
            "shared_bias must be False where shared_hidden_dim is 0",
        ),
        (
            lambda: AttentionConfig(embed_dim=6, num_heads=1, position=Rotary(rotary_dim=8)),
            "rotary_dim must not exceed head_dim; got 8 and 6",
        ),
        (lambda: Rotary(rotary_dim=3), "rotary_dim must be even"),
    ],
)
def test_parts_that_contradict_one_another_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_widths_of_latent_attention():
    config = latent()
    assert (config.head_dim, config.v_head_dim, config.num_kv_heads, config.cached_dim) == (2 + 4, 9, 3, 7 + 4)
    assert config.scale == 6**-0.5


def test_widths_of_linear_attention():
    config = linear()
    assert (config.key_width, config.value_width, config.conv_width) == (2 * 3, 4 * 5, 2 * 6 + 20)


def test_an_image_is_its_whole_patches_and_a_class_token():
    patches = PatchConfig(image_size=13, patch_size=4, num_channels=2)
    assert (patches.num_patches, patches.num_tokens, patches.patch_dim) == (9, 10, 2 * 4 * 4)


@pytest.mark.parametrize(
    ("changes", "num_norms"),
    [
        ({}, 2),
        ({"norm_placement": "both"}, 4),
        ({"norm_placement": "output"}, 2),
        ({"parallel": True}, 2),
        ({"parallel": True, "shared_norm": True}, 1),
        ({"cross_attention": AttentionConfig(embed_dim=6, num_heads=3)}, 3),
    ],
)
def test_a_block_has_a_norm_for_each_place(changes, num_norms):
    assert replace(block(), **changes).num_norms == num_norms
