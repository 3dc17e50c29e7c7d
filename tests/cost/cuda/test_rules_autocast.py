import re
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.cost.cuda import autocast as device_autocast
from headwise.cost.cuda.rules import device_rules
from headwise.errors import UnsupportedError

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
aten = torch.ops.aten


def read_macro(name):
    """Read the operations that a macro of torch's header lists: `_(name)` or `_(name, overload)`."""
    body = re.search(rf"#define {name}\(_\)((?:.*\\\n)+.*)", HEADER.read_text()).group(1)
    return {".".join(re.split(r",\s*", entry)) for entry in re.findall(r"_\((\w+(?:,\s*\w+)?)\)", body)}


@pytest.mark.parametrize(
    ("macro", "ours"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", set(device_autocast.LOWER_PRECISION)),
        ("AT_FORALL_FP32", device_autocast.list_float32()),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", set(device_autocast.SET_DTYPE)),
        ("AT_FORALL_PROMOTE", set(device_autocast.PROMOTE)),
    ],
)
def test_each_group_is_the_list_that_torch_compiles(macro, ours):
    assert ours == read_macro(macro)


def test_the_groups_hold_whatever_autocast_handles_on_cuda():
    groups = [
        device_autocast.LOWER_PRECISION,
        device_autocast.PROMOTE,
        device_autocast.SET_DTYPE,
        tuple(device_autocast.APPEND_DTYPE),
        device_autocast.BANNED,
        tuple(device_autocast.list_float32()),
    ]
    handled = [name for group in groups for name in group]
    assert len(handled) == len(set(handled))
    ours_alone = {"cudnn_convolution", "cudnn_convolution_transpose"}  # no CPU can trace these
    assert set(handled) == device_autocast.list_handled("AutocastCUDA") - ours_alone


def autocast(dtype=torch.bfloat16):
    return torch.autocast("cpu", dtype=dtype)


def narrow(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)


def wide(*shape):
    return torch.empty(shape, requires_grad=True)


@pytest.mark.parametrize(
    ("why", "call", "expected"),
    [
        ("set", lambda: functional.softmax(narrow(3, 5), -1), torch.float32),
        ("set", lambda: functional.log_softmax(narrow(3, 5), -1), torch.float32),
        ("set, but chosen", lambda: functional.softmax(narrow(3, 5), -1, dtype=torch.bfloat16), torch.bfloat16),
        ("set, but not ours", lambda: torch.empty(3, dtype=torch.int64).sum(), torch.int64),
        ("set, but float64", lambda: torch.empty(3, dtype=torch.float64).sum(), torch.float64),
        ("set", lambda: narrow(3, 5).sum(), torch.float32),
        ("set", lambda: narrow(3, 5).sum(-1), torch.float32),
        ("set", lambda: narrow(3, 5).cumsum(-1), torch.float32),
        ("set", lambda: narrow(3, 5).detach().prod(), torch.float32),  # its backward reads values
        ("set", lambda: torch.linalg.vector_norm(narrow(3, 5)), torch.float32),
        ("appended", lambda: aten.norm.Scalar(narrow(3, 5)), torch.float32),
        ("appended", lambda: aten.norm.ScalarOpt_dim(narrow(3, 5), 2, [1]), torch.float32),
        ("float32", lambda: functional.layer_norm(narrow(3, 5), (5,), wide(5), wide(5)), torch.float32),
        ("float32", lambda: functional.rms_norm(narrow(3, 5), (5,), narrow(5)), torch.float32),
        ("float32", lambda: narrow(3, 5).pow(2), torch.float32),
        ("float32", lambda: narrow(3, 5).rsqrt(), torch.float32),
        ("float32", lambda: narrow(3, 5).exp(), torch.float32),
        ("float32", lambda: functional.softplus(narrow(3, 5)), torch.float32),
        ("float32", lambda: functional.mse_loss(narrow(3, 5), narrow(3, 5)), torch.float32),
        ("float32", lambda: torch.logsumexp(narrow(3, 5), -1), torch.float32),
        ("left alone", lambda: functional.gelu(narrow(3, 5)), torch.bfloat16),
        ("left alone", lambda: functional.silu(narrow(3, 5)), torch.bfloat16),
        ("left alone", lambda: narrow(3, 5).mean(-1), torch.bfloat16),
        ("left alone", lambda: narrow(3, 5) * narrow(5), torch.bfloat16),
        ("left alone, a CPU would widen", lambda: torch.trace(narrow(3, 5)), torch.bfloat16),
        ("promoted by itself", lambda: torch.cat([narrow(3, 5), wide(3, 5)]), torch.float32),
        ("promoted", lambda: torch.dot(narrow(5), wide(5)), torch.float32),
        ("promoted", lambda: torch.dot(narrow(5), narrow(5)), torch.bfloat16),
        (
            "promoted",
            lambda: torch.scatter_add(wide(5), 0, torch.zeros(5, dtype=torch.int64), narrow(5)),
            torch.float32,
        ),
        ("narrow", lambda: wide(3, 5) @ wide(5, 7), torch.bfloat16),
        ("narrow", lambda: functional.linear(wide(3, 5), wide(7, 5), wide(7)), torch.bfloat16),
        ("narrow", lambda: torch.baddbmm(wide(2, 3, 7), wide(2, 3, 5), wide(2, 5, 7)), torch.bfloat16),
        ("narrow", lambda: torch.einsum("ij,jk->ik", wide(3, 5), wide(5, 7)), torch.bfloat16),
        ("narrow", lambda: torch.mv(wide(3, 5), wide(5)), torch.bfloat16),
        ("narrow", lambda: functional.conv1d(wide(2, 3, 5), wide(7, 3, 3)), torch.bfloat16),
        ("narrow", lambda: functional.scaled_dot_product_attention(*[wide(2, 3, 5, 8)] * 3), torch.bfloat16),
        (
            "narrow scores, wide loss",
            lambda: functional.cross_entropy(wide(3, 5) @ wide(5, 7), torch.zeros(3, dtype=torch.int64)),
            torch.float32,
        ),
    ],
)
def test_autocast_casts_as_on_cuda(why, call, expected):
    with FakeTensorMode(), device_rules("cuda"), autocast():
        result = call()
        assert result.dtype == expected
        if result.requires_grad:
            result.backward(torch.empty_like(result))


