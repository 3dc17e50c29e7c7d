"""Operations on a tape: what each operation of torch 2.13 allocates, keeps for backward, and needs while it goes back.

Each function stands for one call that models make. What is kept is what torch keeps, tensor by tensor: a product keeps
its factors, a linear layer its input, a softmax its output, a dropout its mask. Dtypes follow torch too: of its inputs,
the wider one where two meet, and autocast's where it is on.
"""

from collections.abc import Sequence

from headwise.cost.step.autocast import cast, cast_inputs, dtype_under_autocast, promote
from headwise.cost.step.tape import Node, Shape, Storage, Value
from headwise.errors import UnsupportedError


def linear(name: str, x: Value, weight: Value, bias: Value | None = None, *, outputs: int | None = None) -> Value:
    """`x @ weight.T + bias`; keeps x. With `outputs`, the weight is (inputs, outputs) and `x @ weight + bias`."""
    is_turned = outputs is None
    inputs = cast_inputs("linear", *((x, weight) if bias is None else (x, weight, bias)))
    is_flattened = len(x.shape) > 2
    layouts = ("view" if is_flattened else "same", "turned" if is_turned else "same", "same")[: len(inputs)]
    shape = (*x.shape[:-1], weight.shape[0] if outputs is None else outputs)
    kept = factors(inputs[0], inputs[1])
    return x.storage.tape.apply(name, shape, fresh=inputs, kept=kept, needs_dense=True, gradient_layouts=layouts)


def convolve(name: str, x: Value, weight: Value, bias: Value, shape: Shape) -> Value:
    """Apply a convolution, viewed in `shape`; keeps x."""
    x, weight, bias = cast_inputs("conv", x, weight, bias)
    return x.storage.tape.apply(name, shape, fresh=(x, weight, bias), kept=(x.storage, weight.storage))


def embedding(name: str, table: Value, ids: Storage, shape: Shape, *, factor: Value | None = None) -> Value:
    """Rows of a table, times a factor if there is one; keeps the ids."""
    tape = table.storage.tape
    rows = tape.apply(name, shape, fresh=(table,), kept=(ids,))
    if factor is not None:
        rows = multiply(f"{name}, scaled", rows, factor)
    if tape.embeddings_learn and table.node is None and table.storage.record.name == "token table":
        rows.node = Node(name, shape, tape.owner, kept=(rows.storage,))  # a leaf lives as long as the graph
    return rows


def add(name: str, a: Value, b: Value) -> Value:
    """`a + b`; keeps nothing. A smaller `b` is spread over `a`, and its gradient is summed."""
    dtype = promote(a, b)
    passed = [one for one in (a, b) if one.shape == a.shape and one.dtype == dtype]
    fresh = [one for one in (a, b) if one not in passed]
    return a.storage.tape.apply(name, a.shape, passed=passed, fresh=fresh, dtype=dtype, layout=a.storage.layout)


def subtract(name: str, a: Value, b: Value) -> Value:
    """`a - b`; keeps nothing. A smaller `b` is spread over `a`."""
    dtype = promote(a, b)
    passed = [a] if a.dtype == dtype else []
    fresh = [one for one in (a, b) if one not in passed]
    return a.storage.tape.apply(name, a.shape, passed=passed, fresh=fresh, dtype=dtype, layout=a.storage.layout)


def scale(name: str, x: Value) -> Value:
    """`x` times a number; keeps nothing."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), layout=x.storage.layout)


def shift(name: str, x: Value, other: Storage | None = None) -> Value:
    """`x` plus a number, or plus a tensor that does not learn; keeps nothing."""
    tape = x.storage.tape
    dtype = x.dtype if other is None else promote(x, Value(x.shape, other))
    if dtype == x.dtype:
        return tape.apply(name, x.shape, passed=(x,), layout=x.storage.layout)
    return tape.apply(name, x.shape, fresh=(x,), dtype=dtype, layout=x.storage.layout)


def clamp(name: str, x: Value) -> Value:
    """`x` within bounds; keeps x."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,), layout=x.storage.layout)


