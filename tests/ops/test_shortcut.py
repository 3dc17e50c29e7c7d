"""The short way to torch's kernel: taken for what has been seen, and never for what only looks like it."""

import pytest
import torch

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.ops import attention as door
from headwise.ops import shortcut
from headwise.ops.attention import attention


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(shortcut, "_known", {})


@pytest.fixture
def taken(monkeypatch):
    """Note which calls went through the door, and which took the short way."""
    ways = []

    def prepare(call, impl):
        ways.append("door")
        return original(call, impl)

    original = door.prepare
    monkeypatch.setattr(door, "prepare", prepare)
    return ways


def inputs(batch=2, num_heads=4, num_kv_heads=4, query_len=7, key_len=7, head_dim=5, dtype=torch.float32):
    shapes = ((batch, num_heads, query_len, head_dim), *2 * [(batch, num_kv_heads, key_len, head_dim)])
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("mask", [None, Full(), Causal(), SlidingWindow(7)])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
@pytest.mark.parametrize("impl", ["auto", "sdpa"])
def test_a_call_seen_before_goes_the_short_way_and_gives_the_same(mask, num_kv_heads, impl, taken):
    first, second = (inputs(num_kv_heads=num_kv_heads) for _ in range(2))
    attention(*first, mask=mask, impl=impl)
    output = attention(*second, mask=mask, impl=impl).output
    assert taken == ["door"]
    shortcut._known.clear()
    assert torch.equal(output, attention(*second, mask=mask, impl=impl).output)


@pytest.mark.parametrize(
    "changes",
    [
        {"impl": "reference"},
        {"mask": None},
        {"scale": 0.5},
        {"softcap": 3.0},
        {"sink": torch.zeros(4)},
        {"bias": torch.zeros(7)},
        {"query_index": torch.arange(7)},
        {"key_positions": torch.arange(7)},
        {"dropout_p": 0.1},
        {"dropout_seed": 0},
        {"return_weights": True},
        {"return_logsumexp": True},
    ],
    ids=str,
)
def test_a_call_that_asks_for_anything_else_goes_through_the_door(changes, taken):
    tensors = inputs()
    attention(*tensors, mask=Causal())
    attention(*tensors, **({"mask": Causal()} | changes))
    assert taken == ["door"] * 2


@pytest.mark.parametrize(
    "changes", [{"batch": 3}, {"query_len": 5}, {"head_dim": 3}, {"dtype": torch.float64}], ids=str
)
def test_other_sizes_and_dtypes_are_looked_at_anew(changes, taken):
    attention(*inputs(), mask=Causal())
    attention(*inputs(**changes), mask=Causal())
    assert taken == ["door"] * 2


@pytest.mark.parametrize("mask", [SlidingWindow(3), KeyPadding(torch.tensor([7, 7]))])
def test_masks_that_need_a_tensor_are_never_remembered(mask, taken):
    for _ in range(2):
        attention(*inputs(), mask=mask)
    assert taken == ["door"] * 2 and not shortcut._known


def test_heads_whose_numbers_do_not_lie_side_by_side_are_looked_at_anew(taken):
    attention(*inputs(num_kv_heads=2))
    attention(*(one.transpose(2, 3).contiguous().transpose(2, 3) for one in inputs(num_kv_heads=2)))
    assert taken == ["door"] * 2


@pytest.mark.parametrize("mask", [None, Full(), Causal()])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_a_token_that_is_decoded_is_known_at_every_length(mask, num_kv_heads, taken):
    for key_len in (1, 2, 5):
        tensors = inputs(num_kv_heads=num_kv_heads, query_len=1, key_len=key_len)
        output = attention(*tensors, mask=mask).output
        expected = attention(*tensors, mask=mask, impl="reference").output
        torch.testing.assert_close(output, expected)  # of float32
    assert taken == ["door", "door", "door", "door"]  # the first, and three of the reference


def test_no_keys_and_keys_that_are_not_as_many_as_values_go_through_the_door(taken):
    attention(*inputs(query_len=1, key_len=4))
    query, key, value = inputs(query_len=1, key_len=5)
    assert (attention(query, key[:, :, :0], value[:, :, :0]).output == 0).all()
    assert taken == ["door"] * 2
    assert shortcut.take_shortcut(query, key, value, None, "auto") is not None
    assert shortcut.take_shortcut(query, key[:, :, :3], value, None, "auto") is None


def test_a_window_over_one_query_is_known_at_its_own_length_alone(taken):
    for key_len in (4, 5, 4):
        attention(*inputs(query_len=1, key_len=key_len), mask=SlidingWindow(4))
    assert len(taken) >= 2


def test_autocast_casts_as_ever(taken):
    tensors = inputs()
    attention(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attention(*tensors).output.dtype == torch.bfloat16
    assert taken == ["door"] * 2


@pytest.mark.parametrize("shape", [(), (7, 5), (2, 4, 7, 5, 1)], ids=str)
def test_other_numbers_of_dimensions_are_nothing_known(shape):
    attention(*inputs())
    tensors = [torch.zeros(shape)] * 3
    assert shortcut.take_shortcut(*tensors, None, "auto") is None


def test_as_many_are_kept_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr(shortcut, "MAX_KNOWN", 3)
    for length in range(2, 9):
        attention(*inputs(query_len=length, key_len=length))
        assert 1 <= len(shortcut._known) <= 3


def test_gradients_flow_along_the_short_way(taken):
    for _ in range(2):
        tensors = [one.requires_grad_() for one in inputs()]
        attention(*tensors, mask=Causal()).output.sum().backward()
        assert all(one.grad is not None for one in tensors)
    assert taken == ["door"]
