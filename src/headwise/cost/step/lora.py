"""Low-rank adapters on a tape: two small products beside a frozen one.

`y = W x + scale * B (A x)`, as peft and torchtune run it without dropout of its own: A reads what W reads, and its
output is kept for B's gradient. Adapters have the dtype of the weights. (peft keeps those of narrow models in float32
unless it is told not to.)

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
"""

from collections.abc import Mapping

from headwise.cost.adapters import PARTS_OF_FUSED
from headwise.cost.step import operations as ops
from headwise.cost.step.tape import Tape, Value


def add_adapter(
    tape: Tape, weights: dict[str, Value], projection: str, inputs: int, outputs: int, dtype: str = "float32"
) -> None:
    """Add the two weights of an adapter if the projection is a target; a fused one is if one of its parts is."""
    if tape.lora is None or not {projection, *PARTS_OF_FUSED.get(projection, ())} & set(tape.lora.targets):
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
