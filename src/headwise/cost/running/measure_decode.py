"""measure_decode: run one step of decoding of a model of transformers, and record its memory, time and FLOPs."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from headwise.cost.results import MeasuredStep
from headwise.cost.running.decode import make_decode_inputs
from headwise.cost.running.flop_counter import FlopCounter
from headwise.cost.running.measure import allocated_bytes, common_device, copy_module, storage_bytes
from headwise.cost.running.peaks import record_peaks
from headwise.cost.running.prepare import autocast, prepare_module
from headwise.cost.workload import Workload
from headwise.errors import ConfigError, UnsupportedError


def measure_decode(
    module: nn.Module, *, workload: Workload, timed_steps: int = 0, with_flops: bool = False
) -> MeasuredStep:
    """Run one more token for each of `batch` texts through a copy of `module`, against a cache of random numbers.

    The cache is transformers' DynamicCache, with the keys and values of the `seq - 1` tokens before in it; the caller
    of the model holds it alone. What is measured is the second token: the first one lets kernels set themselves up, and
    the cache is made anew. `peak_bytes` is what the allocator says, as of `measure_training_step`; weights, buffers,
    the token ids and the cache count as alive when the step begins. `module` itself and the random state are left as
    they were.

    Args:
        module: a decoder of transformers, on the CPU or on one CUDA device.
        workload: of phase "decode", on the module's device; `precision` and `attention` are applied to the copy.
        timed_steps: tokens to time, after those above, each against a longer cache; 0 = none.
        with_flops: whether to count the FLOPs of the token, in one more run.

    Raises:
        ConfigError: the workload is of another device or phase.
        UnsupportedError: the module has no such cache, or the workload asks for one of 8 bits, which is on paper alone.
        ModelError: the module cannot be copied.
    """
    device = common_device(module, ())
    _require_decode(workload, device)
    bytes_before = allocated_bytes(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else ()), torch.no_grad():
        decoder = copy_module(module)
        prepare_module(decoder, workload)

        def run(inputs: dict[str, Any]) -> object:
            with autocast(workload):
                return decoder(**inputs)

        def make_inputs() -> dict[str, Any]:
            with autocast(workload):
                return make_decode_inputs(decoder, workload)

        run(make_inputs())
        standing_bytes = storage_bytes([*decoder.parameters(), *decoder.buffers()])
        if device.type == "cuda":  # with the allocator's rounding
            standing_bytes = allocated_bytes(device) - bytes_before
        with record_peaks(device) as peaks:
            with peaks.moment("cache"):  # on the record, so that the profiler sees it go
                inputs = make_inputs()
            with peaks.moment("forward"):
                output = run(inputs)
            with peaks.moment("end"):
                del output
        flops = None
        if with_flops:
            inputs = make_inputs()
            with FlopCounter() as counter:
                run(inputs)
            flops = counter.count
        seconds = [_time(lambda: run(inputs), device) for _ in range(timed_steps)]
    return MeasuredStep(
        parameter_bytes=storage_bytes(decoder.parameters()),
        saved_bytes=0,
        peak_bytes=standing_bytes + peaks.bytes_by_moment["forward"],
        peak_moment="forward",
        seconds=statistics.median(seconds) if seconds else None,
        flops=None if flops is None else flops.dense,
        uncounted=() if flops is None else flops.uncounted,
        reserved_bytes=peaks.reserved_bytes,
    )


def _time(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a token takes, until the device is done with it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _require_decode(workload: Workload, device: torch.device) -> None:
    if workload.phase != "decode":
        raise ConfigError(f"a decode needs phase 'decode'; got {workload.phase!r}: see measure_training_step")
    if workload.device != device.type:
        raise ConfigError(
            f"a decode is measured where the module is; got a module on {device.type} and a workload of device "
            f"{workload.device}: give Workload(device={device.type!r})"
        )
    if workload.kv_cache != "model":
        raise UnsupportedError("a cache of 8 bits is predicted, not run; got kv_cache 'int8': give 'model'")
