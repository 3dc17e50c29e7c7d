"""The attention of transformers' models on a tape: eager, and each kernel behind scaled_dot_product_attention."""

from dataclasses import replace
from functools import partial
from typing import Literal

from headwise.config.attention import AttentionConfig, T5Bias
from headwise.config.block import AnyAttention
from headwise.cost.step import heads
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, cast_inputs, promote
from headwise.cost.step.checkpointing import checkpointed
from headwise.cost.step.run import HeadsConfig, Run, key_len_of, window_of
from headwise.cost.step.sdpa import attend_by_products, attend_fused
from headwise.cost.step.tape import Storage, Value
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice, MaskForm, SdpaCase, sdpa_kernel
from headwise.masks.patterns import Full

BiasKind = Literal["none", "constant", "learned"]
SoftmaxDtype = Literal["float32", "given", "throughout"]


def make_mask(run: Run, config: AnyAttention) -> Storage | None:
    """Make the mask tensor that transformers hands to every layer; None where the kernel's own causal flag does.

    Texts are taken as full: a padding mask would add one.
    """
    batch, pairs = run.workload.batch, (run.workload.query_len, key_len_of(config, run.workload))
    if isinstance(config.mask, Full):
        return None
    if run.workload.attention == "eager":
        is_allowed = run.tape.new("attention mask, bool", (1, 1, *pairs), "bool")
        mask = run.tape.new("attention mask", (batch, 1, *pairs), run.workload.weight_dtype)
        del is_allowed
        return mask
    if is_windowed(config, run.workload):
        return run.tape.new("attention mask, bool", (1, 1, *pairs), "bool")
    return None


def is_windowed(config: AnyAttention, workload: Workload) -> bool:
    """Tell whether transformers hands sdpa a mask tensor: there are as many tokens as the window holds, or more."""
    window = window_of(config)
    return window is not None and workload.seq >= window


def is_causal(config: HeadsConfig, workload: Workload) -> bool:
    """Tell whether queries see earlier keys only, where there is more than one query."""
    return not isinstance(config.mask, Full) and workload.query_len > 1


def choose_kernel(config: HeadsConfig, workload: Workload, *, bias: BiasKind = "none") -> tuple[KernelChoice, bool]:
    """Return the kernel of sdpa that transformers' call for a layer gets, and whether it is called with grouped heads.

    Grouped heads reach torch as they are where there is no mask tensor and the head sizes allow it. Else transformers
    repeats keys and values first; of a single query it packs the heads of a group, as more queries of one head. `bias`:
    what is added to the scores, in place of a mask (T5).
    """
    has_mask = bias != "none" or is_windowed(config, workload)
    is_grouped = config.queries_per_kv > 1 and not has_mask and config.head_dim == config.v_head_dim <= 256
    mask_form: MaskForm = "bool" if has_mask else "causal" if is_causal(config, workload) else "none"
    key_len = key_len_of(config, workload)
    # Of one token, T5's table gives its heads' biases side by side, and no kernel but "math" reads a mask so.
    has_strides = isinstance(config.position, T5Bias) and key_len == 1 and config.num_heads > 1
    case = SdpaCase(
        device=workload.device,
        dtype=workload.autocast_dtype or workload.weight_dtype,
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        mask=mask_form,
        grouped=is_grouped,
        dropout_p=dropout_of(config, workload),
        requires_grad=workload.phase == "train",
        query_len=workload.query_len if is_grouped or workload.query_len > 1 else config.queries_per_kv,
        key_len=key_len,
        contiguous=not (has_strides and bias != "none"),
        compute_capability=workload.compute_capability,
        mask_dims=4,
        mask_requires_grad=bias == "learned",
    )
    return sdpa_kernel(case), is_grouped


def dropout_of(config: HeadsConfig, workload: Workload) -> float:
    """Return the probability with which weights are dropped in this workload."""
    return config.dropout_p if workload.phase == "train" and workload.dropout else 0.0


def attend(
    run: Run,
    config: HeadsConfig,
    query: Value,
    key: Value,
    value: Value,
    *,
    softmax: SoftmaxDtype = "float32",
    bias: Value | None = None,
    sink: Value | None = None,
) -> tuple[Value, Value | None]:
    """Attend, and bring the heads together: the output (B, T, H * V), and the weights where eager gives them.

    Args:
        run, config: of the layer.
        query, key, value: of each head, (B, H, T, D).
        softmax: the dtype of eager attention's softmax: "float32", then cast to the queries'; "given", that of the
            scores, then cast to the values'; "throughout", that of the scores, and not cast.
        bias: what is added to the scores (T5), (1, H, T, S).
        sink: a learned score for each head beside those of its keys (gpt-oss), (H,).
    """
    if run.workload.checkpoint != "selective":
        return _attend(run, config, softmax, bias, sink, query, key, value)
    # The body may have returned when the part runs again, which then holds its mask and bias; they are not saved.
    own = replace(run, masks={config.mask: run.masks.get(config.mask)}, held=[])
    return checkpointed(run.tape, partial(_attend, own, config, softmax, bias, sink), query, key, value)


