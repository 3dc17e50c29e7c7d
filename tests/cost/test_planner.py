from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.config.presets import preset
from headwise.cost.allocator import replay
from headwise.cost.devices import DEVICES
from headwise.cost.heap import SEGMENT_STEP_BYTES as SEGMENT_BYTES
from headwise.cost.memory import predict_step
from headwise.cost.planner import judge, unmodelled
from headwise.cost.reserved import step_events
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

MIB = 2**20
GIB = 2**30
CPU = Device(name="here", description="a machine", memory_bytes=16 * GIB, kind="cpu", source="-", date="2026-01-01")
EVERY_DEVICE = [*DEVICES.values(), CPU]


def bounds(peak_bytes: int, device: Device) -> tuple[int, int]:
    parts = unmodelled(peak_bytes, device)
    return sum(part.low for part in parts), sum(part.high for part in parts)


@given(device=st.sampled_from(EVERY_DEVICE), share=st.floats(0, 1.5))
def test_yes_fits_at_the_worst_no_fails_at_the_best_and_tight_is_between(device, share):
    peak_bytes = int(share * device.memory_bytes)
    low, high = bounds(peak_bytes, device)
    verdict = judge(peak_bytes, device)
    whole_segments = (peak_bytes + SEGMENT_BYTES - 1) // SEGMENT_BYTES * SEGMENT_BYTES
    assert (verdict.fits == "yes") == (whole_segments + high <= device.memory_bytes)
    assert (verdict.fits == "no") == (peak_bytes + low > device.memory_bytes)
    assert (verdict.unmodelled_low_bytes, verdict.unmodelled_high_bytes) == (low, high)
    assert (verdict.peak_bytes, verdict.device) == (peak_bytes, device)


