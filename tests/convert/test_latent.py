"""DeepSeek's attention gives the same outputs as a LatentAttention, and its weights come back to the bit."""

import pytest
import torch

from headwise.caches.slots import GrowingCache
from headwise.convert.latent import latent_from_huggingface, latent_to_huggingface
from headwise.errors import UnsupportedError

BATCH, SEQ, EMBED = 2, 11, 24
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
CASES = {
    "v3": ("DeepseekV3", {}),
    "v3, one query projection": ("DeepseekV3", {"q_lora_rank": None}),
    "v3, biases": ("DeepseekV3", {"attention_bias": True}),
    "v3, pairs by halves": ("DeepseekV3", {"rope_interleave": False}),
    "v3, YaRN": ("DeepseekV3", {"rope_parameters": YARN}),
    "v2": ("DeepseekV2", {}),
}


def make_model(name, **settings):
    import transformers

    torch.manual_seed(0)
    sizes = {"q_lora_rank": 11, "kv_lora_rank": 13}
    config = getattr(transformers, f"{name}Config")(
        hidden_size=EMBED,
        num_attention_heads=3,
        num_key_value_heads=3,
        num_hidden_layers=2,
        intermediate_size=17,
        vocab_size=29,
        max_position_embeddings=64,
        first_k_dense_replace=2,
        qk_nope_head_dim=5,
        qk_rope_head_dim=4,
        v_head_dim=7,
        attn_implementation="eager",
        **{**sizes, **settings},
    )
    return getattr(transformers, f"{name}Model")(config).double().eval()


def run(model, x):
    """The outputs of the first layer's attention on these tokens, by transformers."""
    seen = []
    attention = model.layers[0].self_attn
    handle = attention.register_forward_hook(lambda module, args, output: seen.append(output[0]))
    model.layers[0].input_layernorm = torch.nn.Identity()
    model(inputs_embeds=x, use_cache=False)
    handle.remove()
    return seen[0]


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_outputs_are_equal_at_once_and_token_by_token(case):
    name, settings = CASES[case]
    model = make_model(name, **settings)
    layer = latent_from_huggingface(model.layers[0].self_attn)
    x = torch.randn(BATCH, SEQ, EMBED, dtype=torch.float64)
    expected, cache = run(model, x), GrowingCache()
    # Angles are float32 in both: a turn of up to 11 radians is off by some 1e-6.
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-6)
    found = torch.cat([layer(one, cache=cache) for one in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-12)


def test_weights_come_back_to_the_bit_and_stay_apart():
    source, target = (make_model("DeepseekV3") for _ in range(2))
    layer = latent_from_huggingface(source.layers[1].self_attn)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    latent_to_huggingface(layer, target.layers[1].self_attn)
    for one, other in zip(
        source.layers[1].self_attn.parameters(), target.layers[1].self_attn.parameters(), strict=True
    ):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_what_is_none_of_it_is_refused():
    model = make_model("DeepseekV3")
    with pytest.raises(
        UnsupportedError, match="must be of one of deepseek_v2, deepseek_v3 to be converted; got a Linear"
    ):
        latent_from_huggingface(torch.nn.Linear(2, 2))
    layer = latent_from_huggingface(model.layers[0].self_attn)
    other = make_model("DeepseekV3", kv_lora_rank=15)
    with pytest.raises(UnsupportedError, match="kv_lora_rank must be 15"):
        latent_to_huggingface(layer, other.layers[0].self_attn)
    model.layers[0].self_attn.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(UnsupportedError, match=r"got adapter.weight"):
        latent_from_huggingface(model.layers[0].self_attn)


def test_what_is_frozen_stays_frozen():
    attention = make_model("DeepseekV3").layers[0].self_attn
    attention.q_a_proj.weight.requires_grad_(False)
    layer = latent_from_huggingface(attention)
    assert [name for name, one in layer.named_parameters() if not one.requires_grad] == ["q_proj.0.weight"]


class Adapted(torch.nn.Linear):
    """A projection that adds something of its own, by the names of the plain one's weights."""


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_that_are_no_plain_ones_are_refused():
    attention = make_model("DeepseekV3").layers[0].self_attn
    layer = latent_from_huggingface(attention)
    attention.kv_b_proj = Adapted(13, 3 * (5 + 7), bias=False, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match=r"kv_b_proj must be a plain Linear .*DeepseekV3Att.*; got a Adapted"):
        latent_from_huggingface(attention)
    with pytest.raises(UnsupportedError, match=r"kv_b_proj must be a plain Linear .*DeepseekV3Att.*; got a Adapted"):
        latent_to_huggingface(layer, attention)
    attention = make_model("DeepseekV3").layers[0].self_attn
    attention.kv_a_layernorm.float()
    with pytest.raises(UnsupportedError, match=r"one dtype .* in torch.float64 and kv_norm.weight in torch.float32"):
        latent_from_huggingface(attention)
    with pytest.raises(UnsupportedError, match="must be in memory to be converted; got a tensor on meta"):
        latent_from_huggingface(attention.to("meta"))
    with pytest.raises(UnsupportedError, match="must be in memory to be converted; got a tensor on meta"):
        latent_to_huggingface(layer, attention)


@pytest.mark.usefixtures("without_type_checks")
def test_another_module_is_not_written_from():
    with pytest.raises(UnsupportedError, match=r"layer must be a LatentAttention, not a subclass, .* got a Linear"):
        latent_to_huggingface(torch.nn.Linear(2, 2), make_model("DeepseekV3").layers[0].self_attn)


def test_a_layer_is_made_in_the_mode_of_the_given_one_and_draws_nothing():
    attention = make_model("DeepseekV3", attention_dropout=0.5).layers[0].self_attn
    before = torch.get_rng_state()
    layer = latent_from_huggingface(attention)
    assert not layer.training and torch.equal(before, torch.get_rng_state())
    x = torch.randn(BATCH, SEQ, EMBED, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x))
        layer = latent_from_huggingface(attention.train())
        assert layer.training and layer.config.dropout_p == 0.5
        assert not torch.equal(layer(x), layer(x))


@torch.no_grad()
def test_a_layer_with_a_number_of_before_is_converted():
    """Layers taken out leave the others with numbers that the config knows nothing of."""
    model = make_model("DeepseekV3")
    attention = model.layers[1].self_attn
    model.config.num_hidden_layers = 1
    x = torch.randn(BATCH, SEQ, EMBED, dtype=torch.float64)
    expected = latent_from_huggingface(make_model("DeepseekV3").layers[1].self_attn)(x)
    assert torch.equal(latent_from_huggingface(attention)(x), expected)
