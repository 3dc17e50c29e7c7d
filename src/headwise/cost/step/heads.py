"""Operations on heads, on a tape: how tokens are split among heads and brought together, and attention's products."""

from math import prod

from headwise.cost.step.autocast import cast_inputs
from headwise.cost.step.operations import add, cut, factors, join, multiply, scale, subtract, view
from headwise.cost.step.tape import Value


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
    """Bring (B, H, T, D) to (B, T, H * D): a view where tokens come first in memory, else a copy.

    What a kernel has padded, and is cut to its size, has gaps and is copied too.
    """
    batch, heads, seq, dim = x.shape
    shape = (batch, seq, heads * dim)
    has_gaps = prod(x.shape) < prod(x.storage.record.shape)
    if not has_gaps and (x.storage.layout == "tokens" or heads == 1 or seq == 1):
        return view(x, shape)
    return x.storage.tape.apply(name, shape, passed=(x,))


def repeat_heads(name: str, x: Value, times: int) -> Value:
    """Copy each key/value head for every query head that reads it."""
    if times == 1:
        return x
    batch, heads, seq, dim = x.shape
    return x.storage.tape.apply(
        name, (batch, heads * times, seq, dim), fresh=(x,), layout="heads", gradient_layouts=("heads",)
    )


def show_to_heads(name: str, x: Value, times: int) -> Value:
    """Copy each key/value head as `repeat_heads` does, but show a single one to all query heads as it lies in memory.

    A kernel that reads heads by their strides takes it so; a product of matrices copies it, unless there is one text.
    """
    batch, heads, seq, dim = x.shape
    if heads > 1 or times == 1:
        return repeat_heads(name, x, times)
    shown = x.storage.tape.apply(
        name, (batch, times, seq, dim), fresh=(x,), storage=x.storage, gradient_layouts=("heads",)
    )
    shown.is_shown = True
    return shown


def rotate(name: str, x: Value, cosine: Value, sine: Value) -> Value:
    """Rotary positions: `x * cos + rotate_half(x) * sin`; keeps cos and sin alone."""
    tape = x.storage.tape
    half = x.shape[-1] // 2
    straight = multiply(f"{name} times cosine", x, cosine)
    first = cut(x, half)
    second = cut(x, half)
    negated = scale(f"{name} half, negated", second)
    turned = join(f"{name}, halves swapped", negated, first)
    del negated
    turned = multiply(f"{name} times sine", turned, sine)
    return tape.apply(f"{name}, rotated", x.shape, passed=(straight, turned), layout=x.storage.layout)


def rotate_interleaved(name: str, x: Value, cosine: Value, sine: Value) -> Value:
    """Turn pairs that stand side by side: `[a cos - b sin, b cos + a sin]`; keeps cos and sin alone."""
    half = x.shape[-1] // 2
    cosine, sine = (Value((*angle.shape[:-1], half), angle.storage) for angle in (cosine, sine))
    evens, odds = cut(x, half), cut(x, half)
    first = subtract(
        f"{name} evens, turned", multiply(f"{name} evens", evens, cosine), multiply(f"{name} odds", odds, sine)
    )
    second = add(f"{name} odds, turned", multiply(f"{name} odds", odds, cosine), multiply(f"{name} evens", evens, sine))
    return join(f"{name}, rotated", first, second)


def look_up_bias(table: Value, query_len: int, key_len: int) -> Value:
    """T5's bias on the scores: for each pair of tokens and head, what the table says of their distance."""
    tape = table.storage.tape
    num_heads = table.shape[1]
    buckets = tape.new("bucket of each distance", (query_len, key_len), "int64")
    values = tape.apply(
        "bias on the scores", (query_len, key_len, num_heads), fresh=(table,), kept=(buckets,), layout="pairs"
    )
    return view(values, (1, num_heads, query_len, key_len))


def stack_groups(name: str, x: Value, num_kv_heads: int) -> Value:
    """Bring the queries of a group's heads together as queries of one head: (B, H, T, D) to (B, K, H / K * T, D)."""
    batch, num_heads, seq, dim = x.shape
    shape = (batch, num_kv_heads, num_heads // num_kv_heads * seq, dim)
    if x.storage.layout == "heads" or num_kv_heads == num_heads or seq == 1:
        return view(x, shape)
    return x.storage.tape.apply(name, shape, passed=(x,), layout="heads")


def unpack_groups(name: str, x: Value, num_heads: int) -> Value:
    """Bring one token's queries of each group back to their heads: (B, K, H / K, V) to (B, H, 1, V).

    A view where a group lies in memory as a row does, or there is only one group; else a copy.
    """
    batch, num_kv_heads, _, dim = x.shape
    shape = (batch, num_heads, 1, dim)
    if x.storage.layout == "heads" or num_kv_heads == 1:
        return view(x, shape)
    return x.storage.tape.apply(name, shape, passed=(x,), layout="heads")


def _stack_heads(name: str, x: Value) -> Value:
    """Bring (B, H, T, D) to a stack of B * H matrices: a copy unless batch and heads lie in memory as one dimension."""
    batch, heads, _, _ = x.shape
    if (x.storage.layout == "heads" and not x.is_shown) or 1 in (batch, heads):
        return x
    return x.storage.tape.apply(f"{name}, contiguous", x.shape, passed=(x,), layout="heads")


def scores(query: Value, key: Value) -> Value:
    """`query @ key.T` for each head; keeps both, stacked."""
    query, key = cast_inputs("matmul", query, key)
    query, key = _stack_heads("query", query), _stack_heads("key", key)
    shape = (*query.shape[:3], key.shape[2])
    return query.storage.tape.apply(
        "attention scores",
        shape,
        fresh=(query, key),
        kept=factors(query, key),
        layout="heads",
        gradient_layouts=("heads", "columns"),
    )


def mix_values(weights: Value, value: Value) -> Value:
    """`weights @ value` for each head; keeps both."""
    weights, value = cast_inputs("matmul", weights, value)
    value = _stack_heads("value", value)
    batch, heads, seq, _ = weights.shape
    copied = frozenset({"tokens"} if batch > 1 and heads > 1 and seq > 1 else ())
    shape = (*weights.shape[:3], value.shape[3])
    mixed = weights.storage.tape.apply(
        "attention output",
        shape,
        fresh=(weights, value),
        kept=factors(weights, value),
        layout="heads",
        gradient_layouts=("heads", "heads"),
    )
    return view(mixed, shape, copied_layouts=copied)
