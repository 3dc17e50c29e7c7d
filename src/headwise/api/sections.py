"""The sections of a report that are predicted from a config, with what was counted and measured beside them."""

from dataclasses import replace

from headwise.api.prediction import NO_CLOSED_FORM, kernel_note, kernel_of, predict, reserved
from headwise.api.results import FlopsSection, MemorySection
from headwise.config.model import ModelConfig
from headwise.cost.flops import forward_flops, train_flops
from headwise.cost.kv import DEFAULT_DTYPE, kv_cache_bytes, kv_cache_bytes_per_token, score_matrix_bytes
from headwise.cost.planner import judge
from headwise.cost.results import Device, FlopCount, StepMemory
from headwise.cost.workload import Workload

SCORES_DTYPE = "float32"  # of the step that is predicted and measured
THIS_CPU = "this machine's CPU"
NO_CACHE = "An encoder keeps no keys and values between calls: it has no KV cache."


def flops_section(
    config: ModelConfig | None, workload: Workload, *, counted: FlopCount | None, notes: tuple[str, ...]
) -> FlopsSection:
    """Put predicted FLOPs beside the counted ones."""
    if config is None:
        return FlopsSection(forward=None, train=None, counted_forward=counted, notes=notes)
    size = {"batch": workload.batch, "seq": workload.seq}
    return FlopsSection(
        forward=forward_flops(config, **size), train=train_flops(config, **size), counted_forward=counted, notes=notes
    )


def memory_section(
    config: ModelConfig | None,
    workload: Workload,
    device: Device,
    *,
    predicted_here: StepMemory | None,
    measured: StepMemory | None,
    notes: tuple[str, ...],
) -> MemorySection:
    """Put predicted memory beside the measured one, and judge whether the step fits the device.

    `predicted_here` is for this machine's CPU, where `measured` was measured; the verdict is about `device`, whose
    kernels may differ.
    """
    if config is None:
        return MemorySection(
            predicted=None,
            predicted_for=None,
            measured=measured,
            saved_gap_percent=None,
            peak_gap_percent=None,
            kv_cache_bytes=None,
            kv_cache_bytes_per_token=None,
            kv_cache_dtype=None,
            score_matrix_bytes=None,
            fit=judge(measured.peak_bytes, device) if measured and device.kind == "cpu" else None,
            notes=notes,
        )
    workload = replace(workload, compute_capability=device.step_capability)
    on_device = predicted_here if predicted_here and device.kind == "cpu" else predict(config, workload)
    shown = predicted_here or on_device
    if shown is None:
        notes = (*notes, NO_CLOSED_FORM.format(config.model_type))
    most_heads = max(block.attention.num_heads for block in config.blocks)
    return MemorySection(
        predicted=shown,
        predicted_for=None if shown is None else THIS_CPU if predicted_here else _place(device),
        measured=measured,
        saved_gap_percent=gap_percent(shown.saved_bytes, measured.saved_bytes) if shown and measured else None,
        peak_gap_percent=gap_percent(shown.peak_bytes, measured.peak_bytes) if shown and measured else None,
        kv_cache_bytes=kv_cache_bytes(config, batch=workload.batch, seq=workload.seq),
        kv_cache_bytes_per_token=kv_cache_bytes_per_token(config),
        kv_cache_dtype=None if config.kind == "encoder" else config.dtype or DEFAULT_DTYPE,
        score_matrix_bytes=score_matrix_bytes(
            batch=workload.batch, num_heads=most_heads, query_len=workload.seq, key_len=workload.seq, dtype=SCORES_DTYPE
        ),
        fit=judge(on_device.peak_bytes, device, reserved_bytes=reserved(config, workload), workload=workload)
        if on_device
        else None,
        notes=(
            *notes,
            *_kernel_notes(config, workload, device, predicted_here),
            *(NO_CACHE,) * (config.kind == "encoder"),
        ),
    )


def _kernel_notes(
    config: ModelConfig, workload: Workload, device: Device, predicted_here: StepMemory | None
) -> tuple[str, ...]:
    """Say which kernel attention runs on each device that a peak is for, and why not a faster one."""
    places = [(_place(device), replace(workload, device=device.step_device))]
    if predicted_here and device.kind != "cpu":
        places.append((THIS_CPU, replace(workload, device="cpu")))
    kernels = [(place, kernel_of(config, on_place)) for place, on_place in places]
    return tuple(kernel_note(place, kernel) for place, kernel in kernels if kernel is not None)


def _place(device: Device) -> str:
    return THIS_CPU if device.kind == "cpu" else device.name


def gap_percent(predicted: int, measured: int) -> float | None:
    """Return (predicted - measured) / measured in percent; None where the measured figure is 0."""
    return 100.0 * (predicted - measured) / measured if measured else None
