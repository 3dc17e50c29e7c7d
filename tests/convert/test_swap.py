import copy
import dataclasses
import functools

import pytest
import torch
import transformers
from torch import nn

from headwise.convert.probe import QUERY_LEN, require_equal
from headwise.convert.swap import swap
from headwise.errors import ConfigError, UnsupportedError
from headwise.integrations import transformers_backend
from headwise.integrations.transformers_backend import NAME
from headwise.nn.c3tr import C3TR
from headwise.nn.latent import LatentAttention
from headwise.nn.multihead import MultiHeadAttention
from headwise.nn.torch_multihead import TorchMultiheadAttention
from headwise.ops.attention import attention

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


def with_nothing_told(monkeypatch):
    """Let our attention in Hugging Face models forget every mask and the scale."""
    monkeypatch.setattr(transformers_backend, "attention", lambda *tensors, **named: attention(*tensors, scale=0.3))


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
    why = "does neither" if family == "torch" else r"is not \(give inputs that call it\)"
    with pytest.raises(UnsupportedError, match=rf"got a OwnAttention at 'other.0' that {why}"):
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
    with_nothing_told(monkeypatch)
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


# What the proof sees


def with_attention(monkeypatch, change):
    """Let our attention compute something else: what `change` makes of its forward pass and its arguments."""
    forward = TorchMultiheadAttention.forward
    monkeypatch.setattr(TorchMultiheadAttention, "forward", functools.partialmethod(change, forward))


def times(factor):
    def change(self, forward, *arguments, **keywords):
        output, weights = forward(self, *arguments, **keywords)
        return output * factor, weights

    return change


def without(name):
    def change(self, forward, *arguments, **keywords):
        return forward(self, *arguments, **keywords | {name: None})

    return change


def in_another_shape(self, forward, *arguments, **keywords):
    output, weights = forward(self, *arguments, **keywords)
    return output[..., None], weights


WRONG = {
    # a factor that is off by four times as much as rounding may be, 2^10 steps
    "factor": (times(1 + 2**12 * torch.finfo(torch.float32).eps), "those of self_attn differ by"),
    "no padding": (without("key_padding_mask"), "those of self_attn differ by"),
    "no mask": (without("attn_mask"), "those of self_attn differ by"),
    "NaN": (times(float("nan")), "those of self_attn differ by nan"),
    "shape": (in_another_shape, "self_attn must give as many outputs, of the same shapes, before and after"),
}


@pytest.mark.parametrize(("change", "text"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("batch_first", [True, False])
def test_each_way_to_be_wrong_is_seen_in_each_attention(monkeypatch, change, text, batch_first):
    model = nn.TransformerEncoderLayer(24, 4, 7, batch_first=batch_first)
    with_attention(monkeypatch, change)
    with pytest.raises(UnsupportedError, match=text):
        swap(model)
    assert type(model.self_attn) is nn.MultiheadAttention


class Around(nn.Module):
    """A model whose output is what a function makes of a small language model's scores."""

    def __init__(self, give):
        super().__init__()
        self.inner = build("llama")
        self.give = give

    def forward(self, ids):
        return self.give(self.inner(ids).logits)


@dataclasses.dataclass
class Scores:
    scores: torch.Tensor


def test_outputs_without_a_float_prove_nothing_and_are_refused():
    for give in (lambda scores: scores.argmax(-1), lambda scores: scores[:0], lambda scores: object()):
        model = Around(give)
        with pytest.raises(
            UnsupportedError, match=r"outputs must hold a tensor of floats .*from Around \(swap the model"
        ):
            swap(model, IDS)
        assert model.inner.config._attn_implementation != NAME


def test_outputs_in_a_plain_dataclass_are_compared(monkeypatch):
    with_nothing_told(monkeypatch)
    with pytest.raises(UnsupportedError, match="those of Around differ by"):
        swap(Around(Scores), IDS)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min])
def test_numbers_that_stand_for_what_is_masked_out_hide_nothing_and_are_no_difference(monkeypatch, masked):
    def with_masked(scores):
        return torch.cat([scores, torch.full_like(scores, masked)], dim=-1), scores[:0]

    swap(Around(with_masked), IDS)
    with_nothing_told(monkeypatch)
    with pytest.raises(UnsupportedError, match="those of Around differ by"):
        swap(Around(with_masked), IDS)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min])
