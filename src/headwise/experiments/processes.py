"""Several processes that train one module: what each is told by the first, and how the module is spread over them."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from headwise.config.checks import require_choice, require_size
from headwise.errors import ConfigError, HeadwiseError

T = TypeVar("T")
Sharding = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Which of how many processes this is; torch.distributed is running wherever there are two or more.

    Args:
        rank: of this one, from 0; the first alone reads and writes the run's folder.
        world_size: how many there are.
        sharding: "ddp": each holds the whole module and they average gradients; "fsdp": each holds its share of every
            parameter and of the optimizer's state, and gathers a block as it comes to it (FSDP2).
    """

    rank: int = 0
    world_size: int = 1
    sharding: Sharding = "ddp"

    def __post_init__(self) -> None:
        require_size("world_size", self.world_size)
        require_choice("sharding", self.sharding, ("ddp", "fsdp"))
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank must be from 0 to {self.world_size - 1}; got {self.rank}")

    @property
    def is_first(self) -> bool:
        """Return whether this is the one that keeps the folder."""
        return self.rank == 0

    def share(self, value: T) -> T:
        """Return the first process's value in every process."""
        if self.world_size == 1:
            return value
        box: list[Any] = [value]
        torch.distributed.broadcast_object_list(box, src=0)
        shared: T = box[0]
        return shared

    def first(self, do: Callable[[], T]) -> T:
        """Let the first process alone do something, and return in every process what it returned.

        Raises:
            HeadwiseError: in every process, what was raised in the first one.
        """
        if self.world_size == 1:
            return do()
        found: list[T] = []
        error: HeadwiseError | None = None
        if self.is_first:
            try:
                found.append(do())
            except HeadwiseError as raised:
                error = raised
        found, error = self.share((found, error))
        if error is not None:
            raise error
        return found[0]

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Open around training: FSDP2 warns of scores written in place, which nobody here does."""
        with warnings.catch_warnings():
            if self.world_size > 1 and self.sharding == "fsdp":
                warnings.filterwarnings(
                    "ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning
                )
            yield

    def spread(self, module: nn.Module, precision: str = "fp32") -> nn.Module:
        """Return the module as these processes train it together; all of them must hold the same weights.

        Raises:
            ConfigError: it cannot be sharded, or its numbers would be others than those of one process.
        """
        if self.world_size == 1:
            return module
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
            raise ConfigError(
                f"batch norms would norm each process's part by itself; train {type(module).__name__} in one process"
            )
        if self.sharding == "ddp":
            return nn.parallel.DistributedDataParallel(module)
        if precision == "amp-fp16":
            raise ConfigError('precision must be "fp32" or "amp-bf16" for fsdp; got "amp-fp16", for which ddp serves')
        blocks = getattr(getattr(module, "body", module), "blocks", None)
        if not isinstance(blocks, nn.ModuleList):
            raise ConfigError(f"fsdp shards Transformers, block by block; train {type(module).__name__} with ddp")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(next(module.parameters()).device.type, (self.world_size,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that FSDP2 keeps in shards as a plain one; all processes must ask for it."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def like(tensor: Tensor, own: Tensor) -> Tensor:
    """Return a plain tensor as `own` is kept: on its device, and where that is kept in shards this process's one."""
    moved = tensor.to(own.device)
    if getattr(own, "full_tensor", None) is None or tensor.shape != own.shape:
        return moved
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    # no source: every process holds the whole and takes its part of it
    return distribute_tensor(moved, own.device_mesh, own.placements, src_data_rank=None)
