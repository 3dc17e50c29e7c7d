"""Our own attention on a tape: `ops.attention` as `nn.MultiHeadAttention` calls it, by reference or by torch's kernels.

Which mask tensor a call makes, and whether queries of a group are packed, follows the very rules that `ops` reads.
"""

from dataclasses import replace
from functools import partial

from headwise.config.attention import AttentionConfig
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import dropout_of
from headwise.cost.step.autocast import autocasting, cast, cast_inputs
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.run import Run
from headwise.cost.step.sdpa import attend_by_products, attend_fused
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice, SdpaCase, choose_packing
from headwise.masks.form import MaskForm, simplest_form


def attend(run: Run, config: AttentionConfig, query: Value, key: Value, value: Value) -> Value:
    """Attend, and lay the heads of each token side by side: (B, T, H * V)."""
    if run.workload.checkpoint != "selective":
        return _attend(run, config, query, key, value)
    own = replace(run, held=[])  # the body may have returned
    return checkpointed(run.tape, partial(_attend, own, config), query, key, value)


def plan_kernel(config: AttentionConfig, workload: Workload) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed, and say which kernel of sdpa then runs."""
    seq = workload.seq
    case = SdpaCase(
        device=workload.device,
        dtype=workload.autocast_dtype or workload.weight_dtype,
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        mask=simplest_form(config.mask, seq, seq).kind,
        grouped=config.queries_per_kv > 1,
        dropout_p=dropout_of(config, workload),
        requires_grad=workload.phase == "train",
        query_len=seq,
        key_len=seq,
        compute_capability=workload.compute_capability,
    )
    return choose_packing(case, config.queries_per_kv)


def _attend(run: Run, config: AttentionConfig, query: Value, key: Value, value: Value) -> Value:
    query, key, value = cast_inputs("scaled_dot_product_attention", query, key, value)
    form = simplest_form(config.mask, query.shape[2], key.shape[2])
    with autocasting(run.tape, None):
        attend_by = _attend_by_reference if run.workload.attention == "eager" else _attend_by_sdpa
        output = attend_by(run, config, form, query, key, value)
    return heads.merge_heads("attention output, heads merged", output)


def _hide_idle(tape: Tape, query: Value, key: Value, value: Value) -> tuple[Value, Value, Value, Storage]:
    """Put zeros where a query reads no key, or a key is read by none; also give which queries those are."""
    is_empty = tape.new("queries without a key", (1, 1, query.shape[2], 1), "bool")
    is_unread = tape.new("keys that nobody reads", (1, 1, key.shape[2], 1), "bool")
    return (
        ops.fill("query, idle ones hidden", query, is_empty),
        ops.fill("key, idle ones hidden", key, is_unread),
        ops.fill("value, idle ones hidden", value, is_unread),
        is_empty,
    )


def _attend_by_reference(
    run: Run, config: AttentionConfig, form: MaskForm, query: Value, key: Value, value: Value
) -> Value:
    tape, dtype = run.tape, query.dtype
    batch, num_heads, seq, _ = query.shape
    is_empty = allowed = None
    if form.kind != "none":
        allowed = tape.new("allowed pairs", (1, 1, seq, seq), "bool")
        query, key, value, is_empty = _hide_idle(tape, query, key, value)
    query, key, value = (cast(one, "float32") for one in (query, key, value))
    rows = heads.stack_groups("query of each group", query, config.num_kv_heads)
    weights = heads.scores(ops.scale("query, scaled", rows), key)
    weights = ops.view(weights, (batch, num_heads, seq, seq))
    if allowed is not None:
        hidden = tape.new("hidden pairs", (1, 1, seq, seq), "bool")
        weights = ops.fill("attention scores, masked", weights, hidden)
    weights = ops.softmax("attention weights", weights)
    if is_empty is not None:
        weights = ops.fill("attention weights, empty rows hidden", weights, is_empty)
    weights = ops.dropout("attention weights", weights, dropout_of(config, run.workload))
    weights = ops.view(weights, (batch, config.num_kv_heads, config.queries_per_kv * seq, seq))
    output = ops.view(heads.mix_values(weights, value), (batch, num_heads, seq, value.shape[3]))
    return cast(output, dtype)


def _attend_by_sdpa(run: Run, config: AttentionConfig, form: MaskForm, query: Value, key: Value, value: Value) -> Value:
    tape = run.tape
    batch, num_heads, seq, _ = query.shape
    is_empty = None
    if form.has_idle:
        query, key, value, is_empty = _hide_idle(tape, query, key, value)
    is_packed, choice = plan_kernel(config, run.workload)
    groups = config.queries_per_kv if is_packed else 1
    mask = None
    if form.kind == "bool" or (form.kind == "causal" and is_packed):
        allowed = tape.new("allowed pairs", (1, 1, groups * seq, seq), "bool")
        mask = Value((1, 1, groups * seq, seq), tape.new("attention mask", (1, 1, groups * seq, seq), query.dtype))
        del allowed
    if is_packed:
        query = heads.stack_groups("query of each group", query, config.num_kv_heads)
    if choice.name == "math":
        output = attend_by_products(
            query,
            key,
            value,
            mask,
            is_causal=form.kind == "causal" and not is_packed,
            dropout_p=dropout_of(config, run.workload),
        )
    else:
        capability = run.workload.compute_capability
        layout = "heads" if is_packed else "tokens"
        output = attend_fused(
            query, key, value, mask, kernel=choice.name, gradient_layout=layout, compute_capability=capability
        )
    if is_packed:
        output = ops.view(output, (batch, num_heads, seq, value.shape[3]))
    if is_empty is not None and tape.device != "cpu":
        output = ops.fill("attention output, empty rows hidden", output, is_empty)
    return output
