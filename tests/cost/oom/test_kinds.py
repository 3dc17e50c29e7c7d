"""What kind an out-of-memory error is: published messages, then each kind's own law over random figures."""

from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwise.cost.oom.kinds import diagnose
from headwise.cost.oom.messages import read_message
from headwise.cost.oom.results import OomKind, OomMessage

GIB = 2**30


def message(requested, **figures):
    return OomMessage(
        backend=figures.pop("backend", "cuda"),
        wording=figures.pop("wording", "CUDA caching allocator, torch 2.1 and later"),
        requested_text=f"{requested} bytes",
        requested_low_bytes=requested,
        requested_high_bytes=requested,
        is_rounded_up=True,
        **figures,
    )


PUBLISHED = [
    # iPASSR#9: more than the whole card
    (
        "one huge tensor",
        "10.73 GiB (GPU 0; 8.00 GiB total capacity; 17.20 GiB already allocated; 0 bytes free; 19.15 GiB",
    ),
    # pytorch/pytorch#35901: 11.47 GiB of holes
    (
        "fragmentation",
        "10.84 GiB (GPU 0; 23.65 GiB total capacity; 1.06 GiB already allocated; 10.26 GiB free; 12.53 GiB",
    ),
    # MADDoG#11: 4.94 GiB of holes
    (
        "fragmentation",
        "2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; 19.75 MiB free; 13.71 GiB",
    ),
    # ResidualMaskingNetwork#15: 1 of 10.76 GiB is its own, and nothing is free
    (
        "another process",
        "36.00 MiB (GPU 0; 10.76 GiB total capacity; 996.23 MiB already allocated; 8.81 MiB free; 1010.00 MiB",
    ),
    # pytorch/pytorch#32101: 5.81 GiB of holes for 152 MiB
    (
        "fragmentation",
        "152.00 MiB (GPU 0; 31.72 GiB total capacity; 24.89 GiB already allocated; 6.12 MiB free; 30.70 GiB",
    ),
    # Shift-GCN#34
    (
        "slow fill",
        "236.00 MiB (GPU 0; 15.78 GiB total capacity; 14.25 GiB already allocated; 183.50 MiB free; 14.34 GiB",
    ),
    # nnU-Net's documentation
    (
        "one huge tensor",
        "4.16 GiB (GPU 0; 10.76 GiB total capacity; 2.82 GiB already allocated; 4.18 GiB free; 4.33 GiB",
    ),
]


@pytest.mark.parametrize(("kind", "figures"), PUBLISHED, ids=[figures[:10] for _, figures in PUBLISHED])
def test_published_messages_of_torch_1_are_told_apart(kind, figures):
    found = read_message(f"RuntimeError: CUDA out of memory. Tried to allocate {figures} reserved in total by PyTorch)")
    assert diagnose(found)[0] == kind


