"""TorchMultiheadAttention is torch's module where that is well defined, and one thing in every mode where it is not."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.torch_multihead import TorchMultiheadAttention

BATCH, QUERIES, KEYS = 2, 5, 7
HEADS, HEAD_DIM = 3, 4
EMBED, KEY_DIM, VALUE_DIM = HEADS * HEAD_DIM, 11, 13

# One float64 operation rounds by 1.1e-16; the sums here have under 100 terms of size about 1.
EXACT = {"rtol": 0, "atol": 1e-13}
# Gradients are sums of some 100 terms of size up to 1e2 of what EXACT allows.
GRADIENT = {"rtol": 1e-12, "atol": 1e-11}

SETTINGS = {
    "plain": {},
    "no biases": {"bias": False},
    "other widths": {"kdim": KEY_DIM, "vdim": VALUE_DIM},
    "other width of values alone": {"vdim": VALUE_DIM, "bias": False},
    "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both keys, other widths": {"add_bias_kv": True, "add_zero_attn": True, "kdim": KEY_DIM, "vdim": VALUE_DIM},
}


def twins(**module_settings):
    """torch's module and ours, with the same weights; biases start at 0, where a mistake would not show."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **module_settings)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    ours = TorchMultiheadAttention(EMBED, HEADS, dtype=torch.float64, **module_settings)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, ours


