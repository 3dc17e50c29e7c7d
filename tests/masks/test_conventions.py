import pytest
import torch
from torch import nn

from headwise.errors import ConfigError
from headwise.masks.conventions import mask_from_huggingface, mask_from_torch
from headwise.masks.dense import dense_mask
from headwise.masks.patterns import Causal, Full

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
SIZES = {"batch_size": BATCH, "num_heads": HEADS, "query_len": QUERIES, "key_len": KEYS}
INFINITY = float("inf")


def random_bools(*shape, seed=0):
    """Bools of which the first of each row is False, so that no row drops everything."""
    bools = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    bools[..., 0] = False
    return bools


def random_floats(*shape, seed=0, dtype=torch.float64):
    floats = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return floats.masked_fill(random_bools(*shape, seed=seed + 1), -INFINITY)


def scores_of(converted, query_len=QUERIES, key_len=KEYS):
    """What is added to scores, -inf where a pair is dropped: (B, H, T, S)."""
    sizes = {**SIZES, "query_len": query_len, "key_len": key_len}
    allowed = dense_mask(converted.mask, **sizes).expand(BATCH, HEADS, query_len, key_len)
    bias = torch.zeros((), dtype=torch.float64) if converted.bias is None else converted.bias
    return torch.where(allowed, bias.expand(allowed.shape), -INFINITY)


TORCH_CALLS = {
    "nothing": {},
    "padding": {"key_padding_mask": random_bools(BATCH, KEYS)},
    "padding that adds": {"key_padding_mask": random_floats(BATCH, KEYS)},
    "pairs": {"attn_mask": random_bools(QUERIES, KEYS)},
    "pairs that add": {"attn_mask": random_floats(QUERIES, KEYS)},
    "pairs of heads": {"attn_mask": random_bools(BATCH * HEADS, QUERIES, KEYS)},
    "pairs of heads that add": {"attn_mask": random_floats(BATCH * HEADS, QUERIES, KEYS)},
    "both": {"key_padding_mask": random_bools(BATCH, KEYS), "attn_mask": random_bools(QUERIES, KEYS, seed=5)},
    "both that add": {
        "key_padding_mask": random_floats(BATCH, KEYS),
        "attn_mask": random_floats(QUERIES, KEYS, seed=5),
    },
}


@pytest.mark.parametrize("call", TORCH_CALLS.values(), ids=TORCH_CALLS)
def test_a_mask_of_torch_weighs_as_its_own_module_does(call):
    """Query and key projections are the identity, so that the scores are known and the weights are the softmax."""
    module = nn.MultiheadAttention(HEADS * 2, HEADS, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(HEADS * 2, dtype=torch.float64).repeat(3, 1))
    query, key = random_floats(BATCH, QUERIES, 6), random_floats(BATCH, KEYS, 6, seed=3)
    query, key = query.nan_to_num(neginf=0.5), key.nan_to_num(neginf=0.25)
    theirs = module(query, key, key, average_attn_weights=False, **call)[1]
    by_head = query.unflatten(-1, (HEADS, 2)).transpose(1, 2), key.unflatten(-1, (HEADS, 2)).transpose(1, 2)
    scores = by_head[0] @ by_head[1].mT / 2**0.5
    ours = (scores + scores_of(mask_from_torch(**call, num_heads=HEADS))).softmax(-1)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)  # weights are at most 1, and rounded some 20 times


