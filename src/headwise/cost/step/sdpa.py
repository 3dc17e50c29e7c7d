"""The kernels behind torch's scaled_dot_product_attention, on a tape: the fused ones, and "math", which is none."""

from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import autocasting, cast
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.step.workspace import backward_workspace

FLASH_ALIGNMENT = 8
"""Numbers of a head that CUDA's flash kernel reads at a time; torch pads heads to whole steps."""

MASK_ALIGNMENT = 8
"""Numbers of a mask's row that the memory-efficient kernel reads at a time; torch pads rows to whole steps."""


def attend_fused(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    *,
    kernel: str,
    gradient_layout: str = "tokens",
    compute_capability: tuple[int, int] = (8, 0),
) -> Value:
    """A fused kernel: keeps query, key, value, mask, its output and one logsumexp per row; never the scores.

    Args:
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        mask: numbers that are added to the scores, or None.
        kernel: "flash_cpu", "flash", "efficient" or "cudnn". CUDA's are derived from their sources, not measured.
        gradient_layout: order in memory of the gradient that comes back, where heads are not padded.
        compute_capability: of the CUDA device; the efficient kernel's tiles depend on it.
    """
    tape, head_dim = query.storage.tape, query.shape[3]
    if kernel == "flash":
        query, key, value = (_pad_heads(one) for one in (query, key, value))
    batch, num_heads, seq, _ = query.shape
    if kernel == "efficient" and mask is not None:
        mask = _show_to_texts(_align_rows(mask), batch)
    kept = [query.storage, key.storage, value.storage, *_make_statistics(tape, kernel, (batch, num_heads, seq))]
    if mask is not None:
        kept.append(mask.storage)
    layout = "tokens" if kernel == "efficient" else query.storage.layout  # the others follow the queries
    output = tape.apply(
        "attention output",
        (batch, num_heads, seq, value.shape[3]),
        fresh=(query, key, value) if mask is None else (query, key, value, mask),
        kept=kept,
        keeps_result=True,
        layout=layout,
        workspace_bytes=backward_workspace(
            kernel,
            query,
            key,
            value,
            output_layout=layout,
            gradient_layout=gradient_layout if query.shape[3] == head_dim else "heads",
            compute_capability=compute_capability,
        ),
    )
    return output if query.shape[3] == head_dim else ops.cut(output, head_dim)


def _pad_heads(x: Value) -> Value:
    missing = -x.shape[3] % FLASH_ALIGNMENT
    if not missing:
        return x
    shape = (*x.shape[:3], x.shape[3] + missing)
    name = f"{x.storage.record.name}, padded"
    return x.storage.tape.apply(name, shape, fresh=(x,), layout="heads", gradient_layouts=("heads",))


def _align_rows(mask: Value) -> Value:
    """Copy a mask into rows of whole steps, unless they are; torch adds a whole step to a row that is."""
    key_len = mask.shape[-1]
    if key_len % MASK_ALIGNMENT == 0:
        return mask
    shape = (*mask.shape[:-1], key_len - key_len % MASK_ALIGNMENT + MASK_ALIGNMENT)
    padded = mask.storage.tape.apply("attention mask, padded", shape, fresh=(mask,), layout="heads")
    return ops.cut(padded, key_len)


def _show_to_texts(mask: Value, batch: int) -> Value:
    """View one text's mask as that of all; of one that learns each text has a gradient, until they are summed."""
    if mask.shape[0] == batch:
        return mask
    shape = (batch, *mask.shape[1:])
    return mask.storage.tape.apply(mask.storage.record.name, shape, fresh=(mask,), storage=mask.storage)


def _make_statistics(tape: Tape, kernel: str, rows: tuple[int, int, int]) -> list[Storage]:
    """Make the logsumexp of each row, and the random state of CUDA's kernels."""
    batch, num_heads, seq = rows
    # The memory-efficient kernel works on 32 rows at a time and rounds its logsumexp up to them.
    shape = {"efficient": (batch, num_heads, -(-seq // 32) * 32), "cudnn": (batch, num_heads, seq, 1)}.get(kernel, rows)
    statistics = [tape.new("attention logsumexp", shape)]
    if kernel == "flash":
        statistics += [tape.new("attention random state", shape, "uint64") for shape in ((2,), ())]
    elif kernel != "flash_cpu":
        statistics += [tape.new(f"attention random {part}", (), "int64") for part in ("seed", "offset")]
    return statistics


def attend_by_products(
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    *,
    is_causal: bool,
    groups: int = 1,
    dropout_p: float = 0.0,
) -> Value:
    """The "math" kernel: product, softmax and product, in float32 whatever comes, outside of autocast.

    Query and key are scaled by the square root of the scale each. A mask is added in place, unless it learns. The
    kernel returns the weights too, and holds all of its own variables until then.

    Args:
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
        mask: numbers that are added to the scores, or None.
        is_causal: it makes a causal mask of its own where there is none.
        groups: how often it copies each key/value head.
        dropout_p: probability with which a weight is dropped.
    """
    tape, dtype = query.storage.tape, query.dtype
    with autocasting(tape, None):
        wide_query, wide_key, wide_value = (cast(one, "float32") for one in (query, key, value))
        scaled_query = ops.scale("query, scaled", wide_query)
        if mask is None and is_causal:
            shape = (query.shape[2], key.shape[2])
            mask = Value(shape, tape.new("causal mask", shape))
        every_key = heads.repeat_heads("key of each head", wide_key, groups)
        every_value = heads.repeat_heads("value of each head", wide_value, groups)
        weights = heads.scores(scaled_query, ops.scale("key, scaled", every_key))
        if mask is not None and mask.node is not None:
            weights = ops.add("attention scores, biased", weights, mask)
        weights = ops.softmax("attention weights", weights)
        weights = ops.dropout("attention weights", weights, dropout_p)
        _returned_weights = cast(weights, dtype)
        return cast(heads.mix_values(weights, every_value), dtype)