def test_what_is_masked_out_must_be_so_on_both_sides(masked):
    one, other = torch.tensor([1.0, 2.0, masked]), torch.tensor([1.0, 2.0, 3.0])
    for after, before in ((one, other), (other, one)):
        with pytest.raises(UnsupportedError, match="those of a model differ by"):
            require_equal("a model", [after], [before])
    require_equal("a model", [one], [one.clone()])
    require_equal("a model", [one[2:]], [one[2:].clone()])


def watched(model, *, module=None):
    """Note what holds during each call of a model or of a part of it."""
    seen = []

    def note(each, arguments, keywords):
        tensors = [*each.parameters(), *each.buffers(), *arguments, *keywords.values()]
        dtypes = {one.dtype for one in tensors if isinstance(one, torch.Tensor) and one.is_floating_point()}
        is_fast = torch.backends.mha.get_fastpath_enabled()
        seen.append((each.training, torch.is_grad_enabled(), is_fast, dtypes))

    (model if module is None else module).register_forward_pre_hook(note, with_kwargs=True)
    return seen


def test_the_proof_is_run_in_evaluation_in_float32_without_gradients_or_the_fused_path():
    model = encoder().bfloat16()
    model.register_buffer("shift", torch.zeros(3, dtype=torch.bfloat16))
    seen = watched(model)
    swap(model, torch.randn(3, 7, 24).bfloat16())
    assert seen == 2 * [(False, False, False, {torch.float32})]
    assert model.shift.dtype == torch.bfloat16 and model.training


def test_the_proof_is_the_same_each_time():
    calls = []
    for seed in (1, 2):
        model = build("llama")
        model.register_forward_pre_hook(lambda *call: calls.append(call[2]["input_ids"]), with_kwargs=True)
        torch.manual_seed(seed)
        swap(model)
    assert len(calls) == 4 and all(torch.equal(one, calls[0]) for one in calls)


def test_memory_that_is_shared_stays_shared():
    attention, linear = nn.MultiheadAttention(8, 2).bfloat16(), nn.Linear(8, 8).bfloat16()
    linear.weight = nn.Parameter(attention.out_proj.weight.data)  # other parameters in the same memory
    model = nn.ModuleDict({"attention": attention, "linear": linear}).share_memory()
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    swap(model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert attention.out_proj.weight.data_ptr() == linear.weight.data_ptr()
    assert all(parameter.is_shared() and parameter.dtype == torch.bfloat16 for parameter in model.parameters())


# What is swapped, and what is not


class Subclass(nn.MultiheadAttention):
    """One that computes something else."""

    def forward(self, query, key, value, **keywords):
        return query, None


def test_a_subclass_of_torchs_attention_is_refused_by_name_wherever_it_stands():
    for model, where in (
        (nn.ModuleDict({"a": nn.MultiheadAttention(8, 2), "b": Subclass(8, 2)}), "'b'"),
        (nn.Sequential(Subclass(8, 2)), "'0'"),
        (Subclass(8, 2), "the top"),
    ):
        kinds = [type(module) for module in model.modules()]
        with pytest.raises(UnsupportedError, match=f"got a subclass, Subclass, at {where}$"):
            swap(model)
        assert [type(module) for module in model.modules()] == kinds


class AttentionBlock(nn.Module):
    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)


def test_an_unknown_attention_is_not_hidden_by_a_known_one_beside_it():
    with pytest.raises(UnsupportedError, match=r"got a OwnAttention at '0\.parts\.1' that does neither"):
        swap(nn.Sequential(AttentionBlock(nn.MultiheadAttention(8, 2), OwnAttention())))
    swap(nn.Sequential(AttentionBlock(nn.MultiheadAttention(8, 2), nn.Linear(3, 3))))


def test_our_own_attention_is_left_alone():
    layer = MultiHeadAttention(8, 2)
    assert swap(layer) is layer
    swap(
        nn.Sequential(
            LatentAttention(8, 2, q_lora_rank=5, kv_lora_rank=3, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)
        )
    )
    model = nn.ModuleDict({"ours": layer, "block": C3TR(8, 16), "torchs": nn.MultiheadAttention(8, 2)})
    swap(model)
    assert type(model["ours"]) is MultiHeadAttention and type(model["torchs"]) is TorchMultiheadAttention


def llava():
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = sizes | {"image_size": 8, "patch_size": 4, "model_type": "clip_vision_model"}
    text = GROUPED | {"vocab_size": VOCAB, "intermediate_size": 8, "model_type": "llama"}
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=52)
    return transformers.LlavaForConditionalGeneration(config)


