"""MultiHeadAttention computes its equation, in every mode, and agrees with torch's layer given the same weights."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.scaling import LinearScaling
from headwise.cost.parameters import attention_parameters
from headwise.errors import ConfigError, HeadwiseError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.tables import Documents
from headwise.nn.multihead import MultiHeadAttention
from headwise.ops import shortcut

BATCH, LENGTH, KEYS = 2, 5, 7
EMBED, KEY_DIM, VALUE_DIM = 24, 11, 13
HEADS, KV_HEADS, HEAD_DIM, V_HEAD_DIM = 6, 3, 4, 5

# One float64 operation rounds by 1.1e-16; the sums here have under 100 terms of size about 1.
EXACT = {"rtol": 0, "atol": 1e-13}


def layer_of(**settings):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED, HEADS, **settings).double()
    with torch.no_grad():  # biases start at 0 and norms at 1, where a mistake would not show
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return layer


def tokens(width=EMBED, length=LENGTH):
    torch.manual_seed(length + width)
    return torch.randn(BATCH, length, width, dtype=torch.float64)


def oracle(layer, query, key, value, allows, positions=None):
    """The equation, one head and one query at a time, with none of the layer's own steps."""
    config = layer.config
    weights = torch.zeros(BATCH, config.num_heads, query.shape[1], key.shape[1], dtype=torch.float64)
    output = torch.zeros_like(query)
    for b in range(BATCH):
        for i in range(query.shape[1]):
            heads = []
            for h in range(config.num_heads):
                g = h // (config.num_heads // config.num_kv_heads)
                q = head_of(layer.q_proj, layer.q_norm, query[b, i], h, config.head_dim, position_of(positions, i))
                scores = []
                for j in range(key.shape[1]):
                    k = head_of(layer.k_proj, layer.k_norm, key[b, j], g, config.head_dim, position_of(positions, j))
                    scores.append(score_of(layer, float(q @ k), h, i, j) if allows(b, i, j) else -math.inf)
                sink = 0.0 if layer.sink is None else math.exp(layer.sink[h])
                total = sum(math.exp(score) for score in scores) + sink or 1.0  # without a key every weight is 0
                mixed = torch.zeros(config.v_head_dim, dtype=torch.float64)
                for j, score in enumerate(scores):
                    weights[b, h, i, j] = math.exp(score) / total
                    mixed += weights[b, h, i, j] * head_of(layer.v_proj, None, value[b, j], g, config.v_head_dim, None)
                heads.append(mixed)
            output[b, i] = layer.out_proj(torch.cat(heads))
    return output, weights


def score_of(layer, product, head, i, j):
    """The score of a pair, capped first, then with what its distance adds."""
    config, score = layer.config, product * layer.config.scale
    if config.softcap is not None:
        score = config.softcap * math.tanh(score / config.softcap)
    if isinstance(config.position, ALiBi):
        score -= ALIBI_SLOPES[head] * abs(i - j)
    if isinstance(config.position, T5Bias):
        score += float(layer.relative_bias.table[T5_BUCKETS[j - i], head])
    return score


