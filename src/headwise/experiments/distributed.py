"""Runs by several processes together, as torchrun starts them: the numbers of one process, but for float error."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from headwise.config.checks import require_choice
from headwise.errors import ConfigError
from headwise.experiments.engine import Done, Job
from headwise.experiments.processes import Processes, Sharding
from headwise.experiments.run import Progress, RunSettings, run
from headwise.experiments.run_result import Run


def run_distributed(
    settings: RunSettings,
    folder: str | os.PathLike[str],
    *,
    sharding: Sharding = "ddp",
    progress: Progress | None = None,
    device: str | torch.device | None = None,
) -> Run:
    """Do a run in all processes that torchrun started, each of which must call this, and return its result in each.

    Every process draws the whole batch of a step and works off its share; the first one alone reads and writes the
    folder, and takes the test. A run that was killed goes on with as many processes.

    Args:
        settings: of the run; `batch_size` counts the texts of all processes together.
        folder: where it is kept, as the first process sees it.
        sharding: "ddp" or "fsdp" (see `Processes`).
        progress: called after every step, in the first process.
        device: to train on. Default: the GPU of this process's local rank, where torch sees one, else the CPU.

    Raises:
        ConfigError: this process was not started by torchrun, or the batch cannot be shared; as `run`.
        OutputError: as `run`.
    """
    with processes_of(sharding, device) as (processes, place_on):
        return run(
            settings,
            folder,
            progress=progress if processes.is_first else None,
            device=place_on,
            processes=processes,
        )


@dataclass(frozen=True, kw_only=True)
class DistributedEngine:
    """The processes that torchrun started: every run by all of them together, one run after another.

    Args:
        sharding: "ddp" or "fsdp" (see `Processes`).
        device: to train on, as of `run_distributed`.
    """

    sharding: Sharding = "ddp"
    device: str | None = None

    def __post_init__(self) -> None:
        require_choice("sharding", self.sharding, ("ddp", "fsdp"))

    @contextmanager
    def together(self) -> Iterator[Processes]:
        """Open the group of all processes for a whole comparison, whose folder the first one alone reads and writes.

        Raises:
            ConfigError: this process was not started by torchrun.
        """
        with processes_of(self.sharding, self.device) as (processes, _):
            yield processes

    def run_all(self, jobs: Sequence[Job], *, done: Done | None = None) -> list[Run]:
        """Do every job and return the results in the order of the jobs; `done` is called in the first process."""
        results: list[Run] = []
        with processes_of(self.sharding, self.device) as (processes, place_on):
            for job in jobs:
                results.append(run(job.settings, job.folder, device=place_on, processes=processes))
                if done is not None and processes.is_first:
                    done(len(results), len(jobs))
        return results


@contextmanager
def processes_of(
    sharding: Sharding, device: str | torch.device | None = None
) -> Iterator[tuple[Processes, str | torch.device | None]]:
    """Open the group of processes that torchrun started, and say which one this is and what it trains on.

    The group is closed afterwards, unless it was open before.

    Raises:
        ConfigError: this process was not started by torchrun.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise ConfigError("processes must be started together; run this by torchrun --nproc-per-node 2 FILE")
    if device is None and torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = device is not None and torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    was_open = torch.distributed.is_initialized()
    if not was_open:
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        yield Processes(rank=rank, world_size=world_size, sharding=sharding), device
        if not was_open:
            torch.distributed.barrier()  # none closes what another still reads from
    finally:
        if not was_open:
            torch.distributed.destroy_process_group()