def clip():
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=sizes | {"vocab_size": VOCAB}, vision_config=sizes | {"image_size": 8, "patch_size": 4}
    )
    return transformers.CLIPModel(config)


def test_models_of_texts_and_images_are_told_to_come_with_inputs():
    with pytest.raises(UnsupportedError, match=r"got a CLIPAttention at '.*' that is not \(give inputs that call it\)"):
        swap(llava())
    model = clip()
    with pytest.raises(
        ConfigError, match=r"inputs must be given to swap attention in CLIPModel, as it cannot .* got Att"
    ):
        swap(model)
    swap(model, {"input_ids": IDS, "pixel_values": torch.rand(3, 3, 8, 8)})
    assert model.config._attn_implementation == NAME


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "GPT2"])
def test_the_texts_of_the_probe_are_no_longer_than_a_model_has_positions(kind):
    for num_positions in (3, 8, 14, 15):
        sizes = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 7}
        settings = SIZES | sizes | {"max_position_embeddings": num_positions, "bos_token_id": 1, "eos_token_id": 1}
        settings |= {} if kind == "GPT2" else {"pad_token_id": 1}
        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**settings))
        lengths = []
        model.register_forward_pre_hook(lambda *call: lengths.append(call[2]["input_ids"].shape[1]), with_kwargs=True)  # noqa: B023
        swap(model)
        assert lengths == 2 * [min(QUERY_LEN, num_positions - 2)]


class WithoutMask(transformers.LlamaForCausalLM):
    def forward(self, input_ids):
        return super().forward(input_ids)


def test_models_without_a_mask_and_images_of_other_colours_are_probed():
    sizes = {"hidden_size": 20, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 7}
    # transformers reads a class's own file to tell whether it goes through the interface, unless its parent has told
    assert transformers.LlamaForCausalLM._can_set_attn_implementation()
    swap(WithoutMask(transformers.LlamaConfig(**SIZES, **GROUPED, intermediate_size=7)))
    swap(transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=6, patch_size=2, num_channels=1)))


@pytest.mark.parametrize("how", ["module", "forward"])
def test_a_compiled_model_is_swapped_without_being_compiled_for_it(how):
    calls = []

    def compiler(graph, _):
        calls.append(graph)
        return graph

    model = build("llama").eval()
    if how == "module":
        compiled = torch.compile(model, backend=compiler)
    else:
        compiled = model
        model.forward = torch.compile(model.forward, backend=compiler)
    assert swap(compiled) is compiled
    assert model.config._attn_implementation == NAME and not calls


# Errors


@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_model_is_refused():
    with pytest.raises(ConfigError, match=r"model must be a torch.nn.Module to swap its attention; got 'bert'"):
        swap("bert")


def test_weights_that_are_not_in_memory_are_refused_by_name():
    model = build("llama")
    model.model.layers[1].to("meta")
    with pytest.raises(
        UnsupportedError, match=r"weights must be in memory .* got model.layers.1.self_attn.q_proj.weig"
    ):
        swap(model)
    with torch.inference_mode():
        model = encoder()
        narrow = encoder().bfloat16()
    swap(model)
    with pytest.raises(
        UnsupportedError, match=r"weights in torch.bfloat16 must not be tensors of torch.inference_mode"
    ):
        swap(narrow)


def test_inputs_that_a_model_cannot_be_called_with_are_refused():
    with pytest.raises(
        ConfigError, match=r"inputs must be what TransformerEncoder can be called with; got TypeError.*nope"
    ):
        swap(encoder(), {"nope": torch.randn(2, 3, 24)})
    with pytest.raises(ConfigError, match=r"inputs must be what TransformerEncoder can be called with; got .*dtype"):
        swap(encoder().double(), torch.randn(2, 3, 24))


def test_an_error_of_our_attention_is_told_as_such(monkeypatch):
    def fail(self, forward, *arguments, **keywords):
        raise RuntimeError("no room")

    with_attention(monkeypatch, fail)
    text = r"TorchMultiheadAttention must run with our attention .*as it did before; got RuntimeError: no room"
    with pytest.raises(UnsupportedError, match=text):
        swap(encoder())


def test_a_model_without_attention_is_refused_though_it_is_of_transformers():
    config = transformers.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=11, state_size=4)
    with pytest.raises(UnsupportedError, match="got MambaForCausalLM without any"):
        swap(transformers.MambaForCausalLM(config).eval())
