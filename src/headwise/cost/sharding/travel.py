"""travels: what one device sends to others in one optimizer step.

Collective operations go around a ring, in which each device sends (N - 1) / N of a tensor to gather it or to scatter
its sum, and twice that for an all-reduce, which is one after the other. Psi, the bytes of all weights, is not sent for
activations, and activations not for ZeRO. With accumulation, gradients of "zero1" travel once (`no_sync`), all else in
every pass. Left out: numbers that stand alone, a loss's sums, and with "sequence" the gradients of norms.

Source: Rajbhandari et al. 2020, "ZeRO", section 7 (2 Psi; with shared weights 3 Psi); Korthikanti et al. 2022, section
4.2.2; Liu et al. 2023, "Ring Attention", section 3; ring: Patarasuk and Yuan 2009.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal

from headwise.config.attention import AttentionConfig
from headwise.config.dtypes import DTYPE_BYTES
from headwise.config.latent import LatentAttentionConfig
from headwise.config.model import BlockConfig, ModelConfig
from headwise.cost.adapters import FUSED
from headwise.cost.sharding.predict import plan_of
from headwise.cost.sharding.results import Sharding, Travel
from headwise.cost.step.attention import choose_kernel
from headwise.cost.step.repeat import RepeatedStep, repeated_step
from headwise.cost.workload import Workload


def travels(config: ModelConfig, workload: Workload, sharding: Sharding) -> tuple[Travel, ...]:
    """Return what one device sends, by what it is and by collective operation.

    - zero1: an all-reduce of the gradients, 2 (N - 1) / N Psi, and an all-gather of the stepped weights, (N - 1) / N.
    - zero2: each pass an all-gather of the weights and a reduce-scatter of the gradients: 2 (N - 1) / N Psi.
    - zero3: as zero2, and the layers' weights once more for backward: 3 (N - 1) / N Psi.
    - tensor: of a layer's B x T x E numbers, an all-reduce after each row projection forward and before each column
      projection backward, one by one where queries, keys, values, gate and up are projections of their own (2 in
      Megatron, which joins them); the head's scores are gathered. Full checkpointing repeats the first of a layer.
    - sequence: the all-reduces forward cut into an all-gather before and a reduce-scatter after each branch; backward
      the same for gradients, and the tokens gathered again for the weights' gradients.
    - context: forward, the keys and values of N - 1 other devices; backward, they again and N times their float32
      gradients; and an all-reduce of the weights' gradients.

    Args:
        config, workload, sharding: as of `predict_sharded_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_sharded_ledger`.
    """
    plan = plan_of(config, workload, sharding)
    step = repeated_step(plan.config, plan.workload, plan.play)
    match sharding.kind:
        case "zero1":
            sent = _of_replicas(step, workload, sharding.num_devices)
        case "zero2" | "zero3":
            sent = _of_shards(step, workload, plan.workload, sharding)
        case "context":
            sent = _of_ring(step, config, plan.workload, sharding.num_devices)
        case "tensor":
            sent = _of_tensors(config, workload, sharding.num_devices)
        case _:
            sent = _of_tokens(config, workload, sharding.num_devices)
    return tuple(one for one in sent if one.sent_bytes)


def _of_replicas(step: RepeatedStep, workload: Workload, devices: int) -> Iterator[Travel]:
    gradients = _gradient_bytes(step)
    yield _travel("gradients", "all-reduce", gradients, devices)
    yield _travel("weights after the optimizer's step", "all-gather", gradients, devices)


def _of_shards(step: RepeatedStep, workload: Workload, narrow: Workload, sharding: Sharding) -> Iterator[Travel]:
    """Weights travel in the dtype that they are gathered in, gradients in that of the shards; both padded."""
    devices, passes = sharding.num_devices, _passes(workload)
    weights = [life for life in step.lives if life.kind == "parameter"]
    weight_bytes = passes * DTYPE_BYTES[narrow.weight_dtype] * devices
    forward = sum(prod(life.shape) * _count(step, life.layer) for life in weights)
    yield _travel("weights, for forward", "all-gather", weight_bytes * forward, devices)
    if workload.phase != "train":
        return
    if sharding.kind == "zero3":
        # Of frozen layers the last is sent for too, as the one that comes next.
        first = max(0, workload.frozen_layers - 1)
        backward = sum(
            prod(life.shape) * sum(life.layer + shift >= first for shift in step.shifts(life.layer))
            for life in weights
            if life.layer is not None
        )
        yield _travel("weights of layers, for backward", "all-gather", weight_bytes * backward, devices)
    gradients = _gradient_bytes(step)
    yield _travel("gradients", "reduce-scatter", passes * devices * gradients, devices)


def _of_tensors(config: ModelConfig, workload: Workload, devices: int) -> Iterator[Travel]:
    states, passes = _token_bytes(config.embed_dim, workload), _passes(workload)
    splits_head = config.head is not None and config.head.kind == "language_model" and not config.head.tied
    forward = 2 * config.num_layers
    yield _travel("outputs of layers' branches", "all-reduce", passes * forward * states, devices)
    if splits_head and config.head is not None:
        scores = _token_bytes(config.head.num_outputs, workload)
        yield _travel("scores of the vocabulary", "all-gather", passes * scores, devices)
    if workload.phase != "train":
        return
    learning = config.blocks[workload.frozen_layers :]
    if workload.checkpoint == "full":
        yield _travel("outputs of attention, again", "all-reduce", passes * len(learning) * states, devices)
    backward = sum(_num_column_projections(block, config.model_type) for block in learning) + splits_head
    yield _travel("gradients of projections' inputs", "all-reduce", passes * backward * states, devices)


def _of_tokens(config: ModelConfig, workload: Workload, devices: int) -> Iterator[Travel]:
    states, passes = _token_bytes(config.embed_dim, workload), _passes(workload)
    has_words = int(config.head is not None and config.head.kind == "language_model")
    branches = 2 * config.num_layers
    yield _travel("tokens into branches and head", "all-gather", passes * (branches + has_words) * states, devices)
    yield _travel("embeddings and outputs of branches", "reduce-scatter", passes * (1 + branches) * states, devices)
    if workload.phase != "train":
        return
    learning = config.num_layers - min(workload.frozen_layers, config.num_layers)
    if workload.checkpoint == "full":
        again = passes * learning * states
        yield _travel("tokens into branches, to compute layers again", "all-gather", 2 * again, devices)
        yield _travel("outputs of attention, again", "reduce-scatter", again, devices)
    inputs = passes * (2 * learning + has_words) * states
    outputs = passes * (2 * learning + (workload.frozen_layers == 0)) * states
    yield _travel("tokens again, for weights' gradients", "all-gather", inputs, devices)
    yield _travel("gradients of outputs of branches", "all-gather", outputs, devices)
    yield _travel("gradients of tokens", "reduce-scatter", inputs, devices)


def _of_ring(step: RepeatedStep, config: ModelConfig, own: Workload, devices: int) -> Iterator[Travel]:
    passes = _passes(own)
    numbers = sum(times * _key_and_value_numbers(block, own) for block, times in config.block_groups)
    pair = numbers * _number_bytes(own)
    yield Travel(what="keys and values", collective="ring", sent_bytes=passes * (devices - 1) * pair)
    if own.phase != "train":
        return
    if own.checkpoint != "none":
        yield Travel(what="keys and values, again", collective="ring", sent_bytes=passes * (devices - 1) * pair)
    yield Travel(what="keys and values, for backward", collective="ring", sent_bytes=passes * (devices - 1) * pair)
    gradients = passes * devices * numbers * 4
    yield Travel(what="gradients of keys and values", collective="ring", sent_bytes=gradients)
    yield _travel("gradients of weights", "all-reduce", _gradient_bytes(step), devices)


def _num_column_projections(block: BlockConfig, model_type: str) -> int:
    """Count a layer's projections that are split by their outputs: each gathers the gradient of its input by itself."""
    fused = FUSED.get(model_type, ())
    attention = 1 if "qkv_proj" in fused else 3
    return attention + (2 if block.feed_forward.gated and "gate_up_proj" not in fused else 1)


