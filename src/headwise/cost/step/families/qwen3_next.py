"""Qwen3-Next on a tape: gated delta nets between layers of attention with a gate, experts with one for all tokens.

The delta nets run as transformers writes them out, without the kernels of other packages.
"""

from dataclasses import replace
from math import prod

from headwise.config.attention import AttentionConfig
from headwise.config.linear import LinearAttentionConfig
from headwise.config.model import BlockConfig, FeedForwardConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.autocast import cast
from headwise.cost.step.caching import update_cache
from headwise.cost.step.chunk_operations import activate_channels, convolve_tokens, exp, pick, reshape, softplus
from headwise.cost.step.delta_rule import apply_delta_rule
from headwise.cost.step.experts import mix_with_gated_expert, route_by_softmax_and_cast
from headwise.cost.step.families.llama import QWEN2_MOE
from headwise.cost.step.heads import split_heads
from headwise.cost.step.layers import gated_feed_forward, normalise, project, rotate_first_part
from headwise.cost.step.norms import rms_norm, rms_norm_one_plus
from headwise.cost.step.run import Run, Weights, attention_of
from headwise.cost.step.tape import Value
from headwise.errors import UnsupportedError


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise(run, "attention input", x, weights, "attention norm")
        if isinstance(block.attention, LinearAttentionConfig):
            x = _mix_by_delta_rule(run, block.attention, weights, x)
        else:
            x, _attention_weights = _attention(run, attention_of(block), weights, x)
        x = ops.add("residual after attention", residual, x)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        x = _feed_forward(block.feed_forward, weights, x)
        return ops.add("residual after feed-forward", residual, x)


