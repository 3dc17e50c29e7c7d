"""Changes of how a step is computed: the kernel, what is computed again, the precision, the loss, the optimizer."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from headwise.cost.planning.option import Made, Maker, Option, Place
from headwise.cost.planning.results import ListName
from headwise.cost.planning.setup import Setup
from headwise.cost.results import Device

NO_BACKWARD = "nothing is kept for a backward pass, there is none"
FIRST_WITH_BFLOAT16 = (8, 0)
"""Compute capability of the first GPUs with bfloat16 tensor cores (Ampere).

Source: NVIDIA, "CUDA C++ Programming Guide", table of features and technical specifications.
"""

LOWER_PRECISIONS = {
    "amp-bf16": "autocast to bfloat16 (amp-bf16)",
    "amp-fp16": "autocast to float16 (amp-fp16)",
    "bf16": "weights, states and activations in bfloat16",
    "fp16": "weights, states and activations in float16",
}

HALVES = ({"bf16", "fp16"}, {"amp-bf16", "amp-fp16"})
"""Precisions of equal bytes."""


def list_techniques() -> Iterator[Option]:
    """Give every change of how a step is computed."""
    yield _technique("sdpa", "attention", "fused attention (sdpa)", "same", _fuse)
    for kind, words in (("selective", "selective checkpointing"), ("full", "full checkpointing")):
        yield _technique(f"checkpoint-{kind}", "checkpoint", words, "same", partial(_checkpoint, kind, words))
    for precision, words in LOWER_PRECISIONS.items():
        yield _technique(precision, "precision", words, _list_of(precision), partial(_lower, precision, words))
    yield _technique("chunked-cross-entropy", "loss", "chunked cross-entropy", "same", _chunk)
    yield _technique("fused-step", "optimizer step", "fused optimizer step", "same", _fuse_step)
    yield _technique("adamw8bit", "optimizer", "8-bit AdamW", "alters", _shrink_states)


def _technique(key: str, topic: str, words: str, listed: ListName, make: Maker) -> Option:
    return Option(key=key, topic=topic, words=words, list=listed, make=make, is_technique=True)


def _list_of(precision: str) -> ListName:
    """Say where a precision stands: autocast keeps the weights and their updates in float32."""
    return "same" if precision.startswith("amp-") else "alters"


def _made(setup: Setup, words: str, listed: ListName, **changes: Any) -> Made:
    return Made(replace(setup, workload=replace(setup.workload, **changes)), words, listed)


def _fuse(setup: Setup, place: Place) -> Made | str:
    if setup.workload.attention == "sdpa":
        by_itself = ", as far as the module's own code calls it" if setup.config is None else ""
        return f"already so: torch's scaled_dot_product_attention is called{by_itself}"
    return _made(setup, "fused attention (sdpa)", "same", attention="sdpa")


def _checkpoint(kind: str, words: str, setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"{NO_BACKWARD} in a {workload.phase}"
    if workload.checkpoint == kind:
        return f"already so: checkpointing is {kind}"
    if workload.checkpoint == "full":
        return "full checkpointing keeps less already"
    return _made(setup, words, "same", checkpoint=kind)


def _lower(precision: str, words: str, setup: Setup, place: Place) -> Made | str:
    before = setup.workload.precision
    if before == precision:
        return f"already so: the precision is {precision}"
    if precision.startswith("amp-") and before in ("bf16", "fp16"):
        return f"the weights are {before} as it is; autocast keeps them in float32, which takes more"
    if precision.endswith("bf16") and (reason := _lacks_bfloat16(place.device)):
        return reason
    if {before, precision} in HALVES:
        return f"{precision} takes as many bytes as {before}"
    return _made(setup, words, _list_of(precision), precision=precision)


def _lacks_bfloat16(device: Device) -> str | None:
    """Say that a device multiplies no bfloat16 in units of its own, where it is so."""
    capability = device.compute_capability
    if device.kind == "cuda" and capability is not None and capability < FIRST_WITH_BFLOAT16:
        number = ".".join(map(str, capability))
        return (
            f"{device.description} has no bfloat16 units (compute capability {number}; they begin with 8.0): "
            "take float16"
        )
    if device.kind != "cpu" and device.rates is not None and device.rates.bf16 is None:
        return f"{device.description} has no bfloat16 units, or no rate of them is published: take float16"
    return None


def _chunk(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"a {workload.phase} has no loss"
    if workload.loss == "chunked_cross_entropy":
        return "already so: the loss is taken in chunks of tokens"
    if workload.loss != "cross_entropy":
        return "the loss is a sum of the output: there is no cross-entropy to cut into chunks"
    return _made(setup, "chunked cross-entropy", "same", loss="chunked_cross_entropy")


def _fuse_step(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"a {workload.phase} has no optimizer step"
    if workload.optimizer_step == "fused":
        return "already so: the optimizer's step is fused"
    return _made(setup, "fused optimizer step", "same", optimizer_step="fused")


def _shrink_states(setup: Setup, place: Place) -> Made | str:
    workload = setup.workload
    if workload.phase != "train":
        return f"a {workload.phase} has no optimizer"
    if workload.optimizer == "adamw8bit":
        return "already so: the states have 8 bits"
    return _made(setup, f"8-bit AdamW in place of {workload.optimizer}", "alters", optimizer="adamw8bit")
