"""A converted language model gives the scores of the model that it was made of."""

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


def scaled(module, args, output):
    return (2 * output[0], *output[1:])


def swapped(model):
    model.model.layers[0], model.model.layers[1] = model.model.layers[1], model.model.layers[0]


def replaced(path, make_part):
    """Put another part, made of the old one, at a path of the model."""

    def change(model):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make_part(model.get_submodule(path)))

    return change


def told(path, name, value):
    """Set an attribute of a part anew."""
    return lambda model: setattr(model.get_submodule(path), name, value)


CHANGES = {
    "integers": (integers, r"blocks.1.feed_forward.up_proj.weight must be in one of .*; got torch.int8"),
    "adapter": (
        replaced("model.layers.0.mlp.down_proj", Wrapped),
        "model.layers.0.mlp.down_proj must be a plain Linear, as the config says, to convert a LlamaForC.*; got a Wrap",
    ),
    "head with an adapter": (replaced("lm_head", Wrapped), "lm_head must be a plain Linear, .*; got a Wrapped"),
    "no head": (replaced("lm_head", lambda _: None), "lm_head must be a plain Linear, .*; got None"),
    "bias of the head": (
        replaced("lm_head", lambda _: torch.nn.Linear(24, VOCAB)),
        "lm_head must have the parameters weight, as the config says, .*; got weight, bias",
    ),
    "another norm": (
        replaced("model.norm", lambda _: torch.nn.GroupNorm(2, 24)),
        "model.norm must be a plain LlamaRMSNorm, as the config says, .*; got a GroupNorm",
    ),
    "norm in float32": (
        lambda model: model.bfloat16().model.norm.float(),
        "one dtype .*token_table.weight in torch.bfloat16 and body.norm.weight in torch.float32",
    ),
    "offloaded": (lambda model: model.model.layers[1].to("meta"), "must be in memory .*; got a tensor on meta"),
    "on meta": (lambda model: model.to("meta"), "must be in memory .*; got a tensor on meta"),
    "activation": (
        replaced("model.layers.1.mlp.act_fn", lambda _: torch.nn.ReLU()),
        "layers.1.mlp.act_fn must be a plain SiLUActivation, .*; got a ReLU",
    ),
    "epsilon": (
        told("model.norm", "variance_epsilon", 0.5),
        "model.norm.variance_epsilon must be 1e-06, as the config says, .*; got 0.5",
    ),
    "config": (
        lambda model: setattr(model.config, "rms_norm_eps", 0.5),
        "layers.0.input_layernorm.variance_epsilon must be 0.5, .*; got 1e-06",
    ),
    "scale": (
        told("model.layers.0.self_attn", "scaling", 0.9),
        r"model.layers.0.self_attn.scaling must be 0\.5, .*; got 0\.9",
    ),
    "causality": (
        told("model.layers.2.self_attn", "is_causal", False),
        "model.layers.2.self_attn.is_causal must be True, .*; got False",
    ),
    "length of vectors": (
        told("model.embed_tokens", "max_norm", 0.1),
        r"model.embed_tokens.max_norm must be None, .*; got 0\.1",
    ),
    "frequencies": (
        lambda model: model.model.rotary_emb.inv_freq.mul_(2),
        "model.rotary_emb.inv_freq must hold what a LlamaRotaryEmbedding computes of the config .*; got other numbers",
    ),
    "hook": (
        lambda model: model.model.layers[0].self_attn.register_forward_hook(scaled),
        "model.layers.0.self_attn must have no hook and no forward of its own .* remove them first",
    ),
    "hook before": (
        lambda model: model.register_forward_pre_hook(lambda module, args: None),
        "the model must have no hook and no forward of its own",
    ),
    "forward": (
        told("model.layers.0.mlp", "forward", lambda tokens: tokens),
        "model.layers.0.mlp must have no hook and no forward of its own",
    ),
    "a layer less": (
        lambda model: model.model.layers.__delitem__(1),
        "model.layers.2 must be a plain LlamaDecoderLayer, as the config says, .*; got None",
    ),
    "a layer more": (
        lambda model: model.model.layers.append(model.model.layers[0]),
        "model.layers.3 must not be there, by the config, .*; got a LlamaDecoderLayer",
    ),
    "one place of two layers": (
        told("model.layers.0.self_attn", "layer_idx", 1),
        "layer_idx must be another number in each layer .*; got 1 in model.layers.0.self_attn and model.layers.1.self",
    ),
    "no attention": (
        replaced("model.layers.1.self_attn", lambda _: None),
        "layers.1.self_attn must be a plain LlamaAttention, .*; got None",
    ),
    "no feed-forward": (
        replaced("model.layers.1.mlp", lambda _: torch.nn.Sequential()),
        "layers.1.mlp must be a plain LlamaMLP, .*; got a Sequential",
    ),
    "no layers": (replaced("model.layers", lambda _: None), "layers must be a plain ModuleList, .*; got None"),
    "no body": (replaced("model", lambda _: None), "model must be a plain LlamaModel, .*; got None"),
    "no layer": (
        replaced("model.layers.2", lambda _: torch.nn.Identity()),
        "layers.2 must be a plain LlamaDecoderLayer, .*; got a Identity",
    ),
}


