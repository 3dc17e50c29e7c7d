"""Where runs happen: one after another here, or several at once in processes of this machine."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event as EventType
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from headwise.config.checks import require_size
from headwise.experiments.processes import Processes
from headwise.experiments.run import RunSettings, run
from headwise.experiments.run_result import Run


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to do, and the folder to keep it in."""

    settings: RunSettings
    folder: Path


Done = Callable[[int, int], None]
"""Called with the runs that are done and how many there are."""


@runtime_checkable
class Engine(Protocol):
    """A place that does runs."""

    def together(self) -> AbstractContextManager[Processes]:
        """Open for a whole comparison, and say which of the processes that are in it together this one is."""

    def run_all(self, jobs: Sequence[Job], *, done: Done | None = None) -> list[Run]:
        """Do every job and return the results in the order of the jobs."""


@dataclass(frozen=True, kw_only=True)
class LocalEngine:
    """This machine: so many runs at once, each in a process of its own with so many threads.

    Numbers do not depend on `workers`: a run has the same threads, and so adds up in the same order, however many run.

    Args:
        workers: processes at once; 1 = this process, one run after another.
        threads: of each run.
        device: to train on. Default: the GPU that torch uses, where it sees one, else the CPU.
    """

    workers: int = 1
    threads: int = 1
    device: str | None = None

    def __post_init__(self) -> None:
        require_size("workers", self.workers)
        require_size("threads", self.threads)

    def together(self) -> AbstractContextManager[Processes]:
        """Say that one process, this one, does the comparison, whatever others it starts."""
        return nullcontext(Processes())

    def run_all(self, jobs: Sequence[Job], *, done: Done | None = None) -> list[Run]:
        """Do every job and return the results in the order of the jobs; the first error ends all."""
        results: dict[int, Run] = {}
        for number, result in self._run(jobs):
            results[number] = result
            if done is not None:
                done(len(results), len(jobs))
        return [results[number] for number in range(len(jobs))]

    def _run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Run]]:
        if self.workers == 1:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads)
            try:
                for number, job in enumerate(jobs):
                    yield number, run(job.settings, job.folder, device=self.device)
            finally:
                torch.set_num_threads(before)
            return
        # a fresh interpreter each: a fork would inherit torch's threads, which do not survive it
        context = get_context("spawn")
        stop = context.Event()
        with ProcessPoolExecutor(self.workers, mp_context=context, initializer=_start, initargs=(stop,)) as pool:
            futures = {pool.submit(_run_job, job, self.threads, self.device): number for number, job in enumerate(jobs)}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            finally:
                stop.set()  # a pool cannot take back what its processes run, nor what they have next
                pool.shutdown(wait=True, cancel_futures=True)


_stop: list[EventType] = []  # of this process, if it is one of a pool


def _start(stop: EventType) -> None:
    """Begin a process of a pool: an interrupt from the terminal is its parent's, which then says stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stop[:] = [stop]


def _run_job(job: Job, threads: int, device: str | None) -> Run:
    torch.set_num_threads(threads)
    _heed_stop()
    return run(job.settings, job.folder, device=device, progress=_heed_stop)


def _heed_stop(*_: int) -> None:
    """End the run between two steps once the others are to stop; it goes on from its last state another time."""
    if _stop[0].is_set():
        raise KeyboardInterrupt