def head_of(projection, norm, token, head, size, position):
    vector = projection(token)[head * size : (head + 1) * size]
    if norm is not None:
        vector = vector / (vector.square().mean() + 1e-6).sqrt() * norm.weight
    if position is not None:
        turned_dim = 2 if size == 6 else size  # of a head of 6 the variants turn a part
        frequencies = 10000.0 ** (-torch.arange(turned_dim // 2, dtype=torch.float64) * 2 / turned_dim)
        turned = torch.complex(*vector[:turned_dim].view(2, -1)) * torch.exp(1j * position * frequencies)
        vector = torch.cat([turned.real, turned.imag, vector[turned_dim:]])
    return vector


def position_of(positions, index):
    return None if positions is None else positions[index]


# Six heads: the row of four, 2^-2, 2^-4, ..., then the first and the third of the row of eight (Press et al. 2022).
ALIBI_SLOPES = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
# Eight buckets, four a side: 0, 1, then two for distances up to 16 and beyond (Raffel et al. 2020); later keys above.
T5_BUCKETS = {0: 0, -1: 1, -2: 2, -3: 2, -4: 2, 1: 5, 2: 6, 3: 6, 4: 6}
T5 = T5Bias(num_buckets=8, max_distance=16)

VARIANTS = {
    "plain": {},
    "grouped": {"num_kv_heads": KV_HEADS},
    "one kv head": {"num_kv_heads": 1},
    "own head sizes": {"head_dim": 10, "v_head_dim": V_HEAD_DIM, "num_kv_heads": KV_HEADS},
    "no biases": {"projection_bias": False},
    "biases but out": {"projection_bias": "qkv"},
    "normed": {"qk_norm": True},
    "rotary": {"position": Rotary(), "num_kv_heads": KV_HEADS},
    "normed, then rotary": {"qk_norm": True, "position": Rotary()},
    "part of a head rotary": {"position": Rotary(rotary_dim=2), "head_dim": 6},
    "ALiBi": {"position": ALiBi(), "num_kv_heads": KV_HEADS},
    "T5": {"position": T5},
    "own scale": {"scale": 0.7},
    "capped": {"softcap": 0.8},
    "sink": {"sink": True, "num_kv_heads": KV_HEADS},
    "all at once": {"softcap": 1.1, "sink": True, "position": ALiBi(), "qk_norm": True, "scale": 0.9},
}


@pytest.mark.parametrize("impl", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_the_layer_computes_its_equation(name, impl):
    if impl == "sdpa" and "softcap" in VARIANTS[name]:
        impl = "blocked"  # torch's kernels cap nothing
    layer = layer_of(**VARIANTS[name], impl=impl)
    x = tokens()
    positions = list(range(LENGTH)) if layer.rotary is not None else None
    output, _ = oracle(layer, x, x, x, lambda b, i, j: True, positions)
    # ALiBi's slopes and T5's logarithms are float32, which rounds by 6e-8; the slopes here are powers of two.
    torch.testing.assert_close(layer(x), output, **EXACT)


@torch.no_grad()
def test_attend_returns_the_layers_output_and_what_each_head_saw():
    layer = layer_of(num_kv_heads=KV_HEADS, mask=Causal())
    x = tokens()
    result = layer.attend(x, return_weights=True, return_logsumexp=True)
    output, weights = oracle(layer, x, x, x, lambda b, i, j: j <= i)
    torch.testing.assert_close(result.output, output, **EXACT)
    torch.testing.assert_close(result.weights, weights, **EXACT)
    assert result.logsumexp.shape == (BATCH, HEADS, LENGTH)
    assert layer.attend(x).weights is None
    assert layer.attend(x).logsumexp is None


@torch.no_grad()
def test_cross_attention_reads_tokens_of_other_widths():
    layer = layer_of(num_kv_heads=KV_HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
    query, key, value = tokens(), tokens(KEY_DIM, KEYS), tokens(VALUE_DIM, KEYS)
    output, weights = oracle(layer, query, key, value, lambda b, i, j: True)
    result = layer.attend(query, key, value, return_weights=True)
    torch.testing.assert_close(result.output, output, **EXACT)
    torch.testing.assert_close(result.weights, weights, **EXACT)


@torch.no_grad()
def test_values_are_the_keys_tokens_unless_given():
    layer = layer_of(key_dim=KEY_DIM)
    query, key = tokens(), tokens(KEY_DIM, KEYS)
    assert torch.equal(layer(query, key), layer(query, key, key))


@torch.no_grad()
def test_the_layers_mask_and_the_calls_mask_both_hold():
    lengths = [LENGTH, 3]
    x = tokens()
    output, _ = oracle(layer_of(), x, x, x, lambda b, i, j: i - 2 < j <= i and j < lengths[b])
    window, padding = SlidingWindow(2), KeyPadding(torch.tensor(lengths))
    for layer, mask in ((layer_of(mask=window), padding), (layer_of(), window & padding)):
        computed = layer(x, mask=mask)
        torch.testing.assert_close(computed, output, **EXACT)
        # the last query of the short text sees padding alone: it attends to nothing
        torch.testing.assert_close(computed[1, 4], layer.out_proj.bias, **EXACT)


@torch.no_grad()
def test_positions_restart_in_each_text():
    layer = layer_of(position=Rotary())
    x = tokens()
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]])
    computed = layer(x, positions=positions)
    for row in range(BATCH):
        output, _ = oracle(layer, x, x, x, lambda b, i, j: True, positions[row].tolist())
        torch.testing.assert_close(computed[row], output[row], **EXACT)


# Against torch's layer


def torch_layer(layer, **settings):
    """Build torch's layer with the same weights."""
    twin = nn.MultiheadAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64, **settings)
    weights = [projection.weight for projection in (layer.q_proj, layer.k_proj, layer.v_proj)]
    with torch.no_grad():
        if settings.get("kdim"):
            for own, weight in zip((twin.q_proj_weight, twin.k_proj_weight, twin.v_proj_weight), weights, strict=True):
                own.copy_(weight)
        else:
            twin.in_proj_weight.copy_(torch.cat(weights))
        twin.in_proj_bias.copy_(torch.cat([layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias]))
        twin.out_proj.load_state_dict(layer.out_proj.state_dict())
    return twin


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_layer_agrees_given_the_same_weights_and_the_opposite_mask(training, need_weights):
    layer = layer_of(mask=Causal()).train(training)
    twin = torch_layer(layer).train(training)
    x = tokens()
    lengths = torch.tensor([LENGTH, 3])
    result = layer.attend(x, mask=KeyPadding(lengths), return_weights=need_weights)
    output, weights = twin(
        x,
        x,
        x,
        key_padding_mask=torch.arange(LENGTH) >= lengths[:, None],  # True = drop, there
        attn_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1),
        need_weights=need_weights,
        average_attn_weights=False,
    )
    torch.testing.assert_close(result.output, output, **EXACT)
    if need_weights:
        torch.testing.assert_close(result.weights, weights, **EXACT)


