import pytest
import torch
from torch import nn

from headwise.errors import UnsupportedError
from headwise.integrations.torch_attention import observe_multihead_attention
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH, TOKENS, HEADS, WIDTH = 3, 7, 2, 10


def observe(module, *args, **keywords):
    calls = []
    with torch.no_grad(), observe_multihead_attention(module, calls.append):
        output = module(*args, **keywords)
    assert not any(call.is_cross for call in calls)
    return [call.weights for call in calls], output


def weights_of(layer):
    return torch.cat([block.weights for block in layer.blocks()], dim=2)


def make_layer(**keywords):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, **keywords).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)  # torch's zero biases would hide a forgotten one
    return layer


def tokens(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def masks():
    """Every way in which torch lets a mask be written; True or -inf = hidden."""
    generator = torch.Generator().manual_seed(2)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, 5:], padding[1, :2] = True, True
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    float_causal = torch.zeros(TOKENS, TOKENS).masked_fill(causal, -torch.inf)
    per_head = torch.rand(BATCH * HEADS, TOKENS, TOKENS, generator=generator) < 0.4
    per_head[:, :, 3] = False  # no query is left without a key
    bias = torch.randn(TOKENS, TOKENS, generator=generator)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": torch.zeros(BATCH, TOKENS).masked_fill(padding, -torch.inf)},
        "causal": {"attn_mask": causal, "is_causal": True},
        "float causal": {"attn_mask": float_causal},
        "per head": {"attn_mask": per_head},
        "bias": {"attn_mask": bias},
        "bias, padding": {
            "attn_mask": bias,
            "key_padding_mask": torch.zeros(BATCH, TOKENS).masked_fill(padding, -torch.inf),
        },
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("batch_first", [True, False])
def test_observed_weights_equal_those_that_the_layer_returns(name, batch_first):
    layer = make_layer(batch_first=batch_first)
    x = tokens(BATCH, TOKENS, WIDTH) if batch_first else tokens(TOKENS, BATCH, WIDTH)
    keywords = masks()[name]
    (observed,), _ = observe(layer, x, x, x, **keywords, need_weights=False)
    with torch.no_grad():
        _, expected = layer(x, x, x, **keywords, need_weights=True, average_attn_weights=False)
    torch.testing.assert_close(weights_of(observed), expected, rtol=0, atol=1e-6)


def test_a_causal_call_without_a_mask_is_read_as_causal():
    """Torch's own layer wants the mask beside the word; ours, which is read alike, does not."""
    torch.manual_seed(0)
    layer = TorchMultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = tokens(BATCH, TOKENS, WIDTH)
    (seen,), (_, weights) = observe(layer, x, x, x, is_causal=True, average_attn_weights=False)
    torch.testing.assert_close(weights_of(seen), weights)
    assert (weights.triu(1) == 0).all()


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1) | torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(-3),
        torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(2),
        torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1) > 0, -torch.inf) + 0.5,
    ],
    ids=["a window", "one token ahead", "a bias"],
)
def test_a_causal_hint_beside_another_mask_is_refused(mask):
    """Torch goes by the hint or by the mask, as weights are wanted and padding is given."""
    x = tokens(BATCH, TOKENS, WIDTH)
    with pytest.raises(UnsupportedError, match="Leave is_causal out"):
        observe(make_layer(batch_first=True), x, x, x, attn_mask=mask, is_causal=True)
    causal = torch.zeros(TOKENS, TOKENS).masked_fill(torch.ones(TOKENS, TOKENS).triu(1) > 0, -torch.inf)
    ((seen,), _) = observe(make_layer(batch_first=True), x, x, x, attn_mask=causal, is_causal=True)
    assert (weights_of(seen).triu(1) == 0).all()


def test_padding_is_known_from_the_call():
    x = tokens(BATCH, TOKENS, WIDTH)
    padding = masks()["padding"]["key_padding_mask"]
    for keywords in (masks()["padding"], masks()["float padding"]):
        (observed,), _ = observe(make_layer(batch_first=True), x, x, x, **keywords)
        assert torch.equal(observed.real_tokens, ~padding)
    (observed,), _ = observe(make_layer(batch_first=True), x, x, x)
    assert observed.real_tokens is None


