"""Operations of a rule that works through a text chunk by chunk, on a tape: sums, products of stacks, parts of tensors.

A tensor of chunks is (B, H, N, C, D): texts, heads, chunks, tokens of a chunk, numbers. Its `layout` says how it lies
in memory: "heads" in this order, "tokens" as (B, N, C, H, D), "columns" as (B, H, D, N, C).
"""

from math import prod

from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, cast_inputs, dtype_under_autocast
from headwise.cost.step.tape import Record, Shape, Value


def exp(name: str, x: Value) -> Value:
    """`e^x`; keeps its result."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True)


def copy(name: str, x: Value, shape: Shape, *, layout: str = "tokens") -> Value:
    """The same numbers in another order in memory; the gradient is handed on."""
    return x.storage.tape.apply(name, shape, passed=(x,), layout=layout)


def softplus(name: str, x: Value) -> Value:
    """`log(1 + e^x)`; keeps x."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,))


def reshape(name: str, x: Value, shape: Shape, *, is_copied: bool) -> Value:
    """x in another shape: a view, or a copy where its parts do not lie side by side."""
    return copy(name, x, shape) if is_copied else ops.view(x, shape)


def convolve_tokens(name: str, x: Value, weight: Value) -> Value:
    """A causal convolution of each channel over the tokens of (B, T, C): (B, C, T), cut from what is longer; keeps x.

    Autocast casts a view of a weight anew each time it is read.
    """
    tape = x.storage.tape
    batch, seq, channels = x.shape
    wide = ops.view(cast(x, weight.dtype), (batch, channels, seq))
    dtype = dtype_under_autocast(tape, "conv")
    read, read_weight = cast(wide, dtype), cast(weight, dtype)
    shape = (batch, channels, seq + weight.shape[-1] - 1)
    whole = tape.apply(name, shape, fresh=(read, read_weight), kept=(read.storage, read_weight.storage))
    return pick(whole, (batch, channels, seq))


def activate_channels(name: str, x: Value, kind: str) -> Value:
    """The non-linearity of (B, C, T), seen as (B, T, C)."""
    batch, channels, seq = x.shape
    active = ops.activation(name, x, kind)
    active.storage.layout = "columns"
    return ops.view(active, (batch, seq, channels))


def normalise_length(name: str, x: Value) -> Value:
    """`x / |x|` over the last dimension; keeps x, twice, and the inverse lengths."""
    tape, rows = x.storage.tape, (*x.shape[:-1], 1)
    squares = ops.multiply(f"{name} squares", x, x)
    sums = tape.apply(f"{name} sum of squares", rows, passed=(squares,))
    del squares
    sums = ops.shift(f"{name} sum of squares, shifted", sums)
    inverse = ops.inverse_root(f"{name} inverse length", sums)
    del sums
    return ops.multiply(f"{name}, of length 1", x, inverse)


def pad_tokens(x: Value, chunk_size: int) -> Value:
    """Put zeros behind the tokens, up to whole chunks: (B, H, T, ...); a copy even where there is nothing to add."""
    batch, heads, seq, *rest = x.shape
    missing = -seq % chunk_size
    name = f"{x.storage.record.name}, whole chunks"
    layout = "heads" if missing else x.storage.layout
    return x.storage.tape.apply(name, (batch, heads, seq + missing, *rest), fresh=(x,), layout=layout)


def cumulate(name: str, x: Value) -> Value:
    """Sums of all up to here, over the last dimension; backward turns the gradient round, and back."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), scratch=(x.shape, x.shape))


def differences(name: str, x: Value) -> Value:
    """`x_i - x_j` of all pairs of the last dimension."""
    shape = (*x.shape, x.shape[-1])
    return x.storage.tape.apply(name, shape, fresh=(x, x), scratch=(shape,))


def pick(x: Value, shape: Shape) -> Value:
    """A view of a part of a tensor; backward puts its gradient into a new tensor of zeros."""
    return x.storage.tape.apply(
        x.storage.record.name, shape, fresh=(x,), storage=x.storage, gradient_layouts=("heads",)
    )


def write(whole: Value, part: Value) -> Value:
    """Write a part of a tensor, in place; backward copies the gradient of the whole, and out of the copy that part."""
    wide = whole.dtype == part.dtype
    scratch = [part.shape] if whole.node is not None else [whole.shape]
    return whole.storage.tape.apply(
        whole.storage.record.name,
        whole.shape,
        fresh=(whole, part),
        storage=whole.storage,
        scratch=scratch if wide else [*scratch, part.shape],
    )


def solve(name: str, matrix: Value, x: Value) -> Value:
    """Solve `matrix @ y = x` of triangular matrices; keeps the matrices and y, whose matrices lie as columns."""
    return x.storage.tape.apply(
        name,
        x.shape,
        fresh=(x, matrix),
        kept=(matrix.storage,),
        keeps_result=True,
        scratch=(matrix.shape,),
        layout="columns",
        gradient_layouts=("columns", "heads"),
    )


def factors_of_product(name: str, a: Value, b: Value) -> tuple[Value, Value]:
    """What a product of stacks of matrices reads: `a` and `b` cast as autocast does, each in a memory of stacks."""
    a, b = cast_inputs("matmul", a, b)
    return _stack(f"{name}, left", a), _stack(f"{name}, right", b)


def product(name: str, a: Value, b: Value, shape: Shape) -> Value:
    """`a @ b` of stacks, each turned where the shape asks for it; keeps both. Its gradients come as views."""
    kept = ops.factors(a, b)
    return a.storage.tape.apply(name, shape, fresh=(a, b), kept=kept, layout="heads", gradient_layouts=("view", "view"))


def _stack(name: str, x: Value) -> Value:
    """Copy x unless its first dimensions lie in memory as one."""
    batch, heads, *chunks = x.shape[:-2]
    num_chunks = prod(chunks)
    if x.storage.layout == "tokens":
        is_stacked = heads == 1 or (batch == 1 and num_chunks == 1)
    else:
        is_stacked = x.storage.layout == "heads" or num_chunks == 1 or batch * heads == 1 or x.shape[-1] == 1
    return x if is_stacked else copy(f"{name} copy", x, x.shape, layout="heads")


def keep_more(x: Value, kept: list[Record], times: int) -> Value:
    """Hold `times` more of what was kept on the way to x, from now until backward has come back to here.

    They stand for equal tensors that live alike. Nothing is held where nothing is kept.
    """
    tape = x.storage.tape
    if x.node is None:
        return x
    times = times if tape.keeps else 0
    more = [tape.new(f"{record.name}, of {times} more chunks", (times, *record.shape), record.dtype) for record in kept]
    return tape.apply(x.storage.record.name, x.shape, passed=(x,), kept=more, storage=x.storage)
