"""A converted language model gives the scores of the model that it was made of."""

import pytest
import torch

from headwise.convert.language_model import LAYOUTS, language_model_from_huggingface
from headwise.errors import UnsupportedError
from headwise.masks.data import KeyPadding

BATCH, SEQ, VOCAB = 3, 13, 31
COMMON = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 17,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 24, "n_head": 6, "n_layer": 3, "vocab_size": VOCAB, "n_positions": 64}
CASES = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", COMMON),
    "llama, tied": ("LlamaForCausalLM", "LlamaConfig", {**COMMON, "tie_word_embeddings": True}),
    "llama, biases": ("LlamaForCausalLM", "LlamaConfig", {**COMMON, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**COMMON, "sliding_window": 5}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", COMMON),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**COMMON, "head_dim": 6}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", {**COMMON, "no_rope_layer_interval": 2}),
}


def make(case, **more):
    import transformers

    torch.manual_seed(0)
    kind, config, settings = CASES[case]
    settings = {**settings, **more, "attn_implementation": "sdpa"}  # eager rounds to float32
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # norms and biases start at values that hide a forgotten one
    return model.double().eval()


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_model_padded_or_not(case):
    theirs = make(case)
    ours = language_model_from_huggingface(theirs)
    assert not ours.training and ours.body.token_table.weight.dtype == torch.float64
    ids = torch.randint(1, VOCAB, (BATCH, SEQ))
    # Angles are float32 in both, of positions up to 13: off by some 1e-6 of a score.
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=0, atol=1e-5)
    lengths = torch.tensor([SEQ, 5, 9])
    keep = torch.arange(SEQ) >= SEQ - lengths.unsqueeze(1)
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    expected = theirs(ids, attention_mask=keep.long(), position_ids=positions).logits
    mask = KeyPadding(lengths, side="left", padded_len=SEQ)
    torch.testing.assert_close(ours(ids, mask=mask, positions=positions)[keep], expected[keep], rtol=0, atol=1e-5)


def test_every_family_has_a_case():
    assert {case.split(",")[0] for case in CASES} == set(LAYOUTS)


def test_nothing_is_shared_and_the_random_state_stays():
    theirs, before = make("llama"), torch.get_rng_state()
    ours = language_model_from_huggingface(theirs.train())
    assert torch.equal(before, torch.get_rng_state()) and ours.training
    addresses = {parameter.data_ptr() for parameter in theirs.parameters()}
    assert not addresses & {parameter.data_ptr() for parameter in ours.parameters()}


def test_another_model_is_refused():
    import transformers

    with pytest.raises(
        UnsupportedError, match=r"must be of one of gpt2, llama, .*, with its head.* got a Linear of None"
    ):
        language_model_from_huggingface(torch.nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="got a LlamaModel of llama"):
        language_model_from_huggingface(transformers.LlamaModel(make("llama").config))


@pytest.mark.parametrize("case", ["gpt2", "llama, tied", "qwen3"])
def test_what_is_frozen_stays_frozen(case):
    theirs = make(case)
    theirs.requires_grad_(False)
    ours = language_model_from_huggingface(theirs)
    assert not any(parameter.requires_grad for parameter in ours.parameters())
    frozen = {"gpt2": "h.1.mlp.c_fc", "llama, tied": "embed_tokens", "qwen3": "layers.1.self_attn.q_norm"}[case]
    theirs.requires_grad_(True)
    theirs.base_model.get_submodule(frozen).weight.requires_grad_(False)
    ours = language_model_from_huggingface(theirs)
    expected = {
        "gpt2": "body.blocks.1.feed_forward.up_proj.weight",
        "llama, tied": "body.token_table.weight",
        "qwen3": "body.blocks.1.attention.q_norm.weight",
    }
    assert [name for name, one in ours.named_parameters() if not one.requires_grad] == [expected[case]]


class Wrapped(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base


def integers(model):
    part = model.model.layers[1].mlp.up_proj
    part.weight = torch.nn.Parameter((10 * part.weight).to(torch.int8), requires_grad=False)


CHANGES = {
    "integers": (integers, r"blocks.1.feed_forward.up_proj.weight must be in one of .*; got torch.int8"),
    "adapter": (
        lambda model: setattr(model.model.layers[0].mlp, "down_proj", Wrapped(model.model.layers[0].mlp.down_proj)),
        r"body.blocks.0.feed_forward.down_proj must be a plain Linear or .* to convert a LlamaFor.*; got a Wrapped",
    ),
    "head with an adapter": (
        lambda model: setattr(model, "lm_head", Wrapped(model.lm_head)),
        "projection must be a plain Linear or .*; got a Wrapped",
    ),
    "another norm": (
        lambda model: setattr(model.model, "norm", torch.nn.GroupNorm(2, 24)),
        "body.norm must be a plain Linear or .* to convert a LlamaForCausalLM; got a GroupNorm",
    ),
    "norm in float32": (
        lambda model: model.bfloat16().model.norm.float(),
        "one dtype .*token_table.weight in torch.bfloat16 and body.norm.weight in torch.float32",
    ),
    "offloaded": (lambda model: model.model.layers[1].to("meta"), "must be in memory .*; got a tensor on meta"),
}


@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=CHANGES)
def test_weights_that_are_no_plain_ones_are_refused(change, text):
    model = make("llama")
    change(model)
    with pytest.raises(UnsupportedError, match=text):
        language_model_from_huggingface(model)
