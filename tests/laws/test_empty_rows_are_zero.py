import pytest
import torch

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full
from headwise.ops.attention import attention

# Every mask with the queries (batch row, query) that it leaves without a key, for 5 queries and 3 keys.
SPELLINGS = {
    "padding": (lambda: KeyPadding(torch.tensor([3, 0, 2])), [(1, i) for i in range(5)]),
    "left padding": (lambda: KeyPadding(torch.tensor([3, 0, 2]), side="left"), [(1, i) for i in range(5)]),
    "causal, more queries than keys": (Causal, [(b, i) for b in range(3) for i in range(2)]),
    "causal and padding": (
        lambda: Causal() & KeyPadding(torch.tensor([3, 0, 2])),
        [(b, i) for b in range(3) for i in range(2)] + [(1, i) for i in range(2, 5)],
    ),
    "nothing": (lambda: ~Full(), [(b, i) for b in range(3) for i in range(5)]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("content", [1.0, torch.nan, torch.inf])
def test_a_query_without_a_key_gives_zero_whatever_it_holds(spelling, content, impl, dtype, make_inputs):
    make, empty = SPELLINGS[spelling]
    query, key, value = make_inputs(5, 3, dtype)
    for b, i in empty:
        query[b, :, i] *= content
    for tensor in (query, key, value):
        tensor.requires_grad_()
    output = attention(query, key, value, mask=make(), impl=impl).output
    for b, i in empty:
        assert torch.equal(output[b, :, i], torch.zeros_like(output[b, :, i]))
    output.square().sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
    for b, i in empty:
        assert not query.grad[b, :, i].any()
    assert not output.isnan().any()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")  # it says that it is slow
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_query_without_a_key_has_weights_0_and_logsumexp_minus_infinity(spelling, dtype, make_inputs):
    make, empty = SPELLINGS[spelling]
    query, key, value = (tensor.requires_grad_() for tensor in make_inputs(5, 3, dtype))
    found = attention(query, key, value, mask=make(), return_weights=True, return_logsumexp=True)
    is_empty = torch.zeros(3, 6, 5, dtype=torch.bool)
    for b, i in empty:
        is_empty[b, :, i] = True
    assert torch.equal(found.logsumexp.isneginf(), is_empty)
    assert not found.weights[is_empty].any()
    with torch.autograd.detect_anomaly(check_nan=True):
        (found.logsumexp[~is_empty].sum() + found.weights.square().sum() + found.output.sum()).backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_without_keys_every_query_is_empty(impl, dtype, make_mask, make_inputs):
    query, key, value = make_inputs(5, 0, dtype, v_head_dim=7)
    query[:] = torch.nan
    query.requires_grad_()
    output = attention(query, key, value, mask=make_mask(0), impl=impl).output
    assert torch.equal(output, torch.zeros(3, 6, 5, 7, dtype=dtype))
    output.sum().backward()
    assert not query.grad.any()
