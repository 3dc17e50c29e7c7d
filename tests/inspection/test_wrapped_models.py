"""A model is read alike however it is wrapped and its mask spelt; padding is each stack's own; nothing is left on."""

import math

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    CpmAntConfig,
    CpmAntModel,
    EncodecConfig,
    LlamaConfig,
    LlamaModel,
    MusicgenConfig,
    MusicgenDecoderConfig,
    MusicgenForConditionalGeneration,
    T5Config,
    T5Model,
)

from headwise.errors import ModelError, TextError
from headwise.inspection.ablation.ablate import ablated
from headwise.inspection.ablation.importance import head_importance
from headwise.inspection.ablation.losses import ablation_losses
from headwise.inspection.exact import read_weights
from headwise.inspection.inspect import inspect_inputs, inspect_stacks_of_inputs
from headwise.inspection.statistics.similarity import DivergenceSums
from headwise.integrations.fast_path import without_fast_path
from headwise.integrations.text_config import text_config_of
from headwise.integrations.torch_attention import observe_multihead_attention


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 29, "vocab_size": 31}
    return BertModel(BertConfig(num_hidden_layers=1, **sizes)).eval()


class Passing(nn.Module):
    """A module that hands all on to a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return self.model(**inputs)[0]


IDS = torch.randint(4, 31, (2, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 9, dtype=torch.int64)
MASK[1, 4:] = 0


class Holder(nn.Module):
    """A user's module around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, real):
        return self.model(input_ids=tokens, attention_mask=real)[0]


def test_padding_is_heard_of_a_model_inside_another_module_compiled_or_spread_over_devices(bert):
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    plain = inspect_inputs(bert, inputs)
    assert plain.num_tokens == 13
    found = [
        inspect_inputs(Holder(bert), {"tokens": IDS, "real": MASK}),
        inspect_inputs(Holder(bert), (IDS, MASK)),
        inspect_inputs(Holder(Holder(bert)).model, (IDS, MASK)),
        inspect_inputs(nn.DataParallel(bert), inputs),
        inspect_inputs(torch.compile(bert, backend="eager"), inputs),
    ]
    for one in found:
        assert one.num_tokens == 13 and one.heads == plain.heads


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int32])
def test_a_mask_of_any_dtype_is_read(bert, dtype):
    inputs = {"input_ids": IDS, "attention_mask": MASK.to(dtype)}
    assert inspect_inputs(bert, inputs).heads == inspect_inputs(bert, {**inputs, "attention_mask": MASK}).heads
    left = {"input_ids": IDS, "attention_mask": MASK.flip(1).to(dtype)}
    assert inspect_inputs(bert, left).num_tokens == 13


@pytest.mark.parametrize("asked", ["use_cache", "output_attentions", "return_dict"])
def test_what_looking_needs_goes_before_what_the_inputs_ask_for(asked):
    torch.manual_seed(0)
    model = BloomModel(BloomConfig(hidden_size=24, n_layer=1, n_head=3, vocab_size=31)).eval()
    plain = inspect_inputs(model, {"input_ids": IDS})
    for flag in (True, False):
        assert inspect_inputs(model, {"input_ids": IDS, asked: flag}).heads == plain.heads


@pytest.mark.parametrize("padded", [False, True])
def test_exact_weights_of_every_stack_are_the_eager_ones(padded):
    torch.manual_seed(0)
    config = T5Config(d_model=12, d_kv=5, d_ff=13, num_layers=2, num_heads=3, vocab_size=31, decoder_start_token_id=0)
    config._attn_implementation = "sdpa"
    model = T5Model(config).eval()
    inputs = {"input_ids": IDS[:, :7], "decoder_input_ids": IDS[:, :3]}
    source, target = slice(None), slice(None)
    if padded:
        source, target = slice(2, None), slice(None, 2)
        inputs["attention_mask"] = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
        inputs["decoder_attention_mask"] = torch.tensor([[1, 1, 1], [1, 1, 0]])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**inputs, output_attentions=True)
    model.set_attn_implementation("sdpa")
    for stack, maps, rows, keys in (
        ("encoder", eager.encoder_attentions, source, source),
        ("decoder", eager.decoder_attentions, target, target),
        ("cross", eager.cross_attentions, target, source),
    ):
        found = read_weights(model, inputs, layer=1, head=2, text=1, stack=stack)
        # two ways of the same float32 sums of at most 12 products, then a softmax
        torch.testing.assert_close(found, maps[1][1, 2][rows, keys], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(len(found)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("held", [False, True])
def test_a_mask_of_the_decoder_alone_is_none_of_the_encoder(held):
    """The decoder hands its own mask on under the name that the whole model has for the encoder's."""
    torch.manual_seed(0)
    config = T5Config(d_model=12, d_kv=5, d_ff=13, num_layers=1, num_heads=3, vocab_size=31, decoder_start_token_id=0)
    model = T5Model(config).eval()
    inputs = {"input_ids": IDS[:, :7], "decoder_input_ids": IDS[:, :7], "decoder_attention_mask": MASK[:, :7]}
    found = inspect_stacks_of_inputs(Passing(model) if held else model, inputs)
    assert [each.num_tokens for each in found.values()] == [14, 11, 11]


def test_a_mask_of_another_length_is_refused(bert):
    with pytest.raises(TextError, match=r"each token whether it is real, a tensor of \(2, 9\); got \(2, 7\)$"):
        read_weights(bert, {"input_ids": IDS}, layer=0, head=0, real_tokens=torch.ones(2, 7, dtype=torch.bool))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("all is taken"), RuntimeError("odd")]
)
def test_a_rotary_model_beyond_its_length_fails_with_its_own_error(error):
    sizes = {"hidden_size": 12, "intermediate_size": 13, "num_attention_heads": 3, "vocab_size": 31}
    model = LlamaModel(LlamaConfig(num_hidden_layers=1, max_position_embeddings=5, **sizes)).eval()
    inspect_inputs(model, {"input_ids": IDS})  # nine tokens are read

    def fail(*_):
        raise error

    model.layers[0].mlp.register_forward_pre_hook(fail)
    with pytest.raises(type(error), match=str(error)):
        inspect_inputs(model, {"input_ids": IDS})