@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=CHANGES)
def test_a_model_that_is_not_what_its_config_says_is_refused(change, text):
    model = make("llama")
    change(model)
    with pytest.raises(UnsupportedError, match=text):
        language_model_from_huggingface(model)


def test_layers_with_settings_of_their_own_stay_in_their_places():
    model = make("smollm3")
    swapped(model)
    with pytest.raises(UnsupportedError, match=r"layers.0.self_attn.use_rope must be 1, .*; got 0"):
        language_model_from_huggingface(model)


def test_a_subclass_is_refused():
    import transformers

    class Other(transformers.LlamaForCausalLM):
        pass

    with pytest.raises(UnsupportedError, match=r"must be of a class of transformers, not a subclass.*; got a Other"):
        language_model_from_huggingface(Other(make("llama").config))


def pruned(model):
    del model.model.layers[1]
    model.config.num_hidden_layers = 2


def untied(model):
    model.lm_head.weight = torch.nn.Parameter(2 * model.lm_head.weight.detach())


# What transformers runs as it is: case, change
STILL_ITSELF = {
    "layers taken out": ("llama", pruned),
    "layers in another order": ("llama", swapped),
    "a longer table": ("llama", lambda model: model.resize_token_embeddings(VOCAB + 4, mean_resizing=False)),
    "a head tied by hand": (
        "llama",
        lambda model: setattr(model.lm_head, "weight", model.model.embed_tokens.weight),
    ),
    "a head untied by hand": ("llama, tied", untied),
    "one that has recorded its states": (
        "llama",
        lambda model: model(torch.tensor([[1, 2]]), output_hidden_states=True),
    ),
    "gpt2": ("gpt2", lambda model: model(torch.tensor([[1, 2]]), output_hidden_states=True)),
}


@torch.no_grad()
@pytest.mark.parametrize(("case", "change"), STILL_ITSELF.values(), ids=STILL_ITSELF)
def test_a_model_that_still_is_itself_is_converted(case, change):
    theirs = make(case)
    change(theirs)
    ids = torch.randint(1, VOCAB, (BATCH, SEQ))
    found = language_model_from_huggingface(theirs)(ids)
    expected = theirs(ids, use_cache=False).logits  # its caches have no place for layers with numbers of before
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # as above


@torch.no_grad()
@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_text_are_those_of_the_start(scaling):
    """A long text before makes transformers keep others, of which the next one knows nothing."""
    lengths = {"original_max_position_embeddings": 16, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
    more = lengths if scaling == "longrope" else {}
    theirs = make(
        "llama",
        max_position_embeddings=32,
        rope_parameters={"rope_type": scaling, "rope_theta": 100.0, "factor": 2.0, **more},
    )
    theirs(torch.randint(1, VOCAB, (1, 40)))
    ids = torch.randint(1, VOCAB, (BATCH, SEQ))
    found = language_model_from_huggingface(theirs)(ids)
    torch.testing.assert_close(found, theirs(ids).logits, rtol=0, atol=1e-5)  # as above


class Allocations(TorchDispatchMode):
    """Counts the bytes of the new tensors that operations return, off the meta device."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        known = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor) and not one.is_meta and one.untyped_storage()._cdata not in known:
                self.num_bytes += one.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("case", ["gpt2", "llama, tied"])
def test_a_conversion_takes_the_memory_of_the_model_that_it_makes(case):
    theirs = make(case).to(torch.bfloat16)
    with Allocations() as allocations:
        ours = language_model_from_huggingface(theirs)
    assert {one.dtype for one in ours.parameters()} == {torch.bfloat16}
    num_bytes = sum(one.numel() * one.element_size() for one in ours.parameters())
    assert num_bytes <= allocations.num_bytes < num_bytes + 1024  # frequencies of rotary positions, to compare


def test_a_conversion_under_another_default_device_is_where_the_model_is():
    theirs = make("llama")
    with torch.device("meta"):
        ours = language_model_from_huggingface(theirs)
    assert torch.equal(ours.body.token_table.weight, theirs.model.embed_tokens.weight)


@torch.no_grad()
def test_queries_keys_and_values_may_come_of_one_product():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=24,
        intermediate_size=17,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=29,
    )
    theirs = transformers.LlamaForCausalLM(config).double().eval()
    ours = language_model_from_huggingface(theirs, fused_qkv=True)
    assert all(block.attention.qkv_proj is not None for block in ours.body.blocks)
    assert not ours.training and next(ours.parameters()).dtype == torch.float64
    ids = torch.randint(29, (2, 7))
    torch.testing.assert_close(ours(ids), language_model_from_huggingface(theirs)(ids), rtol=0, atol=1e-12)
