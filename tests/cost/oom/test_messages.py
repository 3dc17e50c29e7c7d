"""Out-of-memory messages: real wordings with their figures, then messages made from templates under any noise.

The wordings in wordings.json are those of public reports and of torch's sources, each with where it is from; numbers
of processes are replaced, paths left out.
"""

import contextlib
import json
import struct
import time
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwise.cost.oom.messages import read_message
from headwise.cost.oom.printed import rounded_by_hand
from headwise.errors import TextError

KIB, MIB, GIB = 2**10, 2**20, 2**30
UNITS = {"bytes": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": KIB, "MB": MIB, "GB": GIB}


def size(text: str) -> int:
    """Return the whole bytes nearest to "7.93 GiB"."""
    number, unit = text.split()
    return int((Decimal(number) * UNITS[unit]).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def printed(num_bytes: int) -> str:
    """Write a size as torch's format_size does."""
    if num_bytes <= KIB:
        return f"{num_bytes} bytes"
    for unit in ("KiB", "MiB"):
        if num_bytes <= UNITS[unit] * 1024:
            return f"{num_bytes / UNITS[unit]:.2f} {unit}"
    return f"{num_bytes / GIB:.2f} GiB"


class Wording(NamedTuple):
    """A message, where it was published, and its figures; None = the message does not say."""

    source: str
    text: str
    backend: str
    requested: str | None = None
    device: int | None = None
    capacity: str | None = None
    free: str | None = None
    allocated: str | None = None
    reserved: tuple[str, ...] = ()  # summed, as the next two
    process: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    allowed: str | None = None
    private: str | None = None
    is_rounded_up: bool = True


WORDINGS = tuple(
    Wording(**row) for row in json.loads(Path(__file__).with_name("wordings.json").read_text(encoding="utf-8"))
)


def total(parts: list[str]) -> int | None:
    return sum(map(size, parts)) if parts else None


def size_or_none(text: str | None) -> int | None:
    return None if text is None else size(text)


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.source)
def test_a_real_wording_gives_its_figures(wording):
    message = read_message(wording.text)
    assert message.backend == wording.backend
    assert message.requested_text == wording.requested
    assert message.device_index == wording.device
    assert message.capacity_bytes == size_or_none(wording.capacity)
    assert message.free_bytes == size_or_none(wording.free)
    assert message.allocated_bytes == size_or_none(wording.allocated)
    assert message.reserved_bytes == total(wording.reserved)
    assert message.process_bytes == total(wording.process)
    assert message.other_bytes == total(wording.other)
    assert message.allowed_bytes == size_or_none(wording.allowed)
    assert message.private_pool_bytes == size_or_none(wording.private)
    assert message.is_rounded_up == (wording.is_rounded_up and wording.requested is not None)


@pytest.mark.parametrize(
    "wording", [wording for wording in WORDINGS if wording.requested], ids=lambda wording: wording.source
)
def test_what_was_asked_for_lies_in_the_range_that_is_read(wording):
    message = read_message(wording.text)
    if wording.requested.endswith(" GB") and "." not in wording.requested:  # cut off, not rounded
        low = int(wording.requested.split()[0]) * GIB
        assert (message.requested_low_bytes, message.requested_high_bytes) == (max(1, low), low + GIB - 1)
    else:
        assert message.requested_low_bytes <= size(wording.requested) <= message.requested_high_bytes


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("20.00 MiB", 20_966_278, 20_976_762),  # 19.995 and 20.005 times 1,048,576, inwards
        ("1.00 GiB", 2**30 + 1, 1_079_110_533),  # 2**30 itself prints as 1024.00 MiB
        ("1024.00 MiB", 1_073_736_582, 2**30),  # 1023.995 times 2**20, upwards
        ("1.00 KiB", 1025, 1029),  # 1.005 times 1024 is 1029.12
        ("512 bytes", 512, 512),
        ("3725.29 GiB", 3_999_994_310_820, 4_000_005_048_238),
    ],
)
def test_the_range_is_what_two_decimals_leave_open(text, low, high):
    message = read_message(f"CUDA out of memory. Tried to allocate {text} (GPU 0; 7.93 GiB total capacity)")
    assert (message.requested_low_bytes, message.requested_high_bytes) == (low, high)