def fill(name: str, x: Value, mask: Storage) -> Value:
    """`x` with a number where a mask says so; keeps the mask. torch writes it in the order of its dimensions."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(mask,), layout="heads", gradient_layouts=("heads",))


def multiply(name: str, a: Value, b: Value) -> Value:
    """`a * b`; each factor is kept for the other's gradient. A smaller `b` is spread over `a`."""
    dtype = promote(a, b)
    kept = factors(a, b)
    # The products with the gradient are as large and as wide as the result, before they are summed or cast.
    scratch = (a.shape,) if b.node is not None and b.shape != a.shape else ()
    return a.storage.tape.apply(
        name, a.shape, fresh=(a, b), kept=kept, dtype=dtype, scratch=scratch, layout=a.storage.layout
    )


def power(name: str, x: Value) -> Value:
    """`x` to the power of a number; keeps x."""
    (x,) = cast_inputs("pow", x)
    return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,), scratch=(x.shape, x.shape))


def mean(name: str, x: Value) -> Value:
    """Mean over the last dimension, which stays with length 1; keeps nothing."""
    return x.storage.tape.apply(name, (*x.shape[:-1], 1), fresh=(x,))


def mean_over_tokens(name: str, x: Value) -> Value:
    """Mean over the tokens of each text, (B, T, E) -> (B, E); keeps nothing."""
    return x.storage.tape.apply(name, (x.shape[0], *x.shape[2:]), fresh=(x,))


def inverse_root(name: str, x: Value) -> Value:
    """`1 / sqrt(x)`; keeps its result."""
    (x,) = cast_inputs("rsqrt", x)
    return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True, scratch=(x.shape, x.shape))


def dropout(name: str, x: Value, p: float) -> Value:
    """Dropout. On CPU the mask is a tensor of x's dtype, on CUDA of bytes; p = 0 does nothing."""
    if p == 0:
        return x
    tape = x.storage.tape
    dtype = x.dtype if tape.device == "cpu" else "bool"
    mask = tape.new(f"{name} dropout mask", x.shape, dtype, layout=x.storage.layout)
    return tape.apply(f"{name} after dropout", x.shape, fresh=(x,), kept=(mask,), layout=x.storage.layout)


def activation(name: str, x: Value, kind: str) -> Value:
    """The feed-forward's non-linearity, by its name in transformers: one call, or written out.

    Raises:
        UnsupportedError: what it keeps is not known.
    """
    if kind in _WRITTEN_OUT:
        return _WRITTEN_OUT[kind](name, x)
    if kind in _KEEP_RESULT:
        return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True)
    if kind in _KEEP_INPUT:
        return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,))
    known = ", ".join(sorted({*_WRITTEN_OUT, *_KEEP_RESULT, *_KEEP_INPUT}))
    raise UnsupportedError(f"what an activation keeps is known of {known}; got {kind!r}: measure the module")


_KEEP_RESULT = frozenset({"relu", "tanh", "sigmoid"})
_KEEP_INPUT = frozenset({"gelu", "gelu_pytorch_tanh", "silu", "swish", "mish", "leaky_relu", "relu6"})


def _write_gelu_new(name: str, x: Value) -> Value:
    half = scale(f"{name} half", x)
    inner = scale(f"{name} scaled cube", power(f"{name} cube", x))
    inner = add(f"{name} polynomial", x, inner)
    inner = scale(f"{name} argument", inner)
    inner = tanh(f"{name} tanh", inner)
    inner = shift(f"{name} one plus tanh", inner)
    return multiply(name, half, inner)


def _write_gelu_fast(name: str, x: Value) -> Value:
    half = scale(f"{name} half", x)
    outer = scale(f"{name} scaled", x)
    inner = multiply(f"{name} scaled square", scale(f"{name} scaled less", x), x)
    inner = shift(f"{name} one plus square", inner)
    inner = multiply(f"{name} argument", outer, inner)
    inner = tanh(f"{name} tanh", inner)
    inner = shift(f"{name} one plus tanh", inner)
    return multiply(name, half, inner)


def _write_quick_gelu(name: str, x: Value) -> Value:
    return multiply(name, x, activation(f"{name} gate", scale(f"{name} scaled", x), "sigmoid"))


_WRITTEN_OUT = {"gelu_new": _write_gelu_new, "gelu_fast": _write_gelu_fast, "quick_gelu": _write_quick_gelu}


