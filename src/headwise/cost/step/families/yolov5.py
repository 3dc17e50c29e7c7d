"""YOLOv5's C3TR on a tape: the compatible form, in the published block's order of operations.

Tokens are (T, B, E) here, as torch's layer reads them, and lie in memory as the map that they are a view of. A linear
map copies them first, unless there is one image, whose tokens are a matrix as they lie.
"""

from collections.abc import Sequence

from headwise.config.attention import AttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.step import operations as ops
from headwise.cost.step.attention import choose_kernel
from headwise.cost.step.autocast import cast, cast_inputs, dtype_under_autocast
from headwise.cost.step.families.vision import finish_map, map_shape, patches_of, pointwise
from headwise.cost.step.run import Family, Run, Weights, attention_of
from headwise.cost.step.sdpa import attend_by_products, attend_fused
from headwise.cost.step.tape import Value
from headwise.cost.workload import Workload
from headwise.errors import UnsupportedError

INPUTS = ("query", "key", "value")


def require_played(workload: Workload) -> None:
    """Raise UnsupportedError for what torch's layer cannot do."""
    if workload.attention != "sdpa":
        raise UnsupportedError(
            "a compatible C3TR attends through torch's layer, with attention 'sdpa'; got "
            f"{workload.attention!r}: leave it out"
        )
    if workload.checkpoint == "selective":
        raise UnsupportedError(
            "a compatible C3TR attends through torch's layer, of which no part can be checkpointed by itself; got "
            "checkpoint 'selective': take 'full'"
        )


def _embed(run: Run, config: ModelConfig, weights: Weights, inputs: Weights, buffers: Weights) -> Value:
    patches = patches_of(config)
    shape = map_shape(run, patches, config.embed_dim)
    x = pointwise(run, "cv1", inputs["feature map"], weights, shape, gradient="places")
    run.held.append(x.storage)  # the stage's argument, until it returns
    x = ops.view(x, (patches.num_tokens, run.workload.batch, config.embed_dim))
    x = ops.add("embeddings", x, _linear("map of places", x, weights, "linear"))
    run.held.append(x.storage)  # the argument of the layers, until the last one returns
    return x


def _layer(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    with run.tape.owned_by(f"{run.layer} attention"):
        seen = _attention(run, block, weights, x)
        x = ops.add("residual after attention", x, seen)
    with run.tape.owned_by(f"{run.layer} feed-forward"):
        hidden = _linear("up", x, weights, "up_proj")
        return ops.add("residual after feed-forward", x, _linear("down_proj output", hidden, weights, "down_proj"))


def _attention(run: Run, block: BlockConfig, weights: Weights, x: Value) -> Value:
    """Project by `q`, `k`, `v`, then by the parts of torch's one matrix for all three, and attend."""
    seq, batch, width = x.shape
    config = attention_of(block)
    _first = [_linear(f"{name}, first", x, weights, f"first {name[0]}_proj") for name in INPUTS]
    order = "sequence" if batch > 1 else "tokens"
    output = _attend(run, config, _project_again(config, _first, weights, order), order)  # their last holder
    if output.storage.layout == order:
        output = ops.view(output, x.shape)
    else:
        output = run.tape.apply("attention output, heads merged", (seq, batch, width), passed=(output,))
    return _linear("out_proj output", output, weights, "out_proj")


def _project_again(config: AttentionConfig, first: Sequence[Value], weights: Weights, order: str) -> list[Value]:
    """Project queries, keys and values by torch's layer, and view their heads."""
    seq, batch, width = first[0].shape
    shape = (batch, config.num_heads, seq, config.head_dim)
    parts = [ops.split_rows(weights[f"in_proj {name}"], width) for name in ("weight", "bias")]
    heads = []
    for name, one, weight, bias in zip(INPUTS, first, *parts, strict=True):
        dtype = dtype_under_autocast(one.storage.tape, "linear")  # autocast keeps its casts of whole weights alone
        projected = ops.linear(name, one, cast(weight, dtype), cast(bias, dtype))
        projected.storage.layout = order
        heads.append(ops.view(projected, shape, copied_layouts=frozenset({"heads", "tokens", "columns"})))
    return heads


def _attend(run: Run, config: AttentionConfig, given: Sequence[Value], order: str) -> Value:
    query, key, value = cast_inputs("scaled_dot_product_attention", *given)
    kernel = choose_kernel(config, run.workload)[0]
    if kernel.name == "math":
        return attend_by_products(query, key, value, None, is_causal=False)
    capability = run.workload.compute_capability
    return attend_fused(
        query, key, value, None, kernel=kernel.name, gradient_layout=order, compute_capability=capability
    )


def _linear(name: str, x: Value, weights: Weights, projection: str) -> Value:
    weight, bias = weights[f"{projection} weight"], weights.get(f"{projection} bias")
    x, weight, *biases = cast_inputs("linear", *((x, weight) if bias is None else (x, weight, bias)))
    tape = x.storage.tape
    if x.storage.layout == "places" and x.shape[1] > 1:
        x = tape.apply(f"{name} input, in the order of tokens", x.shape, passed=(x,))
    return tape.apply(
        name,
        (*x.shape[:-1], weight.shape[0]),
        fresh=(x, weight, *biases),
        kept=ops.factors(x, weight),
        needs_dense=True,
        gradient_layouts=("tokens", "turned", "same")[: 2 + len(biases)],
    )


YOLOV5 = Family(_embed, _layer, ("attention", "feed-forward"), makes_masks=False, finish=finish_map)
