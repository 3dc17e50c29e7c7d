"""What `bench` answers with: the machine's limits, one row a length and implementation, and how they grow."""

from dataclasses import dataclass
from typing import Literal

from headwise.results import Result


@dataclass(frozen=True, kw_only=True)
class ProductRate(Result):
    """How fast this machine multiplies the tiles of attention: `queries` x `keys` scores and their values, per head."""

    queries: int
    keys: int
    head_dim: int
    flops_per_second: float


@dataclass(frozen=True, kw_only=True)
class Limits(Result):
    """What this machine reached at best when it was asked for nothing but one thing.

    `flops_per_second`: matrix products of the fastest of `products`. `bytes_per_second`: a copy too large for any
    cache, its reads and writes together. `num_threads`: of torch on a CPU.
    """

    flops_per_second: float
    bytes_per_second: float
    num_threads: int
    products: tuple[ProductRate, ...]


@dataclass(frozen=True, kw_only=True)
class BenchCase(Result):
    """What was asked: shapes but for the length, and how they are used. `train`: forward and backward."""

    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mask: str
    phase: Literal["forward", "train"]
    dtype: str
    device: str


@dataclass(frozen=True, kw_only=True)
class BenchRow(Result):
    """One implementation at one length; what is measured is None where it was not run, and `obstacle` says why.

    `impl`: as it was asked for; `chosen`: the one that serves it. `kernels`: those of torch's that were seen to run in
    forward. `reasons`: a sentence for each faster choice that was not taken. `pairs`: that the mask allows, over batch
    and heads. `flops`: of these pairs: `2 (head_dim + head_dim)` each in forward, 2.5 times as many in backward, as
    products are computed again there. `moved_bytes`: inputs read once and results written once.
    `seconds`: median of `num_calls` timed calls. `limit_seconds`: the longer of `flops` at the machine's matmul rate
    and `moved_bytes` at its bandwidth, `binds` says which; `share_of_limit` = `limit_seconds / seconds`.
    `peak_bytes`: most bytes alive beyond inputs (query, key, value, and the output's gradient), what kernels take for
    themselves included. `predicted_bytes`: the least of it, as it was predicted before the run.
    """

    impl: str
    seq: int
    chosen: str | None = None
    kernels: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    pairs: int
    flops: int
    moved_bytes: int
    input_bytes: int
    predicted_bytes: int | None = None
    limit_seconds: float
    binds: Literal["FLOPs", "bandwidth"]
    seconds: float | None = None
    num_calls: int = 0
    flops_per_second: float | None = None
    share_of_limit: float | None = None
    peak_bytes: int | None = None
    obstacle: str | None = None


@dataclass(frozen=True, kw_only=True)
class Growth(Result):
    """How one implementation grows: exponents p of the best `c * length^p`, by least squares of the logarithms.

    `lengths`: the points of the fit. An exponent is None with fewer than two points above 0.
    """

    impl: str
    lengths: tuple[int, ...]
    time_exponent: float | None
    memory_exponent: float | None


@dataclass(frozen=True, kw_only=True)
class Benchmark(Result):
    """Every implementation at every length, measured in turns on this machine. `page`: where it was written."""

    case: BenchCase
    machine: str
    versions: dict[str, str]
    limits: Limits
    rows: tuple[BenchRow, ...]
    growth: tuple[Growth, ...]
    notes: tuple[str, ...] = ()
    page: str | None = None