def _key_and_value_numbers(block: BlockConfig, own: Workload) -> int:
    """Count the numbers of a device's keys and values in one layer, copied for each query head where a kernel asks."""
    attention = block.attention
    assert isinstance(attention, AttentionConfig | LatentAttentionConfig), "checked by plan_of"
    _, is_grouped = choose_kernel(attention, own)
    num_heads = attention.num_heads
    if is_grouped and isinstance(attention, AttentionConfig):
        num_heads = attention.num_kv_heads
    return own.batch * own.seq * num_heads * (attention.head_dim + attention.v_head_dim)


def _gradient_bytes(step: RepeatedStep) -> int:
    """Add up the gradients that a device leaves for the optimizer, and those that lie in buckets."""
    return sum(
        life.bytes * _count(step, life.layer)
        for life in step.lives
        if life.kind == "gradient" and life.name.startswith("gradient of")
    )


def _count(step: RepeatedStep, layer: int | None) -> int:
    return len(step.shifts(layer))


def _passes(workload: Workload) -> int:
    return workload.accumulation if workload.phase == "train" else 1


def _token_bytes(width: int, workload: Workload) -> int:
    """Return the bytes of one vector for every token of a pass."""
    tokens = workload.batch * (1 if workload.phase == "decode" else workload.seq)
    return tokens * width * _number_bytes(workload)


def _number_bytes(workload: Workload) -> int:
    return DTYPE_BYTES[workload.autocast_dtype or workload.weight_dtype]


def _travel(
    what: str, collective: Literal["all-gather", "reduce-scatter", "all-reduce"], size: int, devices: int
) -> Travel:
    """Say what a device sends of a tensor of so many bytes, as large as it is when whole."""
    times = 2 if collective == "all-reduce" else 1
    return Travel(what=what, collective=collective, sent_bytes=times * size * (devices - 1) // devices)
