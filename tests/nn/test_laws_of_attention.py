"""Laws of MultiHeadAttention that need no oracle, tried on layers of every kind: any settings, any mode, any impl."""

from dataclasses import replace
from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.attention import ALiBi, AttentionConfig, Rotary, T5Bias
from headwise.config.scaling import DynamicNTKScaling, LongRoPEScaling, YaRNScaling
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import GlobalTokens, LocalWindow
from headwise.masks.tables import Documents
from headwise.nn.multihead import MultiHeadAttention

WIDTH, LENGTH = 7, 11
# One float64 operation rounds by 1.1e-16. Sums here have under 100 terms of size up to 10, and one follows the other
# three times: projection, weighted mean, projection. ALiBi's slopes are float32 in either term of a comparison.
EXACT = {"rtol": 0, "atol": 1e-12}
# Gradients are sums over tokens of products of such numbers, up to 1e3 in size.
GRADIENT = {"rtol": 1e-10, "atol": 1e-10}

POSITIONS = {
    "none": None,
    "rotary": Rotary(),
    "interleaved, a part": Rotary(pairing="interleaved", rotary_dim=2),
    "YaRN": Rotary(scaling=YaRNScaling(factor=3.0, original_max_positions=5)),
    "dynamic": Rotary(scaling=DynamicNTKScaling(factor=3.0, original_max_positions=5)),
    "LongRoPE": Rotary(
        rotary_dim=2, scaling=LongRoPEScaling(short_factors=(1.1,), long_factors=(3.0,), original_max_positions=5)
    ),
    "ALiBi": ALiBi(),
    "T5": T5Bias(num_buckets=8, max_distance=9),
}
MASKS = {
    "full": Full(),
    "causal": Causal(),
    "window": SlidingWindow(3),
    "local and global": LocalWindow(2, 1) | GlobalTokens(1),
    "own key hidden": Causal() & ~SlidingWindow(1),  # the first query sees nothing
}

# settings, and not configs, whose checks under test look at random items of what they hold
layers = st.fixed_dictionaries(
    {
        "num_kv_heads": st.sampled_from([1, 2, 3, 6]),
        "head_dim": st.sampled_from([2, 4, 6]),
        "v_head_dim": st.sampled_from([None, 5]),
        "projection_bias": st.sampled_from([True, False, "qkv"]),
        "qk_norm": st.booleans(),
        "position": st.sampled_from(list(POSITIONS.values())),
        "mask": st.sampled_from(list(MASKS.values())),
        "scale": st.sampled_from([None, 0.7]),
        "softcap": st.sampled_from([None, 1.3]),
        "sink": st.booleans(),
    }
)
seeds = st.integers(0, 2**16)


def law(test=None, *, examples=10, **more):
    """Try a law on so many layers."""
    if test is None:
        return partial(law, examples=examples, **more)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(layer=layers, seed=seeds, **more)
    def run(layer, **drawn):
        test(AttentionConfig(embed_dim=WIDTH, num_heads=6, **layer), **drawn)

    return run


