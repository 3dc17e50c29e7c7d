import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow
from headwise.masks.tables import Documents
from headwise.ops.attention import attention
from headwise.ops.blocked import indexed
from headwise.ops.blocked.idle import find_idle
from headwise.ops.blocked.work import Work
from headwise.ops.call import Call
from headwise.ops.lowering import skip_unread_keys
from headwise.positions.bias import ALiBiBias


class Striped(Mask):
    """The first key is hidden from all, and each head sees every other key."""

    def allows(self, batch, head, query_index, key_index):
        return (key_index > 0) & ((key_index + head) % 2 == 0)


MASKS = {
    "none": lambda key_len: None,
    "causal": lambda key_len: Causal(),
    "window": lambda key_len: SlidingWindow(3),
    "nothing": lambda key_len: ~Full(),
    "not causal": lambda key_len: ~Causal(),
    "two-sided": lambda key_len: LocalWindow(2, 1),
    "dilated": lambda key_len: Dilated(3, 2),
    "longformer": lambda key_len: LocalWindow(2, 1) | GlobalTokens(1),
    "by head": lambda key_len: Striped(),
    "packed": lambda key_len: Causal() & Documents(torch.tensor([key_len // 2, key_len // 3])),
    "padding": lambda key_len: Causal() & KeyPadding(torch.tensor([key_len, key_len // 2])),
}
LENGTHS = [(1, 1), (5, 5), (1, 11), (3, 11), (11, 3), (7, 2)]


def tensors(query_len, key_len):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, heads, length, 4, generator=generator, dtype=torch.float64)
        for heads, length in ((4, query_len), (2, key_len), (2, key_len))
    ]


def pairs_by_hand(mask, query_index, key_index):
    """Ask the mask pair by pair, two rows and four heads; indices as lists for each row."""
    table = [
        [
            [[key >= 0 and (mask is None or bool(mask.allows(b, h, query, key))) for key in keys] for query in queries]
            for h in range(4)
        ]
        for b, (queries, keys) in enumerate(zip(query_index, key_index, strict=True))
    ]
    return torch.tensor(table).reshape(2, 4, len(query_index[0]), len(key_index[0]))


class Record(TorchFunctionMode):
    """Keeps what each call of torch's kernels was given."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.scaled_dot_product_attention:
            self.calls.append((args, kwargs))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("query_len", "key_len"), LENGTHS)
@pytest.mark.parametrize("at_once", [2**22, 1, 60])
@pytest.mark.parametrize("with_indices", [False, True])
def test_what_is_idle_is_found_without_the_whole_table(name, query_len, key_len, at_once, with_indices, monkeypatch):
    monkeypatch.setattr(indexed, "PAIRS_AT_ONCE", at_once)
    mask = MASKS[name](key_len)
    query_index, key_index = [list(range(key_len - query_len, key_len))] * 2, [list(range(key_len))] * 2
    given = {}
    if with_indices:
        query_index = [[place + 1 for place in query_index[0]], query_index[0]]
        key_index = [key_index[0], [-1, *key_index[0][:-1]]]
        given = {"query_index": torch.tensor(query_index), "key_index": torch.tensor(key_index)}
    pairs = pairs_by_hand(mask, query_index, key_index)
    is_unread = ~pairs.any(-2).reshape(2, 2, 2, key_len).any(2).unsqueeze(-1)
    call = Call(*tensors(query_len, key_len), mask, **given)
    idle = find_idle(call, Work(call, is_fused=True).every_part)
    if idle is None:
        assert pairs.any(-1).all() and not is_unread.any()
        return
    assert torch.equal(idle.is_empty.expand(2, 4, query_len, 1), ~pairs.any(-1, keepdim=True))
    assert torch.equal(idle.is_unread.expand(2, 2, key_len, 1), is_unread)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("query_len", "key_len"), LENGTHS)
def test_only_first_keys_that_nobody_reads_are_cut_off_and_the_rest_means_the_same(name, query_len, key_len):
    mask = MASKS[name](key_len)
    call = Call(*tensors(query_len, key_len), mask)
    left = skip_unread_keys(call)
    rest = left.key.shape[2]
    cut = key_len - rest
    indices = [list(range(key_len - query_len, key_len))] * 2, [list(range(key_len))] * 2
    pairs = pairs_by_hand(mask, *indices)
    assert not pairs[..., :cut].any()
    if mask is not None and mask.distances() is not None and pairs.any():
        assert pairs[..., cut].any()  # and not one fewer
    assert left.key.data_ptr() == call.key[:, :, cut:].data_ptr() and torch.equal(left.value, call.value[:, :, cut:])
    now = pairs_by_hand(mask, [list(range(rest - query_len, rest))] * 2, [list(range(rest))] * 2)
    assert cut == 0 or torch.equal(now, pairs[..., cut:])


@pytest.mark.parametrize("query_len", [1, 3])
def test_decoding_with_a_window_reads_the_window_alone_and_a_single_query_needs_no_mask(query_len):
    query, key, value = tensors(query_len, 50)
    with Record() as record:
        attention(query, key, value, mask=SlidingWindow(7), impl="sdpa")
    (args, keywords), *_ = record.calls
    assert args[1].shape[2] == args[2].shape[2] == 7 + query_len - 1
    assert (keywords["attn_mask"] is None) == (query_len == 1)


# Squares: a constant slope in the keys, moved along them, would change no weight.
BIASES = {
    "none": lambda: None,
    "row": lambda: torch.arange(11.0) ** 2 / 9,
    "column": lambda: torch.arange(4.0).view(4, 1, 1),
    "number": lambda: torch.tensor(0.5),
    "table": lambda: torch.arange(33.0).view(3, 11) ** 2 / 99,
    "function": lambda: ALiBiBias(4),
}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("positions", ["indices", "of keys", "of queries", "of rows"])
def test_bias_and_positions_are_cut_off_with_the_keys(bias, positions):
    query, key, value = tensors(3, 11)
    given = {}
    if positions != "indices":
        shape = (2, -1) if positions == "of rows" else (-1,)
        if positions != "of queries":
            given["key_positions"] = torch.arange(11).flip(0).expand(shape)
        if positions != "of keys":
            given["query_positions"] = torch.tensor([3, 1, 4]).expand(shape)
    found, expected = (
        attention(query, key, value, mask=SlidingWindow(2), bias=BIASES[bias](), impl=impl, **given).output
        for impl in ("sdpa", "reference")
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "keywords", "shape"),
    [
        (None, {}, None),
        (Causal(), {}, None),  # is_causal
        (KeyPadding(torch.tensor([2, 5])), {}, (2, 1, 1, 5)),
        (Causal() & KeyPadding(torch.tensor([2, 5])), {}, (2, 1, 5, 5)),
        (SlidingWindow(2), {}, (1, 1, 5, 5)),
        (Striped(), {}, (1, 4, 1, 5)),
        (None, {"bias": torch.zeros(5, dtype=torch.float64)}, (1, 1, 1, 5)),
        (None, {"bias": torch.zeros(4, 5, 1, dtype=torch.float64)}, (1, 4, 5, 5)),
        (Causal(), {"bias": torch.zeros(2, 1, 1, 5, dtype=torch.float64)}, (2, 1, 5, 5)),
        (None, {"bias": ALiBiBias(4)}, (1, 4, 5, 5)),
    ],
)
def test_the_mask_that_torch_gets_is_no_larger_than_it_must_be(mask, keywords, shape):
    query, key, value = tensors(5, 5)
    with Record() as record:
        attention(query, key, value, mask=mask, impl="sdpa", **keywords)
    (_, given), *_ = record.calls
    assert given["is_causal"] == (mask == Causal() and not keywords)
    if shape is None:
        assert given["attn_mask"] is None
    else:
        assert given["attn_mask"].shape == shape
        assert given["attn_mask"].dtype == (torch.float64 if keywords else torch.bool)


def test_with_a_sink_a_causal_square_stays_causal():
    query, key, value = tensors(5, 5)
    with Record() as record:
        attention(query, key, value, mask=Causal(), sink=torch.zeros(4), impl="sdpa")
    (args, given), *_ = record.calls
    assert given["is_causal"] and given["attn_mask"] is None and args[0].shape[2] == args[1].shape[2] == 6
