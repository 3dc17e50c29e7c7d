"""`headwise.bench`: what attention takes on this machine, as a share of the machine's own limits."""

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from headwise.api.bench_growth import fit_exponent
from headwise.api.bench_request import BenchRequest, read_request
from headwise.api.bench_results import Benchmark, BenchRow, Growth
from headwise.api.fit_door import check_paths, check_progress
from headwise.api.progress import Progress, Steps
from headwise.errors import HeadwiseError
from headwise.masks.patterns import Mask

LIMITS, LIMITS_AGAIN, PAGE = "the machine's limits", "the machine's limits again", "writing the page"
ASKED_FOR = "was asked for"  # a reason that tells nobody anything who named the implementation
BUSY = "some rows are faster than the limits: other work slowed the machine when these were measured; try again"


def bench(
    *,
    seq: int | str | Sequence[int] = (512, 1024, 2048),
    batch: int = 1,
    num_heads: int = 8,
    num_kv_heads: int | None = None,
    head_dim: int = 64,
    mask: str | Mask = "causal",
    impl: str | Sequence[str] = ("auto", "sdpa"),
    phase: str = "forward",
    dtype: str = "fp32",
    device: str = "here",
    repeats: int = 9,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Benchmark:
    """Measure attention at given shapes on this machine, beside what the machine reaches in products and copies.

    At every length all implementations are timed in turns, so that what else the machine does falls on all alike, and
    run once more for their memory. A row that cannot be served, cannot fit in the free memory or would take minutes a
    call is not run, and says why.

    Args:
        seq: lengths of queries and keys, as (1024, 2048) or "1024,2048".
        batch: batch rows.
        num_heads: query heads.
        num_kv_heads: key/value heads (default: as many).
        head_dim: numbers of a head.
        mask: a mask, or its name: "full", "causal", "window:256", "local:128:128", "longformer:512:16", "bigbird:64",
            "documents:256", ..., joined by & and |.
        impl: implementations of `attention`, as ("auto", "sdpa") or "auto,sdpa".
        phase: "forward" without gradients, or "train": forward and backward.
        dtype: fp32, bf16, fp16 or fp64.
        device: "here" (the GPU if torch finds one, else the CPU), "cpu" or "cuda".
        repeats: turns of each implementation; fewer where they take long.
        out: where to write a page; None = no page. An earlier page is replaced, any other file is not.
        progress: called with what is being done, how much is done, and how much there is.

    Raises:
        HeadwiseError: something asked for is out of range, or not one row can be run.
    """
    check_progress(progress)
    check_paths(out=out)
    request = read_request(
        seq=seq,
        batch=batch,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mask=mask,
        impl=impl,
        phase=phase,
        dtype=dtype,
        device=device,
        repeats=repeats,
    )
    if out is not None:
        from headwise.report.files import check_page_place

        check_page_place(out)
    from headwise.api.bench_limits import best_of, measure_limits
    from headwise.api.bench_rows import hold_against, measure_rows

    steps = Steps(progress, (LIMITS, *map(_step_name, request.seqs), LIMITS_AGAIN, PAGE))
    steps.start(LIMITS)
    case = request.case
    ask_limits = partial(
        measure_limits,
        num_heads=case.batch * case.num_heads,
        head_dim=case.head_dim,
        dtype=request.dtype,
        device=request.device,
    )
    limits = ask_limits()
    rows: list[BenchRow] = []
    for length in request.seqs:
        steps.start(_step_name(length))
        rows += measure_rows(request, length, limits, steps.advance)
    if all(row.obstacle is not None for row in rows):
        raise HeadwiseError(f"at least one row must be possible; none is: {rows[0].obstacle}")
    steps.start(LIMITS_AGAIN)
    limits = best_of(limits, ask_limits())
    rows = [hold_against(row, limits) for row in rows]
    result = Benchmark(
        case=case,
        machine=_machine(request),
        versions={name: version(name) for name in ("headwise", "torch")} | {"python": platform.python_version()},
        limits=limits,
        rows=tuple(rows),
        growth=tuple(growth_of(rows, name) for name in request.impls),
        notes=tuple(_notes(rows)),
    )
    if out is not None:
        from headwise.report.bench_page import write_bench_page

        steps.start(PAGE)
        result = replace(result, page=os.fspath(out))
        write_bench_page(result, out)
    steps.finish()
    return result


def growth_of(rows: Sequence[BenchRow], impl: str) -> Growth:
    """Return how the rows of one implementation grow with their length."""
    measured = [row for row in rows if row.impl == impl and row.seconds is not None]
    lengths = tuple(row.seq for row in measured)
    return Growth(
        impl=impl,
        lengths=lengths,
        time_exponent=fit_exponent(lengths, [row.seconds or 0.0 for row in measured]),
        memory_exponent=fit_exponent(lengths, [row.peak_bytes or 0 for row in measured]),
    )


def _step_name(seq: int) -> str:
    return f"length {seq:,}"


def _machine(request: BenchRequest) -> str:
    """Name the device without anything of its user: a GPU's model, or the number of cores and torch's threads."""
    import torch

    if request.device.type == "cuda":
        return torch.cuda.get_device_name(request.device)
    return f"a CPU of {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def _notes(rows: Sequence[BenchRow]) -> list[str]:
    """Say once what stood in the way of rows, why no faster choice was taken, and whether the limits are in doubt."""
    obstacles = [f"{row.impl} at {row.seq:,} was not run: {row.obstacle}" for row in rows if row.obstacle]
    reasons = [f"{row.impl}: {reason}" for row in rows for reason in row.reasons if not reason.endswith(ASKED_FOR)]
    is_beyond = any((row.share_of_limit or 0.0) > 1 for row in rows)
    return list(dict.fromkeys([*obstacles, *reasons, *([BUSY] if is_beyond else [])]))