def test_a_mask_that_drops_only_has_no_bias_and_one_that_adds_only_drops_nothing():
    drops = torch.zeros(QUERIES, KEYS).masked_fill(random_bools(QUERIES, KEYS), -INFINITY)
    assert mask_from_torch(attn_mask=drops).bias is None
    adds = random_floats(QUERIES, KEYS).nan_to_num(neginf=-1e9)
    converted = mask_from_torch(attn_mask=adds)
    assert converted.mask == Full()
    assert torch.equal(converted.bias, adds[None, None])
    assert mask_from_torch() == (Full(), None)
    assert mask_from_huggingface(None) == (Full(), None)
    assert mask_from_huggingface(torch.zeros(1, 1, 2, 3)) == (Full(), None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_lowest_number_of_a_dtype_drops_and_the_next_one_does_not(dtype):
    lowest = torch.tensor(torch.finfo(dtype).min, dtype=dtype)
    above = torch.nextafter(torch.tensor(max(lowest.item(), torch.finfo(torch.bfloat16).min), dtype=dtype), -lowest)
    mask, bias = mask_from_huggingface(torch.stack([lowest, above, torch.zeros((), dtype=dtype)]).view(1, 1, 1, 3))
    assert mask.table.flatten().tolist() == [False, True, True]
    assert torch.equal(bias.flatten(), torch.stack([torch.zeros((), dtype=dtype), above, torch.zeros((), dtype=dtype)]))


def test_the_lowest_bfloat16_drops_in_wider_dtypes_too():
    cast = torch.tensor([torch.finfo(torch.bfloat16).min, 0.0]).to(torch.float32).view(1, 1, 1, 2)
    assert mask_from_huggingface(cast).mask.table.flatten().tolist() == [False, True]


def test_a_bias_keeps_its_gradient_and_dropped_pairs_have_none():
    learned = random_floats(QUERIES, KEYS).requires_grad_()
    bias = mask_from_torch(attn_mask=learned).bias
    bias.sum().backward()
    assert torch.equal(learned.grad, (learned.detach() != -INFINITY).double())
    zeros = torch.zeros(QUERIES, KEYS, requires_grad=True)
    assert mask_from_torch(attn_mask=zeros).bias.requires_grad


def test_causal_and_a_mask_both_hold():
    drops = random_bools(KEYS, KEYS)
    converted = mask_from_torch(attn_mask=drops, is_causal=True)
    expected = ~drops & torch.ones(KEYS, KEYS, dtype=torch.bool).tril()
    assert torch.equal(scores_of(converted, query_len=KEYS)[1, 2] == 0, expected)
    assert mask_from_torch(is_causal=True) == (Causal(), None)
    with pytest.raises(ConfigError, match=r"as many queries as keys .* attn_mask of 5 queries and 7"):
        mask_from_torch(attn_mask=random_bools(QUERIES, KEYS), is_causal=True)


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32, torch.uint8])
def test_a_row_of_ones_and_zeros_keeps_the_ones(dtype):
    keep = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    for is_causal in (False, True):
        converted = mask_from_huggingface(keep.to(dtype), is_causal=is_causal)
        expected = keep.bool()[:, None, None, :].expand(BATCH, HEADS, QUERIES, KEYS)
        if is_causal:
            expected = expected & torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
        assert torch.equal(scores_of(converted) == 0, expected)
        assert converted.bias is None


def test_four_dimensions_keep_or_add():
    keep = ~random_bools(BATCH, 1, QUERIES, KEYS)
    assert torch.equal(scores_of(mask_from_huggingface(keep)) == 0, keep.expand(BATCH, HEADS, QUERIES, KEYS))
    lowest = torch.finfo(torch.float32).min
    adds = torch.zeros(keep.shape).masked_fill(~keep, lowest)
    converted = mask_from_huggingface(adds)
    assert torch.equal(converted.mask.table, keep)
    assert converted.bias is None
    assert torch.equal(mask_from_huggingface(adds + adds).mask.table, keep)  # minus infinity, as sums of masks are
    position = random_floats(1, HEADS, QUERIES, KEYS)
    assert torch.equal(scores_of(mask_from_huggingface(position)), position.expand(BATCH, HEADS, QUERIES, KEYS))