def test_torchs_layer_agrees_in_cross_attention_and_gradients():
    layer = layer_of(key_dim=KEY_DIM, value_dim=VALUE_DIM)
    twin = torch_layer(layer, kdim=KEY_DIM, vdim=VALUE_DIM)
    inputs = tokens(), tokens(KEY_DIM, KEYS), tokens(VALUE_DIM, KEYS)
    gradients = []
    for attend in (layer, lambda *inputs: twin(*inputs)[0]):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        attend(*leaves).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    # gradients are sums of some 100 terms of size up to 1e3 of what EXACT allows
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-11)


# Laws


@torch.no_grad()
def test_grouped_heads_equal_full_heads_with_repeated_key_and_value_weights():
    grouped, full = layer_of(num_kv_heads=KV_HEADS), layer_of()
    state = grouped.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        heads = state[name].unflatten(0, (KV_HEADS, HEAD_DIM))
        state[name] = heads.repeat_interleave(HEADS // KV_HEADS, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(tokens()), full(tokens()), **EXACT)


@torch.no_grad()
def test_without_positions_the_order_of_words_means_nothing():
    """ "cat eats fish" and "fish eats cat" are the same sentence to it."""
    layer = layer_of(num_kv_heads=KV_HEADS)
    x = tokens()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], **EXACT)
    with_positions = layer_of(num_kv_heads=KV_HEADS, position=Rotary())
    assert (with_positions(x[:, order]) - with_positions(x)[:, order]).abs().max() > 1e-3


@torch.no_grad()
def test_a_future_token_never_changes_a_past_output():
    layer = layer_of(mask=Causal(), position=Rotary())
    x = tokens()
    changed = x.clone()
    changed[:, 3:] = 1e3
    torch.testing.assert_close(layer(changed)[:, :3], layer(x)[:, :3], **EXACT)


