"""Operations on a tape: what each operation of torch 2.13 allocates, keeps for backward, and needs while it goes back.

Each function stands for one call that transformers' models make, at float32. What is kept is what torch keeps, tensor
by tensor: a product keeps its factors, a linear layer its input, a softmax its output, a dropout its mask.
"""

from collections.abc import Sequence

from headwise.cost.step.tape import Shape, Storage, Value


def linear(name: str, x: Value, weight: Value, bias: Value | None = None, *, outputs: int | None = None) -> Value:
    """`x @ weight.T + bias`; keeps x. With `outputs`, the weight is (inputs, outputs) and `x @ weight + bias`."""
    is_turned = outputs is None
    inputs = (x, weight) if bias is None else (x, weight, bias)
    layouts = ("same", "turned" if is_turned else "same", "same")[: len(inputs)]
    shape = (*x.shape[:-1], weight.shape[0] if outputs is None else outputs)
    kept = (x.storage, weight.storage)
    return x.storage.tape.apply(name, shape, fresh=inputs, kept=kept, needs_dense=True, gradient_layouts=layouts)


def embedding(name: str, table: Value, ids: Storage, shape: Shape) -> Value:
    """Rows of a table; keeps the ids."""
    return table.storage.tape.apply(name, shape, fresh=(table,), kept=(ids,))


def add(name: str, a: Value, b: Value) -> Value:
    """`a + b`; keeps nothing. A smaller `b` is spread over `a`, and its gradient is summed."""
    tape = a.storage.tape
    if b.shape == a.shape:
        return tape.apply(name, a.shape, passed=(a, b))
    return tape.apply(name, a.shape, passed=(a,), fresh=(b,))


def scale(name: str, x: Value) -> Value:
    """`x` times a number; keeps nothing."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), layout=x.storage.layout)


def shift(name: str, x: Value) -> Value:
    """`x` plus a number or a tensor that does not learn; keeps nothing."""
    return x.storage.tape.apply(name, x.shape, passed=(x,), layout=x.storage.layout)


def multiply(name: str, a: Value, b: Value) -> Value:
    """`a * b`; each factor is kept for the other's gradient. A smaller `b` is spread over `a`."""
    kept = tuple(other.storage for one, other in ((a, b), (b, a)) if one.node is not None)
    scratch = (a.shape,) if b.node is not None and b.shape != a.shape else ()
    return a.storage.tape.apply(name, a.shape, fresh=(a, b), kept=kept, scratch=scratch, layout=a.storage.layout)


def layer_norm(name: str, x: Value, weight: Value, bias: Value) -> Value:
    """Layer normalisation over the last dimension; keeps x and the mean and inverse deviation of each row."""
    tape = x.storage.tape
    rows = (*x.shape[:-1], 1)
    kept = (x.storage, tape.new(f"{name} mean", rows), tape.new(f"{name} inverse deviation", rows))
    return tape.apply(name, x.shape, fresh=(x, weight, bias), kept=kept, needs_dense=True)


def rms_norm(name: str, x: Value, weight: Value) -> Value:
    """Root-mean-square normalisation as transformers writes it: five operations, three kept tensors."""
    tape = x.storage.tape
    rows = (*x.shape[:-1], 1)
    squares = tape.apply(f"{name} squares", x.shape, fresh=(x,), kept=(x.storage,), scratch=(x.shape, x.shape))
    mean = tape.apply(f"{name} mean square", rows, fresh=(squares,))
    del squares
    shifted = shift(f"{name} mean square, shifted", mean)
    inverse = tape.apply(f"{name} inverse root", rows, fresh=(shifted,), keeps_result=True, scratch=(rows, rows))
    del shifted
    normed = multiply(f"{name} before weight", x, inverse)
    del inverse
    return multiply(name, normed, weight)


def dropout(name: str, x: Value, p: float, *, device: str) -> Value:
    """Dropout. On CPU the mask is a tensor of x's dtype, on CUDA of bytes; p = 0 does nothing."""
    if p == 0:
        return x
    tape = x.storage.tape
    dtype = "float32" if device == "cpu" else "bool"
    mask = tape.new(f"{name} dropout mask", x.shape, dtype, layout=x.storage.layout)
    return tape.apply(f"{name} after dropout", x.shape, fresh=(x,), kept=(mask,), layout=x.storage.layout)


def activation(name: str, x: Value, kind: str) -> Value:
    """The feed-forward's non-linearity; a fused one keeps x, the tanh form written out ("gelu_new") four tensors."""
    if kind == "gelu_new":
        return _written_out_gelu(name, x)
    tape = x.storage.tape
    if kind in ("relu", "tanh", "sigmoid"):
        return tape.apply(name, x.shape, fresh=(x,), keeps_result=True)
    return tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,))


def _written_out_gelu(name: str, x: Value) -> Value:
    tape = x.storage.tape
    half = scale(f"{name} half", x)
    cube = tape.apply(f"{name} cube", x.shape, fresh=(x,), kept=(x.storage,), scratch=(x.shape, x.shape))
    inner = scale(f"{name} scaled cube", cube)
    del cube
    inner = add(f"{name} polynomial", x, inner)
    inner = scale(f"{name} argument", inner)
    inner = tape.apply(f"{name} tanh", x.shape, fresh=(inner,), keeps_result=True)
    inner = shift(f"{name} one plus tanh", inner)
    return multiply(name, half, inner)