def tokens(width, length, seed=0):
    return torch.randn(BATCH, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drops(*shape, seed=0):
    """Bools, True = drop, of which the first of each row is kept."""
    bools = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    bools[..., 0] = False
    return bools


def adds(*shape, seed=0):
    floats = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return floats.masked_fill(drops(*shape, seed=seed + 1), -math.inf)


CALLS = {
    "no mask": {},
    "padding": {"key_padding_mask": drops(BATCH, KEYS)},
    "padding that adds": {"key_padding_mask": adds(BATCH, KEYS)},
    "pairs": {"attn_mask": drops(QUERIES, KEYS)},
    "pairs that add": {"attn_mask": adds(QUERIES, KEYS)},
    "pairs of heads": {"attn_mask": drops(BATCH * HEADS, QUERIES, KEYS)},
    "pairs of heads that add": {"attn_mask": adds(BATCH * HEADS, QUERIES, KEYS)},
    "both": {"key_padding_mask": drops(BATCH, KEYS), "attn_mask": drops(QUERIES, KEYS, seed=5)},
    "both that add": {"key_padding_mask": adds(BATCH, KEYS), "attn_mask": adds(QUERIES, KEYS, seed=5)},
}


def results_and_gradients(module, inputs, **call):
    """Output, weights (or nothing) and the gradients of inputs and parameters."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    module.zero_grad()
    output, weights = module(*leaves, **call)
    # a different factor on each number, so that no two gradients can change places
    factors = torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).cos()
    (output * factors).sum().backward()
    gradients = [leaf.grad for leaf in leaves] + [parameter.grad for parameter in module.parameters()]
    return output, weights, gradients


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("module_settings", SETTINGS.values(), ids=SETTINGS)
def test_torchs_module_agrees_in_output_weights_and_gradients(module_settings, call):
    theirs, ours = twins(**module_settings)
    widths = EMBED, module_settings.get("kdim", EMBED), module_settings.get("vdim", EMBED)
    inputs = [
        tokens(width, length, seed)
        for seed, (width, length) in enumerate(zip(widths, (QUERIES, KEYS, KEYS), strict=True))
    ]
    for batch_first, asked in (
        (True, {"need_weights": False}),
        (False, {"need_weights": True}),
        (True, {"need_weights": True, "average_attn_weights": False}),
    ):
        theirs.batch_first = ours.batch_first = batch_first
        given_inputs = inputs if batch_first else [each.transpose(0, 1) for each in inputs]
        output, weights, gradients = results_and_gradients(ours, given_inputs, **call, **asked)
        expected, expected_weights, expected_gradients = results_and_gradients(theirs, given_inputs, **call, **asked)
        torch.testing.assert_close(output, expected, **EXACT)
        torch.testing.assert_close(weights, expected_weights, **EXACT)
        torch.testing.assert_close(gradients, expected_gradients, **GRADIENT)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
@torch.no_grad()
def test_one_text_comes_and_goes_without_its_batch_size(batch_first, average):
    theirs, ours = twins(batch_first=batch_first, add_zero_attn=True)
    query, key, value = (tokens(EMBED, length, seed)[0] for seed, length in enumerate((QUERIES, KEYS, KEYS)))
    masks = {"key_padding_mask": drops(KEYS), "attn_mask": drops(HEADS, QUERIES, KEYS, seed=3)}
    output, weights = ours(query, key, value, **masks, average_attn_weights=average)
    expected, expected_weights = theirs(query, key, value, **masks, average_attn_weights=average)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(weights, expected_weights, **EXACT)
    assert ours(query, key, value, need_weights=False)[1] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_results_have_torchs_dtypes_and_layout_in_memory(dtype):
    theirs, ours = (module.to(dtype) for module in twins(add_bias_kv=True))
    x = tokens(EMBED, KEYS).transpose(0, 1).to(dtype)
    for computed, expected in zip(ours(x, x, x), theirs(x, x, x), strict=True):
        assert (computed.dtype, computed.shape) == (expected.dtype, expected.shape)
        assert computed.is_contiguous() and expected.is_contiguous()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x, x, x)[0].dtype == torch.bfloat16


# The equation, where torch's module has none


def oracle(module, query, key, value, allowed):
    """Output and weights of each head by the equation; `allowed`: (batch, heads, queries, keys), True = may attend."""
    weight_q, weight_k, weight_v = module.in_proj_weight.chunk(3)
    bias_q, bias_k, bias_v = module.in_proj_bias.chunk(3)
    head_dim = module.head_dim
    heads, weights = [], []
    for h in range(module.num_heads):
        rows = slice(h * head_dim, (h + 1) * head_dim)
        q = query @ weight_q[rows].T + bias_q[rows]
        k = key @ weight_k[rows].T + bias_k[rows]
        v = value @ weight_v[rows].T + bias_v[rows]
        powers = (q @ k.mT / math.sqrt(head_dim)).exp() * allowed[:, h]
        total = powers.sum(-1, keepdim=True)
        weights.append(powers / torch.where(total == 0, 1, total))
        heads.append(weights[-1] @ v)
    return torch.cat(heads, dim=-1) @ module.out_proj.weight.T + module.out_proj.bias, torch.stack(weights, 1)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 5),
    seed=st.integers(0, 2**16),
    is_training=st.booleans(),
    need_weights=st.booleans(),
    shares_heads=st.booleans(),
)
@torch.no_grad()
def test_any_mask_gives_the_equation_with_0_for_a_query_without_a_key(
    sizes, seed, is_training, need_weights, shares_heads
):
    batch, query_len, key_len, num_heads, head_dim = sizes
    torch.manual_seed(seed)
    module = TorchMultiheadAttention(num_heads * head_dim, num_heads, batch_first=True, dtype=torch.float64)
    module.train(is_training)
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    query = torch.randn(batch, query_len, num_heads * head_dim, dtype=torch.float64)
    key, value = torch.randn(2, batch, key_len, num_heads * head_dim, dtype=torch.float64)
    padding = torch.rand(batch, key_len) < 0.4
    shape = (query_len, key_len) if shares_heads else (batch * num_heads, query_len, key_len)
    dropped = torch.rand(shape) < 0.4
    by_head = dropped.expand(batch, num_heads, -1, -1) if shares_heads else dropped.unflatten(0, (batch, num_heads))
    output, weights = module(
        query,
        key,
        value,
        key_padding_mask=padding,
        attn_mask=dropped,
        need_weights=need_weights,
        average_attn_weights=False,
    )
    expected, expected_weights = oracle(module, query, key, value, ~by_head & ~padding[:, None, None])
    torch.testing.assert_close(output, expected, **EXACT)
    if need_weights:
        torch.testing.assert_close(weights, expected_weights, **EXACT)


def even_twins(**module_settings):
    """With an even number of heads and batch first: what torch's fused path of evaluation needs."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, **module_settings)
    nn.init.normal_(theirs.out_proj.bias)
    ours = TorchMultiheadAttention(8, 2, batch_first=True, **module_settings)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


ALL_DROPPED = torch.tensor([[False, True, False], [True, True, True]])


@pytest.mark.parametrize("mask", [ALL_DROPPED, torch.zeros(2, 3).masked_fill(ALL_DROPPED, -math.inf)], ids=["b", "f"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_text_of_padding_alone_gets_the_output_bias_in_every_mode(training, with_gradient, need_weights, mask):
    _, ours = even_twins()
    ours.train(training)
    x = torch.randn(2, 3, 8).requires_grad_(with_gradient)
    with torch.set_grad_enabled(with_gradient):
        output, weights = ours(x, x, x, key_padding_mask=mask, need_weights=need_weights)
    assert torch.equal(output[1], ours.out_proj.bias.expand(3, 8))
    assert output.isfinite().all()
    if need_weights:
        assert torch.equal(weights[1], torch.zeros(3, 3))
        # weights are rounded to float32 a few times each
        torch.testing.assert_close(weights[0].sum(-1), torch.ones(3), rtol=0, atol=1e-6)
    if with_gradient:
        output.sum().backward()
        assert all(leaf.grad.isfinite().all() for leaf in (x, *ours.parameters()))
        assert torch.equal(x.grad[1], torch.zeros(3, 8))


@torch.no_grad()
def test_torchs_module_gives_nan_there_or_not_by_the_mode():
    """The trap is real: without it the test above would prove nothing."""
    theirs, _ = even_twins()
    x = torch.randn(2, 3, 8)
    is_nan = {
        (training, need_weights): theirs.train(training)(
            x, x, x, key_padding_mask=ALL_DROPPED, need_weights=need_weights
        )[0][1]
        .isnan()
        .any()
        .item()
        for training in (True, False)
        for need_weights in (True, False)
    }
    assert is_nan == {(True, True): True, (True, False): False, (False, True): True, (False, False): True}


@torch.no_grad()
def test_training_and_evaluation_with_and_without_weights_give_the_same():
    _, ours = even_twins()
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, True, True]])
    outputs = [
        ours.train(training)(x, x, x, key_padding_mask=padding, need_weights=need_weights)[0]
        for training in (True, False)
        for need_weights in (True, False)
    ]
    for output in outputs[1:]:
        # float32 sums of 8 terms of size about 1
        torch.testing.assert_close(output, outputs[0], rtol=0, atol=2e-6)


