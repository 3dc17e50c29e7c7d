"""A mixture of experts on a tape, as transformers runs it: tokens sorted by expert, one grouped product a projection.

All sizes follow from the number of (token, expert) pairs, whatever the router decides.
"""

from collections.abc import Callable

from headwise.config.model import FeedForwardConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, dtype_under_autocast
from headwise.cost.step.layers import gated_feed_forward, project
from headwise.cost.step.run import Weights
from headwise.cost.step.tape import Storage, Value

Router = Callable[[Value, FeedForwardConfig, Weights], tuple[Value, ...]]
"""(tokens, config, weights of the layer) -> the share of each chosen expert, and what else the router returns."""

Gate = Callable[[Value, FeedForwardConfig], Value]
"""(gate and up of every pair, config) -> what goes into the projection down."""


def gate_by_activation(both: Value, config: FeedForwardConfig) -> Value:
    """`activation(gate) * up`, the two side by side."""
    gate, up = ops.split(both, 2 * [config.hidden_dim])
    return ops.multiply("feed-forward active", ops.activation("gate, active", gate, config.activation), up)


def mix_experts(
    x: Value, config: FeedForwardConfig, weights: Weights, route: Router, *, gate: Gate = gate_by_activation
) -> Value:
    """Route every token to its experts and add up their answers: (B, T, E) -> (B, T, E)."""
    batch, seq, width = x.shape
    x = ops.view(x, (batch * seq, width))
    shares, *_held = route(x, config, weights)
    return ops.view(_run_experts(x, config, weights, shares, gate), (batch, seq, width))


def mix_with_gated_expert(x: Value, config: FeedForwardConfig, weights: Weights, route: Router) -> Value:
    """The same, and add what a shared expert says of every token, weighed by a gate of its own (Qwen 2)."""
    whole = x.shape
    x = ops.view(x, (whole[0] * whole[1], whole[2]))
    shared = gated_feed_forward(config, weights, x, prefix="shared ")
    shares, *_held = route(x, config, weights)
    routed = _run_experts(x, config, weights, shares, gate_by_activation)
    weight = project("gate of the shared expert", x, weights, "shared_expert_gate")
    shared = ops.multiply("shared expert, weighed", shared, ops.activation("its weight", weight, "sigmoid"))
    return ops.view(ops.add("sum with the shared expert", routed, shared), whole)


def route_by_softmax(x: Value, config: FeedForwardConfig, weights: Weights) -> tuple[Value, ...]:
    """Choose by the largest chances (Mixtral)."""
    scores = ops.linear("router scores", x, weights["router weight"])
    chances = ops.softmax("router chances", cast(scores, "float32"))
    return *_choose(chances, config), scores


def route_by_softmax_and_cast(x: Value, config: FeedForwardConfig, weights: Weights) -> tuple[Value, ...]:
    """The same, with shares cast to the dtype of the scores (Qwen)."""
    scores = ops.linear("router scores", x, weights["router weight"])
    shares, experts = _choose(ops.softmax("router chances", scores, "float32"), config)
    return cast(shares, scores.dtype), experts, scores


def route_by_sigmoid(x: Value, config: FeedForwardConfig, weights: Weights) -> tuple[Value, ...]:
    """Choose by sigmoids of scores in float32, and scale the shares by a constant (DeepSeek V3)."""
    scores = ops.linear("router scores", cast(x, "float32"), cast(weights["router weight"], "float32"))
    chances = ops.activation("router chances", scores, "sigmoid")
    shares, experts = _choose(chances, config)
    return ops.scale("shares of the chosen, scaled", shares), experts, scores


def _choose(chances: Value, config: FeedForwardConfig) -> tuple[Value, Value]:
    """Take the chances of the experts that were chosen for each token, and scale them, in place, if they are scaled."""
    tape = chances.storage.tape
    tokens, num_active = chances.shape[0], config.num_active_experts
    experts = Value((tokens, num_active), tape.new("experts of each token", (tokens, num_active), "int64"))
    chosen = tape.apply("chances of the chosen", experts.shape, fresh=(chances,), kept=(experts.storage,))
    if not config.scaled_shares:
        return chosen, experts
    dtype = dtype_under_autocast(tape, "sum")
    sums = tape.apply("sum of the chosen chances", (tokens, 1), fresh=(chosen,), dtype=dtype)
    before = tape.new("chances of the chosen, before scaling", chosen.shape, chosen.dtype)  # in place: a copy is kept
    shares = tape.apply(
        "shares of the chosen",
        chosen.shape,
        fresh=(chosen, sums),
        kept=(sums.storage, before),
        storage=chosen.storage,
        scratch=(chosen.shape,),
    )
    return shares, experts


def _run_experts(x: Value, config: FeedForwardConfig, weights: Weights, shares: Value, gate: Gate) -> Value:
    tape = x.storage.tape
    tokens, width = x.shape
    pairs = tokens * config.num_active_experts
    order = tape.new("order of the pairs", (pairs,), "int64")
    source = tape.new("token of each pair", (pairs,), "int64")
    inputs = tape.apply("tokens by expert", (pairs, width), fresh=(x,), kept=(source,))
    del source
    share = tape.apply("shares by expert", (pairs,), fresh=(shares,), kept=(order,))
    experts = tape.new("experts, sorted", (pairs,), "int64")
    _counting = (
        tape.new("experts, sorted, as numbers", (pairs,)),
        tape.new("tokens per expert", (config.num_experts,)),
    )
    ends = tape.new("end of each expert's tokens", (config.num_experts,), "int32")
    biases = _look_up_biases("gate and up", weights, "gate_up_proj", 2 * config.hidden_dim, experts)
    answers = _grouped("gate and up", inputs, weights["gate_up_proj weight"], biases, 2 * config.hidden_dim, ends)
    answers = gate(answers, config)
    biases = _look_up_biases("down_proj output", weights, "down_proj", width, experts)
    answers = _grouped("down_proj output", answers, weights["down_proj weight"], biases, width, ends)
    answers = ops.multiply("weighted answers", answers, ops.view(share, (pairs, 1)))
    way_back = tape.new("way back to the tokens", (pairs,), "int64")
    answers = tape.apply("answers by token", (pairs, width), fresh=(answers,), kept=(way_back,))
    return cast(tape.apply("sum of the experts", (tokens, width), fresh=(answers,)), x.dtype)


def _look_up_biases(name: str, weights: Weights, projection: str, outputs: int, experts: Storage) -> Value | None:
    """Look up the bias of each pair's expert, if experts have biases."""
    bias = weights.get(f"{projection} bias")
    if bias is None:
        return None
    shape = (experts.record.shape[0], outputs)
    return experts.tape.apply(f"{name} biases", shape, fresh=(bias,), kept=(experts,))


def _grouped(name: str, x: Value, weight: Value, biases: Value | None, outputs: int, ends: Storage) -> Value:
    """One product for all experts: rows up to each expert's end with its weight; biases are added in place."""
    tape, shape = x.storage.tape, (x.shape[0], outputs)
    x = cast(x, weight.dtype)
    result = tape.apply(name, shape, fresh=(x, weight), kept=(*ops.factors(x, weight), ends))
    if biases is None:
        return result
    return tape.apply(f"{name} and biases", shape, passed=(result, biases), storage=result.storage)
