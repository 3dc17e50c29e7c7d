"""gpt-oss on a tape: attention with sinks, experts with biases and a gate that clamps."""

from headwise.config.model import BlockConfig, FeedForwardConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import attend
from headwise.cost.step.caching import update_cache
from headwise.cost.step.experts import mix_experts
from headwise.cost.step.families.llama import ROTARY_BUFFERS, look_up, make_angles
from headwise.cost.step.layers import normalise, project, project_heads
from headwise.cost.step.norms import rms_norm_cast_last
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.tape import Value


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    """As Llama does, but with one angle for each pair of numbers, not for each number."""
    x = look_up(run, config, weights, inputs, buffers)
    make_angles(run, buffers["rotary frequencies"].shape[0], x.dtype)
    return x


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    residual = x
    with run.tape.owned_by(f"{run.layer} attention"):
        x = normalise(run, "attention input", x, weights, "attention norm")
        x, _attention_weights = _attention(run, block, weights, x)
        x = ops.add("residual after attention", residual, x)
    residual = x
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        x = normalise(run, "feed-forward input", x, weights, "feed-forward norm")
        x = mix_experts(x, block.feed_forward, weights, _route, gate=_gate)
        return ops.add("residual after feed-forward", residual, x)


def _attention(run: Run, block: BlockConfig, weights: Weights, x: Value) -> tuple[Value, Value | None]:
    config = attention_of(block)
    query, key, value = project_heads(x, weights, config)
    query, key = _rotate(run, "query", query), _rotate(run, "key", key)
    key, value = update_cache(run, config, key, value)
    attended, attention_weights = attend(run, config, query, key, value, softmax="throughout", sink=weights["sink"])
    return project("out_proj output", attended, weights, "out_proj"), attention_weights


def _rotate(run: Run, name: str, x: Value) -> Value:
    """Turn each pair of a number of the first half and one of the second; keeps cosine and sine alone."""
    assert run.cosine is not None and run.sine is not None, "the embeddings make the angles"
    half = x.shape[-1] // 2
    first, second = ops.split(x, (half, half))
    turned_first = ops.subtract(
        f"{name} first half, turned",
        ops.multiply(f"{name} first half times cosine", first, run.cosine),
        ops.multiply(f"{name} second half times sine", second, run.sine),
    )
    turned_second = ops.add(
        f"{name} second half, turned",
        ops.multiply(f"{name} second half times cosine", second, run.cosine),
        ops.multiply(f"{name} first half times sine", first, run.sine),
    )
    return ops.join(f"{name}, rotated", turned_first, turned_second)


def _route(x: Value, config: FeedForwardConfig, weights: Weights) -> tuple[Value, ...]:
    """Choose by the largest scores; the shares are a softmax of these."""
    tape = x.storage.tape
    scores = ops.linear("router scores", x, weights["router weight"], weights["router bias"])
    shape = (x.shape[0], config.num_active_experts)
    experts = Value(shape, tape.new("experts of each token", shape, "int64"))
    chosen = tape.apply("scores of the chosen", shape, fresh=(scores,), kept=(experts.storage,))
    return ops.softmax("shares of the chosen", chosen, chosen.dtype), experts, scores


def _gate(both: Value, config: FeedForwardConfig) -> Value:
    """`(up + 1) * gate * sigmoid(alpha * gate)`, both clamped; gate and up stand in turn, not side by side."""
    gate = _clamp("gate, clamped", ops.cut(both, config.hidden_dim))
    up = _clamp("up, clamped", ops.cut(both, config.hidden_dim))
    active = ops.multiply(
        "gate, active", gate, ops.activation("gate, sigmoid", ops.scale("gate, scaled", gate), "sigmoid")
    )
    return ops.multiply("feed-forward active", ops.shift("up plus one", up), active)


def _clamp(name: str, x: Value) -> Value:
    return x.storage.tape.apply(name, x.shape, fresh=(x,), kept=(x.storage,))


GPT_OSS = Family(
    _embed,
    _layer,
    ("attention", "feed-forward", "attention norm", "feed-forward norm"),
    rms_norm=rms_norm_cast_last,
    has_sdpa=False,
    buffers=ROTARY_BUFFERS,
    parts=frozenset({"num_kv_heads", "head_dim", "sink", "gated", "biases of experts"}),
    has_experts=True,
)