@pytest.mark.parametrize("device", EVERY_DEVICE, ids=lambda device: device.name)
def test_all_three_answers_occur_in_order_as_the_peak_grows(device):
    order = ["yes", "tight", "no"]
    answers = [judge(device.memory_bytes * percent // 100, device).fits for percent in range(120)]
    assert set(answers) == set(order)
    assert answers == sorted(answers, key=order.index)


KEEPS_ALL = Workload(batch=1, seq=1)
KEEPS_LITTLE = [
    replace(KEEPS_ALL, checkpoint="full"),
    replace(KEEPS_ALL, checkpoint="selective"),
    replace(KEEPS_ALL, frozen_layers=1),
    replace(KEEPS_ALL, phase="prefill"),
    replace(KEEPS_ALL, phase="decode"),
    None,
]


@pytest.mark.parametrize(
    ("device", "workload", "percent"),
    [
        (DEVICES["t4"], KEEPS_ALL, 40),
        (DEVICES["mi300x"], KEEPS_ALL, 40),
        *((DEVICES["t4"], workload, 100) for workload in KEEPS_LITTLE),
        (CPU, KEEPS_ALL, 15),
        (DEVICES["apple-m-24gb"], None, 15),
    ],
    ids=str,
)
def test_holes_between_blocks_may_take_a_share_of_the_peak(device, workload, percent):
    holes = next(part for part in unmodelled(10_000, device, workload=workload) if "holes" in part.what)
    assert (holes.low, holes.high) == (0, 100 * percent)


FUSED = {"optimizer_step": "fused", "dropout": False, "precision": "bf16"}
EAGER = FUSED | {"attention": "eager"}


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("gpt2", {"batch": 128, "seq": 1024, "optimizer": "momentum"} | FUSED),
        ("bert-base", {"batch": 32, "seq": 512, "checkpoint": "full", "optimizer": "momentum"}),
        ("gpt2-medium", {"batch": 271, "seq": 64, "checkpoint": "full", "optimizer": "adamw8bit"} | EAGER),
    ],
    ids=str,
)
def test_what_is_allowed_for_holes_is_enough_for_the_steps_that_need_most_and_much_less_is_not(name, workload):
    config, step = preset(name, head=True), Workload(**workload)
    peak_bytes = predict_step(config, step).peak_bytes
    holes = next(part for part in unmodelled(peak_bytes, DEVICES["t4"], workload=step) if "holes" in part.what)
    fails = [
        replay(step_events(config, step), capacity_bytes=peak_bytes + more).out_of_memory is not None
        for more in (holes.high * 2 // 5, holes.high)
    ]
    assert fails == [True, False]


@given(device=st.sampled_from(EVERY_DEVICE), peak_bytes=st.integers(0, 2**50))
def test_every_bound_is_a_range(device, peak_bytes):
    for part in unmodelled(peak_bytes, device):
        assert 0 <= part.low <= part.high


def test_the_last_segment_counts_whole():
    t4 = DEVICES["t4"]
    peak_bytes = 3 * SEGMENT_BYTES + 1
    high = bounds(peak_bytes, t4)[1]
    assert judge(peak_bytes, replace(t4, memory_bytes=4 * SEGMENT_BYTES + high)).fits == "yes"
    assert judge(peak_bytes, replace(t4, memory_bytes=4 * SEGMENT_BYTES + high - 1)).fits == "tight"


@pytest.mark.parametrize("device", EVERY_DEVICE, ids=lambda device: device.name)
def test_no_begins_with_the_first_byte_that_the_lower_bound_leaves_no_room_for(device):
    room = device.memory_bytes - bounds(0, device)[0]  # no part's lower bound grows with the peak
    assert judge(room, device).fits == "tight"
    assert judge(room + 1, device).fits == "no"


def test_the_reason_names_the_peak_the_capacity_and_what_is_not_modelled():
    reason = judge(10 * GIB, DEVICES["t4"]).reason
    assert "10.00 GiB at the peak" in reason
    assert "NVIDIA T4 has 14.56 GiB" in reason
    assert "CUDA context 253.8 MiB to 2.00 GiB" in reason
    assert "reserved" not in reason
    assert "\n" not in reason
    assert "interpreter" in judge(10 * GIB, CPU).reason


@pytest.mark.parametrize("name", [name for name, device in DEVICES.items() if device.kind == "cuda"])
def test_a_replay_narrows_the_holes_and_takes_the_place_of_whole_segments(name):
    device = DEVICES[name]
    peak_bytes, reserved_bytes = 5 * GIB, 6 * GIB
    by_name = {part.what: part for part in unmodelled(peak_bytes, device)}
    replayed = {part.what: part for part in unmodelled(peak_bytes, device, reserved_bytes=reserved_bytes)}
    holes = replayed["allocator rounding and holes"]
    assert (holes.low, holes.high) == (0, 22 * MIB)
    assert replayed["cuBLAS workspace"].low == 0  # it may lie in a hole
    assert replayed["CUDA context"] == by_name["CUDA context"]
    high = sum(part.high for part in replayed.values())
    verdict = judge(peak_bytes, replace(device, memory_bytes=reserved_bytes + high), reserved_bytes=reserved_bytes)
    assert (verdict.fits, verdict.reserved_bytes, verdict.peak_bytes) == ("yes", reserved_bytes, peak_bytes)
    assert "5.00 GiB at the peak, for which 6.00 GiB are reserved, and" in verdict.reason
    less = replace(device, memory_bytes=reserved_bytes + high - 1)
    assert judge(peak_bytes, less, reserved_bytes=reserved_bytes).fits == "tight"


def test_reserved_bytes_beyond_the_capacity_are_no_proof_that_it_does_not_fit():
    device = DEVICES["t4"]
    low = sum(part.low for part in unmodelled(0, device, reserved_bytes=0))
    peak_bytes = device.memory_bytes - low
    assert judge(peak_bytes, device, reserved_bytes=2 * device.memory_bytes).fits == "tight"
    assert judge(peak_bytes + 1, device, reserved_bytes=2 * device.memory_bytes).fits == "no"


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("t4", 8.125, 40),
        ("a100-80gb", 8.125, 40),
        ("rtx-4090", 8.125, 40),
        ("h100-80gb", 32, 64),
        ("h200-141gb", 32, 64),
    ],
)
def test_workspaces_are_those_of_the_architecture(name, low, high):
    workspace = next(part for part in unmodelled(0, DEVICES[name]) if part.what == "cuBLAS workspace")
    assert (workspace.low, workspace.high) == (low * MIB, high * MIB)


