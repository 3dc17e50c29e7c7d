"""The attention of transformers' models on a tape: eager, and each kernel behind scaled_dot_product_attention."""

from dataclasses import dataclass, field

from headwise.config.attention import AttentionConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.tape import Storage, Tape, Value
from headwise.cost.workload import Workload
from headwise.kernels import KernelChoice, MaskForm, SdpaCase, sdpa_kernel
from headwise.masks.patterns import Full, Mask, SlidingWindow


@dataclass
class Run:
    """One forward pass on a tape: the tape, the workload, and what all layers share.

    `masks`: the mask tensor for each structural mask, None where the kernel needs none. `held`: what the body's own
    variables keep alive until it returns. `cached`: keys and values that a prefill leaves behind. `layer`: the name of
    the layer that runs.
    """

    tape: Tape
    workload: Workload
    model_type: str
    layer: str = ""
    masks: dict[Mask, Storage | None] = field(default_factory=dict)
    cosine: Value | None = None
    sine: Value | None = None
    held: list[Storage] = field(default_factory=list)
    cached: list[Storage] = field(default_factory=list)

    def leave_body(self) -> None:
        """Drop what only the body's variables held, as when it returns."""
        self.held.clear()
        self.masks.clear()

    def cache(self, x: Value) -> Value:
        """Copy keys or values into the cache that a prefill leaves behind; training has none."""
        if self.workload.phase == "train":
            return x
        kept = self.tape.new(f"cached {x.storage.record.name}", x.shape, layout="heads")
        self.cached.append(kept)
        return Value(x.shape, kept)

    def dropout(self, name: str, x: Value, p: float) -> Value:
        """Drop with probability p where the workload has dropout."""
        is_active = self.workload.phase == "train" and self.workload.dropout
        return ops.dropout(name, x, p if is_active else 0.0, device=self.workload.device)


def make_mask(run: Run, config: AttentionConfig) -> Storage | None:
    """Make the mask tensor that transformers hands to every layer; None where the kernel's own causal flag does.

    Texts are taken as full: a padding mask would add one.
    """
    batch, seq = run.workload.batch, run.workload.seq
    if isinstance(config.mask, Full):
        return None
    if run.workload.attention == "eager":
        is_allowed = run.tape.new("attention mask, bool", (1, 1, seq, seq), "bool")
        mask = run.tape.new("attention mask", (batch, 1, seq, seq))
        del is_allowed
        return mask
    if is_windowed(config, run.workload):
        return run.tape.new("attention mask, bool", (1, 1, seq, seq), "bool")
    return None


def is_windowed(config: AttentionConfig, workload: Workload) -> bool:
    """Tell whether transformers hands sdpa a mask tensor: a window that hides a key."""
    return isinstance(config.mask, SlidingWindow) and workload.seq >= config.mask.window_size


def is_causal(config: AttentionConfig, workload: Workload) -> bool:
    """Tell whether queries see earlier keys only, where there is more than one query."""
    return not isinstance(config.mask, Full) and workload.seq > 1


def choose_kernel(
    config: AttentionConfig, workload: Workload, *, compute_capability: tuple[int, int] = (8, 0)
) -> tuple[KernelChoice, bool]:
    """Return the kernel of sdpa that transformers' call for a layer gets, and whether it is called with grouped heads.

    Grouped heads reach torch as they are where there is no mask tensor and the head sizes allow it; else transformers
    repeats keys and values first.
    """
    has_mask = is_windowed(config, workload)
    is_grouped = config.queries_per_kv > 1 and not has_mask and config.head_dim == config.v_head_dim <= 256
    mask_form: MaskForm = "bool" if has_mask else "causal" if is_causal(config, workload) else "none"
    case = SdpaCase(
        device=workload.device,
        dtype="float32",
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        mask=mask_form,
        grouped=is_grouped,
        dropout_p=dropout_of(config, workload),
        requires_grad=workload.phase == "train",
        query_len=workload.seq,
        key_len=workload.seq,
        compute_capability=compute_capability,
    )
    return sdpa_kernel(case), is_grouped


def dropout_of(config: AttentionConfig, workload: Workload) -> float:
    """Return the probability with which weights are dropped in this workload."""
    return config.dropout_p if workload.phase == "train" and workload.dropout else 0.0


def attend(run: Run, config: AttentionConfig, query: Value, key: Value, value: Value) -> tuple[Value, Value | None]:
    """Attend, and bring the heads together: the output (B, T, H * V), and the weights where eager gives them."""
    dropout_p = dropout_of(config, run.workload)
    if run.workload.attention == "eager":
        return _attend_eagerly(run, config, query, key, value, dropout_p)
    groups = config.queries_per_kv
    has_mask = run.masks[config.mask] is not None
    choice, is_grouped = choose_kernel(config, run.workload)
    kernel = choice.name
    if groups > 1 and not is_grouped:
        key = ops.repeat_heads("key of each head", key, groups)
        value = ops.repeat_heads("value of each head", value, groups)
    batch, seq = run.workload.batch, run.workload.seq
    mask = run.tape.new("attention mask", (batch, 1, seq, seq)) if has_mask else None
    if kernel == "math":
        if not has_mask and is_causal(config, run.workload):
            mask = run.tape.new("causal mask", (seq, seq))
        output = _attend_by_products(run, query, key, value, groups if is_grouped else 1, mask, dropout_p)
    else:
        output = ops.fused_attention(query, key, value, mask, kernel=kernel)
    return ops.merge_heads("attention output, heads merged", output), None


def _attend_eagerly(
    run: Run, config: AttentionConfig, query: Value, key: Value, value: Value, dropout_p: float
) -> tuple[Value, Value]:
    key = ops.repeat_heads("key of each head", key, config.queries_per_kv)
    value = ops.repeat_heads("value of each head", value, config.queries_per_kv)
    weights = ops.scores(query, key)
    weights = ops.scale("attention scores, scaled", weights)
    if run.masks[config.mask] is not None:
        weights = ops.shift("attention scores, masked", weights)
    weights = ops.softmax("attention weights", weights)
    weights = ops.dropout("attention weights", weights, dropout_p, device=run.workload.device)
    output = ops.mix_values(weights, value)
    return ops.merge_heads("attention output, heads merged", output), weights


def _attend_by_products(
    run: Run, query: Value, key: Value, value: Value, groups: int, mask: Storage | None, dropout_p: float
) -> Value:
    """The "math" kernel: it scales query and key by the square root each, and adds the mask in place."""
    query = ops.scale("query, scaled", query)
    key = ops.repeat_heads("key of each head", key, groups)
    value = ops.repeat_heads("value of each head", value, groups)
    weights = ops.scores(query, ops.scale("key, scaled", key))
    weights = ops.softmax("attention weights", weights)
    weights = ops.dropout("attention weights", weights, dropout_p, device=run.workload.device)
    return ops.mix_values(weights, value)
