import copy

import pytest
import torch
import transformers
from torch import nn

from headwise.convert.swap import QUERY_LEN, swap
from headwise.errors import ConfigError, UnsupportedError
from headwise.integrations.transformers_backend import NAME
from headwise.nn.torch_multihead import TorchMultiheadAttention

VOCAB = 53
# as wide an initialisation as makes weights far from uniform, so that a wrong scale or mask shows
SIZES = {"vocab_size": VOCAB, "initializer_range": 0.5}
GROUPED = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 2}
IDS = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))
# Two sides round, in a stack of 2 layers of about 8 sums of at most 24 numbers, whose rounding grows like the root, 5.
ROUNDING = 2 * 2 * 8 * 5 * torch.finfo(torch.float32).eps


def bert():
    sizes = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 7}
    return transformers.BertModel(transformers.BertConfig(**SIZES, **sizes))


def gpt2():
    sizes = {"n_embd": 20, "n_head": 4, "n_layer": 2, "bos_token_id": 1, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, **sizes))


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **GROUPED, intermediate_size=7))


def t5():
    sizes = {"d_model": 20, "d_kv": 5, "d_ff": 7, "num_layers": 2, "num_heads": 3, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes))


def vit():
    sizes = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 7}
    return transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=6, patch_size=2))


FAMILIES = {"bert": bert, "gpt2": gpt2, "llama": llama, "t5": t5, "vit": vit}


def build(family):
    torch.manual_seed(0)
    return FAMILIES[family]()


def encoder(**settings):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 4, 7, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=not settings)


def inputs_of(family):
    if family == "vit":
        return {"pixel_values": torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(0))}
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS[:, :5]} if family == "t5" else {})


def assert_equal_within_rounding(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=ROUNDING * expected.abs().max().item())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_hugging_face_model_computes_the_same_with_our_attention(family, implementation):
    model = build(family).eval()
    model.set_attn_implementation(implementation)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        expected = model(**inputs_of(family))[0]
        assert swap(model) is model
        actual = model(**inputs_of(family))[0]
    assert model.config._attn_implementation == NAME
    assert_equal_within_rounding(actual, expected)
    after = model.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


WINDOWED = GROUPED | {"intermediate_size": 8, "sliding_window": 3}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
PLAIN = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
BART = {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 3, "decoder_start_token_id": 2}

# what the families above have not: windows, caps, sinks, fused and biased projections, cross-attention
MORE_FAMILIES = {
    "bart": ("BartConfig", BART | {"bos_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": None}),
    "gemma": ("GemmaConfig", GROUPED | {"intermediate_size": 8}),
    "gemma2": ("Gemma2Config", WINDOWED | LAYERS | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 7}),
    "gemma3": ("Gemma3TextConfig", WINDOWED | LAYERS | {"query_pre_attn_scalar": 7}),
    "gpt_neox": ("GPTNeoXConfig", PLAIN | {"hidden_size": 32}),
    "gpt_oss": ("GptOssConfig", WINDOWED | LAYERS | EXPERTS),
    "mistral": ("MistralConfig", WINDOWED),
    "mixtral": ("MixtralConfig", WINDOWED | EXPERTS),
    "opt": ("OPTConfig", PLAIN | {"ffn_dim": 8, "word_embed_proj_dim": 24}),
    "phi3": ("Phi3Config", {key: value for key, value in WINDOWED.items() if key != "head_dim"}),
    "qwen2_moe": ("Qwen2MoeConfig", GROUPED | EXPERTS | {"shared_expert_intermediate_size": 8}),
    "qwen3_moe": ("Qwen3MoeConfig", GROUPED | EXPERTS),
    "smollm3": ("SmolLM3Config", WINDOWED | {"no_rope_layers": [1, 0], "use_sliding_window": True}),
    "starcoder2": ("Starcoder2Config", {key: value for key, value in WINDOWED.items() if key != "head_dim"}),
}


@pytest.mark.parametrize("family", MORE_FAMILIES)
def test_families_of_every_kind_of_attention_are_swapped_from_their_own_eager_one(family):
    kind, settings = MORE_FAMILIES[family]
    sizes = {"initializer_range" if family != "bart" else "init_std": 0.5, "vocab_size": VOCAB, "pad_token_id": 0}
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**sizes, **settings)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = model(IDS)[0]
        swap(model)
        actual = model(IDS)[0]
    assert model.config._attn_implementation == NAME
    assert_equal_within_rounding(actual, expected)