def softmax(name: str, x: Value, dtype: str | None = None) -> Value:
    """Softmax over the last dimension, in x's dtype or another; keeps its result.

    CUDA's kernel reads float16 and writes float32; everywhere else x is cast first.
    """
    tape = x.storage.tape
    dtype = dtype or dtype_under_autocast(tape, "softmax") or x.dtype
    if tape.device == "cpu" or (x.dtype, dtype) != ("float16", "float32"):
        x = cast(x, dtype)
    return tape.apply(name, x.shape, fresh=(x,), dtype=dtype, keeps_result=True, layout=x.storage.layout)


def logsumexp(name: str, x: Value) -> Value:
    """Logarithm of the sum of the exponentials over the last dimension, which goes; keeps x and its result."""
    return x.storage.tape.apply(
        name, x.shape[:-1], fresh=(x,), kept=(x.storage,), keeps_result=True, scratch=(x.shape, x.shape), layout="heads"
    )


def tanh(name: str, x: Value) -> Value:
    """Hyperbolic tangent; keeps its result."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True, layout=x.storage.layout)


def view(x: Value, shape: Shape, *, copied_layouts: frozenset[str] = frozenset()) -> Value:
    """The same memory in another shape; backward copies a gradient that lies in memory in one of these orders."""
    return x.storage.tape.apply(
        x.storage.record.name, shape, passed=(x,), storage=x.storage, copied_layouts=copied_layouts
    )


def join(name: str, *parts: Value) -> Value:
    """Parts side by side in the last dimension; backward hands each a view of its part of the gradient."""
    first = parts[0]
    dtype = promote(*parts)
    return first.storage.tape.apply(
        name,
        (*first.shape[:-1], sum(part.shape[-1] for part in parts)),
        passed=[part for part in parts if part.dtype == dtype],
        fresh=[part for part in parts if part.dtype != dtype],
        dtype=dtype,
        layout="heads" if len(first.shape) == 4 else "tokens",
    )


def cut(x: Value, width: int) -> Value:
    """A view of a part of the last dimension; backward puts its gradient into a new tensor of zeros."""
    layout = "heads" if len(x.shape) == 4 else "tokens"
    return x.storage.tape.apply(
        x.storage.record.name, (*x.shape[:-1], width), fresh=(x,), storage=x.storage, gradient_layouts=(layout,)
    )


def lay_out_heads(name: str, x: Value) -> Value:
    """Bring (B, H, T, D) in memory into the order of its dimensions: a copy where it is in that of tokens."""
    if len(x.shape) < 4 or x.storage.layout == "heads" or 1 in x.shape[1:3]:
        return x
    return x.storage.tape.apply(f"{name}, contiguous", x.shape, passed=(x,), layout="heads")


def first_token(x: Value) -> Value:
    """View the first token of each text, (B, T, E) -> (B, E); backward puts its gradient into a tensor of zeros."""
    shape = (x.shape[0], *x.shape[2:])
    return x.storage.tape.apply(x.storage.record.name, shape, fresh=(x,), storage=x.storage)


def split(x: Value, widths: Sequence[int]) -> list[Value]:
    """Views of parts of the last dimension; backward joins their gradients in one new tensor."""
    if len(x.shape) == 4 and x.shape[2] == 1:
        x.storage.layout = "heads"  # one token's heads lie in memory in both orders
    return _split(x, [(*x.shape[:-1], width) for width in widths])


def split_rows(x: Value, rows: int) -> list[Value]:
    """Views of as many rows at a time; backward joins their gradients in one new tensor."""
    lengths = [min(rows, x.shape[0] - start) for start in range(0, x.shape[0], rows)]
    return _split(x, [(length, *x.shape[1:]) for length in lengths])


def _split(x: Value, shapes: Sequence[Shape]) -> list[Value]:
    layout = "heads" if len(x.shape) == 4 else "tokens"
    whole = x.storage.tape.apply(
        x.storage.record.name, x.shape, fresh=(x,), storage=x.storage, gradient_layouts=(layout,)
    )
    return [Value(shape, x.storage, whole.node, slot) for slot, shape in enumerate(shapes)]


def factors(a: Value, b: Value) -> tuple[Storage, ...]:
    """What a product keeps: each factor, if the other one needs a gradient."""
    return tuple(other.storage for one, other in ((a, b), (b, a)) if one.node is not None)


def total(name: str, x: Value) -> Value:
    """The sum of all numbers; its gradient is one number spread over x."""
    return x.storage.tape.apply(name, (), passed=(x,))
