"""What tells that memory ran out without saying for how much: drivers, libraries, the shell and the kernel."""

import re

from headwise.cost.oom.results import OomMessage
from headwise.cost.oom.squeeze import strip_colours
from headwise.results import BYTES_PER_KIB

KILLED = "a process killed from outside (SIGKILL): the kernel's out-of-memory killer, a container's limit or a person"
KERNEL = "the kernel's or the container's out-of-memory killer"

# What the squeezed text holds, the backend, and what says so; of two at the same place, the first.
_LIBRARIES = (
    ("cublas_status_alloc_failed", "cuda", "cuBLAS: CUBLAS_STATUS_ALLOC_FAILED"),
    ("cudnn_status_alloc_failed", "cuda", "cuDNN: CUDNN_STATUS_ALLOC_FAILED"),
    ("cusolver_status_alloc_failed", "cuda", "cuSOLVER: CUSOLVER_STATUS_ALLOC_FAILED"),
    ("cusparse_status_alloc_failed", "cuda", "cuSPARSE: CUSPARSE_STATUS_ALLOC_FAILED"),
    ("cufft_alloc_failed", "cuda", "cuFFT: CUFFT_ALLOC_FAILED"),
    ("hipblas_status_alloc_failed", "hip", "hipBLAS: HIPBLAS_STATUS_ALLOC_FAILED"),
    ("miopenstatusallocfailed", "hip", "MIOpen: miopenStatusAllocFailed"),
    ("cudaerror:outofmemory", "cuda", "CUDA driver or runtime: out of memory"),
    ("cudaruntimeerror(2):outofmemory", "cuda", "CUDA runtime error (2), torch before 1.2"),
    ("cuda_error_out_of_memory", "cuda", "CUDA driver: CUDA_ERROR_OUT_OF_MEMORY"),
    ("cudaerrormemoryallocation", "cuda", "CUDA runtime: cudaErrorMemoryAllocation"),
    ("cudafailureoutofmemory", "cuda", "NCCL: Cuda failure 'out of memory'"),
    ("cudafailure2outofmemory", "cuda", "NCCL: Cuda failure 2 'out of memory'"),
    ("hiperror:outofmemory", "hip", "HIP driver or runtime: out of memory"),
    ("hiperroroutofmemory", "hip", "HIP runtime: hipErrorOutOfMemory"),
    ("error_out_of_device_memory", "xpu", "oneAPI Level Zero: out of device memory"),
    ("kiogpucommandbuffercallbackerroroutofmemory", "mps", "Metal: command buffer out of memory"),
    ("posix_memalign(&data,galignment,nbytes)==0.12vs0", "cpu", "CPU allocator, Linux, torch 1.0 and 1.1"),
    ("std::bad_alloc", "cpu", "C++ library: std::bad_alloc"),
    ("outofsharedmemory", "cpu", "a worker of a DataLoader: out of shared memory"),
    ("cudaoutofmemory", "cuda", "CUDA caching allocator, cut short"),
    ("hipoutofmemory", "hip", "HIP caching allocator, cut short"),
    ("xpuoutofmemory", "xpu", "XPU caching allocator, cut short"),
    ("npuoutofmemory", "npu", "NPU caching allocator, cut short"),
    ("mpsbackendoutofmemory", "mps", "MPS allocator, cut short"),
    ("wouldexceedallowedmemory", "cuda", "CUDA's asynchronous allocator, cut short"),
)
# torch's own class stands before the text of every error, whose backend only the text tells: it is asked last.
_CLASSES = (
    ("torch.cuda.outofmemoryerror", "cuda", "torch.cuda.OutOfMemoryError without its text"),
    ("torch.outofmemoryerror", "cuda", "torch.OutOfMemoryError without its text"),
)
# Counters of a control group may stand at 0, and a container's state at false: nothing was killed then.
_KERNEL_SIGNS = re.compile(
    r"out of memory: killed process|memory cgroup out of memory|oom-kill"
    r"|oom_kill(?!_disable)(?![\"']?[ \t]{0,40}[:=]?[ \t]{0,40}0\b)"
    r"|oomkilled(?![\"']?[ \t]{0,40}[:=][ \t]{0,40}[\"']?false)",
    re.IGNORECASE,
)
_SQUEEZED_KERNEL_SIGNS = ("outofmemory:killedprocess", "memorycgroupoutofmemory")
# A number where a size stands that no allocator prints: a sign, a comma, an exponent, more digits than bytes can have.
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|[\d.,]{1,40}(?:e[-+]?\d{1,9})?)"
_UNREADABLE = re.compile(
    r"(?:triedto(?:re)?allocate|failedtocudacalloc(?:async)?|unabletommap|invalidbuffersize:|requested:)"
    rf"({_NUMBER}(?:bytes|[kmgt]i?b)|[\d.,]{{21,40}})"
)
_SIGNS_OF_ALLOCATORS = re.compile(
    r"outofmemory|youtriedto|failedtocudacalloc|unabletommap|invalidbuffersize|wouldexceedallowedmemory"
)
_BEFORE = 200  # characters before a size in which an allocator says what it is about
_GAP = r"[\s:=\"']{0,40}"
_KILLED_SIGNS = re.compile(
    rf"\b(?:exit|return)?_?(?:code|status)\b{_GAP}(?:137|-9)\b(?!\.\d)|\bcode=137\b"
    rf"|\bsignal{_GAP}\(?9\b(?!\.\d)|\bby signal{_GAP}killed\b|\bsignal=kill\b|\bstatus=9/kill\b"
    rf"|(?:\b(?:signal|by|with|received|got|exited)\s{{1,40}}|signals\.|[(:]\s{{0,40}}|-9\s{{1,40}})\(?sigkill\b",
    re.IGNORECASE,
)
# What a shell writes of its own: "Killed", "zsh: killed  python train.py", "run.sh: line 3: 123 Killed  python x.py"
_KILLED_LINE = re.compile(
    r"^[ \t]*(?:\S{1,80}: (?:line \d{1,9}: {0,9}\d{1,9} {1,40})?[Kk]illed\b[^\n]{0,200}|Killed)[ \t\r]*$", re.MULTILINE
)
_RESIDENT = re.compile(r"anon-rss:(\d{1,15})kb")


