"""The gated delta rule on a tape, as transformers computes it where there is no kernel for it: chunk by chunk.

Inside a chunk all pairs of tokens meet in products of matrices; from chunk to chunk a state of (D, V) numbers a head
goes on. Of many chunks a few are played: those between the first and the last ones live alike, and one stands for all.

Source: transformers 5.24, `torch_chunk_gated_delta_rule`; Yang et al. 2024, "Gated Delta Networks", section 3.3.
"""

from dataclasses import dataclass

from headwise.cost.step import operations as ops
from headwise.cost.step.chunk_operations import (
    copy,
    cumulate,
    differences,
    exp,
    factors_of_product,
    keep_more,
    normalise_length,
    pad_tokens,
    pick,
    product,
    solve,
    write,
)
from headwise.cost.step.tape import Record, Shape, Storage, Tape, Value

MAX_PLAYED_CHUNKS = 4
"""The first, one for all in between, and the last two. What is kept grows from chunk to chunk, so that the last is the
worst of forward; of backward it is one of the first three: the last chunk has no new state, the one before it is the
first whose gradients meet others, and from the third on all is the same but for what is free by then. The one for all
in between comes third, while all that they keep is there."""


@dataclass(frozen=True)
class _Parts:
    """What every chunk reads a part of: (B, H, N, C, ...), and the decay of each whole chunk, (B, H, N, 1, 1)."""

    values: Value
    key_readers: Value
    queries: Value
    scores: Value
    keys: Value
    decays: Value

    @property
    def records(self) -> list[Record]:
        """Those of their memory."""
        parts = (self.values, self.key_readers, self.queries, self.scores, self.keys, self.decays)
        return [part.storage.record for part in parts]


_Kept = dict[Record, None]
"""What a chunk keeps for backward, each once, in order."""


def apply_delta_rule(
    query: Value, key: Value, value: Value, decay: Value, beta: Value, *, chunk_size: int, returns_state: bool = False
) -> tuple[Value, Value | None]:
    """Run the rule over whole texts from a state of zeros; return all outputs, (B, H, T, V), and the last state.

    Args:
        query, key: (B, T, K, D), each head of which `H / K` states read.
        value: (B, T, H, V).
        decay, beta: how fast a state is forgotten, and how much of a token is written: (B, T, H).
        chunk_size: tokens of a chunk, C.
        returns_state: the state after the last token is read by the caller, (B, H, D, V).
    """
    tape, dtype = query.storage.tape, query.dtype
    seq, num_heads = value.shape[1:3]
    given_decay = decay
    query, key = (_repeat(name, x, num_heads) for name, x in (("query", query), ("key", key)))
    query, key, value, beta, decay = [_put_heads_first(x) for x in (query, key, value, beta, decay)]
    query = normalise_length("query", query)
    key = normalise_length("key", key)
    query = ops.scale("query, scaled", query)
    query, key, value = (pad_tokens(x, chunk_size) for x in (query, key, value))
    beta, decay = (pad_tokens(x, chunk_size) for x in (beta, decay))
    v_beta = ops.multiply("value times beta", value, _as_column(beta))
    k_beta = ops.multiply("key times beta", key, _as_column(beta))
    query, key, k_beta, v_beta = (_cut_in_chunks(x, chunk_size) for x in (query, key, k_beta, v_beta))
    later = _make_later(tape, chunk_size)
    cum_decay = cumulate("decay up to each token", _cut_in_chunks(decay, chunk_size))
    pairwise = differences("decay between tokens", cum_decay)
    pairwise = ops.fill("decay since earlier tokens", pairwise, later)
    pairwise = exp("decay factor since earlier tokens", pairwise)
    system = ops.multiply("system of each chunk", _multiply_all("keys times keys", k_beta, key), pairwise)
    scores = ops.multiply("scores of each chunk", _multiply_all("queries times keys", query, key), pairwise)
    decayed_k_beta = ops.multiply("key times beta, decayed", k_beta, _as_column(exp("decay factor", cum_decay)))
    new_values = solve("new values", system, v_beta)
    key_readers = solve("keys that read the state", system, decayed_k_beta)
    query = ops.multiply("query, decayed", query, _as_column(exp("decay factor of queries", cum_decay)))
    key = ops.multiply("key, decayed", key, _as_column(_decay_to_end(cum_decay)))
    decays = exp("decay factor of each chunk", pick(cum_decay, cum_decay.shape[:3]))
    decays = ops.view(decays, (*decays.shape, 1, 1))
    output, state, _names = _scan(_Parts(new_values, key_readers, query, scores, key, decays))
    last_state = state if returns_state else None
    del state
    num_chunks = output.shape[2]
    output = _join_chunks(output, seq)
    _held = given_decay, beta, decay, value, v_beta, decayed_k_beta, pairwise, later
    if output.dtype != dtype:
        output = tape.apply("output of the rule, cast", output.shape, fresh=(output,), dtype=dtype)
    elif num_chunks == 1:  # torch takes the columns of a single chunk for another memory format, and copies it
        output = copy("output of the rule, tokens first", output, output.shape)
    return output, last_state