@pytest.mark.parametrize(("capability", "low", "high"), [((12, 0), 8.125, 64), (None, 8.125, 64)])
def test_workspaces_of_other_devices_lie_between_those_of_the_known(capability, low, high):
    device = replace(DEVICES["t4"], compute_capability=capability)
    workspace = next(part for part in unmodelled(0, device) if part.what == "cuBLAS workspace")
    assert (workspace.low, workspace.high) == (low * MIB, high * MIB)


def test_the_least_context_is_what_a_process_took_beside_its_one_tensor():
    """pytorch/pytorch#86509: 287,047,680 bytes in use with one tensor of 20 x 16 x 50 x 100 float32."""
    segment = replay([("tensor", 20 * 16 * 50 * 100 * 4)]).reserved_bytes
    context = next(part for part in unmodelled(0, DEVICES["a100-80gb"]) if part.what == "CUDA context")
    assert context.low + segment == 287_047_680


@pytest.mark.parametrize("device", EVERY_DEVICE, ids=lambda device: device.name)
def test_every_line_has_a_source(device):
    parts = unmodelled(GIB, device, num_devices=2)
    if device.kind in ("cuda", "rocm"):
        parts += unmodelled(GIB, device, reserved_bytes=GIB)
    assert all(part.source for part in parts)


def test_reserved_bytes_hold_the_peak_and_belong_to_cuda():
    with pytest.raises(ConfigError, match="reserved_bytes must be between 7 and"):
        judge(7, DEVICES["t4"], reserved_bytes=6)
    with pytest.raises(ConfigError, match="must be left out for a CPU"):
        judge(7, CPU, reserved_bytes=8)


@pytest.mark.parametrize("kind", ["mps", "tpu"])
def test_reserved_bytes_are_told_where_torchs_cuda_allocator_runs(kind):
    with pytest.raises(ConfigError, match=f"left out for a {kind.upper()}"):
        judge(7, replace(CPU, kind=kind), reserved_bytes=8)
    assert judge(7, replace(CPU, kind="rocm"), reserved_bytes=8).reserved_bytes == 8


def test_rocm_has_the_bounds_of_cuda_but_for_its_workspaces():
    rocm = {part.what: part for part in unmodelled(0, replace(CPU, kind="rocm"))}
    cuda = {part.what: part for part in unmodelled(0, DEVICES["t4"])}
    context, workspace = rocm["HIP context"], rocm["hipBLAS workspace"]
    assert (context.low, context.high) == (cuda["CUDA context"].low, cuda["CUDA context"].high)
    assert "CUDA context" in context.source  # said to be no figure of HIP's
    assert (workspace.low, workspace.high) == (32 * MIB, 256 * MIB)
    assert rocm["allocator rounding and holes"] == cuda["allocator rounding and holes"]


def test_a_mac_shares_what_metal_recommends_with_other_programs():
    part = unmodelled(0, replace(CPU, kind="mps"))[0]
    assert (part.low, part.high) == (0, 2 * GIB)


def test_what_xla_makes_of_a_step_is_not_known_so_as_much_again_is_allowed():
    tpu = replace(CPU, kind="tpu", memory_bytes=32 * GIB)
    part = next(part for part in unmodelled(10 * GIB, tpu) if "XLA" in part.what)
    assert (part.low, part.high) == (0, 10 * GIB)
    assert [judge(n * GIB, tpu).fits for n in (14, 16, 33)] == ["yes", "tight", "no"]


@pytest.mark.parametrize(
    ("device", "has_nccl"), [(DEVICES["t4"], True), (replace(CPU, kind="rocm"), True), (CPU, False)]
)
def test_several_gpus_add_the_buffers_of_nccl(device, has_nccl):
    alone, together = unmodelled(GIB, device), unmodelled(GIB, device, num_devices=2)
    assert together[: len(alone)] == alone
    assert [part.what for part in together[len(alone) :]] == (["NCCL buffers"] if has_nccl else [])
    if has_nccl:
        assert together[-1].high == 2 * GIB
        more = judge(GIB, device, num_devices=2).unmodelled_high_bytes - judge(GIB, device).unmodelled_high_bytes
        assert more == 2 * GIB


def test_a_peak_is_a_number_of_bytes():
    with pytest.raises(ConfigError, match="peak_bytes must be between 0"):
        judge(-1, CPU)
