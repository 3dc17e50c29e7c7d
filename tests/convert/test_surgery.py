"""A pruned layer equals the whole one with those heads' outputs at 0; merged heads are means of what they stand for."""

import itertools

import pytest
import torch

from headwise.config.attention import ALiBi, Rotary, T5Bias
from headwise.convert.surgery import fuse_qkv, merge_kv_heads, prune_heads, split_qkv
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal
from headwise.nn.multihead import MultiHeadAttention

BATCH, LENGTH = 2, 5
EMBED, HEADS, KV_HEADS, HEAD_DIM, V_HEAD_DIM = 24, 6, 3, 10, 5
EXACT = {"rtol": 0, "atol": 1e-13}  # float64 sums of under 100 terms of size about 1


def layer_of(**settings):
    torch.manual_seed(0)
    layer = MultiHeadAttention(EMBED, HEADS, **settings).double()
    with torch.no_grad():  # biases start at 0 and norms at 1, where a mistake would not show
        for parameter in layer.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
    return layer


def tokens():
    return torch.randn(BATCH, LENGTH, EMBED, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


GROUPED = {
    "num_kv_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "v_head_dim": V_HEAD_DIM,
    "qk_norm": True,
    "position": Rotary(),
    "mask": Causal(),
    "scale": 0.7,
    "impl": "reference",
}


@pytest.mark.parametrize(
    ("settings", "heads", "left"),
    [
        ({}, [0], (5, 5)),
        ({}, [1, 3, 4], (3, 3)),
        ({"projection_bias": False}, [5, 2], (4, 4)),
        ({"projection_bias": "qkv"}, {0, 1, 2, 3, 4}, (1, 1)),
        (GROUPED, [2, 3], (4, 2)),  # a whole group
        (GROUPED, [0, 1, 4, 5], (2, 1)),
        (GROUPED, [0, 3, 4], (3, 3)),  # one of each group
        (GROUPED, [0, 1, 2, 5], (2, 2)),  # one group, and one of each other
        ({"num_kv_heads": 1}, [3], (5, 1)),
        (GROUPED | {"fused_qkv": True}, [2, 3], (4, 2)),
        ({"fused_qkv": True, "projection_bias": False}, [0], (5, 5)),
        ({"sink": True, "softcap": 2.0}, [1, 4], (4, 4)),
        ({"position": T5Bias(num_buckets=8, max_distance=7)}, [1, 4], (4, 4)),
        ({}, [], (6, 6)),
    ],
)
@torch.no_grad()
def test_a_pruned_layer_equals_the_whole_one_with_those_heads_at_0(settings, heads, left):
    layer = layer_of(**settings, dropout_p=0.25).eval()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    pruned = prune_heads(layer, heads)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    computed = pruned(tokens())
    for head in heads:
        size = layer.config.v_head_dim
        layer.out_proj.weight[:, head * size : (head + 1) * size] = 0.0
    torch.testing.assert_close(computed, layer(tokens()), **EXACT)
    assert (pruned.config.num_heads, pruned.config.num_kv_heads) == left
    assert pruned.config.scale == layer.config.scale
    assert (pruned.config.dropout_p, pruned.training, pruned.impl) == (0.25, False, layer.impl)
    assert (pruned.qkv_proj is None) == (layer.qkv_proj is None)


def test_heads_of_which_groups_would_stay_uneven_are_refused_and_no_others():
    layer = layer_of(**GROUPED)
    for heads in itertools.chain.from_iterable(itertools.combinations(range(HEADS), size) for size in range(1, HEADS)):
        served = {len({2 * group, 2 * group + 1} - set(heads)) for group in range(KV_HEADS)} - {0}
        if len(served) == 1:
            pruned = prune_heads(layer, heads)
            assert pruned.config.queries_per_kv == served.pop()
        else:
            with pytest.raises(UnsupportedError, match="heads must go in whole groups, or the same number from every"):
                prune_heads(layer, heads)
    with pytest.raises(UnsupportedError, match=r"got \[0\], which leaves 1 of kv head 0, 2 of kv head 1, 2 of kv head"):
        prune_heads(layer, [0])


def test_numbers_of_no_head_and_all_heads_are_refused():
    for heads in ([6], [-1], range(6)):
        with pytest.raises(ConfigError, match=r"heads must be some of 0 to 5, and not all of them; got \["):
            prune_heads(layer_of(), heads)


@pytest.mark.parametrize("heads", [[True, False], (True,), [1.0], 0, {0: [1, 2]}, "0", torch.tensor([0])])
@pytest.mark.usefixtures("without_type_checks")
def test_what_is_no_collection_of_numbers_is_refused(heads):
    with pytest.raises(ConfigError, match="heads must be a collection of whole numbers, one for each that goes; got"):
        prune_heads(layer_of(), heads)


def test_masks_and_positions_that_tell_heads_apart_are_refused():
    mask = BigBird(num_blocks=4, block_size=2, num_random=1)
    with pytest.raises(UnsupportedError, match=r"mask must be the same for all heads .*got \(BigBird"):
        prune_heads(layer_of(mask=mask & Causal()), [0])
    with pytest.raises(UnsupportedError, match=r"position must not be ALiBi .*got ALiBi\("):
        prune_heads(layer_of(position=ALiBi()), [0])
    assert prune_heads(layer_of(mask=BigBird(num_blocks=4, block_size=2, num_random=0)), [0]).config.num_heads == 5


# Merged key/value heads


@pytest.mark.parametrize(("before", "after"), [(6, 3), (6, 2), (6, 1), (6, 6), (3, 1)])
@torch.no_grad()
def test_a_merged_head_is_the_mean_of_those_it_stands_for(before, after):
    layer = layer_of(num_kv_heads=before, head_dim=HEAD_DIM, v_head_dim=V_HEAD_DIM)
    merged = merge_kv_heads(layer, after)
    assert (merged.config.num_heads, merged.config.num_kv_heads) == (HEADS, after)
    each = before // after
    for name, size in (("k_proj", HEAD_DIM), ("v_proj", V_HEAD_DIM)):
        old, new = layer.get_submodule(name), merged.get_submodule(name)
        for group in range(after):
            for row in range(size):
                rows = [(group * each + member) * size + row for member in range(each)]
                mean = sum(old.weight[one] for one in rows) / each
                torch.testing.assert_close(new.weight[group * size + row], mean, rtol=0, atol=1e-15)
                mean = sum(old.bias[one] for one in rows) / each
                torch.testing.assert_close(new.bias[group * size + row], mean, rtol=0, atol=1e-15)
    for name in ("q_proj", "out_proj"):
        assert torch.equal(merged.get_submodule(name).weight, layer.get_submodule(name).weight)


@torch.no_grad()
def test_merging_equal_heads_changes_nothing():
    layer = layer_of(**GROUPED | {"num_kv_heads": HEADS}).eval()
    for projection in (layer.k_proj, layer.v_proj):
        for tensor in (projection.weight, projection.bias):
            heads = tensor.unflatten(0, (KV_HEADS, HEADS // KV_HEADS, -1))
            heads.copy_(heads[:, :1].clone())
    merged = merge_kv_heads(layer, KV_HEADS)
    torch.testing.assert_close(merged(tokens()), layer(tokens()), **EXACT)
    assert (merged.training, merged.impl) == (False, "reference")
    assert layer.config.num_kv_heads == HEADS


def test_a_layer_without_biases_is_merged_too():
    merged = merge_kv_heads(layer_of(projection_bias=False), 2)
    assert merged.k_proj.weight.shape == (8, EMBED) and merged.k_proj.bias is None


@torch.no_grad()
def test_a_fused_layer_is_merged_to_a_fused_one():
    layer = layer_of(**GROUPED, sink=True)
    layer.recomputes = True
    merged = merge_kv_heads(fuse_qkv(layer), 1)
    assert merged.qkv_proj is not None and merged.recomputes
    torch.testing.assert_close(merged(tokens()), merge_kv_heads(layer, 1)(tokens()), **EXACT)


@pytest.mark.usefixtures("without_type_checks")
def test_a_number_that_does_not_divide_is_refused():
    for number, text in (
        (0, "between 1 and .* got 0"),
        (True, "a whole number; got True"),
        (2.0, "a whole number; got 2"),
    ):
        with pytest.raises(ConfigError, match=f"num_kv_heads must be {text}"):
            merge_kv_heads(layer_of(), number)
    for number in (4, 12):
        with pytest.raises(ConfigError, match=rf"num_kv_heads must divide the layer's own, .*got {number} for 6"):
            merge_kv_heads(layer_of(), number)


# Fused projections


@pytest.mark.parametrize("settings", [{}, GROUPED, {"projection_bias": False}], ids=["plain", "grouped", "no biases"])
@torch.no_grad()
def test_a_fused_layer_computes_the_same_and_splits_again_without_a_bit_lost(settings):
    layer = layer_of(**settings).eval()
    fused = fuse_qkv(layer)
    assert fused.qkv_proj is not None and not fused.training
    torch.testing.assert_close(fused(tokens()), layer(tokens()), **EXACT)
    split = split_qkv(fused)
    expected = layer.state_dict()
    assert list(split.state_dict()) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in split.state_dict().items())


def test_tokens_of_different_widths_are_not_fused():
    with pytest.raises(ConfigError, match="tokens of one width for fused_qkv"):
        fuse_qkv(layer_of(key_dim=11))


# What is kept, and what is refused lest it be lost

SURGERIES = {
    "prune": lambda layer: prune_heads(layer, [0, 1]),
    "merge": lambda layer: merge_kv_heads(layer, 1),
    "split": split_qkv,
}


@pytest.mark.parametrize("surgery", SURGERIES.values(), ids=SURGERIES)
def test_each_weight_keeps_its_dtype_and_stays_frozen(surgery):
    layer = layer_of(num_kv_heads=KV_HEADS, qk_norm=True).bfloat16()
    layer.q_norm.float()
    layer.v_proj.bias.requires_grad_(False)
    layer.k_proj.weight.requires_grad_(False)
    with torch.no_grad():
        made = surgery(layer)
    assert {name: (one.dtype, one.requires_grad) for name, one in made.named_parameters()} == {
        name: (one.dtype, one.requires_grad) for name, one in layer.named_parameters()
    }
    assert torch.equal(made.q_norm.weight, layer.q_norm.weight)
    assert made.q_norm.weight.dtype == torch.float32 and not made.v_proj.bias.requires_grad


def test_projections_that_are_not_frozen_alike_or_have_several_dtypes_are_not_fused():
    layer = layer_of()
    layer.k_proj.weight.requires_grad_(False)
    with pytest.raises(UnsupportedError, match=r"must all ask for gradients or none .* for k_proj.weight alone"):
        fuse_qkv(layer)
    assert not any(one.requires_grad for one in fuse_qkv(layer_of().requires_grad_(False)).parameters())
    layer = layer_of()
    layer.k_proj.float()
    with pytest.raises(
        UnsupportedError, match=r"one dtype .* q_proj.weight in torch.float64 and k_proj.weight in torch.fl"
    ):
        fuse_qkv(layer)


def test_a_layer_that_is_no_longer_plain_is_refused():
    class Other(MultiHeadAttention):
        pass

    layer = layer_of()
    layer.out_proj = torch.nn.Sequential(layer.out_proj)
    for surgery in (*SURGERIES.values(), fuse_qkv):
        with pytest.raises(UnsupportedError, match=r"layer must be a MultiHeadAttention, not a .*got a Other"):
            surgery(Other(EMBED, HEADS))
        with pytest.raises(UnsupportedError, match=r"out_proj must be a plain Linear to convert .*; got a Sequential"):
            surgery(layer)
        with pytest.raises(UnsupportedError, match=r"q_proj.weight must be in memory to be converted; got .* on meta"):
            surgery(layer_of().to("meta"))
    layer = layer_of()
    layer.q_proj.weight = torch.nn.Parameter(layer.q_proj.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedError, match=r"q_proj.weight must be in one of .*; got torch.int8 \(quantised"):
        split_qkv(layer)
