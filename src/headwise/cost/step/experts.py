"""A mixture of experts on a tape, as transformers runs it: tokens sorted by expert, one grouped product a projection.

All sizes follow from the number of (token, expert) pairs, whatever the router decides.
"""

from collections.abc import Callable

from headwise.config.model import FeedForwardConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.autocast import cast, dtype_under_autocast
from headwise.cost.step.run import Weights
from headwise.cost.step.tape import Storage, Value

Router = Callable[[Value, FeedForwardConfig, Value], tuple[Value, ...]]
"""(tokens, config, weight of the router) -> the share of each chosen expert, and what else the router returns."""


def mix_experts(x: Value, config: FeedForwardConfig, weights: Weights, route: Router) -> Value:
    """Route every token to its experts and add up their answers: (B, T, E) -> (B, T, E)."""
    batch, seq, width = x.shape
    x = ops.view(x, (batch * seq, width))
    shares, *_held = route(x, config, weights["router weight"])
    return ops.view(_run_experts(x, config, weights, shares), (batch, seq, width))


def route_by_softmax(x: Value, config: FeedForwardConfig, weight: Value) -> tuple[Value, ...]:
    """Choose by the largest chances (Mixtral)."""
    scores = ops.linear("router scores", x, weight)
    chances = ops.softmax("router chances", cast(scores, "float32"))
    return *_choose(chances, config), scores


def route_by_softmax_and_cast(x: Value, config: FeedForwardConfig, weight: Value) -> tuple[Value, ...]:
    """The same, with shares cast to the dtype of the scores (Qwen)."""
    scores = ops.linear("router scores", x, weight)
    shares, experts = _choose(ops.softmax("router chances", scores, "float32"), config)
    return cast(shares, scores.dtype), experts, scores


def route_by_sigmoid(x: Value, config: FeedForwardConfig, weight: Value) -> tuple[Value, ...]:
    """Choose by sigmoids of scores in float32, and scale the shares by a constant (DeepSeek V3)."""
    scores = ops.linear("router scores", cast(x, "float32"), cast(weight, "float32"))
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


def _run_experts(x: Value, config: FeedForwardConfig, weights: Weights, shares: Value) -> Value:
    tape = x.storage.tape
    tokens, width = x.shape
    pairs = tokens * config.num_active_experts
    order = tape.new("order of the pairs", (pairs,), "int64")
    source = tape.new("token of each pair", (pairs,), "int64")
    inputs = tape.apply("tokens by expert", (pairs, width), fresh=(x,), kept=(source,))
    del source
    share = tape.apply("shares by expert", (pairs,), fresh=(shares,), kept=(order,))
    _sorting = (
        tape.new("experts, sorted", (pairs,), "int64"),
        tape.new("experts, sorted, as numbers", (pairs,)),
        tape.new("tokens per expert", (config.num_experts,)),
    )
    ends = tape.new("end of each expert's tokens", (config.num_experts,), "int32")
    answers = _feed_forward(inputs, config, weights, ends)
    answers = ops.multiply("weighted answers", answers, ops.view(share, (pairs, 1)))
    way_back = tape.new("way back to the tokens", (pairs,), "int64")
    answers = tape.apply("answers by token", (pairs, width), fresh=(answers,), kept=(way_back,))
    return cast(tape.apply("sum of the experts", (tokens, width), fresh=(answers,)), x.dtype)


def _feed_forward(x: Value, config: FeedForwardConfig, weights: Weights, ends: Storage) -> Value:
    both = _grouped("gate and up", x, weights["gate_up_proj weight"], 2 * config.hidden_dim, ends)
    gate, up = ops.split(both, 2 * [config.hidden_dim])
    del both
    product = ops.multiply("feed-forward active", ops.activation("gate, active", gate, config.activation), up)
    del gate, up
    return _grouped("down_proj output", product, weights["down_proj weight"], x.shape[1], ends)


def _grouped(name: str, x: Value, weight: Value, outputs: int, ends: Storage) -> Value:
    """One product for all experts: rows up to each expert's end with that expert's weight; keeps its input."""
    x = cast(x, weight.dtype)
    kept = (x.storage, weight.storage, ends)
    return x.storage.tape.apply(name, (x.shape[0], outputs), fresh=(x, weight), kept=kept)
