"""part_of_step: which part of a step's products and weights one of several devices has."""

from dataclasses import dataclass

from headwise.config.model import ModelConfig
from headwise.cost.sharding.parts import part_of_config, splits_head
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What one device computes with.

    `config`: its layers. `workload`: its texts, with all their tokens. `head_parts`: among how many devices the head is
    split along the vocabulary, and the token table with it. `token_parts`: among how many the tokens are. Of either
    kind the device has the mean part. `update_parts`: among how many the optimizer's step is, beyond what the ledger's
    gradients are. `is_gathered`: weights are gathered from shards before they are read, and the ledger names what is.
    """

    config: ModelConfig
    workload: Workload
    head_parts: int = 1
    token_parts: int = 1
    update_parts: int = 1
    is_gathered: bool = False


def part_of_step(config: ModelConfig, workload: Workload, sharding: Sharding | None) -> DevicePart:
    """Return what one device computes with.

    Args:
        config: the whole model.
        workload: as beside a `Sharding`: the texts of one device.
        sharding: how the step is spread; None: not at all.

    Raises:
        UnsupportedError: as of `part_of_config`.
    """
    if sharding is None:
        return DevicePart(config, workload)
    num_devices = sharding.num_devices
    match sharding.kind:
        case "zero1":
            return DevicePart(config, workload, update_parts=num_devices)
        case "zero2" | "zero3":
            return DevicePart(config, workload, is_gathered=True)
        case "context":
            return DevicePart(config, workload, token_parts=num_devices)
        case _:
            head_parts = num_devices if splits_head(config, sharding) else 1
            return DevicePart(part_of_config(config, sharding), workload, head_parts=head_parts)
