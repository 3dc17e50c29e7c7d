"""The rows of one length: what a call must do at least, what stands in its way, and what it takes."""

from collections.abc import Callable
from dataclasses import replace

from headwise.api.bench_call import AttentionCall, make_call
from headwise.api.bench_memory import free_bytes, input_bytes, measure_call, predict_least_bytes, tensor_bytes
from headwise.api.bench_request import BenchRequest
from headwise.api.bench_results import BenchCase, BenchRow, Limits
from headwise.api.bench_timing import time_in_turns
from headwise.errors import HeadwiseError, describe
from headwise.masks.patterns import Mask
from headwise.results import format_bytes

MAX_SECONDS = 20.0  # of turns at one length; no round of turns begins later
MAX_CALL_SECONDS = 120.0  # that one call may take at least
FREE_SHARE = 0.75  # of the free memory; the rest is for what is not predicted
BACKWARD = 2.5  # products of backward for each of forward: five for two, as scores are computed again
PARTS = 3  # of a length, for the progress: prepared, timed, its memory measured


def measure_rows(
    request: BenchRequest, seq: int, limits: Limits, advance: Callable[[int, int], None]
) -> list[BenchRow]:
    """Return a row for each implementation at a length; those that can be run are timed in turns.

    The limits tell what would take too long; `hold_against` gives the shares of them.
    """
    mask = request.mask_of(seq)
    rows = {name: _ideal_row(request.case, name, seq, mask, limits) for name in request.impls}
    free = int(FREE_SHARE * free_bytes(request.device))
    first = rows[request.impls[0]]
    obstacle = None
    if first.input_bytes > free:
        obstacle = f"inputs take {format_bytes(first.input_bytes)} of {format_bytes(free)} that are free"
    elif first.limit_seconds > MAX_CALL_SECONDS:
        obstacle = f"a call takes at least {first.limit_seconds / 60:.0f} minutes at this machine's limits"
    if obstacle is not None:
        return [replace(row, obstacle=obstacle) for row in rows.values()]
    call = make_call(request, seq, mask)
    runners = {}
    for name, row in rows.items():
        rows[name] = _foresee(request.case, row, call, free - row.input_bytes)
        if rows[name].obstacle is None:
            runner = call.runner(name)
            try:
                runner()
                runners[name] = runner
            except (HeadwiseError, RuntimeError) as error:  # out of memory, or a refusal that only a run meets
                rows[name] = replace(rows[name], obstacle=describe(error))
    advance(1, PARTS)
    timings = time_in_turns(runners, repeats=request.repeats, max_seconds=MAX_SECONDS, device=request.device)
    advance(2, PARTS)
    for name, timing in timings.items():
        row, seconds = rows[name], timing.seconds
        peak_bytes, kernels = measure_call(runners[name], request.device)
        rows[name] = replace(
            row,
            kernels=kernels,
            seconds=seconds,
            num_calls=timing.num_calls,
            flops_per_second=row.flops / seconds,
            peak_bytes=peak_bytes,
        )
    return list(rows.values())


def work_of(case: BenchCase, pairs: int, seq: int) -> tuple[int, int]:
    """Return the FLOPs of allowed pairs, and the bytes that move at least, in the case's phase.

    Forward: scores and their mix of values, `4 head_dim` FLOPs a pair. Backward reads query, key, value, output and its
    gradient, and writes three gradients.
    """
    query_output, key_value = tensor_bytes(case, seq)
    flops, moved = 4 * pairs * case.head_dim, query_output + key_value
    if case.phase == "forward":
        return flops, moved
    return round((1 + BACKWARD) * flops), 3 * moved


def hold_against(row: BenchRow, limits: Limits) -> BenchRow:
    """Return a row with the least time of its work at a machine's limits, and its share of them if it was run."""
    compute, move = row.flops / limits.flops_per_second, row.moved_bytes / limits.bytes_per_second
    limit_seconds = max(compute, move)
    return replace(
        row,
        limit_seconds=limit_seconds,
        binds="FLOPs" if compute >= move else "bandwidth",
        share_of_limit=None if row.seconds is None else limit_seconds / row.seconds,
    )


def _ideal_row(case: BenchCase, impl: str, seq: int, mask: Mask, limits: Limits) -> BenchRow:
    """Return a row with what the call must do at least, and how long that takes at the machine's limits."""
    pairs = mask.count_pairs(seq, seq, batch_size=case.batch, num_heads=case.num_heads)
    flops, moved_bytes = work_of(case, pairs, seq)
    row = BenchRow(
        impl=impl,
        seq=seq,
        pairs=pairs,
        flops=flops,
        moved_bytes=moved_bytes,
        input_bytes=input_bytes(case, seq),
        limit_seconds=0.0,
        binds="FLOPs",
    )
    return hold_against(row, limits)


def _foresee(case: BenchCase, row: BenchRow, call: AttentionCall, free: int) -> BenchRow:
    """Return a row with who serves the call and what it takes at least, or why it is not run."""
    try:
        choice = call.choose(row.impl)
    except HeadwiseError as error:
        return replace(row, obstacle=str(error).splitlines()[-1].strip())
    predicted = predict_least_bytes(case, row.seq, call.mask, impl=choice.impl, kernel=choice.kernel)
    row = replace(row, chosen=choice.impl, reasons=choice.reasons, predicted_bytes=predicted)
    if predicted <= free:
        return row
    needs = f"takes at least {format_bytes(predicted)} beyond its inputs, of {format_bytes(max(free, 0))} that are free"
    return replace(row, obstacle=f"{choice.impl} {needs}")