@torch.no_grad()
def test_one_text_alone_equals_it_in_the_padded_batch():
    layer = layer_of(num_kv_heads=KV_HEADS, position=Rotary())
    x = tokens()
    together = layer(x, mask=KeyPadding(torch.tensor([LENGTH, 3])))
    torch.testing.assert_close(layer(x[1:, :3]), together[1:, :3], **EXACT)


@torch.no_grad()
def test_a_shift_of_all_positions_changes_nothing():
    layer = layer_of(position=Rotary())
    positions = torch.arange(LENGTH)
    # float64 angles up to 1e4 are off by 1.8e-12
    torch.testing.assert_close(layer(tokens(), positions=positions + 10_000), layer(tokens()), rtol=0, atol=1e-10)


@torch.no_grad()
def test_every_mode_gives_the_same():
    layer = layer_of(num_kv_heads=KV_HEADS, mask=Causal(), dropout_p=0.5).eval()
    no_dropout = layer_of(num_kv_heads=KV_HEADS, mask=Causal()).train()
    x = tokens()
    expected = layer(x)
    torch.testing.assert_close(no_dropout(x), expected, **EXACT)
    torch.testing.assert_close(layer.attend(x, return_weights=True).output, expected, **EXACT)
    with torch.enable_grad():
        torch.testing.assert_close(layer(x), expected, **EXACT)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected, **EXACT)


@torch.no_grad()
def test_dropout_acts_in_training_alone():
    layer = layer_of(dropout_p=0.5)
    x = tokens()
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    weights = layer.attend(x, return_weights=True).weights  # those returned are from before dropout
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH, dtype=torch.float64))


def test_in_bfloat16_far_positions_stay_apart():
    """The error of the output stays that of bfloat16, 3 significant digits, at any position."""
    layer = layer_of(position=Rotary()).float()
    x = tokens().float()
    positions = torch.arange(LENGTH) + 100_000
    truth = layer(x, positions=positions)
    rounded = layer.bfloat16()(x.bfloat16(), positions=positions).float()
    error = (rounded - truth).abs().max() / truth.abs().max()
    near = layer(x.bfloat16()).float()
    layer.float()
    near_error = (near - layer(x)).abs().max() / truth.abs().max()
    assert error < 2 * near_error


# Claims that articles make


def test_an_attention_of_width_768_has_4_width_squared_parameters():
    with torch.device("meta"):
        without, with_biases = (MultiHeadAttention(768, 12, projection_bias=bias) for bias in (False, True))
    assert sum(parameter.numel() for parameter in without.parameters()) == 2_359_296
    assert sum(parameter.numel() for parameter in with_biases.parameters()) == 2_362_368


def test_the_number_of_heads_does_not_change_the_number_of_parameters():
    counts = set()
    with torch.device("meta"):
        for num_heads in (heads for heads in range(1, 769) if 768 % heads == 0):
            layer = MultiHeadAttention(768, num_heads)
            counts.add(sum(parameter.numel() for parameter in layer.parameters()))
    assert counts == {2_362_368}


def test_heads_of_full_size_lie_num_heads_widths_side_by_side_before_the_output_projection():
    reduced, full = MultiHeadAttention(24, 4), MultiHeadAttention(24, 4, head_dim=24)
    assert (reduced.out_proj.in_features, full.out_proj.in_features) == (24, 4 * 24)
    x = torch.randn(2, 5, 24)
    assert reduced(x).shape == full(x).shape == (2, 5, 24)


def test_shape_in_is_shape_out():
    assert MultiHeadAttention(64, 8)(torch.randn(32, 10, 64)).shape == (32, 10, 64)


