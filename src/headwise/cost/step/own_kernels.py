"""Our own attention by torch's kernels, on a tape: `ops.sdpa`, which makes masks of biases and keys of sinks."""

from headwise.config.attention import AttentionConfig
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import dropout_of
from headwise.cost.step.autocast import cast
from headwise.cost.step.idle import allowed_pairs, hide_idle, make_idle
from headwise.cost.step.run import Run
from headwise.cost.step.score_bias import ScoreBias, places_of
from headwise.cost.step.sdpa import attend_by_products, attend_fused
from headwise.cost.step.tape import Shape, Storage, Value
from headwise.kernels import width_with_sink
from headwise.masks.form import simplest_form


def attend_by_kernels(
    run: Run,
    config: AttentionConfig,
    query: Value,
    key: Value,
    value: Value,
    *,
    kernel: str,
    is_packed: bool,
    bias: ScoreBias | None,
    sink: Value | None,
) -> Value:
    """Attend by one call of scaled_dot_product_attention.

    Args:
        run, config: of the layer.
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        kernel: the one that serves the call.
        is_packed: the queries of a group are those of one head.
        bias: what is added to the scores, or None.
        sink: one more logit of each head, (H,), float32, or None.
    """
    tape, shape = run.tape, (*query.shape[:3], value.shape[3])
    batch, num_heads, seq, key_len = *query.shape[:3], key.shape[2]
    form = simplest_form(config.mask, seq, key_len)
    if config.scale <= 0:
        query = ops.scale("query, its sign turned", query)
    is_causal = form.kind == "causal" and bias is None and not is_packed
    mask = is_empty = None
    if form.kind != "none" and not is_causal:
        mask = allowed_pairs(tape, config.mask, places_of(tape, batch, num_heads, seq, key_len))
        if form.has_idle:
            idle = make_idle(tape, query, key, batch=mask.shape[0], is_headed=mask.shape[1] > 1)
            query, key, value, _ = hide_idle(idle, query, key, value)
            del idle
    if bias is not None:
        mask = _mask_of(run, bias, mask, (batch, num_heads, seq, key_len))
    if mask is not None and sink is None and tape.device != "cpu" and (form.has_idle or bias is not None):
        mask, is_empty = _open_empty_rows(mask)
    if sink is None:
        read_query, read_key, read_value = query, key, value
    else:
        read_query, read_key, read_value = _with_sink(query, key, value, sink, has_first_row=is_causal)
        mask = None if mask is None else _pad("attention mask with the sink", mask, (*mask.shape[:3], key_len + 1))
    rows = read_query.shape[2]
    if is_packed:
        read_query = heads.stack_groups("query of each group", read_query, config.num_kv_heads)
    packed_mask = _pack(mask, config, rows) if is_packed and mask is not None else mask
    term = _term_of(packed_mask, read_query.dtype)
    is_plain = not is_packed and sink is None and is_empty is None
    if kernel == "math":
        dropout_p = dropout_of(config, run.workload)
        output = attend_by_products(read_query, read_key, read_value, term, is_causal=is_causal, dropout_p=dropout_p)
    else:
        output = attend_fused(
            read_query,
            read_key,
            read_value,
            term,
            kernel=kernel,
            gradient_layout="tokens" if is_plain else "heads",
            compute_capability=run.workload.compute_capability,
        )
    if is_packed:
        output = ops.view(output, (batch, num_heads, rows, read_value.shape[3]))
    output = _narrow(output, shape)
    return output if is_empty is None else ops.fill("attention output, empty rows hidden", output, is_empty)


def _mask_of(run: Run, bias: ScoreBias, allowed: Value | None, sizes: tuple[int, int, int, int]) -> Value:
    """Make the bias where the mask allows, and -inf elsewhere."""
    term = cast(bias.look_up(places_of(run.tape, *sizes)), "float32")
    if run.tape.device != "cpu":
        term = cast(term, run.workload.autocast_dtype or run.workload.weight_dtype)
    if allowed is None:
        return term
    shape = (max(allowed.shape[0], term.shape[0]), *term.shape[1:])
    return run.tape.apply("bias of allowed pairs", shape, fresh=(term,), kept=(allowed.storage,), layout="heads")


