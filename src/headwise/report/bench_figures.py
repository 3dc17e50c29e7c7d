"""What the text and the page of a benchmark say in words: what was asked, the limits, a row, how it grows."""

from headwise.api.bench_results import BenchCase, Benchmark, BenchRow, Growth, Limits
from headwise.report.fit_figures import DTYPES, format_rate, format_seconds
from headwise.report.headlines import Headline
from headwise.results import format_bytes

PHASES = {"forward": "forward", "train": "forward and backward"}


def case_facts(case: BenchCase) -> list[str]:
    """Return what was asked, a few words each."""
    heads = f"{case.num_heads} heads of {case.head_dim}"
    if case.num_kv_heads != case.num_heads:
        heads += f" on {case.num_kv_heads} key/value heads"
    return [f"batch {case.batch:,}", heads, case.mask, PHASES[case.phase], DTYPES.get(case.dtype, case.dtype)]


def limits_sentence(limits: Limits) -> str:
    """Say what the machine reaches at best, and at what."""
    best = max(limits.products, key=lambda product: product.flops_per_second)
    return (
        f"Limits of this machine: {format_rate(limits.flops_per_second, 'FLOP')} in products of "
        f"{best.queries} queries, {best.keys} keys and {best.head_dim} numbers; "
        f"{format_rate(limits.bytes_per_second, 'B')} in copies."
    )


def format_percent(share: int | float | None) -> str:
    """Write a share in percent: 42 %, 0.8 %, < 0.1 %; – for not known."""
    if share is None:
        return "–"
    if share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


def format_speed(per_second: int | float, unit: str) -> str:
    """Write a rate with a decimal prefix, small ones too: 86.1 GFLOP/s, 672 MFLOP/s."""
    if per_second >= 1e9:
        return format_rate(per_second, unit)
    return f"{per_second / 1e6:.3g} M{unit}/s"


def impl_words(row: BenchRow) -> str:
    """Say what was asked for, and what serves it where that has another name: auto (sdpa)."""
    return row.impl if row.chosen in (None, row.impl) else f"{row.impl} ({row.chosen})"


def time_words(row: BenchRow) -> str:
    """Write the median time of a call."""
    return "not run" if row.seconds is None else format_seconds(row.seconds)


def rate_words(row: BenchRow) -> str:
    """Write the FLOPs of allowed pairs in a second."""
    return "–" if row.flops_per_second is None else format_speed(row.flops_per_second, "FLOP")


def memory_words(row: BenchRow) -> str:
    """Write the peak beyond the inputs."""
    return "–" if row.peak_bytes is None else format_bytes(row.peak_bytes)


def growth_words(exponent: float | None) -> str:
    """Write a law: L^1.98; – where there are too few points."""
    return "–" if exponent is None else f"L^{round(exponent, 2) + 0.0:.2f}"  # a rounded -0.001 has no sign


def points_words(growth: Growth) -> str:
    """Say from which lengths a law is fitted."""
    return ", ".join(f"{length:,}" for length in growth.lengths) or "none"


def fastest_row(result: Benchmark) -> BenchRow:
    """Return the fastest row of the longest length that was run."""
    longest = max(row.seq for row in result.rows if row.seconds is not None)
    return min(
        (row for row in result.rows if row.seq == longest and row.seconds is not None),
        key=lambda row: row.seconds or 0.0,
    )


def bench_headlines(result: Benchmark) -> list[Headline]:
    """Return what stands on top of the page: the fastest, its share of the limit, its growth, the machine."""
    row = fastest_row(result)
    growth = next(growth for growth in result.growth if growth.impl == row.impl)
    others = [other for other in result.rows if other.seq == row.seq and other.seconds is not None and other is not row]
    beside = [f"{other.impl} {format_seconds(other.seconds or 0.0)}" for other in others]
    bound = (
        f"{format_seconds(row.limit_seconds)} for the allowed pairs"
        if row.binds == "FLOPs"
        else f"{format_seconds(row.limit_seconds)} to move the data"
    )
    limits = result.limits
    return [
        Headline(
            label=f"Fastest at {row.seq:,} tokens",
            value=time_words(row),
            detail="; ".join([impl_words(row), *beside]),
        ),
        Headline(label="Of this machine's limit", value=format_percent(row.share_of_limit), detail=f"at least {bound}"),
        Headline(
            label="Time grows as",
            value=growth_words(growth.time_exponent),
            detail=f"{row.impl}; memory as {growth_words(growth.memory_exponent)}",
        ),
        Headline(
            label="Products of this machine",
            value=format_rate(limits.flops_per_second, "FLOP"),
            detail=f"{format_rate(limits.bytes_per_second, 'B')} in copies; {result.machine}",
        ),
    ]