def test_a_width_that_heads_cannot_share_is_refused_unless_head_dim_is_given():
    with pytest.raises(
        ConfigError, match=r"embed_dim must be a multiple of num_heads.*got 30 and 4 \(or give head_dim"
    ):
        MultiHeadAttention(30, 4)
    assert MultiHeadAttention(30, 4, head_dim=8)(torch.randn(2, 5, 30)).shape == (2, 5, 30)


# Construction and refusal


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_what_the_closed_form_says(name):
    layer = layer_of(**VARIANTS[name])
    norms = 2 * layer.config.head_dim if layer.config.qk_norm else 0
    table = layer.relative_bias.table.numel() if name == "T5" else 0  # counted with the stack
    counted = sum(parameter.numel() for parameter in layer.parameters())
    assert counted == attention_parameters(layer.config) + norms + table


def test_the_two_doors_build_the_same_layer():
    config = AttentionConfig(
        embed_dim=EMBED,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=10,
        v_head_dim=V_HEAD_DIM,
        key_dim=KEY_DIM,
        value_dim=VALUE_DIM,
        projection_bias="qkv",
        qk_norm=True,
        position=None,
        mask=SlidingWindow(3),
        scale=0.25,
        dropout_p=0.1,
    )
    layer = MultiHeadAttention.from_config(config, impl="reference")
    assert layer.config == config
    assert layer.impl == "reference"
    again = MultiHeadAttention.from_config(layer.config)
    assert again.config == config
    again.load_state_dict(layer.state_dict())
    assert MultiHeadAttention(EMBED, HEADS).config == AttentionConfig(embed_dim=EMBED, num_heads=HEADS, mask=Full())


FUSED = ["plain", "grouped", "own head sizes", "no biases", "biases but out", "normed, then rotary", "all at once"]


def fuse(layer):
    """The same layer with its three projections stacked in one."""
    fused = MultiHeadAttention.from_config(layer.config, fused_qkv=True, impl=layer.impl).double()
    state = layer.state_dict()
    for name in ("weight", "bias"):
        parts = [state.pop(f"{part}_proj.{name}") for part in "qkv" if f"{part}_proj.{name}" in state]
        state |= {f"qkv_proj.{name}": torch.cat(parts)} if parts else {}
    fused.load_state_dict(state)
    return fused


@pytest.mark.parametrize("name", FUSED)
def test_one_projection_for_all_gives_the_same(name):
    layer = layer_of(**VARIANTS[name])
    fused, x = fuse(layer), tokens()
    torch.testing.assert_close(fused(x), layer(x), **EXACT)
    fused(x).square().sum().backward()
    layer(x).square().sum().backward()
    parts = torch.split(fused.qkv_proj.weight.grad, fused.qkv_proj.sizes)
    for part, projection in zip(parts, (layer.q_proj, layer.k_proj, layer.v_proj), strict=True):
        torch.testing.assert_close(part, projection.weight.grad, rtol=1e-12, atol=1e-12)  # sums of a hundred terms
    if layer.config.position is None:
        key, value = tokens(length=KEYS), tokens(length=KEYS) + 1
        torch.testing.assert_close(fused(x, key, value), layer(x, key, value), **EXACT)


def count_products(projection, layer, *arguments):
    """How many matrix products a part runs in a call."""

    class Counter(TorchDispatchMode):
        is_inside, number = False, 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.number += self.is_inside and func.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.mm)
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        hooks = [
            projection.register_forward_pre_hook(lambda *_: setattr(counter, "is_inside", True)),
            projection.register_forward_hook(lambda *_: setattr(counter, "is_inside", False)),
        ]
        layer(*arguments)
    for hook in hooks:
        hook.remove()
    return counter.number