def _repeat(name: str, x: Value, num_heads: int) -> Value:
    """Copy each head for every state that reads it."""
    batch, seq, heads, dim = x.shape
    if heads == num_heads:
        return x
    shape = (batch, seq, num_heads, dim)
    return x.storage.tape.apply(f"{name} of each state", shape, fresh=(x,), gradient_layouts=("tokens",))


def _put_heads_first(x: Value) -> Value:
    """Bring (B, T, H, ...) to (B, H, T, ...) in float32: a view where it is float32 as it is."""
    batch, seq, heads, *rest = x.shape
    shape = (batch, heads, seq, *rest)
    if x.dtype == "float32":
        return ops.view(x, shape)
    name = f"{x.storage.record.name}, float32"
    return x.storage.tape.apply(name, shape, fresh=(x,), dtype="float32", layout="heads")


def _as_column(x: Value) -> Value:
    return ops.view(x, (*x.shape, 1))


def _cut_in_chunks(x: Value, chunk_size: int) -> Value:
    """View (B, H, T, ...) as (B, H, N, C, ...)."""
    batch, heads, seq, *rest = x.shape
    num_chunks = seq // chunk_size
    copied = frozenset({"columns"} if num_chunks > 1 and rest != [1] else ())
    return ops.view(x, (batch, heads, num_chunks, chunk_size, *rest), copied_layouts=copied)


def _make_later(tape: Tape, chunk_size: int) -> Storage:
    """Make the mask of a chunk's later tokens, out of a mask of all."""
    _every = tape.new("all tokens of a chunk", (chunk_size, chunk_size), "bool")
    return tape.new("later tokens of a chunk", (chunk_size, chunk_size), "bool")


def _multiply_all(name: str, a: Value, b: Value) -> Value:
    """`a @ b.T` of each chunk."""
    return product(name, *factors_of_product(name, a, b), (*a.shape[:-1], a.shape[-2]))


def _decay_to_end(cum_decay: Value) -> Value:
    """Return the factor by which each token is forgotten until its chunk ends."""
    end = pick(cum_decay, (*cum_decay.shape[:3], 1))
    rest = cum_decay.storage.tape.apply("decay to the end of a chunk", cum_decay.shape, fresh=(end, cum_decay))
    return exp("decay factor of keys", rest)


def _scan(parts: _Parts) -> tuple[Value, Value, dict[str, Value]]:
    """Go through the chunks; return their outputs, the last state, and what of the last one has a name till the end."""
    tape = parts.values.storage.tape
    batch, heads, num_chunks, _, value_dim = parts.values.shape
    state_shape = (batch, heads, parts.keys.shape[-1], value_dim)
    state = Value(state_shape, tape.new("state", state_shape, layout="heads"))
    output = Value(parts.values.shape, tape.new("output of the chunks", parts.values.shape, layout="columns"))
    num_played = min(num_chunks, MAX_PLAYED_CHUNKS)
    names: dict[str, Value] = {}
    for index in range(num_played):
        kept: _Kept = {}
        output, state = _play_chunk(parts, state, output, names, kept)
        if index == 1:
            own = [record for record in kept if record not in parts.records]
            state = keep_more(state, own, num_chunks - num_played)
    return output, state, names


def _play_chunk(
    parts: _Parts, state: Value, output: Value, names: dict[str, Value], kept: _Kept
) -> tuple[Value, Value]:
    """Compute the output and the new state of one chunk; note what is kept, and what has a name until the next one."""
    tokens = (*output.shape[:2], *output.shape[3:])
    keys = (*tokens[:3], state.shape[2])
    square = (*tokens[:3], tokens[2])
    kept[state.storage.record] = None
    old_values = _multiply("old values", pick(parts.key_readers, keys), state, tokens, kept)
    names["new values"] = ops.subtract("new values of a chunk", pick(parts.values, tokens), old_values)
    del old_values
    names["of the state"] = _multiply("output of the state", pick(parts.queries, keys), state, tokens, kept)
    within = _multiply("output of the chunk", pick(parts.scores, square), names["new values"], tokens, kept)
    both = ops.add("output of state and chunk", names["of the state"], within)
    del within
    output = write(output, both)
    del both
    decayed = ops.multiply("state, decayed", state, pick(parts.decays, (*tokens[:2], 1, 1)))
    written = _multiply("what is written", pick(parts.keys, keys), names["new values"], state.shape, kept)
    return output, ops.add("state", decayed, written)


def _multiply(name: str, a: Value, b: Value, shape: Shape, kept: _Kept) -> Value:
    """`a @ b`, or `a.T @ b` for that shape; note what is kept."""
    a, b = factors_of_product(name, a, b)
    kept |= dict.fromkeys((a.storage.record, b.storage.record))
    return product(name, a, b, shape)


def _join_chunks(output: Value, seq: int) -> Value:
    """Bring (B, H, N, C, V), whose matrices lie as columns, to (B, H, T, V), and drop what was padded."""
    batch, heads, num_chunks, chunk_size, dim = output.shape
    shape: Shape = (batch, heads, num_chunks * chunk_size, dim)
    output = copy("output of the rule", output, shape, layout="heads") if num_chunks > 1 else ops.view(output, shape)
    return output if seq == shape[2] else pick(output, (batch, heads, seq, dim))