def softmax(name: str, x: Value) -> Value:
    """Softmax over the last dimension; keeps its result."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True, layout=x.storage.layout)


def tanh(name: str, x: Value) -> Value:
    """Hyperbolic tangent; keeps its result."""
    return x.storage.tape.apply(name, x.shape, fresh=(x,), keeps_result=True)


def view(x: Value, shape: Shape, *, copied_layouts: frozenset[str] = frozenset()) -> Value:
    """The same memory in another shape; backward copies a gradient that lies in memory in one of these orders."""
    return x.storage.tape.apply(
        x.storage.record.name, shape, passed=(x,), storage=x.storage, copied_layouts=copied_layouts
    )


def split(x: Value, widths: Sequence[int]) -> list[Value]:
    """Views of parts of the last dimension; backward joins their gradients in one new tensor."""
    whole = x.storage.tape.apply(x.storage.record.name, x.shape, fresh=(x,), storage=x.storage)
    return [Value((*x.shape[:-1], width), x.storage, whole.node, slot) for slot, width in enumerate(widths)]


def split_heads(x: Value, num_heads: int, head_dim: int) -> Value:
    """View (B, T, H * D) as (B, H, T, D)."""
    batch, seq = x.shape[:2]
    copied = {"heads"} if num_heads > 1 and seq > 1 else set()
    return view(
        x,
        (batch, num_heads, seq, head_dim),
        copied_layouts=frozenset(copied | ({"columns"} if batch > 1 else set())),
    )


def merge_heads(name: str, x: Value) -> Value:
    """Bring (B, H, T, D) to (B, T, H * D): a view where tokens come first in memory, else a copy."""
    batch, heads, seq, dim = x.shape
    shape = (batch, seq, heads * dim)
    if x.storage.layout == "tokens" or heads == 1 or seq == 1:
        return view(x, shape)
    return x.storage.tape.apply(name, shape, passed=(x,))


def _stack_heads(name: str, x: Value) -> Value:
    """Bring (B, H, T, D) to a stack of B * H matrices: a copy unless batch and heads lie in memory as one dimension."""
    batch, heads, _, _ = x.shape
    if x.storage.layout == "heads" or batch == 1 or heads == 1:
        return x
    return x.storage.tape.apply(f"{name} copy", x.shape, passed=(x,), layout="heads")


def scores(query: Value, key: Value) -> Value:
    """`query @ key.T` for each head; keeps both, stacked."""
    query, key = _stack_heads("query", query), _stack_heads("key", key)
    shape = (*query.shape[:3], key.shape[2])
    return query.storage.tape.apply(
        "attention scores",
        shape,
        fresh=(query, key),
        kept=(query.storage, key.storage),
        layout="heads",
        gradient_layouts=("heads", "columns"),
    )


def mix_values(weights: Value, value: Value) -> Value:
    """`weights @ value` for each head; keeps both."""
    value = _stack_heads("value", value)
    batch, heads, seq, _ = weights.shape
    copied = frozenset({"tokens"} if batch > 1 and heads > 1 and seq > 1 else ())
    shape = (*weights.shape[:3], value.shape[3])
    tape = weights.storage.tape
    mixed = tape.apply(
        "attention output",
        shape,
        fresh=(weights, value),
        kept=(weights.storage, value.storage),
        layout="heads",
        gradient_layouts=("heads", "heads"),
    )
    return view(mixed, shape, copied_layouts=copied)


def repeat_heads(name: str, x: Value, times: int) -> Value:
    """Copy each key/value head for every query head that reads it."""
    if times == 1:
        return x
    batch, heads, seq, dim = x.shape
    return x.storage.tape.apply(
        name, (batch, heads * times, seq, dim), fresh=(x,), layout="heads", gradient_layouts=("heads",)
    )


def rotate(name: str, x: Value, cosine: Value, sine: Value) -> Value:
    """Rotary positions: `x * cos + rotate_half(x) * sin`; keeps cos and sin alone."""
    tape = x.storage.tape
    half = (*x.shape[:-1], x.shape[-1] // 2)
    straight = multiply(f"{name} times cosine", x, cosine)
    first = _slice(x, half)
    second = _slice(x, half)
    negated = scale(f"{name} half, negated", second)
    turned = tape.apply(f"{name}, halves swapped", x.shape, passed=(negated, first), layout="heads")
    del negated
    turned = multiply(f"{name} times sine", turned, sine)
    return tape.apply(f"{name}, rotated", x.shape, passed=(straight, turned), layout=x.storage.layout)


def _slice(x: Value, shape: Shape) -> Value:
    return x.storage.tape.apply(
        x.storage.record.name, shape, fresh=(x,), storage=x.storage, gradient_layouts=("heads",)
    )


def fused_attention(query: Value, key: Value, value: Value, mask: Storage | None, *, kernel: str) -> Value:
    """A fused kernel: keeps query, key, value, mask, its output and one logsumexp per row; never the scores."""
    tape = query.storage.tape
    batch, heads, seq, _ = query.shape
    # The memory-efficient kernel works on 32 rows at a time and rounds its logsumexp up to them.
    rows = -(-seq // 32) * 32 if kernel == "efficient" else seq
    logsumexp = tape.new("attention logsumexp", (batch, heads, rows))
    kept = [query.storage, key.storage, value.storage, logsumexp]
    if kernel != "flash_cpu":
        kept += [tape.new(f"attention random {part}", (), "int64") for part in ("seed", "offset")]
    if mask is not None:
        kept.append(mask)
    return tape.apply(
        "attention output",
        (batch, heads, seq, value.shape[3]),
        fresh=(query, key, value),
        kept=kept,
        keeps_result=True,
    )


def total(name: str, x: Value) -> Value:
    """The sum of all numbers; its gradient is one number spread over x."""
    return x.storage.tape.apply(name, (), passed=(x,))