def test_the_probe_of_a_window_leaves_each_query_of_padding_a_key():
    torch.manual_seed(0)
    for window_size in (1, 2, 40):
        sizes = GROUPED | {"intermediate_size": 7, "sliding_window": window_size}
        model = transformers.MistralModel(transformers.MistralConfig(**SIZES, **sizes))
        model.set_attn_implementation("eager")
        kept = []
        model.register_forward_pre_hook(lambda *call: kept.append(call[2]["attention_mask"]), with_kwargs=True)  # noqa: B023
        swap(model)
        assert (kept[0] == 0).sum() == min(window_size - 1, QUERY_LEN - QUERY_LEN // 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("settings", [{}, {"norm_first": True}], ids=["post", "pre"])
def test_an_encoder_of_torch_computes_the_same_with_our_attention(settings):
    model = encoder(**settings).eval()
    parameters = dict(model.named_parameters())
    tokens = torch.randn(3, 7, 24)
    is_padding = torch.zeros(3, 7, dtype=torch.bool)
    is_padding[1, 5:] = True
    with torch.no_grad():
        expected = model(tokens, src_key_padding_mask=is_padding)
        swap(model)
        actual = model(tokens, src_key_padding_mask=is_padding)
    assert all(type(layer.self_attn) is TorchMultiheadAttention for layer in model.layers)
    # at padding, torch's nested path writes zeros
    assert_equal_within_rounding(actual[~is_padding], expected[~is_padding])
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert (actual - expected)[is_padding].abs().max() > 0 or settings


def test_torchs_fused_path_does_not_pass_the_swapped_layers_by(monkeypatch):
    calls = []
    forward = TorchMultiheadAttention.forward

    def noted(self, *arguments, **keywords):
        calls.append(self)
        return forward(self, *arguments, **keywords)

    model = swap(encoder().eval())
    assert torch.backends.mha.get_fastpath_enabled()
    monkeypatch.setattr(TorchMultiheadAttention, "forward", noted)
    with torch.no_grad():
        model(torch.randn(3, 7, 24))
    assert calls == [layer.self_attn for layer in model.layers]


def test_torch_layers_of_every_kind_are_swapped():
    model = nn.ModuleDict(
        {
            "separate": nn.MultiheadAttention(12, 3, kdim=7, vdim=5, bias=False),
            "added": nn.MultiheadAttention(12, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        }
    )
    swap(model)
    assert {type(module) for module in model.values()} == {TorchMultiheadAttention}
    swap(model)  # again: nothing is left to do


def test_the_whole_model_is_run_on_inputs_that_are_given():
    calls = []
    model = encoder()
    model.register_forward_hook(lambda *_: calls.append(model.layers[0].self_attn.__class__))
    swap(model, torch.randn(3, 7, 24))
    swap(model, (torch.randn(3, 7, 24),))
    swap(model, {"src": torch.randn(3, 7, 24)})
    assert calls == [nn.MultiheadAttention, *5 * [TorchMultiheadAttention]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back_to_the_bit(dtype):
    model = build("llama").to(dtype)
    parameters = list(model.parameters())
    before = [parameter.clone() for parameter in parameters]
    swap(model)
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert all(torch.equal(one, other) for one, other in zip(parameters, before, strict=True))
    assert model.dtype == dtype


def test_modes_and_random_state_are_as_they_were():
    model = build("bert").train()
    model.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    swap(model)
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_module_around_a_hugging_face_model_needs_inputs():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("bert")
            self.pool = nn.MultiheadAttention(20, 2, batch_first=True)

        def forward(self, ids):
            tokens = self.inner(ids)[0]
            return self.pool(tokens[:, :1], tokens, tokens)[0]

    model = Around()
    with pytest.raises(ConfigError, match="inputs must be given to swap attention in Around; got None"):
        swap(model)
    swap(model, IDS)
    assert model.inner.config._attn_implementation == NAME
    assert type(model.pool) is TorchMultiheadAttention


class OwnAttention(nn.Module):
    def forward(self, tokens):
        return tokens


@pytest.mark.parametrize("family", ["bert", "torch"])
def test_an_attention_that_is_not_known_is_refused_by_name_and_nothing_changed(family):
    model = encoder() if family == "torch" else build(family)
    model.add_module("other", nn.Sequential(OwnAttention()))
    before = copy.deepcopy(getattr(getattr(model, "config", None), "_attn_implementation", None))
    with pytest.raises(UnsupportedError, match=r"got a OwnAttention at 'other.0' that does neither"):
        swap(model)
    if family == "torch":
        assert all(type(layer.self_attn) is nn.MultiheadAttention for layer in model.layers)
        assert model.layers[0].self_attn._qkv_same_embed_dim and model.use_nested_tensor
    else:
        assert model.config._attn_implementation == before != NAME


def test_a_hugging_face_model_that_does_not_use_the_interface_is_refused_by_name():
    model = transformers.BloomModel(transformers.BloomConfig(**SIZES, hidden_size=20, n_layer=1, n_head=4))
    with pytest.raises(UnsupportedError, match=r"got a BloomAttention at 'h\.0\.self_attention' that does neither"):
        swap(model)
    assert model.config._attn_implementation != NAME


def test_a_model_without_attention_is_refused():
    with pytest.raises(
        UnsupportedError, match=r"must have attention of torch's or be one of .* got Linear without any"
    ):
        swap(nn.Linear(3, 5))


def test_outputs_that_differ_are_refused_and_nothing_changed(monkeypatch):
    monkeypatch.setattr("headwise.integrations.transformers_backend.Causal", lambda: None)
    model = build("llama")
    before = model.config._attn_implementation
    model.train()
    with pytest.raises(UnsupportedError, match=r"outputs must be equal before and after .* of LlamaForCausalLM differ"):
        swap(model, {"input_ids": IDS})
    assert model.config._attn_implementation == before and model.training

    def other(self, query, key, value, **keywords):
        return query + 1, None

    monkeypatch.setattr(TorchMultiheadAttention, "forward", other)
    model = encoder()
    with pytest.raises(UnsupportedError, match=r"those of layers\.0\.self_attn differ by \d"):
        swap(model)
    assert type(model.layers[0].self_attn) is nn.MultiheadAttention and model.layers[0].self_attn._qkv_same_embed_dim