def test_outside_autocast_nothing_is_cast():
    with FakeTensorMode(), device_rules("cuda"):
        assert narrow(3, 5).pow(2).dtype == torch.bfloat16
        with autocast(), torch.autocast("cpu", enabled=False):
            assert narrow(3, 5).pow(2).dtype == torch.bfloat16


def test_binary_cross_entropy_is_refused_as_on_cuda():
    with FakeTensorMode(), device_rules("cuda"), autocast():
        scores, targets = wide(3), torch.empty(3)
        with pytest.raises(UnsupportedError, match="use binary_cross_entropy_with_logits"):
            functional.binary_cross_entropy(scores, targets)
        assert functional.binary_cross_entropy_with_logits(scores, targets).dtype == torch.float32


def saved_storages(run, parameters):
    excluded = {parameter.untyped_storage()._cdata for parameter in parameters}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    result.sum().backward()
    return sorted(storage.nbytes() for storage in storages.values())


def test_a_weight_is_cast_once_for_a_forward_pass_and_kept_until_backward():
    with FakeTensorMode(), device_rules("cuda"):
        layer = torch.nn.Linear(16, 16, bias=False)
        x = wide(3, 16)

        def run():
            with autocast():
                return layer(layer(layer(x)))

        three_inputs, one_weight = [2 * 3 * 16] * 3, [2 * 16 * 16]
        assert saved_storages(run, layer.parameters()) == three_inputs + one_weight


def test_layer_norm_under_autocast_keeps_a_wide_copy_of_a_narrow_input():
    with FakeTensorMode(), device_rules("cuda"):
        norm = torch.nn.LayerNorm(16)
        x = narrow(3, 16)

        def run():
            with autocast():
                return norm(x)

        assert saved_storages(run, norm.parameters()) == [4 * 3, 4 * 3, 4 * 3 * 16]


def test_rms_norm_under_autocast_keeps_a_wide_copy_of_a_narrow_input():
    # Since torch 2.12 the norm runs in float32 even where input and weight are both narrow.
    with FakeTensorMode(), device_rules("cuda"):
        weight, x = narrow(16), narrow(3, 16)

        def run():
            with autocast():
                return functional.rms_norm(x, (16,), weight)

        copies_of_weight_and_input = [4 * 16, 4 * 3 * 16]
        assert saved_storages(run, ()) == [4 * 3, *copies_of_weight_and_input]


def test_a_softmax_of_float16_scores_is_promoted_without_a_copy():
    class Names(TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "aten":
                self.names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with FakeTensorMode(), device_rules("cuda"), autocast(torch.float16):
        scores = torch.empty(3, 5, dtype=torch.float16)
        with Names() as record:
            assert functional.softmax(scores, -1).dtype == torch.float32
    assert record.names == ["_softmax"]
