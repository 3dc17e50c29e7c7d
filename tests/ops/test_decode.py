"""Attention of few queries by plain products: the same as the reference's, however keys and values lie in memory."""

from importlib import import_module

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from headwise.cost.running.flop_counter import count_flops
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.ops import decode, shortcut
from headwise.ops.attention import attention, choose_impl
from headwise.ops.choose import LEAST_READ
from headwise.positions.bias import ALiBiBias

HEAD_DIM, LONG = 16, decode.LEAST_ONEDNN_KEYS + 11
# Inputs are within 1. A score is a sum of D products, so its error is within (D + 2) eps D / sqrt(D), and that of a
# weight twice as much; a sum of S weighted values adds S eps.
TOLERANCE = 2**-24 * (2 * (HEAD_DIM + 2) * HEAD_DIM**0.5 + LONG)


MANY = LEAST_READ // (2 * 2 * 128)


def numbers(*shape):
    return 2 * torch.rand(shape) - 1


def in_slots(batch, heads, length, width):
    buffer = torch.full((batch, heads, length + 7, width), torch.nan)
    buffer[:, :, :length] = numbers(batch, heads, length, width)
    return buffer[:, :, :length]


LAYOUTS = {
    "plain": numbers,
    "slots": in_slots,  # of a cache with room, the rest of which is poison
    "tokens": lambda batch, heads, length, width: numbers(batch, length, heads, width).transpose(1, 2),
    "joined": lambda *shape: numbers(*shape[:3], 2 * shape[3])[..., shape[3] :],  # keys and values of a token
    "odd": lambda *shape: numbers(*shape[:3], shape[3] + 1)[..., : shape[3]],  # vectors between others of another size
    "every other": lambda *shape: numbers(*shape[:3], 2 * shape[3])[..., ::2],
    "turned": lambda batch, heads, length, width: numbers(batch, heads, width, length).mT,
    "shared": lambda batch, *shape: numbers(1, *shape).expand(batch, -1, -1, -1),
}


@pytest.fixture(params=[decode.PIECE, 3000, 1], ids=["at once", "some heads", "head by head"])
def piece(request, monkeypatch):
    """How many scores are taken at a time."""
    monkeypatch.setattr(decode, "PIECE", request.param)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("num_heads", "query_len"), [(2, 1), (6, 1), (6, 2), (6, 5), (34, 1)])
@pytest.mark.parametrize("key_len", [decode.LEAST_KEYS - 1, decode.LEAST_KEYS, LONG])
def test_it_is_the_reference_however_keys_and_values_lie(kind, num_heads, query_len, key_len, piece):
    query = numbers(3, num_heads, query_len, HEAD_DIM)
    key, value = (LAYOUTS[kind](3, 2, key_len, HEAD_DIM) for _ in range(2))
    found = attention(query, key, value, impl="decode").output
    expected = attention(query.double(), key.double(), value.double(), impl="reference").output
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("num_heads", [6, 34])
@pytest.mark.parametrize(
    "keywords",
    [
        {"mask": SlidingWindow(523)},
        {"mask": KeyPadding(torch.tensor([300, 0, 523]))},
        {"mask": KeyPadding(torch.tensor([300, 0, 523])), "softcap": 1.5, "return_logsumexp": True},
        {"bias": 0.3},
        {"bias": 0.3, "softcap": 1.5},
        {"softcap": 1.5},
        {"sink": 0.3},
        {"scale": -0.2},
        {"return_weights": True, "return_logsumexp": True},
    ],
    ids=str,
)
def test_it_can_all_that_a_call_may_ask_for(num_heads, keywords, piece):
    query, key, value = numbers(3, num_heads, 1, HEAD_DIM), *(numbers(3, 2, 523, HEAD_DIM) for _ in range(2))
    if "bias" in keywords:
        keywords = keywords | {"bias": ALiBiBias(num_heads)}
    if "sink" in keywords:
        keywords = keywords | {"sink": numbers(num_heads)}
    found = attention(query, key, value, impl="decode", **keywords)
    expected = attention(query.double(), key.double(), value.double(), impl="reference", **keywords)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.double(), other, rtol=0, atol=4 * TOLERANCE)  # logsumexp: up to 11


def test_poison_in_slots_that_no_query_reads_is_not_seen():
    query, key, value = numbers(2, 4, 1, HEAD_DIM), *(numbers(2, 2, LONG, HEAD_DIM) for _ in range(2))
    clean = attention(query, key, value, mask=KeyPadding(torch.tensor([300, LONG])), impl="decode").output
    key[0, :, 300:], value[0, :, 300:] = torch.nan, torch.inf
    found = attention(query, key, value, mask=KeyPadding(torch.tensor([300, LONG])), impl="decode").output
    torch.testing.assert_close(found, clean, rtol=0, atol=0)