def find_unsized(text: str, squeezed: str) -> OomMessage | None:
    """Return the first message without a size: of a driver or library, else of a process that was killed."""
    for signs in (_LIBRARIES, _CLASSES):
        found = [
            (position, number, backend, wording)
            for number, (sign, backend, wording) in enumerate(signs)
            if (position := squeezed.find(sign)) >= 0
        ]
        if found:
            _, _, backend, wording = min(found)
            return _message(backend, wording)
    text = strip_colours(text)
    if _KERNEL_SIGNS.search(text) or any(sign in squeezed for sign in _SQUEEZED_KERNEL_SIGNS):
        resident = _RESIDENT.search(squeezed)
        return _message("cpu", KERNEL, int(resident[1]) * BYTES_PER_KIB if resident else None)
    if _KILLED_SIGNS.search(text) or _KILLED_LINE.search(text):
        return _message("cpu", KILLED)
    return None


def find_unreadable(squeezed: str) -> str | None:
    """Return the first size of an allocator's message that cannot be read, in a text of which no message was read."""
    for match in _UNREADABLE.finditer(squeezed):
        if _SIGNS_OF_ALLOCATORS.search(squeezed, max(0, match.start() - _BEFORE), match.end()):
            return match[1]
    return None


def _message(backend: str, wording: str, process_bytes: int | None = None) -> OomMessage:
    return OomMessage(
        backend=backend,  # type: ignore[arg-type]
        wording=wording,
        requested_text=None,
        requested_low_bytes=None,
        requested_high_bytes=None,
        process_bytes=process_bytes,
    )
