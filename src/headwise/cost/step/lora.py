"""Low-rank adapters on a tape: two small products beside a frozen one.

`y = W x + scale * B (A x)`, as peft and torchtune run it without dropout of its own: A reads what W reads, and its
output is kept for B's gradient. Adapters have the dtype of the weights. (peft keeps those of narrow models in float32
unless it is told not to.)

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
"""

from collections.abc import Mapping, Sequence

from headwise.cost.step import operations as ops
from headwise.cost.step.tape import Tape, Value
from headwise.errors import ConfigError

_PARTS_OF_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def add_adapter(
    tape: Tape, weights: dict[str, Value], projection: str, inputs: int, outputs: int, dtype: str = "float32"
) -> None:
    """Add the two weights of an adapter if the projection is a target; a fused one is if one of its parts is."""
    if tape.lora is None or not {projection, *_PARTS_OF_FUSED.get(projection, ())} & set(tape.lora.targets):
        return
    rank = tape.lora.rank
    for name, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
        weights[f"{projection} adapter {name}"] = tape.parameter(
            f"{projection} adapter {name}", shape, dtype, is_adapter=True
        )


def adapt(name: str, x: Value, result: Value, weights: Mapping[str, Value], projection: str) -> Value:
    """Add to a projection's result what its adapter says of x, if it has one."""
    down = weights.get(f"{projection} adapter A")
    if down is None:
        return result
    change = ops.linear(f"{name}, through A", x, down)
    change = ops.linear(f"{name}, through A and B", change, weights[f"{projection} adapter B"])
    change = ops.scale(f"{name}, change", change)
    return ops.add(f"{name}, adapted", result, change)


def require_adapters(tape: Tape, layers: Sequence[Mapping[str, Value]]) -> None:
    """Raise ConfigError if a target of `lora` is no projection of any layer."""
    if tape.lora is None:
        return
    projections = {
        part
        for layer in layers
        for name, weight in layer.items()
        if name.endswith("_proj weight") and len(weight.shape) == 2  # stacked experts have no adapter
        for projection in [name.removesuffix(" weight")]
        for part in _PARTS_OF_FUSED.get(projection, (projection,))
    }
    missing = [target for target in tape.lora.targets if target not in projections]
    if missing or not tape.lora.targets:
        raise ConfigError(
            f"targets of lora must be projections of the model: {', '.join(sorted(projections))}; "
            f"got {', '.join(tape.lora.targets) or 'none'}"
        )