@pytest.mark.parametrize("score", [0.0, -1e9, torch.finfo(torch.float32).min, 4e10])
@pytest.mark.parametrize("num_heads", [8, 34])
def test_weights_sum_to_one_however_large_scores_are(score, num_heads):
    query, value = torch.ones(1, num_heads, 1, 64), torch.ones(1, 2, 4099, 64)
    for keywords in ({}, {"mask": Causal()}, {"bias": torch.full((1, 1, 1, 4099), score)}):
        key = torch.full_like(value, score if "mask" in keywords and abs(score) < 1e20 else 1.0)
        found = attention(query, key, value, impl="decode", **keywords).output
        torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=4099 * 2**-24)


def test_a_call_under_a_mode_leaves_nothing_behind():
    query, key, value = numbers(1, 8, 1, 64), *(numbers(1, 2, 2053, 64) for _ in range(2))
    expected = attention(query, key, value, impl="sdpa").output
    decode._places.cache_clear()
    with torch.device("meta"):
        attention(query, key, value, impl="decode")
    with FakeTensorMode(allow_non_fake_inputs=True):
        attention(query, key, value)
    found = attention(query, key, value, impl="decode").output
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_flops_are_counted_as_ever():
    query, key, value = inputs(MANY)
    with FlopCounterMode(display=False):
        assert choose_impl(query, key, value).impl == "sdpa"
    assert count_flops(lambda: attention(query, key, value)).dense == 2 * 2 * 4 * MANY * 128


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_go_another_way():
    query, key, value = (one[:, :, :] for one in inputs(MANY))
    biases = torch.zeros(3, 1, 1, 1, MANY)
    found = torch.vmap(lambda bias: attention(query, key, value, bias=bias).output)(biases)
    assert found.shape == (3, 1, 4, 1, 128)


def inputs(key_len, *, query_len=1, dtype=torch.float32, learns=False):
    key, value = (torch.zeros(1, 2, key_len, 128, dtype=dtype) for _ in range(2))
    return torch.zeros(1, 4, query_len, 128, dtype=dtype, requires_grad=learns), key, value


def test_what_would_be_copied_or_is_too_narrow_stays_with_torchs_kernel():
    query, key, value = inputs(MANY)
    assert choose_impl(query, key.mT.contiguous().mT, value).impl == "sdpa"
    assert choose_impl(query, key.transpose(1, 2).contiguous().transpose(1, 2), value).impl == "sdpa"
    assert (
        choose_impl(query[..., :32], key[..., :32].repeat(1, 1, 4, 1), value[..., :32].repeat(1, 1, 4, 1)).impl
        == "sdpa"
    )
    many = torch.zeros(1, 34, 1, 128)  # 17 queries a kv head
    assert choose_impl(many, key, value).impl == "sdpa"
    assert choose_impl(many, *(one.reshape(1, 1, -1, 128) for one in (key, value))).impl == "decode"
    short = torch.zeros(2 * LEAST_READ // (255 * 128), 2, 255, 128)
    assert choose_impl(torch.zeros(len(short), 4, 1, 128), short, short).impl == "sdpa"
    dense = torch.zeros(LEAST_READ // (256 * 128), 2, 256, 128)
    assert choose_impl(torch.zeros(len(dense), 4, 1, 128), dense, dense).impl == "decode"
    room = torch.zeros(3, 2, MANY + 7, 128)[:, :, :MANY]  # a cache with room
    assert choose_impl(torch.zeros(3, 4, 1, 128), room, room).impl == "decode"


def test_auto_takes_it_for_a_token_that_reads_much_and_for_nothing_else():
    assert choose_impl(*inputs(MANY)).impl == "decode"
    assert choose_impl(*inputs(MANY), mask=Causal(), softcap=3.0).impl == "decode"
    assert choose_impl(*inputs(MANY - 1)).impl == "sdpa"
    assert choose_impl(*inputs(MANY), mask=SlidingWindow(MANY - 1)).impl == "sdpa"
    assert choose_impl(*inputs(MANY, query_len=2), mask=Causal()).impl == "sdpa"
    assert choose_impl(*inputs(MANY, dtype=torch.float64)).impl == "sdpa"
    assert choose_impl(*inputs(MANY, learns=True)).impl == "sdpa"
    with torch.no_grad():
        assert choose_impl(*inputs(MANY, learns=True)).impl == "decode"


def test_the_choice_says_why():
    (reason,) = choose_impl(*inputs(MANY)).reasons
    assert reason.startswith("sdpa is not taken: its products with few rows")


def test_a_call_with_gradients_does_not_settle_the_way_of_those_without():
    query, key, value = inputs(MANY, learns=True)
    attention(query, key, value)
    with torch.no_grad():
        assert attention(query, key, value).output.shape == query.shape
        assert shortcut.take_shortcut(query, key, value, None, "auto") is None


def test_a_call_that_is_remembered_while_keys_are_few_is_looked_at_anew_when_they_are_many(monkeypatch):
    query, key, value = inputs(MANY)
    taken = []
    module = import_module("headwise.ops.attention")
    monkeypatch.setitem(module._IMPLS, "decode", lambda call: taken.append(1) or decode.decode_attention(call))
    for length in (5, MANY - 1, MANY):
        attention(query, key[:, :, :length], value[:, :, :length])
    assert len(taken) == 1