def build(config, seed=0, **built):
    """A layer in float64 with weights in which a mistake shows: biases start at 0 and norms at 1."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention.from_config(config, **built).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return layer


def tokens(seed, batch=2, length=LENGTH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64)


def gradients(layer, x, weigh, **call):
    """Gradients of the input and of every weight, of a sum that weighs each number of the output otherwise."""
    leaf = x.clone().requires_grad_()
    output = layer(leaf, **call)
    return torch.autograd.grad((output * weigh(output)).sum(), [leaf, *layer.parameters()])


def waves(output):
    return torch.arange(output.numel(), dtype=output.dtype).reshape(output.shape).cos()


def impls_of(config):
    """The implementations that can serve a layer without weights asked for."""
    return ["reference", "auto", "blocked"] + ([] if config.softcap else ["sdpa"])


@law(examples=8)
def test_the_meaning_is_the_same_in_every_mode(config, seed):
    """Training or not, with gradients or without, weights asked for or not, by every implementation."""
    layer, x = build(config, seed, impl="reference"), tokens(seed)
    expected = layer(x).detach()
    for impl in impls_of(config):
        layer.impl = impl
        for training in (True, False):
            layer.train(training)
            torch.testing.assert_close(layer(x).detach(), expected, **EXACT)
            with torch.inference_mode():
                torch.testing.assert_close(layer(x), expected, **EXACT)
                torch.testing.assert_close(layer.attend(x).output, expected, **EXACT)
                if impl != "sdpa":
                    seen = layer.attend(x, return_logsumexp=True, return_weights=impl != "blocked")
                    torch.testing.assert_close(seen.output, expected, **EXACT)


@law
def test_weights_and_their_sums_are_what_the_output_is_made_of(config, seed):
    layer, x = build(config, seed), tokens(seed)
    seen = layer.attend(x, return_weights=True, return_logsumexp=True)
    total = seen.weights.sum(-1)
    if config.sink:
        share = torch.sigmoid(seen.logsumexp - layer.sink[:, None])  # exp(lse) / (exp(lse) + exp(sink))
    else:
        share = (seen.logsumexp > -torch.inf).double()
    torch.testing.assert_close(total, share, **EXACT)
    v = layer.v_proj(x).unflatten(-1, (config.num_kv_heads, -1)).transpose(1, 2)
    v = v.repeat_interleave(config.queries_per_kv, dim=1)
    mixed = layer.out_proj((seen.weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(seen.output, mixed, **EXACT)


@law
def test_gradients_are_those_of_the_reference_and_of_one_projection_for_all(config, seed):
    separate, x = build(config, seed, impl="reference"), tokens(seed)
    expected = gradients(separate, x, waves)
    for impl in impls_of(config):
        separate.impl = impl
        torch.testing.assert_close(gradients(separate, x, waves), expected, **GRADIENT)
    fused, state = build(config, seed, fused_qkv=True), separate.state_dict()
    for kind in ("weight", "bias"):
        parts = [state.pop(f"{part}_proj.{kind}") for part in "qkv" if f"{part}_proj.{kind}" in state]
        state |= {f"qkv_proj.{kind}": torch.cat(parts)} if parts else {}
    fused.load_state_dict(state, strict=True)
    torch.testing.assert_close(fused(x), separate(x), **EXACT)
    found = dict(zip(["x", *dict(fused.named_parameters())], gradients(fused, x, waves), strict=True))
    names = dict(zip(["x", *dict(separate.named_parameters())], expected, strict=True))
    torch.testing.assert_close(found["x"], names["x"], **GRADIENT)
    stacked = torch.cat([names[f"{part}_proj.weight"] for part in "qkv"])
    torch.testing.assert_close(found["qkv_proj.weight"], stacked, **GRADIENT)


@law
def test_gradients_are_slopes(config, seed):
    layer, x = build(config, seed), tokens(seed, batch=1, length=3).requires_grad_()
    torch.manual_seed(seed)  # the fast mode draws the direction in which it looks
    assert torch.autograd.gradcheck(layer, (x,), fast_mode=True)


@law
@torch.no_grad()
def test_a_text_alone_equals_it_in_the_batch(config, seed):
    layer, x = build(config, seed), tokens(seed, batch=3)
    together = layer(x)
    for row in range(3):
        torch.testing.assert_close(layer(x[row : row + 1]), together[row : row + 1], **EXACT)


def pad(texts, side, filler):
    """Texts of other lengths in one batch, with something between: tokens, mask, positions, where texts stand."""
    longest = max(text.shape[1] for text in texts)
    batch = torch.full((len(texts), longest, WIDTH), filler, dtype=torch.float64)
    positions = torch.zeros(len(texts), longest, dtype=torch.int64)
    places = []
    for row, text in enumerate(texts):
        length = text.shape[1]
        place = slice(longest - length, None) if side == "left" else slice(0, length)
        batch[row, place], positions[row, place] = text[0], torch.arange(length)
        places.append(place)
    mask = KeyPadding(torch.tensor([text.shape[1] for text in texts]), side=side, padded_len=longest)
    return batch, mask, positions, places


@law(side=st.sampled_from(["left", "right"]), lengths=st.lists(st.integers(1, LENGTH), min_size=2, max_size=3))
def test_padded_texts_equal_each_alone_whatever_the_padding_holds(config, seed, side, lengths):
    """By positions that are 0 in the padding, even where frequencies depend on the length of a text."""
    if side == "left" and config.mask == MASKS["local and global"]:
        config = replace(config, mask=LocalWindow(2, 1))  # its global token is the first of the row, not of the text
    layer = build(config, seed)
    texts = [tokens(seed + row, 1, length) for row, length in enumerate(lengths)]
    alone = [layer(text) for text in texts]
    batch, mask, positions, places = pad(texts, side, torch.nan)
    call = {} if config.position is None else {"positions": positions}
    with torch.no_grad():
        for impl in impls_of(config):
            layer.impl = impl
            together = layer(batch, mask=mask, **call)
            for row, place in enumerate(places):
                torch.testing.assert_close(together[row : row + 1, place], alone[row], **EXACT)
    layer.impl = "auto"
    # A weight's gradient is a sum over tokens in which padding counts 0 times, so there it must be some number.
    batch, mask, positions, places = pad(texts, side, 1e3)
    together = layer(batch, mask=mask, **call)
    parts = [together[row : row + 1, place] for row, place in enumerate(places)]
    loss = sum((part * waves(part)).sum() for part in parts)
    expected = sum((output * waves(output)).sum() for output in alone)
    weights = list(layer.parameters())
    torch.testing.assert_close(torch.autograd.grad(loss, weights), torch.autograd.grad(expected, weights), **GRADIENT)


@law
def test_a_key_in_the_padding_reaches_neither_output_nor_gradient(config, seed):
    """Tokens of another text, padded with NaN: no position can be told across two texts."""
    config = replace(config, position=None, mask=Full())
    layer, query = build(config, seed), tokens(seed).requires_grad_()
    key = tokens(seed + 1, length=5)
    lengths = torch.tensor([5, 2])
    padded = key.clone()
    padded[1, 2:] = torch.nan
    leaf = padded.requires_grad_()
    output = layer(query, leaf, mask=KeyPadding(lengths))
    torch.testing.assert_close(output[1:], layer(query[1:], key[1:, :2]), **EXACT)
    of_query, of_key = torch.autograd.grad((output * waves(output)).sum(), [query, leaf])
    assert of_query.isfinite().all()
    assert of_key[0].isfinite().all() and of_key[1, :2].isfinite().all()
    if not config.qk_norm:  # whose own backward multiplies the 0 that comes by the NaN that was there
        assert not of_key[1, 2:].any()


@law(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
@torch.no_grad()
def test_packed_texts_equal_each_alone(config, seed, lengths):
    """With positions that start anew in each. Rules that read a length see texts within their original one."""
    if config.mask == MASKS["local and global"]:
        config = replace(config, mask=LocalWindow(2, 1))  # its global token is the first of the row, not of the text
    layer = build(config, seed)
    texts = [tokens(seed + row, 1, length) for row, length in enumerate(lengths)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    call = {} if config.position is None else {"positions": positions}
    packed = layer(torch.cat(texts, dim=1), mask=Documents(torch.tensor(lengths)), **call)
    for part, text in zip(packed.split(lengths, dim=1), texts, strict=True):
        torch.testing.assert_close(part, layer(text), **EXACT)


@law(examples=8)
@torch.no_grad()
def test_a_later_token_changes_no_earlier_output_under_a_causal_mask(config, seed):
    """But for rules of positions by which all of a text is turned by its length."""
    config = replace(config, mask=config.mask & Causal())
    for impl in impls_of(config):
        layer, x = build(config, seed, impl=impl), tokens(seed)
        changed = x.clone()
        changed[:, 6:] = 1e3 * x[:, 6:].flip(0)
        assert torch.equal(layer(changed)[:, :6], layer(x)[:, :6])
        if not (isinstance(config.position, Rotary) and config.position.reads_length):
            torch.testing.assert_close(layer(x[:, :6]), layer(x)[:, :6], **EXACT)


@law
@torch.no_grad()
def test_without_positions_the_order_of_tokens_means_nothing(config, seed):
    layer, x = build(replace(config, position=None, mask=Full()), seed), tokens(seed)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], **EXACT)


@law
@torch.no_grad()
def test_with_positions_tokens_may_lie_in_any_order(config, seed):
    """What a token is told by is its position, not its place in the row."""
    config = replace(config, position=config.position or Rotary(), mask=Full())
    layer, x = build(config, seed), tokens(seed)
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(layer(x[:, order], positions=order), layer(x)[:, order], **EXACT)


@law
@torch.no_grad()
def test_positions_count_by_their_distances_alone(config, seed):
    position = config.position or ALiBi()
    if isinstance(position, Rotary) and position.reads_length:
        position = replace(position, scaling=None)
    layer, x = build(replace(config, position=position), seed), tokens(seed)
    # Angles of rotary positions up to 1011 have a spacing of 1.1e-13, and weights follow scores of size 10.
    shifted = layer(x, positions=torch.arange(LENGTH) + 1000)
    torch.testing.assert_close(shifted, layer(x), rtol=0, atol=1e-10)


@law
@torch.no_grad()
def test_grouped_heads_equal_full_heads_of_repeated_weights(config, seed):
    grouped, x = build(config, seed), tokens(seed)
    full, state = build(replace(config, num_kv_heads=6), seed), grouped.state_dict()
    for name in [name for name in state if name.startswith(("k_proj", "v_proj"))]:
        heads = state[name].unflatten(0, (config.num_kv_heads, -1))
        state[name] = heads.repeat_interleave(config.queries_per_kv, dim=0).flatten(0, 1)
    full.load_state_dict(state, strict=True)
    torch.testing.assert_close(grouped(x), full(x), **EXACT)


@law(examples=8)
def test_a_query_without_a_key_gets_the_bias_of_the_output_projection(config, seed):
    """And trains: gradients stay finite, and its own token gets none through it."""
    layer, x = build(replace(config, mask=Full()), seed), tokens(seed).requires_grad_()
    nothing = KeyPadding(torch.tensor([LENGTH, 0]))
    bias = torch.zeros(WIDTH, dtype=torch.float64) if layer.out_proj.bias is None else layer.out_proj.bias
    for impl in impls_of(config):
        for training in (True, False):
            layer.impl = impl
            output = layer.train(training)(x, mask=nothing)
            assert torch.equal(output[1], bias.expand(LENGTH, WIDTH))
            torch.testing.assert_close(output[:1], layer(x[:1]), **EXACT)
    found = torch.autograd.grad((output * waves(output)).sum(), [x, *layer.parameters()])
    assert all(gradient.isfinite().all() for gradient in found)
    assert not found[0][1].any()


@law(examples=8)
def test_what_is_computed_again_in_backward_changes_nothing(config, seed):
    layer, x = build(config, seed), tokens(seed)
    output, expected = layer(x), gradients(layer, x, waves)
    layer.recomputes = True
    assert torch.equal(layer(x), output)
    assert all(map(torch.equal, gradients(layer, x, waves), expected))
