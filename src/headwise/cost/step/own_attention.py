"""Our own attention on a tape: `ops.attention` as `nn.MultiHeadAttention` calls it.

By reference where attention is "eager", else as "auto" chooses: by blocks, or by torch's kernels. Which mask tensor a
call makes, and whether queries of a group are packed, follows the very rules that `ops` reads.
"""

from dataclasses import replace
from functools import lru_cache, partial

from headwise.config.attention import AttentionConfig
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import dropout_of
from headwise.cost.step.autocast import autocasting, cast, cast_inputs
from headwise.cost.step.blocked import attend_by_blocks
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.grid import Grid
from headwise.cost.step.run import Run
from headwise.cost.step.sdpa import attend_by_products, attend_fused
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.workload import Workload
from headwise.kernels import MOST_VISITED, KernelChoice, SdpaCase, choose_packing, may_pay_by_blocks
from headwise.masks.form import MaskForm, simplest_form
from headwise.masks.patterns import Mask
from headwise.masks.rows import Sizes
from headwise.masks.visits import visited_share

Idle = tuple[Storage, Storage]


def attend(run: Run, config: AttentionConfig, query: Value, key: Value, value: Value) -> Value:
    """Attend, and lay the heads of each token side by side: (B, T, H * V)."""
    if run.workload.checkpoint != "selective":
        return _attend(run, config, query, key, value)
    own = replace(run, held=[])  # the body may have returned
    return checkpointed(run.tape, partial(_attend, own, config), query, key, value)


def plan_kernel(config: AttentionConfig, workload: Workload) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed, and say which kernel of sdpa then runs, or "blocked"."""
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
    is_packed, kernel = choose_packing(case, config.queries_per_kv)
    if workload.phase != "decode" and may_pay_by_blocks(workload.device, seq, seq):
        sizes = Sizes(workload.batch, config.num_heads, config.num_kv_heads, seq, seq)
        if case.mask == "bool" and visited_share(config.mask, sizes) <= MOST_VISITED:
            return False, KernelChoice(
                name="blocked", reasons=("sdpa is not taken: it computes what the mask forbids, too",)
            )
        if not kernel.is_fused:
            return False, KernelChoice(name="blocked", reasons=kernel.reasons)
    return is_packed, kernel


def _attend(run: Run, config: AttentionConfig, query: Value, key: Value, value: Value) -> Value:
    query, key, value = cast_inputs("scaled_dot_product_attention", query, key, value)
    form = simplest_form(config.mask, query.shape[2], key.shape[2])
    with autocasting(run.tape, None):
        attend_by = _attend_by_reference if run.workload.attention == "eager" else _attend_by_kernels
        output = attend_by(run, config, form, query, key, value)
    return heads.merge_heads("attention output, heads merged", output)


def _make_idle(tape: Tape, query: Value, key: Value, *, batch: int = 1, is_headed: bool = False) -> Idle:
    """Say which queries read no key, and which keys are read by none.

    Args:
        tape: of the step.
        query, key: (B, H, T, D), (B, K, S, D).
        batch: number of batch rows that are told apart.
        is_headed: whether heads are told apart.
    """
    num_heads, num_kv_heads = (one.shape[1] if is_headed else 1 for one in (query, key))
    return (
        tape.new("queries without a key", (batch, num_heads, query.shape[2], 1), "bool"),
        tape.new("keys that nobody reads", (batch, num_kv_heads, key.shape[2], 1), "bool"),
    )


def _hide_idle(idle: Idle, query: Value, key: Value, value: Value) -> tuple[Value, Value, Value, Storage]:
    """Put zeros where nothing is read; also give which queries read no key."""
    is_empty, is_unread = idle
    return (
        ops.fill("query, idle ones hidden", query, is_empty),
        ops.fill("key, idle ones hidden", key, is_unread),
        ops.fill("value, idle ones hidden", value, is_unread),
        is_empty,
    )


def _num_mask_heads(config: AttentionConfig) -> int:
    """Return how many heads the layer's mask tells apart: all, or 1 where it does not look at them."""
    tape = Tape(grad_enabled=False)
    tape.begin("mask")
    head = Grid(tape, (1, config.num_heads, 1, 1))
    alone = Grid(tape, (1, 1, 1, 1))
    allowed = config.mask.allows(alone, head, alone, alone)
    return allowed.shape[1] if isinstance(allowed, Grid) else 1


@lru_cache(64)
def _reads_itself(mask: Mask, num_heads: int, seq: int) -> bool:
    """Tell whether each token reads itself in every head that the mask tells apart, so that there is nothing idle."""
    return all(mask.allows(0, head, place, place) for head in range(num_heads) for place in range(seq))


def _attend_by_reference(
    run: Run, config: AttentionConfig, form: MaskForm, query: Value, key: Value, value: Value
) -> Value:
    tape, dtype = run.tape, query.dtype
    batch, num_heads, seq, _ = query.shape
    is_empty = allowed = None
    mask_heads = _num_mask_heads(config)
    if form.kind != "none":
        allowed = tape.new("allowed pairs", (1, mask_heads, seq, seq), "bool")
        query, key, value, is_empty = _hide_idle(
            _make_idle(tape, query, key, is_headed=mask_heads > 1), query, key, value
        )
    query, key, value = (cast(one, "float32") for one in (query, key, value))
    rows = heads.stack_groups("query of each group", query, config.num_kv_heads)
    weights = heads.scores(ops.scale("query, scaled", rows), key)
    weights = ops.view(weights, (batch, num_heads, seq, seq))
    if allowed is not None:
        hidden = tape.new("hidden pairs", (1, mask_heads, seq, seq), "bool")
        weights = ops.fill("attention scores, masked", weights, hidden)
    weights = ops.softmax("attention weights", weights)
    if is_empty is not None:
        weights = ops.fill("attention weights, empty rows hidden", weights, is_empty)
    weights = ops.dropout("attention weights", weights, dropout_of(config, run.workload))
    weights = ops.view(weights, (batch, config.num_kv_heads, config.queries_per_kv * seq, seq))
    output = ops.view(heads.mix_values(weights, value), (batch, num_heads, seq, value.shape[3]))
    return cast(output, dtype)


def _attend_by_kernels(
    run: Run, config: AttentionConfig, form: MaskForm, query: Value, key: Value, value: Value
) -> Value:
    tape = run.tape
    batch, num_heads, seq, _ = query.shape
    is_packed, choice = plan_kernel(config, run.workload)
    is_empty = None
    mask_heads = _num_mask_heads(config)
    if choice.name == "blocked":
        if form.has_idle and not _reads_itself(config.mask, mask_heads, seq):
            if config.mask not in run.idle:  # `ops` remembers them, too
                run.idle[config.mask] = _make_idle(tape, query, key, batch=batch, is_headed=True)
            query, key, value, _ = _hide_idle(run.idle[config.mask], query, key, value)
        return attend_by_blocks(query, key, value, config.mask, dropout_p=dropout_of(config, run.workload))
    if form.has_idle:
        query, key, value, is_empty = _hide_idle(
            _make_idle(tape, query, key, is_headed=mask_heads > 1), query, key, value
        )
    groups = config.queries_per_kv if is_packed else 1
    mask = None
    if form.kind == "bool" or (form.kind == "causal" and is_packed):
        pairs = (1, -(-mask_heads // groups), groups * seq, seq)
        held = [tape.new("allowed pairs", (1, mask_heads, seq, seq), "bool")]  # until the call returns
        if is_packed:
            held.append(tape.new("allowed pairs of each group", pairs, "bool"))
        mask = Value(pairs, tape.new("attention mask", pairs, query.dtype))
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
