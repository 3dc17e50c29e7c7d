"""travels: what one device sends to others in one optimizer step.

Collective operations go around a ring, in which each device sends (N - 1) / N of a tensor to gather it or to scatter
its sum, and twice that for an all-reduce, which is one after the other. Psi, the bytes of all weights, is not sent for
activations, and activations not for ZeRO. With accumulation, gradients of "zero1" travel once (`no_sync`), all else in
every pass. Left out: numbers that stand alone, a loss's sums, and with "sequence" the gradients of norms.

Source: Rajbhandari et al. 2020, "ZeRO", section 7 (2 Psi; with shared weights 3 Psi); Korthikanti et al. 2022, section
4.2.2; Liu et al. 2023, "Ring Attention", section 3; ring: Patarasuk and Yuan 2009.
"""

from collections import Counter

from headwise.config.model import ModelConfig
from headwise.cost.sharding.predict import plan_of
from headwise.cost.sharding.results import Sharding, Travel
from headwise.cost.step.repeat import RepeatedStep, repeated_step
from headwise.cost.step.sends import Collective
from headwise.cost.workload import Workload


def travels(config: ModelConfig, workload: Workload, sharding: Sharding) -> tuple[Travel, ...]:
    """Return what one device sends, by what it is and by collective operation.

    - zero1: an all-reduce of the gradients, 2 (N - 1) / N Psi, and an all-gather of the stepped weights, (N - 1) / N.
      That is torch's DDP beside a ZeroRedundancyOptimizer: every device gets all summed gradients. Rajbhandari et al.
      reduce each gradient to the one device that steps with it, and send 2 (N - 1) / N Psi in all.
    - zero2: each pass an all-gather of the weights and a reduce-scatter of the gradients: 2 (N - 1) / N Psi. The paper
      sends as much, the weights after the optimizer's step instead of before each pass.
    - zero3: as zero2, and the layers' weights once more for backward: 3 (N - 1) / N Psi. Frozen layers through which
      no gradient flows are not gathered again, but for the last, which comes unasked.
    - tensor: of a layer's B x T x E numbers, an all-reduce after each row projection forward and before each column
      projection backward, one by one where queries, keys, values, gate and up are projections of their own (2 in
      Megatron, which joins them); the head's scores are gathered. Full checkpointing repeats the first of a layer, and
      the second where something after it is needed again: the mask of a dropout, or the input of a norm.
    - sequence: the all-reduces forward cut into an all-gather before and a reduce-scatter after each branch; backward
      the same for gradients, and the tokens gathered again for the weights' gradients.
    - context: forward, the keys and values of N - 1 other devices; backward, they again and N times their float32
      gradients; and an all-reduce of the weights' gradients. CUDA's kernels pad heads before they travel.

    All but zero1 and the ring's last is counted as the tape notes it, operation by operation (see `SendingTape`).

    Args:
        config, workload, sharding: as of `predict_sharded_ledger`.

    Raises:
        UnsupportedError, ConfigError: as of `predict_sharded_ledger`.
    """
    plan = plan_of(config, workload, sharding)
    step = repeated_step(plan.config, plan.workload, plan.play)
    passes = workload.accumulation if workload.phase == "train" else 1
    sizes: Counter[tuple[str, Collective]] = Counter()
    for one, times in step.sends:
        sizes[one.what, one.collective] += passes * times * one.bytes
    if sharding.kind == "zero1":
        sizes["gradients", "all-reduce"] = sizes["weights after the optimizer's step", "all-gather"] = _gradients(step)
    if sharding.kind == "context":
        sizes["gradients of weights", "all-reduce"] = _gradients(step)
    return tuple(_travel(*key, size, sharding.num_devices) for key, size in sizes.items() if size)


def _gradients(step: RepeatedStep) -> int:
    """Add up the gradients that a device leaves for the optimizer, and those that lie in buckets."""
    return sum(
        life.bytes * len(step.shifts(life.layer))
        for life in step.lives
        if life.kind == "gradient" and life.name.startswith("gradient of")
    )


def _travel(what: str, collective: Collective, size: int, devices: int) -> Travel:
    """Say what a device sends of a tensor of so many bytes, as large as it is when whole."""
    if collective == "ring":
        return Travel(what=what, collective=collective, sent_bytes=size)
    times = 2 if collective == "all-reduce" else 1
    return Travel(what=what, collective=collective, sent_bytes=times * size * (devices - 1) // devices)