def test_one_projection_starts_as_three_would_and_runs_one_product():
    layer = MultiHeadAttention(EMBED, HEADS, num_kv_heads=KV_HEADS, fused_qkv=True)
    assert not layer.qkv_proj.bias.any()
    for part in torch.split(layer.qkv_proj.weight, layer.qkv_proj.sizes):
        bound = math.sqrt(6 / (EMBED + part.shape[0]))
        assert 0.8 * bound < part.abs().max() <= bound
    assert {name for name, _ in layer.named_parameters()} == {
        f"{module}.{kind}" for module in ("qkv_proj", "out_proj") for kind in ("weight", "bias")
    }
    x = torch.randn(2, LENGTH, EMBED)
    for arguments, expected in (((x,), 1), ((x, x, x), 1), ((x, x.clone()), 3), ((x, x, x.clone()), 3)):
        assert count_products(layer.qkv_proj, layer, *arguments) == expected
    with pytest.raises(ConfigError, match=r"tokens of one width for fused_qkv.*got 24, 11 and 11"):
        MultiHeadAttention(EMBED, HEADS, key_dim=KEY_DIM, fused_qkv=True)


@pytest.mark.parametrize("position", [ALiBi(), T5], ids=["ALiBi", "T5"])
@torch.no_grad()
def test_biases_read_positions_and_nothing_else(position):
    """Texts that lie side by side, each counted from 0, and a text with a gap; masks see the places in the row."""
    layer, x = layer_of(position=position), tokens()
    alone = layer(x[:, :2])
    positions = torch.tensor([0, 1, 0, 1, 2])
    packed = layer(x, positions=positions, mask=Documents(torch.tensor([2, 3])))
    torch.testing.assert_close(packed[:, :2], alone, **EXACT)
    torch.testing.assert_close(packed[:, 2:], layer(x[:, 2:]), **EXACT)
    shifted = layer(x, positions=torch.arange(LENGTH) + 40)
    torch.testing.assert_close(shifted, layer(x), **EXACT)
    assert not torch.allclose(layer(x, positions=2 * torch.arange(LENGTH)), layer(x))


def test_a_table_that_another_layer_owns_is_refused():
    with pytest.raises(UnsupportedError, match=r"a T5Bias must own its table.*owns_table=False"):
        MultiHeadAttention(EMBED, HEADS, position=T5Bias(owns_table=False))


def test_a_plain_layer_takes_the_short_way():
    """The scale that is torch's own is left to torch, so that a call comes down to one of torch's."""
    layer, x = layer_of().float(), torch.randn(BATCH, LENGTH, EMBED)
    layer(x)
    known = len(shortcut._known)
    assert known and layer(x).shape == x.shape and len(shortcut._known) == known


def test_biases_start_at_zero_and_weights_within_xaviers_bounds():
    layer = MultiHeadAttention(EMBED, HEADS, num_kv_heads=KV_HEADS)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        assert not projection.bias.any()
        bound = math.sqrt(6 / (projection.in_features + projection.out_features))
        assert 0.8 * bound < projection.weight.abs().max() <= bound


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query": (BATCH, LENGTH, 23)}, r"query must have shape \(batch, seq_len, embed_dim = 24\); got \(2, 5, 23\)"),
        ({"query": (LENGTH, EMBED)}, r"query must have shape \(batch, seq_len, embed_dim = 24\); got \(5, 24\)"),
        ({"key": (BATCH, KEYS, EMBED)}, r"key must have shape \(batch, seq_len, key_dim = 11\); got \(2, 7, 24\)"),
        (
            {"value": (BATCH, KEYS, KEY_DIM)},
            r"value must have shape \(batch, seq_len, value_dim = 13\); got \(2, 7, 11\)",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_wrong_shape_is_refused_by_name(arguments, text):
    shapes = {"query": (BATCH, LENGTH, EMBED), "key": (BATCH, KEYS, KEY_DIM), "value": (BATCH, KEYS, VALUE_DIM)}
    layer = MultiHeadAttention(EMBED, HEADS, key_dim=KEY_DIM, value_dim=VALUE_DIM)
    with pytest.raises(ConfigError, match=text):
        layer(**{name: torch.randn(shape) for name, shape in {**shapes, **arguments}.items()})


@pytest.mark.usefixtures("without_type_checks")
def test_lengths_and_batches_that_differ_are_refused():
    layer = MultiHeadAttention(EMBED, HEADS)
    x = torch.randn(BATCH, LENGTH, EMBED)
    with pytest.raises(HeadwiseError, match="5"):
        layer(x, x, torch.randn(BATCH, KEYS, EMBED))
    with pytest.raises(HeadwiseError, match="3"):
        layer(x, torch.randn(3, LENGTH, EMBED))


@pytest.mark.usefixtures("without_type_checks")
def test_a_tensor_is_no_mask():
    layer = MultiHeadAttention(EMBED, HEADS)
    x = torch.randn(BATCH, LENGTH, EMBED)
    with pytest.raises(ConfigError, match=r"mask must be a headwise Mask.*got a torch.bool Tensor"):
        layer(x, mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool))


