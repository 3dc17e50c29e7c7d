"""Messages without a size: which backend they are of, and what is no sign of a killed process."""

import pytest

from headwise.cost.oom.messages import read_message
from headwise.cost.oom.unsized import KERNEL, KILLED
from headwise.errors import TextError


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"])
@pytest.mark.parametrize(
    ("text", "backend"),
    [("CUDA", "cuda"), ("HIP", "hip"), ("XPU", "xpu"), ("NPU", "npu")],
)
def test_a_message_cut_short_is_of_the_backend_in_its_text_and_not_of_its_class(error, text, backend):
    for end in ("", ".", ". Tried to"):
        read = read_message(f"{error}: {text} out of memory{end}")
        assert (read.backend, read.wording) == (backend, f"{text} caching allocator, cut short")


def test_the_class_alone_is_read_where_nothing_else_is():
    assert read_message("torch.OutOfMemoryError: Alloc").wording == "torch.OutOfMemoryError without its text"


@pytest.mark.parametrize(
    "text",
    [
        "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
        "exit code 137.",
        '{"exitCode":137,"reason":"Error"}',
        "returned exit code\n137",
        "failed (exitcode: -9) local_rank: 0 (pid: 12)",
        "exitcode  : -9 (pid: 12)",
        "subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>.",
        "process 0 terminated with signal SIGKILL",
        "Signal 9 (SIGKILL) received by PID 12",
        "container die exitCode=137",
        "worker gone, code=137",
        "Main process exited, code=killed, status=9/KILL",
        "DataLoader worker (pid 7) is killed by signal: Killed. ",
    ],
)
def test_a_killed_process_is_read(text):
    assert read_message(text).wording == KILLED


@pytest.mark.parametrize(
    "text",
    [
        "python invoked oom-killer: gfp_mask=0x1",
        "oom_kill 3",
        '"OOMKilled": true',
        "Reason: OOMKilled",
        "Detected 1 oom_kill event in StepId=1.batch",
        "Memory cgroup out of\nmemory: Killed process 12 (python)",
    ],
)
def test_the_kernels_killer_is_read(text):
    assert read_message(text).wording == KERNEL


@pytest.mark.parametrize(
    "text",
    [
        "low 0\nhigh 12\noom 3\noom_kill 0\noom_group_kill 0",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
        '{"oom_kill": 0}',
        '"OOMKilled": false',
        "zip_code=13720",
        "zip_code=137",
        "exit code 1370",
        "exit code 0",
        "error code -95",
        "signal 95 dB",
        "signal 9.5 dB",
        "a handler cannot catch SIGKILL",
    ],
)
def test_what_only_looks_like_a_killed_process_is_none(text):
    with pytest.raises(TextError, match="must hold an out-of-memory message"):
        read_message(text)