def sentences(requested, capacity, free, allocated, unallocated, *processes):
    return read_message(
        f"CUDA out of memory. Tried to allocate {requested}. GPU 0 has a total capacity of {capacity} of which {free} "
        f"is free. {' '.join(processes)} Of the allocated memory {allocated} is allocated by PyTorch, and "
        f"{unallocated} is reserved by PyTorch but unallocated."
    )


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (  # huggingface/diffusers#13819, a reproduction
            "another process",
            sentences(
                *("130.00 MiB", "94.96 GiB", "59.69 MiB", "5.97 GiB", "116.33 MiB"),
                "Process 1 has 1.78 GiB memory in use. Process 2 has 86.44 GiB memory in use.",
                "Including non-PyTorch memory, this process has 6.62 GiB memory in use.",
            ),
        ),
        (  # a display's 252 MiB are not the reason
            "slow fill",
            sentences(
                *("18.00 MiB", "11.65 GiB", "10.56 MiB", "10.48 GiB", "16.25 MiB"),
                "Process 1 has 251.94 MiB memory in use.",
                "Including non-PyTorch memory, this process has 11.38 GiB memory in use.",
            ),
        ),
        (  # a container that hides the others: 34 GiB that nobody accounts for
            "another process",
            sentences(
                *("96.00 MiB", "39.49 GiB", "47.00 MiB", "5.00 GiB", "10.00 MiB"),
                "Including non-PyTorch memory, this process has 5.16 GiB memory in use.",
            ),
        ),
        (  # club-3090#16: 275 MiB of holes would do, but the card is full
            "slow fill",
            sentences(
                *("50.00 MiB", "23.56 GiB", "21.75 MiB", "22.88 GiB", "275.38 MiB"),
                "Including non-PyTorch memory, this process has 23.50 GiB memory in use.",
            ),
        ),
        (  # logits of lm_eval
            "one huge tensor",
            sentences(
                *("3.75 GiB", "23.53 GiB", "2.59 GiB", "20.43 GiB", "47.16 MiB"),
                "Including non-PyTorch memory, this process has 20.93 GiB memory in use.",
            ),
        ),
        # Comfy-Org/ComfyUI#9529: more was free than was asked for
        ("unknown", sentences("432.00 MiB", "15.92 GiB", "7.12 GiB", "8.08 GiB", "321.96 MiB")),
        # MGFN.#35
        ("fragmentation", sentences("1.70 GiB", "6.00 GiB", "0 bytes", "2.93 GiB", "2.30 GiB")),
    ],
)
def test_published_messages_of_torch_2_are_told_apart(kind, found):
    assert diagnose(found)[0] == kind


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (  # ROCm/TheRock#2118: a limit of 1.05 GiB on a card that is nearly empty
            "slow fill",
            "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 287.98 GiB of which 275.86 "
            "GiB is free. 1.05 GiB allowed; Of the allocated memory 1034.01 MiB is allocated by PyTorch, and 39.99 MiB "
            "is reserved by PyTorch but unallocated.",
        ),
        (  # Comfy-Org/ComfyUI#7440 asked for 1 %, #8984 for a third
            "slow fill",
            "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 GiB)."
            " Tried to allocate 292.50 MiB on private pool.",
        ),
        (
            "one huge tensor",
            "MPS backend out of memory (MPS allocated: 15.72 GiB, other allocations: 2.41 MiB, max allowed: 18.13 GiB)."
            " Tried to allocate 5.81 GiB on private pool.",
        ),
        ("unknown", "RuntimeError: Invalid buffer size: 19.45 GB"),
        ("unknown", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("one huge tensor", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 132426121216 bytes."),
        ("unknown", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes."),
        ("unknown", "DefaultCPUAllocator: not enough memory: you tried to allocate 132426121216 bytes."),
        ("unknown", "unable to mmap 29764 bytes from file </torch_1>: Cannot allocate memory (12)"),
        ("unknown", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ("unknown", "Killed"),
        ("unknown", "Out of memory: Killed process 1 (python) total-vm:48212kB, anon-rss:3145728kB"),
    ],
)
def test_other_backends_and_messages_without_figures(kind, text):
    found, evidence, advice = diagnose(read_message(text))
    assert found == kind
    assert evidence
    assert advice


def test_evidence_gives_the_figures_of_the_message():
    found = sentences(
        *("1.50 GiB", "79.15 GiB", "1.31 GiB", "70.00 GiB", "2.25 GiB"),
        "Process 1 has 4.50 GiB memory in use. Including non-PyTorch memory, this process has 73.34 GiB memory in use.",
    )
    kind, evidence, advice = diagnose(found)
    assert kind == "slow fill"
    text = "; ".join(evidence)
    for figure in (
        "1.50 GiB",
        "1.9 % of the device",
        "79.15 GiB",
        "1.31 GiB",
        "70.00 GiB",
        "88 %",
        "2.25 GiB",
        "4.50 GiB",
    ):
        assert figure in text
    assert "would fit into that" in text
    assert "expandable_segments:True" in "; ".join(
        advice
    )  # the holes are worth a try even where they are not the cause


def test_a_killed_process_is_said_to_tell_nothing_of_a_tensor():
    _, evidence, _ = diagnose(read_message("Out of memory: Killed process 1 (python) total-vm:9kB, anon-rss:3145728kB"))
    assert evidence == (
        "the kernel ended the process; it held 3.00 GiB of memory: no error of torch's came, so no tensor and no line "
        "can be named",
    )
    _, evidence, _ = diagnose(read_message("Process finished with exit code 137"))
    assert "host's memory" in evidence[0]


@pytest.mark.parametrize(
    ("backend", "wording", "setting"),
    [
        ("cuda", "CUDA caching allocator, torch 2.1 and later", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("cuda", "CUDA caching allocator, torch 1.4 to 2.0", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"),
        ("hip", "HIP caching allocator, torch 2.1 and later", "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
        ("npu", "NPU caching allocator, torch 1.4 to 2.0", "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"),
    ],
)
def test_the_setting_against_holes_is_that_of_the_backend_and_version(backend, wording, setting):
    found = message(
        GIB,
        backend=backend,
        wording=wording,
        capacity_bytes=8 * GIB,
        free_bytes=0,
        allocated_bytes=GIB,
        reserved_bytes=7 * GIB,
    )
    kind, _, advice = diagnose(found)
    assert kind == "fragmentation"
    assert setting in advice[0]


# Laws over random figures.

gibibytes = st.integers(0, 100 * GIB)


figures_of_messages = st.fixed_dictionaries(
    {
        "requested": st.integers(1, 100 * GIB),
        "capacity_bytes": st.none() | st.integers(1, 100 * GIB),
        "allowed_bytes": st.none() | st.integers(1, 100 * GIB),
        "backend": st.sampled_from(["cuda", "hip", "xpu", "npu", "mps", "cpu"]),
        **{
            f"{name}_bytes": st.none() | gibibytes
            for name in ("free", "allocated", "reserved", "process", "other", "private_pool")
        },
    }
)


@given(figures_of_messages)
def test_every_message_gets_a_kind_with_evidence_and_advice_on_single_lines(figures):
    found = message(**figures)
    kind, evidence, advice = diagnose(found)
    assert kind in get_args(OomKind)
    assert evidence
    assert advice
    assert all(line and "\n" not in line for line in (*evidence, *advice))


@given(
    figures_of_messages, st.integers(1, 80 * GIB), st.integers(1, GIB), st.sampled_from(["cuda", "hip", "xpu", "npu"])
)
def test_what_exceeds_the_device_is_one_huge_tensor_whatever_else_holds(figures, capacity, excess, backend):
    figures |= {"requested": capacity + excess, "capacity_bytes": capacity, "backend": backend}
    kind, _, advice = diagnose(message(**figures))
    assert kind == "one huge tensor"
    assert "it does not fit an empty device" in "; ".join(advice)


@given(figures_of_messages)
def test_fragmentation_is_only_said_where_the_request_fits_into_the_holes(figures):
    found = message(**figures)
    if diagnose(found)[0] == "fragmentation":
        assert found.reserved_bytes - found.allocated_bytes >= found.requested_low_bytes


@given(figures_of_messages)
def test_another_process_is_only_said_where_the_request_would_fit_without_it(figures):
    assume(figures["backend"] != "mps")  # whose limit is one for a process
    found = message(**figures)
    if diagnose(found)[0] == "another process":
        others = found.other_bytes
        if others is None:
            held = found.allocated_bytes if found.reserved_bytes is None else found.reserved_bytes
            own = held if found.process_bytes is None else found.process_bytes
            others = found.capacity_bytes - found.free_bytes - own
        assert found.free_bytes < found.requested_low_bytes <= found.free_bytes + others
        assert 10 * others >= found.capacity_bytes


def test_others_are_not_the_reason_where_the_request_would_not_fit_without_them():
    figures = {"capacity_bytes": 80 * GIB, "free_bytes": GIB, "allocated_bytes": 60 * GIB, "reserved_bytes": 60 * GIB}
    assert diagnose(message(20 * GIB, **figures, other_bytes=18 * GIB))[0] == "one huge tensor"
    assert diagnose(message(19 * GIB, **figures, other_bytes=18 * GIB))[0] == "another process"


def test_what_a_context_takes_is_not_another_process():
    figures = {"capacity_bytes": 8 * GIB, "free_bytes": 0}
    used = {"allocated_bytes": 6 * GIB, "reserved_bytes": 6 * GIB}
    assert diagnose(message(2**20, **figures, **used))[0] == "slow fill"
    used = {"allocated_bytes": 5 * GIB, "reserved_bytes": 5 * GIB}
    assert diagnose(message(2**20, **figures, **used))[0] == "another process"


@given(st.integers(1, 79), st.integers(1, 79))
def test_the_more_others_hold_the_less_it_is_called_a_slow_fill(own, other):
    assume(own + other < 80)
    requested = 2**20 * 500
    figures = {"capacity_bytes": 80 * GIB, "free_bytes": 0, "allocated_bytes": own * GIB, "reserved_bytes": own * GIB}
    alone = diagnose(message(requested, **figures, process_bytes=own * GIB, other_bytes=0))[0]
    shared = diagnose(message(requested, **figures, process_bytes=own * GIB, other_bytes=other * GIB))[0]
    assert alone == "slow fill"
    assert shared == ("another process" if other >= 8 else "slow fill")


@given(st.integers(1, 80 * 1024))
def test_from_a_tenth_of_the_device_on_a_tensor_is_huge(mebibytes):
    figures = {"capacity_bytes": 80 * GIB, "free_bytes": 0, "allocated_bytes": 79 * GIB, "reserved_bytes": 79 * GIB}
    kind = diagnose(message(mebibytes * 2**20, **figures))[0]
    assert kind == ("one huge tensor" if mebibytes >= 8 * 1024 else "slow fill")


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("cuda", ("torch.cuda.set_per_process", "torch.cuda.memory_summary", "nvidia-smi")),
        ("hip", ("torch.cuda.set_per_process", "torch.cuda.memory_summary", "rocm-smi")),
        ("xpu", ("torch.xpu.set_per_process", "torch.xpu.memory_stats", "xpu-smi")),
        ("npu", ("torch_npu.npu.set_per_process", "torch_npu.npu.memory_summary", "npu-smi")),
    ],
)
def test_advice_names_what_the_device_has(backend, names):
    limited = message(GIB, backend=backend, capacity_bytes=30 * GIB, allowed_bytes=4 * GIB)
    unknown = message(GIB, backend=backend)
    occupied = message(GIB, backend=backend, capacity_bytes=30 * GIB, free_bytes=GIB // 2, other_bytes=20 * GIB)
    for case, name in zip((limited, unknown, occupied), names, strict=True):
        advice = " ".join(diagnose(case)[2])
        assert name in advice
        assert backend in ("cuda", "hip") or ("torch.cuda" not in advice and "nvidia" not in advice)


@pytest.mark.parametrize(
    ("versions", "is_old"),
    [("torch 1.4 to 2.0", True), ("torch 1.0 to 1.3", True), ("torch 2.1 and later", False), ("cut short", False)],
)
def test_a_later_torch_is_advised_only_where_the_message_is_of_an_earlier_one(versions, is_old):
    figures = {"capacity_bytes": 30 * GIB, "allocated_bytes": 10 * GIB, "reserved_bytes": 25 * GIB}
    case = message(GIB, wording=f"CUDA caching allocator, {versions}", **figures)
    kind, _, advice = diagnose(case)
    assert kind == "fragmentation"
    assert ("take torch 2.1" in advice[0]) == is_old
    assert "expandable_segments:True" in advice[0]


def test_a_device_of_no_memory_says_nothing():
    _, evidence, advice = diagnose(message(GIB, capacity_bytes=0, free_bytes=0, allocated_bytes=2 * GIB))
    assert evidence and advice
    assert not any("of the device" in line and "%" in line for line in evidence)


def test_one_of_a_unit_is_said_to_be_more_than_that_or_typed_by_hand():
    figures = "GPU 0 has a total capacity of 14.56 GiB of which 1.00 GiB is free"
    _, evidence, _ = diagnose(read_message(f"CUDA out of memory. Tried to allocate 1.00 GiB. {figures}"))
    assert (
        "torch prints 1,073,741,824 bytes as 1024.00 MiB: 1.00 GiB is a little more, or was typed by hand" in evidence
    )
    _, evidence, _ = diagnose(read_message(f"CUDA out of memory. Tried to allocate 2.00 GiB. {figures}"))
    assert not any("by hand" in line for line in evidence)


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ("2.00 MiB", "at most 1 MiB: the tensor is smaller"),
        ("20.00 MiB", "more than 1 MiB and less than 10 MiB: the tensor is smaller"),
        ("22.00 MiB", None),
        ("4.00 MiB", None),
    ],
)
@pytest.mark.parametrize("backend", ["CUDA", "HIP"])
def test_a_segment_that_smaller_tensors_are_placed_in_is_said_to_be_one(requested, words, backend):
    """2 MiB and 20 MiB are torch's kSmallBuffer and its large_segment_size; from 10 MiB on it rounds up to 2 MiB."""
    figures = "(GPU 0; 10.76 GiB total capacity; 9.82 GiB already allocated; 1.18 MiB free; 9.90 GiB"
    text = f"{backend} out of memory. Tried to allocate {requested} {figures} reserved in total by PyTorch)"
    said = [line for line in diagnose(read_message(text))[1] if "the tensor is smaller" in line]
    assert [words in line for line in said] == ([] if words is None else [True])