def test_positions_without_a_use_are_refused():
    x = torch.randn(BATCH, LENGTH, EMBED)
    with pytest.raises(ConfigError, match=r"positions are read by a layer that was built with some, and this"):
        MultiHeadAttention(EMBED, HEADS)(x, positions=torch.arange(LENGTH))


def test_rotary_positions_across_two_texts_are_refused():
    layer = MultiHeadAttention(EMBED, HEADS, position=Rotary())
    x = torch.randn(BATCH, LENGTH, EMBED)
    assert torch.equal(layer(x, x, x), layer(x))
    with pytest.raises(UnsupportedError, match=r"must attend within one text.*got a key of its own"):
        layer(x, torch.randn(BATCH, KEYS, EMBED))


@torch.no_grad()
def test_rotary_frequencies_half_as_fast_are_positions_half_as_far():
    layer = layer_of(position=Rotary(scaling=LinearScaling(factor=2.0)))
    plain = layer_of(position=Rotary())
    positions = torch.arange(LENGTH)
    torch.testing.assert_close(layer(tokens(), positions=2 * positions), plain(tokens()), **EXACT)
    assert (layer(tokens()) - plain(tokens())).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("positions", "came"),
    [
        (torch.arange(1), r"torch.int64 of shape \(1,\)"),
        (torch.arange(4), r"torch.int64 of shape \(4,\)"),
        (torch.zeros(1, LENGTH, dtype=torch.int64), r"torch.int64 of shape \(1, 5\)"),
        (torch.zeros(BATCH, 1, dtype=torch.int64), r"torch.int64 of shape \(2, 1\)"),
        (torch.zeros(BATCH, 1, LENGTH, dtype=torch.int64), r"torch.int64 of shape \(2, 1, 5\)"),
        (torch.arange(LENGTH) * 0.5, r"torch.float32 of shape \(5,\)"),
        (torch.ones(LENGTH, dtype=torch.bool), r"torch.bool of shape \(5,\)"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_positions_that_are_not_one_whole_number_a_token_are_refused(positions, came):
    layer = MultiHeadAttention(EMBED, HEADS, position=Rotary())
    with pytest.raises(ConfigError, match=rf"one whole number a token, shape \(5,\) or \(2, 5\); got {came}"):
        layer(torch.randn(BATCH, LENGTH, EMBED), positions=positions)


def test_an_unknown_impl_is_refused_when_the_layer_is_built():
    with pytest.raises(UnsupportedError, match=r"impl must be one of reference, sdpa, .*and auto; got 'flash'"):
        MultiHeadAttention(EMBED, HEADS, impl="flash")


@torch.no_grad()
def test_the_norms_add_their_configs_epsilon_to_the_mean_square():
    layer = layer_of(qk_norm=True, qk_norm_eps=0.5)
    assert layer.config.qk_norm_eps == 0.5
    for norm in (layer.q_norm, layer.k_norm):
        ones = torch.ones(HEAD_DIM, dtype=torch.float64)
        torch.testing.assert_close(norm(ones), norm.weight / math.sqrt(1.5), **EXACT)
    assert MultiHeadAttention.from_config(layer.config).q_norm.eps == 0.5