def test_a_memory_error_is_never_explained_by_the_inputs(bert):
    handle = bert.encoder.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(MemoryError()))
    try:
        with pytest.raises(MemoryError):
            inspect_inputs(bert, {"input_ids": torch.full((1, 600), 5)})
    finally:
        handle.remove()
    with pytest.raises(ModelError, match="at most 512 tokens"):
        inspect_inputs(bert, {"input_ids": torch.full((1, 600), 5)})


@pytest.mark.parametrize("enabled", [True, False])
def test_the_fast_path_is_off_until_the_last_listener_has_gone_whoever_goes_first(enabled):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        layer = nn.MultiheadAttention(12, 3)
        first, second = observe_multihead_attention(layer, lambda call: None), without_fast_path()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not torch.backends.mha.get_fastpath_enabled()
        second.__exit__(None, None, None)
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_weight_on_a_sink_is_one_more_key_when_heads_are_compared():
    """One head all on key 0, one all on its sink, one half and half: log 2 apart, and by hand in between."""
    weights = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.5, 0.0]], dtype=torch.float64).view(1, 3, 1, 2)
    sums = DivergenceSums(3)
    sums.add_weights(weights, torch.ones(1, 3, 1, dtype=torch.bool))
    apart = sums.to_result([(0, 0), (0, 1), (0, 2)]).divergence
    halfway = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) - math.log(2) / 2
    assert apart[0][1] == pytest.approx(math.log(2), rel=1e-12)
    assert apart[0][2] == apart[1][2] == pytest.approx(halfway, rel=1e-12)


@pytest.mark.parametrize("mode", ["mean", "resample"])
def test_heads_are_ablated_alike_in_a_model_and_in_its_wrapper(bert, mode):
    """What heads put out on padding is no part of their mean, whoever is asked."""
    inputs = {"input_ids": IDS, "attention_mask": MASK}

    def loss(output, _):
        return output[0].square().mean()

    plain = ablation_losses(bert, inputs, loss=loss, mode=mode)
    for wrapped in (nn.DataParallel(bert), torch.compile(bert, backend="eager")):
        assert ablation_losses(wrapped, inputs, loss=loss, mode=mode) == plain
        assert head_importance(wrapped, inputs, loss=loss) == head_importance(bert, inputs, loss=loss)
    with ablated(nn.DataParallel(bert), {(0, 1)}), torch.no_grad():
        assert not torch.equal(bert(**inputs)[0], plain_output(bert, inputs))


def plain_output(model, inputs):
    """Run a model outside of any context that is open, on a copy."""
    copied = BertModel(model.config).eval()
    copied.load_state_dict(model.state_dict())
    with torch.no_grad():
        return copied(**inputs)[0]


def test_a_compiled_model_is_refused_where_its_own_passes_would_be_changed(bert):
    compiled = torch.compile(bert, backend="eager")
    with pytest.raises(ModelError, match="which hooks do not reach"), ablated(compiled, {(0, 1)}):
        pass


def test_weights_in_eager_mode_that_leave_something_out_are_refused():
    """CPM-Ant puts its prompt before the text and cuts it off the weights that it returns."""
    config = CpmAntConfig(
        vocab_size=31,
        hidden_size=12,
        num_attention_heads=3,
        dim_head=4,
        dim_ff=13,
        num_hidden_layers=1,
        prompt_length=5,
    )
    torch.manual_seed(0)
    model = CpmAntModel(config).eval()
    with pytest.raises(ModelError, match="sum to less than 1: some of what it reads is not among them"):
        inspect_inputs(model, {"input_ids": IDS})


def test_a_config_with_two_parts_of_text_is_read():
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16}
    config = MusicgenConfig(
        text_encoder=T5Config(vocab_size=31, d_model=16, d_kv=8, num_heads=2, num_layers=1, d_ff=16).to_dict(),
        audio_encoder=EncodecConfig(
            num_filters=4, hidden_size=8, codebook_dim=8, codebook_size=16, upsampling_ratios=[2, 2]
        ).to_dict(),
        decoder=MusicgenDecoderConfig(num_codebooks=1, **sizes).to_dict(),
    )
    assert text_config_of(config) is config
    torch.manual_seed(0)
    model = MusicgenForConditionalGeneration(config).eval()
    inputs = {"input_ids": IDS[:1, :5], "decoder_input_ids": torch.randint(0, 15, (1, 4))}
    found = inspect_stacks_of_inputs(model, inputs)
    assert sorted(len(each.heads) for each in found.values()) == [2, 2, 2]