def _open_empty_rows(mask: Value) -> tuple[Value, Storage]:
    """Let queries without a key see all, and say which they are."""
    is_empty = mask.storage.tape.new("queries without a key", (*mask.shape[:3], 1), "bool")
    return ops.fill("attention mask, all of empty rows", mask, is_empty), is_empty


def _with_sink(
    query: Value, key: Value, value: Value, sink: Value, *, has_first_row: bool
) -> tuple[Value, Value, Value]:
    """Make the sink the first key: heads get more numbers, and where the kernel is causal a first row that sees it."""
    tape, (batch, num_heads, seq, head_dim) = query.storage.tape, query.shape
    width = width_with_sink(head_dim)
    parts = _split(sink, query.dtype)
    wide_query = tape.apply(
        "query with the sink", (batch, num_heads, seq, width), passed=(query,), fresh=parts, layout="heads"
    )
    slots = (*key.shape[:2], key.shape[2] + 1)
    wide_key = _pad("key with the sink", key, (*slots, width))
    wide_key = tape.apply(  # ones are written into it
        "key with the sink",
        wide_key.shape,
        fresh=(wide_key,),
        storage=wide_key.storage,
        gradient_layouts=("heads",),
    )
    v_width = width if value.shape[3] == head_dim else value.shape[3]
    wide_value = _pad("value with the sink", value, (*slots, v_width))
    if has_first_row:
        wide_query = _pad("query with a first row", wide_query, (batch, num_heads, seq + 1, width))
    return wide_query, wide_key, wide_value


def _split(sink: Value, dtype: str) -> tuple[Value, Value]:
    """Make the sink over the scale, as the sum of two numbers of the queries' dtype."""
    number = ops.scale("sink over the scale", sink)
    high = cast(ops.clamp("sink, rounded", number), dtype)
    return high, cast(ops.clamp("sink, the rest", ops.subtract("sink, the rest", number, high)), dtype)


def _pad(name: str, x: Value, shape: Shape) -> Value:
    """`x` with zeros around it."""
    return x.storage.tape.apply(name, shape, fresh=(x,), layout="heads", gradient_layouts=("heads",))


def _pack(mask: Value, config: AttentionConfig, rows: int) -> Value:
    """Lay the masks of the queries of a group side by side: a view where each head has its own, else a copy."""
    groups = config.queries_per_kv
    if mask.shape[1] == 1 and mask.shape[2] == 1:
        return mask
    mask_heads = config.num_kv_heads if mask.shape[1] > 1 else 1
    shape = (mask.shape[0], mask_heads, groups * rows, mask.shape[3])
    if mask.shape[1] > 1 and mask.shape[2] == rows:
        return ops.view(mask, shape)
    return mask.storage.tape.apply("attention mask of each group", shape, fresh=(mask,), layout="heads")


def _term_of(mask: Value | None, dtype: str) -> Value | None:
    """Return what the kernel adds to the scores: torch makes numbers of a bool mask."""
    if mask is None or mask.dtype != "bool":
        return mask
    return Value(mask.shape, mask.storage.tape.new("attention mask", mask.shape, dtype))


def _narrow(output: Value, shape: Shape) -> Value:
    """Cut off the first row and the last numbers of rows that there are for the sake of a sink, by views."""
    for place in (2, 3):
        if output.shape[place] > shape[place]:
            narrow = (*output.shape[:place], shape[place], *output.shape[place + 1 :])
            output = output.storage.tape.apply(
                "attention output", narrow, fresh=(output,), storage=output.storage, gradient_layouts=("heads",)
            )
    return output