@given(st.integers(1, 2**43))
@example(1024)
@example(1025)
@example(2**20)
@example(2**20 + 1)
@example(2**30)
@example(2**30 + 1)
def test_the_range_of_a_printed_size_is_exact(num_bytes):
    text = printed(num_bytes)
    message = read_message(f"CUDA out of memory. Tried to allocate {text}. GPU 0 has a total capacity of 79.15 GiB")
    low, high = message.requested_low_bytes, message.requested_high_bytes
    assert low <= num_bytes <= high
    # A size midway between two texts counts for both, and prints as one of them.
    unit = UNITS[text.split()[1]]
    assert printed(low) == text or (200 * low) % unit == 0
    assert printed(high) == text or (200 * high) % unit == 0
    assert printed(low - 1) != text
    assert printed(high + 1) != text


@given(st.integers(2**20 + 1, 2**43))
@example(6_408_665_653_507)  # single precision moves it to another text
def test_the_range_of_a_size_that_passed_through_single_precision_holds_it(num_bytes):
    (single,) = struct.unpack("f", struct.pack("f", num_bytes))
    text = f"{single / MIB:.2f} MB" if num_bytes <= GIB else f"{single / GIB:.2f} GB"
    message = read_message(f"MPS backend out of memory. Tried to allocate {text} on private pool.")
    assert message.requested_low_bytes <= num_bytes <= message.requested_high_bytes


def test_more_than_an_exabyte_is_a_size():
    message = read_message("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert (message.requested_low_bytes, message.requested_high_bytes) == (2**60, 2**64 - 1)
    assert not message.is_rounded_up


UNREADABLE = ("1180591620717411303424 bytes", "-2.00 GiB", "-5 bytes", "1e999 GiB", "nan GiB", "inf GiB", "2,00 GiB")
UNREADABLE += ("2.00.00 GiB", "9" * 30 + " GiB", "9" * 4_000_000)


@pytest.mark.parametrize("size", UNREADABLE, ids=lambda size: size[:30])
@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 14.56 GiB",
        "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU 0; 7.93 GiB total capacity)",
        "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB). Tried to allocate {} on pool.",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate {}. Error code 12",
        "not enough memory: you tried to allocate {}.",
        "Allocation on device 0 would exceed allowed memory. (out of memory) Requested: {}",
        "NCCL WARN Failed to CUDA calloc async {}",
        "unable to mmap {} from file </torch_1>: Cannot allocate memory (12)",
        "RuntimeError: Invalid buffer size: {}",
    ],
)
def test_a_size_that_no_allocator_prints_is_said_to_be_given_and_not_readable(text, size):
    with pytest.raises(TextError) as caught:
        read_message(text.format(size))
    line = str(caught.value)
    assert "a size is given that cannot be read" in line and "\n" not in line
    assert len(line) < 300


def test_a_message_that_can_be_read_comes_before_a_size_that_cannot():
    text = "CUDA out of memory. Tried to allocate nan GiB\nCUDA out of memory. Tried to allocate 2.00 GiB."
    assert read_message(text).requested_text == "2.00 GiB"


@pytest.mark.parametrize("end", ["", ".", "12", "2.0", " more"])
def test_a_message_that_ends_before_its_size_does_gives_none(end):
    assert read_message("CUDA out of memory. Tried to allocate " + end).wording.endswith("cut short")


@pytest.mark.parametrize(
    ("text", "num_bytes", "printed_as"),
    [("1.00 GiB", GIB, "1024.00 MiB"), ("1.00 MiB", MIB, "1024.00 KiB"), ("1 KiB", KIB, "1024 bytes")],
)
def test_what_only_a_hand_rounds_to_one_of_a_unit_is_known(text, num_bytes, printed_as):
    assert rounded_by_hand(text) == (num_bytes, printed_as)
    assert printed(num_bytes) == printed_as


@pytest.mark.parametrize("text", [None, "1.01 GiB", "2.00 GiB", "11.00 GiB", "1 bytes", "0.50 GiB", "1.00 TiB"])
def test_no_other_text_is_taken_for_rounded_by_hand(text):
    assert rounded_by_hand(text) is None


def test_of_several_messages_the_first_with_a_size_is_taken_and_they_are_counted():
    log = (
        "RuntimeError: CUDA error: out of memory\nretrying\n"
        "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 7.93 GiB total capacity; 6.46 GiB already allocated)\n"
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 64 bytes. Error code 12\nKilled\n"
    )
    message = read_message(log)
    assert (message.backend, message.requested_text, message.device_index) == ("cuda", "1.50 GiB", 3)
    assert message.num_messages == 2