def _feed_forward(config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    if config.num_experts > 1:
        return mix_with_gated_expert(x, config, weights, route_by_softmax_and_cast)
    return gated_feed_forward(config, weights, x)


def _attention(run: Run, config: AttentionConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    """Attention whose output is weighed, number by number, by a gate out of the queries' projection."""
    batch, seq, _ = x.shape
    num_heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    both = project("query and gate", x, weights, "q_proj")
    query, gate = ops.split(ops.view(both, (batch, seq, num_heads, 2 * head_dim)), (head_dim, head_dim))
    del both
    gate = reshape("gate", gate, (batch, seq, num_heads * head_dim), is_copied=num_heads > 1)
    query = normalise(run, "query, normed", query, weights, "query norm")
    query = ops.view(query, (batch, num_heads, seq, head_dim))
    key = _split_heads(project("key", x, weights, "k_proj"), kv_heads, head_dim)
    key = normalise(run, "key, normed", key, weights, "key norm")
    key = ops.view(key, (batch, kv_heads, seq, head_dim))
    value = split_heads(project("value", x, weights, "v_proj"), kv_heads, config.v_head_dim)
    query, key = rotate_first_part(run, query, key)
    key, value = update_cache(run, config, key, value)
    attended, attention_weights = attend(run, config, query, key, value)
    attended = ops.multiply("attention output, gated", attended, ops.activation("gate, active", gate, "sigmoid"))
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _mix_by_delta_rule(run: Run, config: LinearAttentionConfig, weights: Weights, x: Value) -> Value:
    """One gated delta net over whole texts."""
    if run.workload.phase == "decode":
        raise UnsupportedError(
            "memory of one more token is not predicted for gated delta nets; got phase 'decode': give 'prefill', or "
            "measure the module"
        )
    batch, seq, _ = x.shape
    key_heads, heads, groups = config.num_key_heads, config.num_value_heads, config.queries_per_kv
    key_dim, value_dim = config.key_head_dim, config.value_head_dim
    qkvz = project("queries, keys, values and gates", x, weights, "qkvz_proj")
    ba = project("steps and decays", x, weights, "ba_proj")
    widths = (key_dim, key_dim, groups * value_dim, groups * value_dim)
    query, key, value, gate = ops.split(ops.view(qkvz, (batch, seq, key_heads, sum(widths))), widths)
    step, decay = ops.split(ops.view(ba, (batch, seq, key_heads, 2 * groups)), (groups, groups))
    is_cut = key_heads > 1 and groups > 1  # the heads of one group do not lie beside those of the next
    of_heads = (batch, seq, heads, value_dim)
    value, gate = (reshape(name, one, of_heads, is_copied=is_cut) for name, one in (("value", value), ("gate", gate)))
    step, decay = (
        reshape(name, one, of_heads[:3], is_copied=is_cut) for name, one in (("step", step), ("decay", decay))
    )
    is_copied = key_heads > 1
    query = reshape("query", query, (batch, seq, config.key_width), is_copied=is_copied)
    key = reshape("key", key, (batch, seq, config.key_width), is_copied=is_copied)
    value = reshape("value", value, (batch, seq, config.value_width), is_copied=is_copied and not is_cut)
    mixed = ops.join("queries, keys and values", query, key, value)
    if run.workload.phase == "prefill":
        mixed = _cache_tokens(run, mixed, config.conv_kernel_size)
    mixed = convolve_tokens("queries, keys and values, convolved", mixed, weights["convolution weight"])
    mixed = activate_channels("queries, keys and values, active", mixed, config.activation)
    if mixed.shape[1] > seq:
        mixed = pick(mixed, (batch, seq, config.conv_width))
    query, key, value = ops.split(mixed, (config.key_width, config.key_width, config.value_width))
    query, key = _split_heads(query, key_heads, key_dim), _split_heads(key, key_heads, key_dim)
    value = _split_heads(value, heads, value_dim)
    beta = ops.activation("step, active", step, "sigmoid")
    rate = ops.scale("decay rate", exp("decay rate, positive", cast(weights["log decay"], "float32")))
    softened = softplus("decay, softened", ops.add("decay, biased", cast(decay, "float32"), weights["step bias"]))
    decay_of_tokens = ops.multiply("log decay of each token", softened, rate)
    del softened, rate
    is_prefill = run.workload.phase == "prefill"
    output, state = apply_delta_rule(
        query, key, value, decay_of_tokens, beta, chunk_size=config.chunk_size, returns_state=is_prefill
    )
    if state is not None:  # the cache copies it
        run.cached.append(run.tape.new("cached state", state.shape))
    output = _flatten(output)
    gate = reshape("gate of all", gate, output.shape, is_copied=key_heads == 1 < groups and batch * seq > 1)
    normed = rms_norm("output, normed", output, weights["output norm weight"])
    gated = ops.multiply("output, gated", normed, ops.activation("gate, active", cast(gate, "float32"), "silu"))
    del normed
    output = cast(gated, output.dtype)
    del gated
    return project("out_proj output", ops.view(output, (batch, seq, config.value_width)), weights, "out_proj")


def _cache_tokens(run: Run, x: Value, kernel_size: int) -> Value:
    """Put the last tokens into the layer's cache, and return what the convolution reads: as many at least."""
    batch, seq, channels = x.shape
    run.cached.append(run.tape.new("cached tokens of the convolution", (batch, channels, kernel_size), x.dtype))
    if seq >= kernel_size:
        return x
    return run.tape.apply("queries, keys and values, padded", (batch, kernel_size, channels), fresh=(x,))


def _split_heads(x: Value, num_heads: int, head_dim: int) -> Value:
    """View (B, T, H * D) as (B, T, H, D); a gradient that comes back with heads before tokens is copied."""
    batch, seq, _ = x.shape
    copied = frozenset({"heads"} if num_heads > 1 and seq > 1 else ())
    return ops.view(x, (batch, seq, num_heads, head_dim), copied_layouts=copied)


def _flatten(x: Value) -> Value:
    """Bring (B, H, T, V) to rows of one token's head, (B * T * H, V): a copy unless tokens come first in memory."""
    batch, heads, seq, dim = x.shape
    has_gaps = prod(x.shape) < prod(x.storage.record.shape)
    is_copied = x.storage.layout != "tokens" and (heads > 1 or (batch > 1 and has_gaps))
    return reshape("output of the rule, tokens first", x, (batch * seq * heads, dim), is_copied=is_copied)


QWEN3_NEXT = replace(
    QWEN2_MOE,
    layer=_layer,
    rms_norm=rms_norm_one_plus,
    attention=(AttentionConfig, LinearAttentionConfig),
    parts=QWEN2_MOE.parts - {"qk_norm over projection", "dropout_p"} | {"rotary_dim", "output_gate"},
)