def _attend(
    run: Run,
    config: HeadsConfig,
    softmax: SoftmaxDtype,
    bias: Value | None,
    sink: Value | None,
    query: Value,
    key: Value,
    value: Value,
) -> tuple[Value, Value | None]:
    if run.workload.attention == "eager":
        return _attend_eagerly(run, config, query, key, value, softmax, bias, sink)
    kind: BiasKind = "none" if bias is None else "constant" if bias.node is None else "learned"
    choice, is_grouped = choose_kernel(config, run.workload, bias=kind)
    groups = config.queries_per_kv
    is_packed = groups > 1 and not is_grouped and query.shape[2] == 1
    if is_packed:
        query, groups = heads.stack_groups("query of each group", query, config.num_kv_heads), 1
    elif not is_grouped:
        repeat = heads.show_to_heads if choice.is_fused else heads.repeat_heads
        key, value = repeat("key of each head", key, groups), repeat("value of each head", value, groups)
        groups = 1
    given = (query, key, value) if bias is None else (query, key, value, _restrict_bias(run, config, bias))
    # What autocast casts inside the call is held by the caller's variables until the call is done.
    read_query, read_key, read_value, *rest = cast_inputs("scaled_dot_product_attention", *given)
    mask = rest[0] if rest else _make_call_mask(run, config, read_query)
    if choice.name == "math":
        output = attend_by_products(
            read_query,
            read_key,
            read_value,
            mask,
            is_causal=is_causal(config, run.workload),
            groups=groups,
            dropout_p=dropout_of(config, run.workload),
        )
    else:
        capability = run.workload.compute_capability
        output = attend_fused(read_query, read_key, read_value, mask, kernel=choice.name, compute_capability=capability)
    if is_packed:
        output = heads.unpack_groups("attention output of each head", output, config.num_heads)
    return heads.merge_heads("attention output, heads merged", output), None


def _make_call_mask(run: Run, config: HeadsConfig, query: Value) -> Value | None:
    """Make what one call of sdpa makes of a mask: numbers to be added to the scores."""
    if run.masks.get(config.mask) is None:
        return None
    shape = (query.shape[0], 1, run.workload.query_len, key_len_of(config, run.workload))
    return Value(shape, run.tape.new("attention mask", shape, query.dtype))


def _restrict_bias(run: Run, config: HeadsConfig, bias: Value) -> Value:
    """Make what one call of sdpa gets as its mask of a bias on the scores: the same, low where no query may look."""
    tape, layout = run.tape, bias.storage.layout
    if is_causal(config, run.workload):
        allowed = tape.new("allowed pairs", (1, 1, *bias.shape[2:]), "bool")
        bias = tape.apply("bias of allowed pairs", bias.shape, fresh=(bias,), kept=(allowed,), layout=layout)
    if layout == "heads" or bias.shape[2:] == (1, 1):
        return bias
    return tape.apply("bias, contiguous", bias.shape, passed=(bias,), layout="heads")


def _attend_eagerly(
    run: Run,
    config: HeadsConfig,
    query: Value,
    key: Value,
    value: Value,
    softmax: SoftmaxDtype,
    bias: Value | None,
    sink: Value | None,
) -> tuple[Value, Value]:
    key = heads.show_to_heads("key of each head", key, config.queries_per_kv)
    value = heads.show_to_heads("value of each head", value, config.queries_per_kv)
    weights = ops.scale("attention scores, scaled", heads.scores(query, key))
    if isinstance(config, AttentionConfig) and config.softcap is not None:
        weights = ops.scale("attention scores over the cap", weights)
        weights = ops.tanh("attention scores, tanh", weights)
        weights = ops.scale("attention scores, capped", weights)
    if bias is not None:
        weights = ops.add("attention scores, biased", weights, bias)
    mask = run.masks.get(config.mask)
    if mask is not None:
        weights = ops.shift("attention scores, masked", weights, mask)
    if sink is not None:
        weights = _softmax_with_sink(weights, sink)
    elif softmax == "float32":  # one expression, which holds on to the scores until the cast is done
        weights = cast(ops.softmax("attention weights", weights, "float32"), query.dtype)
    else:
        weights = ops.softmax("attention weights", weights)
    if softmax != "throughout":
        weights = cast(weights, query.dtype if softmax == "float32" else value.dtype)
    weights = ops.dropout("attention weights", weights, dropout_of(config, run.workload))
    weights = cast(weights, value.dtype if sink is not None else None)
    output = heads.mix_values(weights, value)
    return heads.merge_heads("attention output, heads merged", output), weights


def _softmax_with_sink(scores: Value, sink: Value) -> Value:
    """Softmax over the keys and one sink more, of scores less their largest; the weights of the keys are a view."""
    tape, num_keys = scores.storage.tape, scores.shape[3]
    shape, dtype = (*scores.shape[:3], num_keys + 1), promote(scores, sink)
    is_passed = scores.dtype == dtype
    joined = tape.apply(
        "attention scores and sinks",
        shape,
        passed=(scores,) if is_passed else (),
        fresh=(sink,) if is_passed else (scores, sink),
        dtype=dtype,
        layout="heads",
    )
    rows = (*shape[:3], 1)
    places = tape.new("places of the largest scores", rows, "int64")
    largest = tape.apply("largest scores", rows, fresh=(joined,), kept=(places,))
    joined = tape.apply("attention scores less the largest", shape, passed=(joined,), fresh=(largest,), layout="heads")
    return ops.cut(ops.softmax("attention weights and sinks", joined, dtype), num_keys)