LATER = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "module_settings",
    [{}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}],
    ids=["plain", "learned key", "zero key", "both"],
)
@torch.no_grad()
def test_is_causal_holds_together_with_the_masks(module_settings, need_weights):
    theirs, ours = twins(batch_first=True, **module_settings)
    x = tokens(EMBED, KEYS)
    mask = drops(KEYS, KEYS, seed=4)
    asked = {"need_weights": need_weights, "average_attn_weights": False}
    for attn_mask, key_padding_mask, as_one in (
        (None, None, LATER),
        (LATER, None, LATER),
        (torch.zeros(KEYS, KEYS, dtype=torch.bool), None, LATER),
        (mask, None, LATER | mask),
        (mask, drops(BATCH, KEYS), LATER | mask),
        (adds(KEYS, KEYS), None, adds(KEYS, KEYS).masked_fill(LATER, -math.inf)),
    ):
        result = ours(x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=True, **asked)
        expected = theirs(x, x, x, attn_mask=as_one, key_padding_mask=key_padding_mask, **asked)
        torch.testing.assert_close(result, expected, **EXACT)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("module_settings", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["plain", "added"])
@torch.no_grad()
def test_with_fewer_queries_than_keys_the_mask_says_what_causal_means(module_settings, need_weights):
    """torch's result where it reads the mask; without weights asked for it may take the hint for it."""
    theirs, ours = twins(batch_first=True, **module_settings)
    query, memory = tokens(EMBED, QUERIES), tokens(EMBED, KEYS, seed=1)
    for mask in (LATER[:QUERIES], LATER[KEYS - QUERIES :], adds(QUERIES, KEYS)):
        result = ours(query, memory, memory, attn_mask=mask, is_causal=True, need_weights=need_weights)
        expected = theirs(query, memory, memory, attn_mask=mask, need_weights=need_weights)
        torch.testing.assert_close(result, expected, **EXACT)


