"""Parts of layers that families share: projections, norms, feed-forwards."""

from headwise.config.attention import AttentionConfig
from headwise.config.block import FeedForwardConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast
from headwise.cost.step.heads import rotate, split_heads
from headwise.cost.step.lora import adapt
from headwise.cost.step.norms import layer_norm
from headwise.cost.step.run import Run, Weights
from headwise.cost.step.tape import Value


def project(name: str, x: Value, weights: Weights, projection: str, outputs: int | None = None) -> Value:
    """Apply the linear layer whose weight, and bias if it has one, are named `projection`, and its adapter."""
    weight, bias = weights[f"{projection} weight"], weights.get(f"{projection} bias")
    return adapt(name, x, ops.linear(name, x, weight, bias, outputs=outputs), weights, projection)


def normalise(run: Run, name: str, x: Value, weights: Weights, norm: str) -> Value:
    """Apply the norm named `norm`: a layer norm where it has a bias, else the family's root-mean-square norm."""
    weight, bias = weights[f"{norm} weight"], weights.get(f"{norm} bias")
    return run.family.rms_norm(name, x, weight) if bias is None else layer_norm(name, x, weight, bias)


def project_heads(
    x: Value, weights: Weights, config: AttentionConfig, *, source: Value | None = None, prefix: str = ""
) -> tuple[Value, Value, Value]:
    """Project tokens to the queries, keys and values of each head; `source`: what keys and values are made of."""
    source = x if source is None else source
    query = split_heads(project("query", x, weights, f"{prefix}q_proj"), config.num_heads, config.head_dim)
    key = split_heads(project("key", source, weights, f"{prefix}k_proj"), config.num_kv_heads, config.head_dim)
    value = split_heads(project("value", source, weights, f"{prefix}v_proj"), config.num_kv_heads, config.v_head_dim)
    return query, key, value


def rotate_both(run: Run, query: Value, key: Value) -> tuple[Value, Value]:
    """Turn queries and keys by the angles that the embeddings made."""
    assert run.cosine is not None and run.sine is not None, "the embeddings make the angles"
    turned = rotate("query", query, run.cosine, run.sine), rotate("key", key, run.cosine, run.sine)
    if not run.family.rotates_in_float32:
        return turned
    return cast(turned[0], query.dtype), cast(turned[1], key.dtype)


def rotate_first_part(run: Run, query: Value, key: Value) -> tuple[Value, Value]:
    """Turn the first numbers of each head, as many as there are angles, and join them with the rest."""
    assert run.cosine is not None, "the embeddings make the angles"
    rotary_dim = run.cosine.shape[-1]
    rest = query.shape[-1] - rotary_dim
    query_turned, query_rest = ops.cut(query, rotary_dim), ops.cut(query, rest)
    key_turned, key_rest = ops.cut(key, rotary_dim), ops.cut(key, rest)
    query_turned, key_turned = rotate_both(run, query_turned, key_turned)
    return ops.join("query, rotated", query_turned, query_rest), ops.join("key, rotated", key_turned, key_rest)


def feed_forward(config: FeedForwardConfig, weights: Weights, x: Value) -> Value:
    """`down(activation(up(x)))`."""
    x = project("feed-forward hidden", x, weights, "up_proj")
    x = ops.activation("feed-forward active", x, config.activation)
    return project("down_proj output", x, weights, "down_proj")


def gated_feed_forward(config: FeedForwardConfig, weights: Weights, x: Value, *, prefix: str = "") -> Value:
    """`down(activation(gate(x)) * up(x))`."""
    active = ops.activation("gate, active", project("gate", x, weights, f"{prefix}gate_proj"), config.activation)
    product = ops.multiply("feed-forward active", active, project("up", x, weights, f"{prefix}up_proj"))
    del active
    return project("down_proj output", product, weights, f"{prefix}down_proj")
