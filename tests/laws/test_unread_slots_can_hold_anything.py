import pytest
import torch
from torch.func import vmap

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, Mask, SlidingWindow
from headwise.ops.attention import attention


class Striped(Mask):
    """The first key is hidden from all, and each head sees every other key."""

    def allows(self, batch, head, query_index, key_index):
        return (key_index > 0) & ((key_index + head) % 2 == 0)


POISONS = [torch.nan, -torch.inf, 1e38, 1e10, -7.5]

# Query length, key length, keywords, and the slots (batch row, key) that no query may read.
CASES = {
    "hidden from every head": (4, 6, lambda: {"mask": Striped()}, dict.fromkeys(range(3), (0,))),
    "right padding": (5, 7, lambda: {"mask": KeyPadding(torch.tensor([7, 0, 4]))}, {1: range(7), 2: range(4, 7)}),
    "left padding": (
        5,
        7,
        lambda: {"mask": Causal() & KeyPadding(torch.tensor([7, 1, 4]), side="left", padded_len=7)},
        {1: range(6), 2: range(3)},
    ),
    "window": (2, 9, lambda: {"mask": SlidingWindow(3)}, {b: range(5) for b in range(3)}),
    "one query, window": (1, 9, lambda: {"mask": SlidingWindow(3)}, {b: range(6) for b in range(3)}),
    "future keys": (4, 6, lambda: {"mask": Causal(), "query_index": torch.arange(4)}, dict.fromkeys(range(3), (4, 5))),
    "empty slots": (
        4,
        6,
        lambda: {"key_index": torch.tensor([0, -1, 1, 2, -1, 3])},
        dict.fromkeys(range(3), (1, 4)),
    ),
    "empty slots of rows": (
        1,
        3,
        lambda: {"mask": Causal(), "key_index": torch.tensor([[0, 1, 2], [-1, 0, 1], [2, -1, -1]])},
        {1: (0,), 2: (1, 2)},
    ),
    "nothing is read": (4, 3, lambda: {"mask": ~Full()}, {b: range(3) for b in range(3)}),
}


def run(inputs, impl, keywords, *, learns):
    """Return output and gradients, or the output alone of an implementation that does not learn."""
    query, key, value = (tensor.clone().requires_grad_(learns) for tensor in inputs)
    output = attention(query, key, value, impl=impl, **keywords).output
    if not learns:
        return (output,)
    (output * torch.arange(output.numel(), dtype=output.dtype).view(output.shape)).sum().backward()
    return output, query.grad, key.grad, value.grad


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_kv_heads", [2, 6])
def test_what_an_unread_slot_holds_changes_no_bit(case, num_kv_heads, impl, dtype, make_inputs, can):
    query_len, key_len, make_keywords, slots = CASES[case]
    learns = can(impl, "gradients")
    query, key, value = make_inputs(query_len, key_len, dtype, num_kv_heads=num_kv_heads, v_head_dim=5)
    clean = run((query, key, value), impl, make_keywords(), learns=learns)
    for poison in POISONS:
        for b, places in slots.items():
            key[b, :, list(places)] = poison
            value[b, :, list(places)] = poison
        poisoned = run((query, key, value), impl, make_keywords(), learns=learns)
        for before, after in zip(clean, poisoned, strict=True):
            assert torch.equal(before, after)
        for b, places in slots.items():
            assert not any(gradient[b, :, list(places)].any() for gradient in poisoned[2:])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_kv_heads", [2, 6])
def test_nor_does_it_when_queries_are_huge_and_keys_tiny(case, num_kv_heads, impl, make_inputs, can):
    query_len, key_len, make_keywords, slots = CASES[case]
    learns = can(impl, "gradients")
    query, key, value = make_inputs(query_len, key_len, torch.float32, num_kv_heads=num_kv_heads)
    query, key = query * 1e30, key * 1e-30
    clean = run((query, key, value), impl, make_keywords(), learns=learns)
    assert all(tensor.isfinite().all() for tensor in clean)
    for b, places in slots.items():
        key[b, :, list(places)] = value[b, :, list(places)] = 1e10
    poisoned = run((query, key, value), impl, make_keywords(), learns=learns)
    assert all(torch.equal(before, after) for before, after in zip(clean, poisoned, strict=True))


@pytest.mark.parametrize("poison", [1e4, -1e30, 1e36])
@pytest.mark.parametrize("num_kv_heads", [2, 6])
@pytest.mark.parametrize("v_head_dim", [5, 7])
def test_a_slot_masked_for_some_queries_can_hold_what_leaves_their_scores_finite(
    poison, num_kv_heads, v_head_dim, impl, dtype, make_inputs, can
):
    """Key 3 is hidden from the first three queries and read by the last two."""
    query, key, value = make_inputs(5, 5, dtype, num_kv_heads=num_kv_heads, v_head_dim=v_head_dim)
    mask = Causal() & KeyPadding(torch.tensor([5, 5, 5]))
    hidden = slice(0, 3)

    def outputs_and_gradient():
        leaf = query.clone().requires_grad_(can(impl, "gradients"))
        output = attention(leaf, key, value, mask=mask, impl=impl).output[:, :, hidden]
        if not leaf.requires_grad:
            return (output,)
        output.sum().backward()
        return output, leaf.grad[:, :, hidden]

    clean = outputs_and_gradient()
    key[:, :, 3], value[:, :, 3] = poison, poison
    for before, after in zip(clean, outputs_and_gradient(), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_weights_and_logsumexp_do_not_see_an_unread_slot(dtype, make_inputs):
    query, key, value = make_inputs(5, 7, dtype)
    mask = KeyPadding(torch.tensor([7, 0, 4]))
    clean = attention(query, key, value, mask=mask, return_weights=True, return_logsumexp=True)
    key[2, :, 4:] = value[1] = torch.nan
    poisoned = attention(query, key, value, mask=mask, return_weights=True, return_logsumexp=True)
    assert all(torch.equal(before, after) for before, after in zip(clean, poisoned, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap of the kernel is a loop
def test_under_vmap_slots_are_hidden_without_looking(impl_with_vmap, make_inputs):
    query, key, value = make_inputs(5, 7)
    mask = KeyPadding(torch.tensor([7, 0, 4]))
    clean = attention(query, key, value, mask=mask, impl=impl_with_vmap).output
    key[2, :, 4:] = value[2, :, 4:] = torch.nan
    both = [torch.stack([tensor, tensor]) for tensor in (query, key, value)]
    mapped = vmap(lambda q, k, v: attention(q, k, v, mask=mask, impl=impl_with_vmap).output)(*both)
    torch.testing.assert_close(mapped, torch.stack([clean, clean]), rtol=1e-12, atol=1e-12)