@pytest.mark.parametrize("keywords", [{"bias": False}, {"kdim": WIDTH, "vdim": 3}])
def test_every_layout_of_the_projection_is_read(keywords):
    layer = make_layer(batch_first=True, **keywords)
    x = tokens(BATCH, TOKENS, WIDTH)
    value = tokens(BATCH, TOKENS, layer.vdim)
    (observed,), _ = observe(layer, x, x, value)
    with torch.no_grad():
        _, expected = layer(x, x, value, average_attn_weights=False)
    torch.testing.assert_close(weights_of(observed), expected, rtol=0, atol=1e-6)


def test_one_text_without_a_batch_axis_is_a_batch_of_one():
    layer = make_layer()
    x = tokens(TOKENS, WIDTH)
    (observed,), _ = observe(layer, x, x, x)
    with torch.no_grad():
        _, expected = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(weights_of(observed)[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("need_weights", [True, False])
def test_what_the_layer_returns_stays_as_it_is(need_weights):
    layer = make_layer(batch_first=True)
    x = tokens(BATCH, TOKENS, WIDTH)
    _, output = observe(layer, x, x, x, need_weights=need_weights)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            expected = layer(x, x, x, need_weights=need_weights)
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
    assert torch.equal(output[0], expected[0])
    assert (output[1] is None) is not need_weights
    if need_weights:
        assert torch.equal(output[1], expected[1])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own fused path, run to compare with
@pytest.mark.parametrize("with_padding", [True, False])
def test_a_whole_encoder_is_read_in_eval_mode_where_its_fused_path_would_pass_the_layers_by(with_padding):
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=13, batch_first=True)
    encoder = nn.TransformerEncoder(block, 3).eval()
    x = tokens(BATCH, TOKENS, WIDTH)
    padding = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    padding[0, 5:] = True
    keywords = {"src_key_padding_mask": padding} if with_padding else {}
    layers, output = observe(encoder, x, **keywords)
    assert len(layers) == 3
    with torch.no_grad():
        plain = encoder(x, **keywords)
        hidden = x
        for index, part in enumerate(encoder.layers):
            expected = part.self_attn(
                hidden, hidden, hidden, key_padding_mask=padding if with_padding else None, average_attn_weights=False
            )[1]
            torch.testing.assert_close(weights_of(layers[index]), expected, rtol=0, atol=1e-6)
            hidden = part(hidden, **keywords)
    torch.testing.assert_close(output[~padding], plain[~padding], rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("keywords", [{}, {"kdim": 3, "vdim": 13}])
def test_cross_attention_is_told_and_its_weights_are_those_that_the_layer_returns(batch_first, keywords):
    layer = make_layer(batch_first=batch_first, **keywords)
    x, key, value = tokens(BATCH, TOKENS, WIDTH), tokens(BATCH, 5, layer.kdim), tokens(BATCH, 5, layer.vdim)
    if not batch_first:
        x, key, value = (each.transpose(0, 1) for each in (x, key, value))
    padding = torch.zeros(BATCH, 5, dtype=torch.bool)
    padding[0, 3:] = True
    calls = []
    with torch.no_grad(), observe_multihead_attention(layer, calls.append):
        _, expected = layer(x, key, value, key_padding_mask=padding, average_attn_weights=False)
    (call,) = calls
    assert call.is_cross
    assert call.module is layer
    assert torch.equal(call.weights.real_tokens, ~padding)
    torch.testing.assert_close(weights_of(call.weights), expected, rtol=0, atol=1e-6)


def test_a_subclass_that_somebody_else_listens_to_is_left_out():
    layer = TorchMultiheadAttention(WIDTH, HEADS)
    calls = []
    with observe_multihead_attention(layer, calls.append, without=(TorchMultiheadAttention,)):
        layer(*[tokens(TOKENS, WIDTH)] * 3)
    assert calls == []


@pytest.mark.parametrize("keywords", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_keys_that_stand_for_no_token_are_refused(keywords):
    x = tokens(BATCH, TOKENS, WIDTH)
    with pytest.raises(UnsupportedError, match="add keys that stand for none"):
        observe(make_layer(batch_first=True, **keywords), x, x, x)


def test_hooks_and_fast_path_are_as_before_also_after_a_failure():
    layer = make_layer(batch_first=True)
    x = tokens(BATCH, TOKENS, WIDTH)

    def fail(call):
        raise RuntimeError("observer")

    with pytest.raises(RuntimeError, match="observer"), observe_multihead_attention(layer, fail):
        layer(x, x, x)
    assert torch.backends.mha.get_fastpath_enabled()
    assert not layer._forward_pre_hooks
