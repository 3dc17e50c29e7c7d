"""What "auto" takes, by its table, and how it says why."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headwise.errors import UnsupportedError
from headwise.kernels import LEAST_PAIRS
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.ops.attention import attention, choose_impl
from headwise.ops.choose import RULES
from headwise.positions.bias import ALiBiBias

LONG, SHORT = 523, 31  # more pairs than LEAST_PAIRS, and fewer


def inputs(query_len, key_len=None, *, v_head_dim=3, learns=False):
    key_len = query_len if key_len is None else key_len
    shapes = ((1, 2, query_len, 3), (1, 2, key_len, 3), (1, 2, key_len, v_head_dim))
    return tuple(torch.zeros(shape, requires_grad=learns) for shape in shapes)


def test_the_lengths_of_these_tests_are_on_either_side_of_the_crossover():
    assert SHORT**2 < LEAST_PAIRS < LONG**2


@pytest.mark.parametrize(
    ("impl", "query_len", "keywords"),
    [
        ("sdpa", LONG, {}),
        ("sdpa", LONG, {"mask": Full()}),
        ("sdpa", LONG, {"mask": Causal()}),
        ("sdpa", LONG, {"mask": SlidingWindow(LONG)}),
        ("blocked", LONG, {"mask": SlidingWindow(64)}),
        ("blocked", LONG, {"mask": Causal() & KeyPadding(torch.tensor([100]))}),
        ("sdpa", LONG, {"mask": KeyPadding(torch.tensor([LONG - 1]))}),
        ("sdpa", SHORT, {"mask": SlidingWindow(4)}),
        ("blocked", LONG, {"mask": Causal(), "dropout_p": 0.1}),
        ("sdpa", SHORT, {"mask": Causal(), "dropout_p": 0.1}),
        ("blocked", LONG, {"bias": ALiBiBias(2)}),
        ("sdpa", SHORT, {"bias": ALiBiBias(2)}),
        ("sdpa", LONG, {"bias": torch.zeros(LONG)}),
        ("blocked", LONG, {"bias": torch.zeros(LONG, requires_grad=True)}),
        ("blocked", LONG, {"sink": torch.zeros(2)}),
        ("blocked", LONG, {"softcap": 5.0}),
        ("reference", SHORT, {"softcap": 5.0}),
        ("blocked", LONG, {"return_logsumexp": True}),
        ("reference", LONG, {"return_weights": True}),
        ("reference", LONG, {"return_weights": True, "softcap": 5.0}),
        ("sdpa", LONG, {"mask": SlidingWindow(64), "query_index": torch.arange(LONG)}),
    ],
    ids=str,
)
def test_auto_takes_the_first_rule_that_holds(impl, query_len, keywords):
    choice = choose_impl(*inputs(query_len), **keywords)
    assert choice.impl == impl
    taken = attention(*inputs(query_len), **keywords, impl=impl)
    assert attention(*inputs(query_len), **keywords).output.shape == taken.output.shape


def test_values_of_another_size_would_send_torch_to_its_math_kernel():
    assert choose_impl(*inputs(LONG, v_head_dim=5)).impl == "blocked"
    assert choose_impl(*inputs(SHORT, v_head_dim=5)).impl == "sdpa"


def test_a_few_queries_against_a_long_past_stay_with_torchs_kernel():
    assert choose_impl(*inputs(1, LEAST_PAIRS), mask=SlidingWindow(9)).impl == "sdpa"


def test_tensors_without_numbers_are_not_planned():
    with FakeTensorMode():
        assert choose_impl(*inputs(LONG), mask=SlidingWindow(64)).impl == "sdpa"
    with torch.device("meta"), pytest.raises(UnsupportedError, match="needs tensors with numbers"):
        attention(*inputs(LONG), impl="blocked")


def test_the_choice_names_the_kernel_of_the_blocks_and_why_none_that_is_faster_was_taken():
    window = choose_impl(*inputs(LONG), mask=SlidingWindow(64))
    assert (window.kernel, window.reasons) == (
        "flash",
        ("sdpa is not taken: its time and memory are those of the whole square, whatever the mask",),
    )
    capped = choose_impl(*inputs(LONG), softcap=5.0)
    assert capped.kernel is None and "do not cap scores" in capped.reasons[0]
    asked = choose_impl(*inputs(LONG), impl="blocked")
    assert asked.reasons == ("sdpa is not taken: blocked was asked for",)
    small = choose_impl(*inputs(SHORT), softcap=5.0)
    assert small.impl == "reference" and small.reasons[1].startswith("blocked is not taken: it is for 64 queries")


def test_a_batch_of_no_rows_is_nothing_to_plan():
    empty = tuple(torch.zeros(0, 2, LONG, 3) for _ in range(3))
    assert choose_impl(*empty, mask=SlidingWindow(64)).impl == "sdpa"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, at its first dual tensor
def test_forward_mode_derivatives_are_not_taken_by_blocks():
    query, key, value = inputs(LONG)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query)
        assert choose_impl(dual, key, value, softcap=5.0).impl == "reference"
        attention(dual, key, value, softcap=5.0)


def test_the_last_rule_always_holds_and_has_no_obstacle():
    assert RULES[-1].impl == "reference" and RULES[-1].holds(None)


def test_second_derivatives_are_refused_by_name():
    query, key, value = inputs(SHORT, learns=True)
    output = attention(query, key, value, impl="blocked").output
    with pytest.raises(UnsupportedError, match='impl="reference"'):
        torch.autograd.grad(output.sum(), query, create_graph=True)
