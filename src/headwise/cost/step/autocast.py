"""Autocast on paper: to which dtype torch casts what an operation reads, on CPU and on CUDA, and what the casts hold.

Autocast casts a weight once for a whole forward pass, and autograd keeps the copies until backward: two bytes more for
each weight of a product. What is no weight is cast anew for every reader.

Source: pytorch 2.13, aten/src/ATen/autocast_mode.{h,cpp}; a test asks torch's dispatcher for every line of the table.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.cost.step.tape import Tape, Value

PRODUCTS = frozenset({"linear", "matmul", "conv", "scaled_dot_product_attention"})
"""Operations that autocast runs in its own, narrow dtype."""

PROMOTED = {
    "cuda": frozenset(
        {"softmax", "log_softmax", "layer_norm", "rms_norm", "pow", "rsqrt", "sum", "logsumexp", "cross_entropy"}
    ),
    "cpu": frozenset({"cross_entropy"}),
}
"""Operations that autocast runs in float32, by device; all others take what comes."""


@contextmanager
def autocasting(tape: Tape, dtype: str | None) -> Iterator[None]:
    """Run what is inside under autocast to `dtype`; None = without. The outermost one forgets the weights' casts."""
    before, tape.autocast_dtype = tape.autocast_dtype, dtype
    try:
        yield
    finally:
        tape.autocast_dtype = before
        if before is None:
            tape.weight_casts.clear()


def dtype_under_autocast(tape: Tape, operation: str) -> str | None:
    """Return the dtype that autocast casts what an operation reads to, or None where it does not."""
    if tape.autocast_dtype is None:
        return None
    if operation in PRODUCTS:
        return tape.autocast_dtype
    return "float32" if operation in PROMOTED[tape.device] else None


def promote(*values: Value) -> str:
    """Return the dtype of a result that several tensors share: float32 as soon as two dtypes meet.

    (The only narrow dtypes that meet in one model are equal.)
    """
    dtypes = {value.dtype for value in values}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def cast(x: Value, dtype: str | None) -> Value:
    """`x.to(dtype)`: x itself where it has the dtype, or None is asked for."""
    if dtype is None or x.dtype == dtype:
        return x
    record = x.storage.record
    return x.storage.tape.apply(f"{record.name}, {dtype}", x.shape, fresh=(x,), dtype=dtype, layout=x.storage.layout)


def cast_inputs(operation: str, *values: Value) -> tuple[Value, ...]:
    """Cast what an operation reads as autocast does where it is on."""
    tape = values[0].storage.tape
    dtype = dtype_under_autocast(tape, operation)
    return tuple(_cast_once(tape, value, dtype) for value in values)


def _cast_once(tape: Tape, x: Value, dtype: str | None) -> Value:
    is_frozen = tape.grad_enabled and x.node is None
    if x.storage.record.kind != "parameter" or is_frozen or dtype != tape.autocast_dtype:
        return cast(x, dtype)
    if x.storage not in tape.weight_casts:
        tape.weight_casts[x.storage] = cast(x, dtype)
    return tape.weight_casts[x.storage]
