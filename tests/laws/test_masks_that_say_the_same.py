import pytest
import torch

from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.ops.attention import attention

PAIRS = {
    "a window as long as the keys is causal": (SlidingWindow, lambda s: Causal()),
    "full is no mask": (lambda s: Full(), lambda s: None),
    "lengths without padding are no mask": (lambda s: KeyPadding(torch.tensor([s, s, s])), lambda s: None),
    "a mask or its opposite is no mask": (lambda s: Causal() | ~Causal(), lambda s: None),
    "two opposites cancel": (lambda s: ~(~Causal()), lambda s: Causal()),
    "De Morgan": (lambda s: ~(Causal() & SlidingWindow(2)), lambda s: ~Causal() | ~SlidingWindow(2)),
    "left and right padding of full rows": (
        lambda s: Causal() & KeyPadding(torch.tensor([s, s, s]), side="left", padded_len=s),
        lambda s: Causal() & KeyPadding(torch.tensor([s, s, s])),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("query_len", "key_len"), [(2, 2), (63, 63), (1, 7), (11, 3)])
def test_two_spellings_of_one_mask_give_one_output(pair, query_len, key_len, impl, dtype, make_inputs, rounding):
    first, second = PAIRS[pair]
    query, key, value = make_inputs(query_len, key_len, dtype)
    one, other = (attention(query, key, value, mask=make(key_len), impl=impl).output for make in (first, second))
    torch.testing.assert_close(one, other, rtol=0, atol=2 * rounding(dtype, key_len))
