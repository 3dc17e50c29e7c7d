"""Our own attention on a tape: `ops.attention` as `nn.MultiHeadAttention` calls it.

By reference where attention is "eager", else as "auto" chooses: by blocks, by torch's kernels, or by reference for what
these cannot do. Which mask tensor a call makes, and whether queries of a group are packed, follows the very rules that
`ops` reads.
"""

from dataclasses import replace
from functools import partial

from headwise.config.attention import AttentionConfig
from headwise.config.position import ALiBi, T5Bias
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import dropout_of
from headwise.cost.step.autocast import autocasting, cast, cast_inputs
from headwise.cost.step.blocked import attend_by_blocks
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.idle import hide_idle, make_idle, num_mask_heads, reads_itself
from headwise.cost.step.own_kernels import attend_by_kernels
from headwise.cost.step.own_reference import attend_by_reference
from headwise.cost.step.run import Run, Weights
from headwise.cost.step.score_bias import ScoreBias, bias_of
from headwise.cost.step.tape import Value
from headwise.cost.workload import Workload
from headwise.kernels import (
    MOST_VISITED,
    KernelChoice,
    SdpaCase,
    choose_packing,
    may_pay_by_blocks,
    width_with_sink,
)
from headwise.masks.form import simplest_form
from headwise.masks.rows import Sizes
from headwise.masks.visits import visited_share

NO_CAP = "sdpa is not taken: torch's fused kernels do not cap scores (softcap)"


def attend(run: Run, config: AttentionConfig, weights: Weights, query: Value, key: Value, value: Value) -> Value:
    """Attend, and lay the heads of each token side by side: (B, T, H * V).

    Args:
        run, config: of the layer.
        weights: of the layer, the sink and the table of its bias among them.
        query, key, value: (B, H, T, D), (B, K, S, D), (B, K, S, V).
    """
    table, sink = weights.get("bias table weight"), weights.get("sink")
    if run.workload.checkpoint != "selective":
        return _attend(run, config, table, sink, query, key, value)
    own = replace(run, held=[])  # the body may have returned
    return checkpointed(run.tape, partial(_attend, own, config, table, sink), query, key, value)


def plan_kernel(
    config: AttentionConfig, workload: Workload, *, learns_bias: bool | None = None
) -> tuple[bool, KernelChoice]:
    """Decide whether the queries of a group are packed, and say which kernel of sdpa then runs, or which of ours.

    Args:
        config: the layer's.
        workload: of the step.
        learns_bias: whether a gradient of what is added to the scores is wanted. Default: where a table learns, in a
            training without adapters.
    """
    seq, form = workload.seq, simplest_form(config.mask, workload.seq, workload.seq)
    has_bias = isinstance(config.position, ALiBi | T5Bias)
    if learns_bias is None:
        is_learned = isinstance(config.position, T5Bias)
        learns_bias = is_learned and workload.phase == "train" and workload.lora is None
    head_dim, v_head_dim, num_first_rows = config.head_dim, config.v_head_dim, 0
    if config.sink:  # one more key, and where the kernel is causal one more query
        head_dim = width_with_sink(config.head_dim)
        v_head_dim = head_dim if config.v_head_dim == config.head_dim else config.v_head_dim
        num_first_rows = form.kind == "causal" and not has_bias
    case = SdpaCase(
        device=workload.device,
        dtype=workload.autocast_dtype or workload.weight_dtype,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        mask="bool" if has_bias else form.kind,
        grouped=config.queries_per_kv > 1,
        dropout_p=dropout_of(config, workload),
        requires_grad=workload.phase == "train",
        query_len=seq + num_first_rows,
        key_len=seq + config.sink,
        compute_capability=workload.compute_capability,
        mask_dims=4,
        mask_requires_grad=learns_bias,
    )
    is_packed, kernel = choose_packing(case, config.queries_per_kv)
    if workload.phase != "decode" and may_pay_by_blocks(workload.device, seq, seq):
        sizes = Sizes(workload.batch, config.num_heads, config.num_kv_heads, seq, seq)
        if form.kind == "bool" and visited_share(config.mask, sizes) <= MOST_VISITED:
            return False, _by_blocks("sdpa is not taken: it computes what the mask forbids, too")
        if not kernel.is_fused:
            return False, _by_blocks(*kernel.reasons)
        if has_bias or config.sink:
            needed = "a bias for every pair" if has_bias else "one more key for the sink"
            return False, _by_blocks(f"sdpa is not taken: it would need {needed}")
        if config.softcap is not None:
            return False, _by_blocks(NO_CAP)
    if config.softcap is not None:
        return False, KernelChoice(name="reference", reasons=(NO_CAP,))
    return is_packed, kernel


def _by_blocks(*reasons: str) -> KernelChoice:
    return KernelChoice(name="blocked", reasons=reasons)


def _attend(
    run: Run, config: AttentionConfig, table: Value | None, sink: Value | None, query: Value, key: Value, value: Value
) -> Value:
    query, key, value = cast_inputs("scaled_dot_product_attention", query, key, value)
    with autocasting(run.tape, None):
        bias = bias_of(config, table)
        if sink is not None:
            sink = ops.clamp("sink, finite", cast(sink, "float32"))
        if run.workload.attention == "eager":
            output = attend_by_reference(run, config, query, key, value, bias=bias, sink=sink)
        else:
            output = _attend_as_chosen(run, config, query, key, value, bias, sink)
    return heads.merge_heads("attention output, heads merged", output)


def _attend_as_chosen(
    run: Run,
    config: AttentionConfig,
    query: Value,
    key: Value,
    value: Value,
    bias: ScoreBias | None,
    sink: Value | None,
) -> Value:
    is_packed, choice = plan_kernel(config, run.workload, learns_bias=bias is not None and bias.learns)
    if choice.name == "reference":
        return attend_by_reference(run, config, query, key, value, bias=bias, sink=sink)
    if choice.name != "blocked":
        return attend_by_kernels(
            run, config, query, key, value, kernel=choice.name, is_packed=is_packed, bias=bias, sink=sink
        )
    seq = query.shape[2]
    has_idle = simplest_form(config.mask, seq, key.shape[2]).has_idle
    if has_idle and not reads_itself(config.mask, num_mask_heads(config), seq):
        if config.mask not in run.idle:  # `ops` remembers them, too
            run.idle[config.mask] = make_idle(run.tape, query, key, batch=query.shape[0], is_headed=True)
        query, key, value, _ = hide_idle(run.idle[config.mask], query, key, value)
    dropout_p = dropout_of(config, run.workload)
    return attend_by_blocks(query, key, value, config, dropout_p=dropout_p, bias=bias, sink=sink)
