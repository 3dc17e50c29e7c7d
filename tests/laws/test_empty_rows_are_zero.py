import pytest
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full
from headwise.ops import sdpa
from headwise.ops.attention import attention

# Every mask with the queries (batch row, query) that it leaves without a key, for 5 queries and 3 keys.
SPELLINGS = {
    "padding": (lambda: KeyPadding(torch.tensor([3, 0, 2])), [(1, i) for i in range(5)]),
    "left padding": (
        lambda: KeyPadding(torch.tensor([3, 0, 2]), side="left", padded_len=3),
        [(1, i) for i in range(5)],
    ),
    "causal, more queries than keys": (Causal, [(b, i) for b in range(3) for i in range(2)]),
    "causal and padding": (
        lambda: Causal() & KeyPadding(torch.tensor([3, 0, 2])),
        [(b, i) for b in range(3) for i in range(2)] + [(1, i) for i in range(2, 5)],
    ),
    "nothing": (lambda: ~Full(), [(b, i) for b in range(3) for i in range(5)]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("content", [1.0, torch.nan, torch.inf])
def test_a_query_without_a_key_gives_zero_whatever_it_holds(spelling, content, impl, dtype, make_inputs, can):
    make, empty = SPELLINGS[spelling]
    query, key, value = make_inputs(5, 3, dtype)
    for b, i in empty:
        query[b, :, i] *= content
    for tensor in (query, key, value):
        tensor.requires_grad_(can(impl, "gradients"))
    output = attention(query, key, value, mask=make(), impl=impl).output
    for b, i in empty:
        assert torch.equal(output[b, :, i], torch.zeros_like(output[b, :, i]))
    assert not output.isnan().any()
    if not can(impl, "gradients"):
        return
    output.square().sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
    for b, i in empty:
        assert not query.grad[b, :, i].any()


class RecordMasks(TorchFunctionMode):
    """Keeps the mask of each call of torch's kernels."""

    def __init__(self):
        super().__init__()
        self.masks = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.scaled_dot_product_attention:
            self.masks.append(kwargs["attn_mask"])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("v_head_dim", [5, 7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_devices_whose_kernels_may_give_nan_get_the_same(
    spelling, v_head_dim, with_bias, dtype, make_inputs, monkeypatch
):
    make, empty = SPELLINGS[spelling]
    results = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(sdpa, "ZERO_WITHOUT_A_KEY", devices)
        inputs = [tensor.requires_grad_() for tensor in make_inputs(5, 3, dtype, v_head_dim=v_head_dim)]
        bias = torch.arange(3, dtype=dtype, requires_grad=True) if with_bias else None
        inputs += [bias] if with_bias else []
        with RecordMasks() as record:
            output = attention(*inputs[:3], mask=make(), bias=bias, impl="sdpa").output
        mask = record.masks[0]
        assert mask.dtype == (dtype if with_bias else torch.bool)
        has_key = (~mask.isneginf() if with_bias else mask).any(-1)
        assert has_key.all() == (devices == ())  # there no row comes without a key
        output.square().sum().backward()
        assert not any(output[b, :, i].any() for b, i in empty)
        results.append([output, *(tensor.grad for tensor in inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=64 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("dropout_p", "v_head_dim"), [(0.0, 5), (0.0, 7), (0.25, 5)])  # fused; by products, twice
@pytest.mark.parametrize(("query_len", "key_len"), [(5, 3), (67, 131), (515, 521)])
def test_torchs_cpu_kernels_give_zero_and_no_gradient_without_a_key(dtype, dropout_p, v_head_dim, query_len, key_len):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 2, length, size, generator=generator).to(dtype).requires_grad_()
        for length, size in ((query_len, 5), (key_len, 5), (key_len, v_head_dim))
    )
    allowed = torch.ones(2, 1, query_len, key_len, dtype=torch.bool)
    allowed[0, :, :2] = allowed[1] = False
    output = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout_p)
    (output.float().square().sum() + output.float().sum()).backward()
    for found in (output, query.grad):
        assert not found[0, :, :2].any() and not found[1].any()
    assert not key.grad[1].any() and not value.grad[1].any()
    assert all(tensor.isfinite().all() for tensor in (output, query.grad, key.grad, value.grad))


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


def test_without_keys_every_query_is_empty(impl, dtype, make_mask, make_inputs, can):
    query, key, value = make_inputs(5, 0, dtype, v_head_dim=7)
    query[:] = torch.nan
    query.requires_grad_(can(impl, "gradients"))
    output = attention(query, key, value, mask=make_mask(0), impl=impl).output
    assert torch.equal(output, torch.zeros(3, 6, 5, 7, dtype=dtype))
    if can(impl, "gradients"):
        output.sum().backward()
        assert not query.grad.any()