@torch.no_grad()
def test_torchs_decoder_may_say_that_its_memory_is_causal():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 13, 0.0, batch_first=True, dtype=torch.float64)
    theirs = nn.TransformerDecoder(layer, 1).eval()
    ours = copy.deepcopy(theirs)
    for name in ("self_attn", "multihead_attn"):
        module = TorchMultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        module.load_state_dict(getattr(theirs.layers[0], name).state_dict())
        setattr(ours.layers[0], name, module.eval())
    target, memory = tokens(8, QUERIES), tokens(8, KEYS, seed=1)
    masks = {"tgt_mask": LATER[:QUERIES, :QUERIES], "memory_mask": LATER[:QUERIES]}
    expected = theirs(target, memory, **masks)
    hints = {"tgt_is_causal": True, "memory_is_causal": True}
    torch.testing.assert_close(ours(target, memory, **masks, **hints), expected, **EXACT)


@pytest.mark.parametrize("order", [(0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1)], ids=str)
@torch.no_grad()
def test_one_product_serves_all_three_only_where_all_three_are_one(order):
    theirs, ours = twins(batch_first=True)
    given_tokens = tokens(EMBED, KEYS), tokens(EMBED, KEYS, seed=1)
    query, key, value = (given_tokens[index] for index in order)
    torch.testing.assert_close(ours(query, key, value), theirs(query, key, value), **EXACT)


def test_returned_weights_are_those_before_dropout():
    _, ours = twins(batch_first=True, dropout=0.5)
    x = tokens(EMBED, KEYS)
    first, weights = ours(x, x, x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, KEYS, dtype=torch.float64))
    assert not torch.equal(first, ours(x, x, x)[0])
    ours.eval()
    output, same_weights = ours(x, x, x)
    assert torch.equal(output, ours(x, x, x)[0])
    torch.testing.assert_close(same_weights, weights, **EXACT)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@torch.no_grad()
def test_where_torchs_module_differs_is_as_the_docstring_says():
    x = tokens(EMBED, KEYS)
    theirs, ours = twins(batch_first=True, add_zero_attn=True)
    hinted = {"attn_mask": LATER, "is_causal": True}
    seen = theirs(x, x, x, **hinted, need_weights=True)[0]
    torch.testing.assert_close(ours(x, x, x, **hinted, need_weights=False)[0], seen, **EXACT)
    assert not torch.allclose(theirs(x, x, x, **hinted, need_weights=False)[0], seen)  # the added key is hidden

    theirs, ours = twins(batch_first=True)
    lowest = torch.full((BATCH, KEYS), torch.finfo(torch.float64).min, dtype=torch.float64)
    assert torch.equal(ours(x, x, x, key_padding_mask=lowest)[1], torch.zeros(BATCH, KEYS, KEYS, dtype=torch.float64))
    torch.testing.assert_close(
        theirs(x, x, x, key_padding_mask=lowest)[1],
        torch.full_like(LATER, 1, dtype=torch.float64).expand(BATCH, -1, -1) / KEYS,
        **EXACT,
    )

    with pytest.raises(torch.jit.frontend.UnsupportedNodeError):
        torch.jit.script(ours)

    class Leaves(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, nn.MultiheadAttention)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = ours

        def forward(self, x):
            return self.attention(x, x, x)[0]

    model = Model()
    assert torch.equal(torch.fx.GraphModule(model, Leaves().trace(model))(x), model(x))


def test_a_learned_mask_may_start_at_one():
    theirs, ours = twins(batch_first=True)
    x, learned = tokens(EMBED, KEYS), torch.eye(KEYS, dtype=torch.float64, requires_grad=True)
    for module in (ours, theirs):
        output, _ = module(x, x, x, attn_mask=learned)
        (output * output.detach().cos()).sum().backward()
        if module is ours:
            gradient, learned.grad = learned.grad, None
    torch.testing.assert_close(gradient, learned.grad, **GRADIENT)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", [drops(3, KEYS, KEYS), adds(3, KEYS, KEYS)], ids=["drops", "adds"])
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch has no kernel over many masks
@torch.no_grad()
def test_vmap_over_masks_is_each_mask_by_itself(mask, need_weights):
    _, ours = twins(batch_first=True)
    x = tokens(EMBED, KEYS)

    def run(attn_mask):
        return ours(x, x, x, attn_mask=attn_mask, need_weights=need_weights)[0]

    expected = torch.stack([run(each) for each in mask])
    torch.testing.assert_close(torch.func.vmap(run)(mask), expected, **EXACT)
    padding = mask[:, 0]
    run_padded = torch.func.vmap(lambda one: ours(x[0], x[0], x[0], one, need_weights=need_weights)[0])
    expected = torch.stack([ours(x[0], x[0], x[0], each, need_weights=need_weights)[0] for each in padding])
    torch.testing.assert_close(run_padded(padding), expected, **EXACT)


