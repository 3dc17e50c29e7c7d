"""The table of autocast against torch's own dispatcher, for CPU and, on fake tensors, for CUDA."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import PRODUCTS, PROMOTED, autocasting, cast, cast_inputs, promote
from headwise.cost.step.tape import Tape, Value

ROWS, WIDTH = 3, 5


def calls(make):
    """One call of each operation of the table, and of some that are left alone; `make(*shape)` makes a tensor."""
    x, weight, scale = make(ROWS, WIDTH), make(WIDTH, WIDTH), make(WIDTH)
    images, kernels, heads = make(1, 1, ROWS, WIDTH), make(1, 1, 2, 2), make(1, 2, ROWS, WIDTH)
    return {
        "linear": lambda: functional.linear(x, weight),
        "matmul": lambda: x @ weight,
        "conv": lambda: functional.conv2d(images, kernels),
        "scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(heads, heads, heads),
        "softmax": lambda: functional.softmax(x, -1),
        "log_softmax": lambda: functional.log_softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (WIDTH,), scale, scale),
        "rms_norm": lambda: functional.rms_norm(x, (WIDTH,), scale),
        "pow": lambda: x.pow(2),
        "rsqrt": x.rsqrt,
        "sum": lambda: x.sum(-1),
        "logsumexp": lambda: x.logsumexp(-1),
        "gelu": lambda: functional.gelu(x),
        "silu": lambda: functional.silu(x),
        "tanh": x.tanh,
        "sigmoid": x.sigmoid,
        "mean": lambda: x.mean(-1),
        "dropout": lambda: functional.dropout(x, 0.1, training=True),
    }


def found_dtypes(device, came):
    """The dtype of each result under autocast to bfloat16, for inputs of dtype `came`."""
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, torch.bfloat16)
    try:
        with FakeTensorMode(), torch.no_grad():
            make = partial(torch.empty, dtype=came, device=device)
            return {name: str(call().dtype).removeprefix("torch.") for name, call in calls(make).items()}
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


@pytest.mark.parametrize("came", ["bfloat16", "float32"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_operation_runs_in_the_dtype_that_torchs_dispatcher_gives_it(device, came):
    for name, found in found_dtypes(device, getattr(torch, came)).items():
        wanted = "bfloat16" if name in PRODUCTS else "float32" if name in PROMOTED[device] else came
        assert (name, found) == (name, wanted)


def test_every_line_of_the_table_is_tried_but_the_loss_that_the_fake_device_has_not():
    tried = set(calls(torch.empty))
    assert PRODUCTS | PROMOTED["cuda"] | PROMOTED["cpu"] <= tried | {"cross_entropy"}


def test_the_cpu_promotes_the_loss():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = functional.cross_entropy(torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert "cross_entropy" in PROMOTED["cpu"]


@pytest.fixture
def tape():
    tape = Tape()
    tape.begin("forward: all")
    return tape


def hidden(tape, dtype="float32"):
    return Value((ROWS, WIDTH), tape.new("x", (ROWS, WIDTH), dtype))


def test_a_weight_is_cast_once_and_what_is_no_weight_for_every_reader(tape):
    weight, x = tape.parameter("weight", (WIDTH, WIDTH)), hidden(tape)
    before = tape.current_bytes
    with autocasting(tape, "bfloat16"):
        results = [ops.linear(name, x, weight) for name in ("first", "second")]
        assert tape.current_bytes - before == 2 * WIDTH * WIDTH + 2 * (2 * ROWS * WIDTH) + 2 * (2 * ROWS * WIDTH)
    assert {result.dtype for result in results} == {"bfloat16"}


def test_autograd_keeps_the_casts_of_weights_when_autocast_has_forgotten_them(tape):
    weight, x = tape.parameter("weight", (WIDTH, WIDTH)), hidden(tape)
    with autocasting(tape, "float16"):
        y = ops.linear("y", ops.multiply("z", x, tape.parameter("scale", (WIDTH,))), weight)
    kept = [record for record in tape.records if record.name == "weight, float16"]
    assert not tape.weight_casts
    assert [record.freed for record in kept] == [None]
    del y
    assert kept[0].freed is not None


def test_a_frozen_weight_is_cast_for_every_reader(tape):
    weight, x = tape.parameter("weight", (WIDTH, WIDTH), is_frozen=True), hidden(tape)
    with autocasting(tape, "bfloat16"):
        assert cast_inputs("linear", x, weight)[1] is not cast_inputs("linear", x, weight)[1]


def test_inside_a_kernel_autocast_is_off_and_afterwards_on_again(tape):
    weight, x = tape.parameter("weight", (WIDTH, WIDTH)), hidden(tape)
    with autocasting(tape, "bfloat16"):
        first = cast_inputs("linear", weight)
        with autocasting(tape, None):
            assert ops.linear("y", x, weight).dtype == "float32"
        assert cast_inputs("linear", weight)[0] is first[0]


def test_a_cast_gives_back_a_gradient_of_the_dtype_that_came(tape):
    x = tape.parameter("x", (ROWS, WIDTH))
    narrow = cast(x, "bfloat16")
    assert narrow.node is not None
    assert [edge.dtype for edge in narrow.node.edges] == ["float32"]
    assert cast(narrow, "bfloat16") is narrow
    assert cast(narrow, None) is narrow


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_two_dtypes_meet_in_the_wider_one_as_in_torch(tape, dtypes):
    a, b = (hidden(tape, dtype) for dtype in dtypes)
    torch_dtype = torch.promote_types(*(getattr(torch, dtype) for dtype in dtypes))
    assert promote(a, b) == str(torch_dtype).removeprefix("torch.")
    assert ops.add("sum", a, b).dtype == ops.multiply("product", a, b).dtype == promote(a, b)