def test_inside_a_compiled_graph_floats_are_a_mask_and_a_bias(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    floats = random_floats(1, HEADS, QUERIES, KEYS)
    mask, bias = mask_from_huggingface(floats)
    assert torch.equal(torch.where(mask.table, bias, -INFINITY), floats)
    assert torch.equal(mask_from_huggingface(torch.zeros(1, 1, 2, 3)).bias, torch.zeros(1, 1, 2, 3))


FLOATS = torch.zeros(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: mask_from_torch(attn_mask=torch.ones(2, 3).long()),
            r"True = drop.*int64.*1 = keep: Explicit\.from_keep_mask",
        ),
        (lambda: mask_from_torch(key_padding_mask=torch.ones(2, 3).byte()), r"uint8.*Explicit\.from_keep_mask"),
        (
            lambda: mask_from_torch(attn_mask=torch.eye(3)),
            r"ones and zeros alone are no mask.*from_keep_mask\(mask\.bool",
        ),
        (lambda: mask_from_torch(attn_mask=torch.full((2, 2), INFINITY)), "-inf to drop a pair; got NaN or infinity"),
        (lambda: mask_from_torch(attn_mask=torch.full((2, 2), float("nan"))), "got NaN or infinity"),
        (lambda: mask_from_torch(attn_mask=torch.ones(6, 2, 2).bool()), "got 6 tables and num_heads None"),
        (lambda: mask_from_torch(attn_mask=torch.ones(6, 2, 2).bool(), num_heads=4), "got 6 tables and num_heads 4"),
        (
            lambda: mask_from_torch(attn_mask=torch.ones(1, 6, 2, 2).bool()),
            r"attn_mask must be a tensor of shape \(query",
        ),
        (
            lambda: mask_from_torch(key_padding_mask=torch.ones(1, 2, 2).bool()),
            r"key_padding_mask must be .* shape \(1, 2, 2\)",
        ),
        (lambda: mask_from_huggingface(torch.ones(2, 3, 3)), r"attention_mask must be .* got shape \(2, 3, 3\)"),
        (lambda: mask_from_huggingface(torch.tensor([[1, 1, 2]])), r"got 2 \(rows that number .*from_segment_ids"),
        (
            lambda: mask_from_huggingface(torch.tensor([[0.0, -1e4]])),
            r"1 \(a token\) and 0 \(padding\) alone; got -10000\.0",
        ),
        (lambda: mask_from_huggingface(FLOATS.long()), r"True = keep.*int64.*Explicit\.from_keep_mask"),
        (lambda: mask_from_huggingface(FLOATS + torch.eye(2)), "ones and zeros alone are no mask"),
    ],
)
def test_what_could_mean_two_things_is_refused_by_name(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_ones_and_zeros_that_are_learned_are_a_bias():
    learned = torch.eye(QUERIES, requires_grad=True)
    for converted in (mask_from_torch(attn_mask=learned), mask_from_huggingface(learned[None, None])):
        assert converted.mask == Full()
        assert torch.equal(converted.bias[0, 0], learned)


LATER = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64, torch.bfloat16])
def test_a_causal_table_of_a_causal_call_is_causal_and_nothing_else(dtype):
    table = LATER if dtype == torch.bool else torch.zeros(KEYS, KEYS, dtype=dtype).masked_fill(LATER, -INFINITY)
    assert mask_from_torch(attn_mask=table, is_causal=True) == (Causal(), None)
    assert torch.equal(mask_from_torch(attn_mask=table).mask.table[0, 0], ~LATER)
    for row, column in ((2, 1), (1, 1), (KEYS - 1, 0), (3, 4), (0, KEYS - 1)):  # one pair is enough to be another one
        other = table.clone()
        other[row, column] = ~other[row, column] if dtype == torch.bool else -0.5
        converted = mask_from_torch(attn_mask=other, is_causal=True)
        expected = torch.where(LATER, -INFINITY, 0.0 if dtype == torch.bool else other.double())
        if dtype == torch.bool:
            expected = expected.masked_fill(other, -INFINITY)
        assert torch.equal(scores_of(converted, query_len=KEYS)[1, 2], expected.to(torch.float64))


def test_a_causal_table_that_is_learned_keeps_its_gradient():
    learned = torch.zeros(KEYS, KEYS).masked_fill(LATER, -INFINITY).requires_grad_()
    assert mask_from_torch(attn_mask=learned, is_causal=True).bias.requires_grad


def test_inside_a_transform_of_functions_nobody_looks():
    floats = random_floats(3, QUERIES, KEYS)

    def scores(mask):
        return scores_of(mask_from_torch(attn_mask=mask))[0, 0]

    assert torch.equal(torch.func.vmap(scores)(floats), floats)
    keep = random_bools(3, KEYS)

    def kept(row):
        return mask_from_huggingface(row[None]).mask.table.flatten()

    assert torch.equal(torch.func.vmap(kept)(keep.long()), keep)
