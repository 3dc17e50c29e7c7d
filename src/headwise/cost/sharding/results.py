"""How a step is spread over devices, and what travels between them."""

from dataclasses import dataclass
from typing import Literal, no_type_check

from headwise.config.checks import require_choice, require_flag, require_size
from headwise.cost.step.sends import Collective
from headwise.results import Result

SHARDINGS = ("zero1", "zero2", "zero3", "tensor", "sequence", "context")
DATA_PARALLEL = ("zero1", "zero2", "zero3")
"""Kinds under which each device has texts of its own."""
MAX_DEVICES = 2**20


@no_type_check  # values of any type must reach the checks below
@dataclass(frozen=True, kw_only=True)
class Sharding(Result):
    """One way of spreading a training step over equal devices; the workload beside it is that of each device.

    Args:
        kind: "zero1": each device keeps a share of the optimizer's states (torch's ZeroRedundancyOptimizer beside
            DDP, which sends half as much again as ZeRO's own first stage); "zero2": and of the gradients, and between
            steps of the weights, which stay gathered on top of the shards from forward to backward (torch's FSDP2 with
            `reshard_after_forward=False`; ZeRO's own second stage, and DeepSpeed's, keeps whole weights and no shards,
            so it needs less within a step by one share and more between steps); "zero3": and of the weights always,
            gathered layer by layer (FSDP2's default). Each has texts of its own. "tensor": heads and
            hidden units are shared out, every device has all texts; "sequence": and what stands between (norms,
            residual stream) is shared out along the tokens. "context": each device has a part of every text's tokens,
            and all weights.
        num_devices: over how many devices.
        gradients_are_views: of zero1: gradients lie in the buckets that they travel in, which torch's
            DistributedDataParallel does where it is told `gradient_as_bucket_view=True`. False, its default: they stand
            beside buckets as large as all of them.

    Source: Rajbhandari et al. 2020, "ZeRO"; Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing
    Activation Recomputation in Large Transformer Models", section 4.2.2; Liu et al. 2023, "Ring Attention".
    """

    kind: Literal["zero1", "zero2", "zero3", "tensor", "sequence", "context"]
    num_devices: int
    gradients_are_views: bool = True

    def __post_init__(self) -> None:
        require_choice("kind of a sharding", self.kind, SHARDINGS)
        require_size("num_devices", self.num_devices, minimum=2, maximum=MAX_DEVICES)
        require_flag("gradients_are_views", self.gradients_are_views)


@dataclass(frozen=True, kw_only=True)
class Travel(Result):
    """What one device sends to others in one optimizer step, by collective operation.

    `sent_bytes`: by a ring, in all of the step: (N - 1) / N of the tensor for a gather or a scatter, twice that for an
    all-reduce.
    """

    what: str
    collective: Collective
    sent_bytes: int