def test_of_messages_without_a_size_the_first_is_taken_and_a_killed_process_comes_last():
    text = "Killed\nNCCL WARN Cuda failure 'out of memory'\nRuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED\n"
    assert read_message(text).wording == "NCCL: Cuda failure 'out of memory'"


def test_figures_of_a_second_message_are_not_those_of_the_first():
    first = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0"
    second = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.00 GiB"
    message = read_message(first + "\n" + second)
    assert message.requested_text == "1.50 GiB"
    assert message.capacity_bytes is None


def test_of_processes_without_a_name_the_one_that_holds_what_is_reserved_is_this_one():
    text = (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 MiB is "
        "free. Process 11 has 60.00 GiB memory in use. Process 12 has 2.00 GiB memory in use. Process 13 has 16.00 GiB "
        "memory in use. Of the allocated memory 13.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch "
        "but unallocated."
    )
    message = read_message(text)
    assert message.process_bytes == 16 * GIB
    assert message.other_bytes == 62 * GIB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "numpy: Tried to allocate room for guests",
        "Tried to allocate 3 GiB of disk",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "CUDA error: device-side assert triggered",
        "\0\0\0",
    ],
)
def test_an_unreadable_text_gets_one_clear_line(text):
    with pytest.raises(TextError, match="must hold an out-of-memory message") as caught:
        read_message(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(TextError, match="give the part around the error"):
        read_message("x" * (64 * 2**20 + 1))


# Messages from templates of our own, under noise.

sizes = st.integers(1, 2**41)


@st.composite
def messages(draw):
    """Return a message and the figures that must be read back."""
    form = draw(st.sampled_from(["list", "cached", "sentences", "mps", "cpu"]))
    requested = printed(draw(sizes))
    capacity, free, allocated, more = (printed(draw(sizes)) for _ in range(4))
    name = draw(st.sampled_from(["CUDA", "HIP", "XPU"]))
    index = draw(st.integers(0, 15))
    figures = {"requested_text": requested, "backend": name.lower()}
    head = f"{name} out of memory. Tried to allocate {requested}"
    if form == "cpu":
        count = draw(sizes)
        figures = {"requested_low_bytes": count, "requested_high_bytes": count, "backend": "cpu"}
        return (
            f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {count} bytes. Error code 12",
            figures,
        )
    if form == "mps":
        figures |= {"backend": "mps", "reserved_bytes": size(allocated), "allowed_bytes": size(capacity)}
        figures["process_bytes"] = size(allocated) + size(more)
        return (
            f"MPS backend out of memory (MPS allocated: {allocated}, other allocations: {more}, max allowed: "
            f"{capacity}). Tried to allocate {requested} on private pool.",
            figures,
        )
    figures |= {"device_index": index, "capacity_bytes": size(capacity), "free_bytes": size(free)}
    figures["allocated_bytes"] = size(allocated)
    if form == "sentences":
        process, other = printed(draw(sizes)), printed(draw(sizes))
        figures["reserved_bytes"] = size(allocated) + size(more)
        figures |= {"process_bytes": size(process), "other_bytes": size(other)}
        return (
            f"{head}. GPU {index} has a total capacity of {capacity} of which {free} is free. "
            f"Process {draw(st.integers(1, 2**32))} has {other} memory in use. "
            f"Including non-PyTorch memory, this process has {process} memory in use. "
            f"Of the allocated memory {allocated} is allocated by PyTorch, and {more} is reserved by PyTorch but "
            "unallocated.",
            figures,
        )
    listed = f"{head} (GPU {index}; {capacity} total capacity; {allocated} already allocated; {free} free; {more} "
    if form == "list":
        return listed + "reserved in total by PyTorch)", figures | {"reserved_bytes": size(more)}
    whole = size(allocated) + size(more)
    is_whole = whole > size(capacity) and size(more) >= size(allocated)
    return listed + "cached)", figures | {"reserved_bytes": size(more) if is_whole else whole}


def wrapped(text, width=80, begin="", end=""):
    return "\n".join(begin + text[start : start + width] + end for start in range(0, len(text), width))


LAYOUTS = {
    "one line": lambda text: text,
    "80 columns": wrapped,
    "17 columns": lambda text: wrapped(text, 17),
    "Windows": lambda text: wrapped(text, 50).replace("\n", "\r\n"),
    "a word a line": lambda text: text.replace(" ", "\n   "),
    "a box": lambda text: f"╭────╮\n{wrapped(text, 40, '│ ', ' │')}\n╰────╯",
    "a quotation": lambda text: wrapped(text, 60, "> > "),
    "a comment": lambda text: wrapped(text, 60, "# "),
    "a table": lambda text: f"| step | error |\n|---|---|\n| 3 | {text} |",
    "a rank on wrapped lines": lambda text: wrapped(text, 61, "[rank3]: "),
    "hard spaces": lambda text: text.replace(" ", "\u00a0"),
}
CARRIERS = {
    "colours": lambda text: "\x1b[31m" + "\x1b[0m \x1b[1;32m".join(text.split(" ")) + "\x1b[0m",
    "colours without escapes": lambda text: "[31m" + "[0m [1;32m".join(text.split(" ")) + "[0m",
    "a rank": lambda text: f"[rank0]: Traceback\n[rank0]: torch.OutOfMemoryError: {text}\n[rank1]: other",
    "a time": lambda text: f"2024-05-01 12:00:00,123 ERROR [worker] RuntimeError: {text}",
    "JSON": lambda text: json.dumps({"error": f"Traceback\nRuntimeError: {text}\n"}),
    "JSON within JSON": lambda text: json.dumps(json.dumps({"error": f"RuntimeError: {text}\n"})),
    "a representation": lambda text: repr(f"caught\n{text}\n\t"),
    "a log": lambda text: "step 1 loss 2.5\n" * 50 + text + "\nstep 2, 3.00 GiB used, 1.00 GiB free\n" * 50,
}


@settings(deadline=None, max_examples=120)
@given(messages(), st.sampled_from(sorted(LAYOUTS)), st.lists(st.sampled_from(sorted(CARRIERS)), max_size=2))
def test_a_message_is_read_back_exactly_under_noise(made, layout, carriers):
    text, figures = made
    text = LAYOUTS[layout](text)
    for carrier in carriers:
        text = CARRIERS[carrier](text)
    message = read_message(text)
    assert {name: getattr(message, name) for name in figures} == figures


@pytest.mark.parametrize("noise", [*LAYOUTS, *CARRIERS])
def test_each_noise_alone_changes_no_figure(noise):
    make = LAYOUTS.get(noise) or CARRIERS[noise]
    for wording in WORDINGS[:40:4]:
        plain, noisy = read_message(wording.text), read_message(make(wording.text))
        assert noisy.to_dict() | {"traceback": []} == plain.to_dict() | {"traceback": []}


@settings(deadline=None)
@given(st.binary(max_size=400), st.booleans())
def test_random_bytes_never_crash(content, has_message):
    text = content.decode("utf-8", errors="replace") + (
        " CUDA out of memory. Tried to allocate 2.00 GiB." * has_message
    )
    try:
        message = read_message(text)
    except TextError:
        assert not has_message
    else:
        json.dumps(message.to_dict())


PIECES = ["Tried to allocate ", "1.00 GiB", "out of memory", "you tried to", "%dGB", "Process 1 has ", "(GPU 0; ", "12"]
PIECES += ["9" * 300, "\x1b[", "\\n", "│", 'File "', ", line 1, in ", "-> 1", "Killed", "\n", "[rank0]:", " ", "GB"]
PIECES += ["\ud800", "❱ 1 ", "In [1]"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_pieces_of_messages_in_any_order_never_crash(pieces):
    try:
        read_message("".join(pieces))
    except TextError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "piece",
    [
        "Tried to allocate ",
        "CUDA out of memory. Tried to allocate 1 ",
        "Tried to allocate 1,0 GiB of nothing ",
        "you tried to allocate ",
        "would exceed allowed memory requested: 1",
        "unable to mmap 12 bytes from file ",
        "MPS allocated: 1.00 GB, ",
        "\\",
        "\\n",
        "\x1b[0;",
        "9",
        "sh: line 1: 1 ",
    ],
)
def test_a_hostile_text_of_2_mib_takes_bounded_time(piece):
    text = piece * (2**21 // len(piece))
    begin = time.process_time()
    with contextlib.suppress(TextError):
        read_message(text)
    assert time.process_time() - begin < 10  # measured: below 0.3 s; a quadratic search takes minutes