GRAPH = """
import torch
from headwise.nn.torch_multihead import TorchMultiheadAttention

torch.set_num_threads(1)
module = TorchMultiheadAttention(12, 3, batch_first=True, add_zero_attn=True)
x, padding = torch.randn(2, 5, 12), torch.tensor([[False, True, False, False, True], [True] * 5])
compiled = torch.compile(module, backend="eager", fullgraph=True)
for call in ({"key_padding_mask": padding}, {"is_causal": True, "need_weights": False}):
    torch.testing.assert_close(compiled(x, x, x, **call), module(x, x, x, **call), rtol=0, atol=0)
"""


def test_it_compiles_in_one_graph():
    """In an interpreter of its own: the type checks that the other tests run with cannot be compiled."""
    result = subprocess.run([sys.executable, "-c", GRAPH], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# Parameters


@pytest.mark.parametrize("module_settings", SETTINGS.values(), ids=SETTINGS)
def test_parameters_start_as_torchs_do_from_the_same_seed_and_load_both_ways(module_settings):
    torch.manual_seed(3)
    theirs = nn.MultiheadAttention(EMBED, HEADS, **module_settings)
    torch.manual_seed(3)
    ours = TorchMultiheadAttention(EMBED, HEADS, **module_settings)
    expected = theirs.state_dict()
    assert list(ours.state_dict()) == list(expected)
    assert all(torch.equal(each, expected[name]) for name, each in ours.state_dict().items())
    torch.manual_seed(5)
    ours._reset_parameters()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    torch.manual_seed(5)
    ours._reset_parameters()
    assert all(torch.equal(each, theirs.state_dict()[name]) for name, each in ours.state_dict().items())


def test_a_copy_computes_the_same():
    _, ours = twins(batch_first=True)
    x = tokens(EMBED, KEYS)
    assert torch.equal(copy.deepcopy(ours)(x, x, x)[0], ours(x, x, x)[0])


# Inside of torch's Transformer


def encoder_layer():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def with_our_attention(layer):
    attention = TorchMultiheadAttention(8, 2, batch_first=True)
    attention.load_state_dict(layer.self_attn.state_dict())
    layer.self_attn = attention
    return layer


@torch.no_grad()
def test_torchs_encoder_layer_calls_it_in_evaluation_too():
    theirs, layer = encoder_layer(), with_our_attention(encoder_layer())
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    trained, evaluated = (layer.train(mode)(x, src_key_padding_mask=padding) for mode in (True, False))
    assert torch.equal(trained, evaluated)
    assert evaluated.isfinite().all()
    assert theirs.eval()(x, src_key_padding_mask=padding).isnan().any()  # its fused path
    # float32 sums of 16 terms of size about 1
    torch.testing.assert_close(evaluated[0], theirs.train()(x, src_key_padding_mask=padding)[0], rtol=0, atol=5e-6)


@torch.no_grad()
def test_torchs_decoder_layer_takes_it_for_both_attentions():
    torch.manual_seed(0)
    theirs = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    for name in ("self_attn", "multihead_attn"):
        attention = TorchMultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
        attention.load_state_dict(getattr(theirs, name).state_dict())
        setattr(ours, name, attention)
    target, memory = tokens(8, QUERIES), tokens(8, KEYS)
    later = LATER[:QUERIES, :QUERIES]
    masks = {"tgt_mask": later, "memory_key_padding_mask": drops(BATCH, KEYS)}
    expected = theirs(target, memory, **masks)
    torch.testing.assert_close(ours(target, memory, **masks, tgt_is_causal=True), expected, **EXACT)


@pytest.mark.usefixtures("without_type_checks")  # the checker cannot look at a nested tensor
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@torch.no_grad()
def test_nested_tensors_are_refused_with_the_way_out():
    encoder = nn.TransformerEncoder(encoder_layer(), 1).eval()
    with_our_attention(encoder.layers[0])
    encoder.eval()
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    with pytest.raises(
        UnsupportedError,
        match=r"query must be a plain tensor, .*; got a nested one .*use_nested_tensor is set",
    ):
        encoder(x, src_key_padding_mask=padding)
    encoder.use_nested_tensor = False
    assert encoder(x, src_key_padding_mask=padding).isfinite().all()
    plain = nn.TransformerEncoder(encoder_layer(), 1, enable_nested_tensor=False).eval()
    with_our_attention(plain.layers[0]).eval()
    assert plain(x, src_key_padding_mask=padding).isfinite().all()


# Refusals


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"embed_dim": 10}, r"embed_dim must be a multiple of num_heads.*got 10 and 3"),
        ({"num_heads": 0}, r"num_heads must be between 1 and \d+; got 0"),
        ({"dropout": 1.0}, r"dropout_p must be at least 0 and below 1; got 1.0"),
        ({"kdim": 0}, r"key_dim must be between 1 and \d+; got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        TorchMultiheadAttention(**{"embed_dim": EMBED, "num_heads": HEADS, **arguments})


SHAPES = {"query": (BATCH, QUERIES, EMBED), "key": (BATCH, KEYS, KEY_DIM), "value": (BATCH, KEYS, VALUE_DIM)}


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"query": (BATCH, QUERIES, 11)}, r"query must have shape \(batch, seq_len, 12\).*got \(2, 5, 11\)"),
        ({"query": (EMBED,)}, r"query must have shape .*got \(12,\)"),
        ({"key": (KEYS, KEY_DIM)}, r"key must have shape \(batch, seq_len, 11\).*got \(7, 11\)"),
        ({"value": (BATCH, KEYS, EMBED)}, r"value must have shape \(batch, seq_len, 13\).*got \(2, 7, 12\)"),
        ({"key": (3, KEYS, KEY_DIM)}, "key must have the batch size of the query, 2; got 3"),
        ({"value": (BATCH, 6, VALUE_DIM)}, "value must be as long as key, 7; got 6"),
        ({"key_padding_mask": (KEYS, BATCH)}, r"key_padding_mask must have shape \(2, 7\); got \(7, 2\)"),
        ({"attn_mask": (KEYS, QUERIES)}, r"attn_mask must have shape \(5, 7\) or \(6, 5, 7\); got \(7, 5\)"),
        ({"attn_mask": (BATCH, QUERIES, KEYS)}, r"attn_mask must have shape .*got \(2, 5, 7\)"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_shape_that_does_not_fit_is_refused_by_name(shapes, text):
    module = TorchMultiheadAttention(EMBED, HEADS, kdim=KEY_DIM, vdim=VALUE_DIM, batch_first=True)
    with pytest.raises(ConfigError, match=text):
        module(**{name: torch.randn(shape) for name, shape in {**SHAPES, **shapes}.items()})


def test_the_layout_that_is_refused_is_the_modules_own():
    module = TorchMultiheadAttention(EMBED, HEADS)
    x = torch.randn(KEYS, BATCH, EMBED)
    with pytest.raises(ConfigError, match=r"query must have shape \(seq_len, batch, 12\)"):
        module(x[..., 1:], x, x)
    with pytest.raises(ConfigError, match="value must be as long as key, 7; got 6"):
        module(x, x, x[1:])


def test_a_causal_call_needs_as_many_queries_as_keys_or_a_mask_that_says_what_it_means():
    module = TorchMultiheadAttention(EMBED, HEADS, batch_first=True)
    x = torch.randn(BATCH, KEYS, EMBED)
    text = r"is_causal needs as many queries as keys, or an attn_mask .*got 5 and 7, and no attn_mask"
    with pytest.raises(ConfigError, match=text):
        module(x[:, :QUERIES], x, x, is_causal=True)
    with pytest.raises(ConfigError, match=text):
        module(x[:, :QUERIES], x, x, is_causal=True, key_padding_mask=drops(BATCH, KEYS))
