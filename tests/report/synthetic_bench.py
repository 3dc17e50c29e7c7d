"""A made-up benchmark: one implementation that grows with the length, one with its square, one that was not run."""

from headwise.api.bench_results import BenchCase, Benchmark, BenchRow, Growth, Limits, ProductRate

SEQS = (256, 512, 1024, 4096)


def make_row(impl, seq, power, **changes):
    seconds = 1e-6 * (seq / 256) ** power
    row = {
        "impl": impl,
        "seq": seq,
        "chosen": "blocked" if impl == "auto" else impl,
        "kernels": ("flash_cpu",),
        "pairs": 8 * 64 * seq,
        "flops": 4 * 64 * 8 * 64 * seq,
        "moved_bytes": 8192 * seq,
        "input_bytes": 6144 * seq,
        "predicted_bytes": 2048 * seq,
        "limit_seconds": 2e-7 * seq / 256,
        "binds": "FLOPs",
        "seconds": seconds,
        "num_calls": 99,
        "flops_per_second": 4 * 64 * 8 * 64 * seq / seconds,
        "share_of_limit": 2e-7 * seq / 256 / seconds,
        "peak_bytes": round(2048 * 256 * (seq / 256) ** power),
    }
    return BenchRow(**{**row, **changes})


def make_bench(seqs=SEQS, **changes):
    missing = {"seconds": None, "peak_bytes": None, "flops_per_second": None, "share_of_limit": None, "kernels": ()}
    rows = []
    for seq in seqs:
        rows += [
            make_row("auto", seq, 1),
            make_row("sdpa", seq, 2),
            make_row(
                "flex", seq, 1, **missing, num_calls=0, chosen=None, obstacle="flex computes no gradients on a CPU"
            ),
        ]
    fields = {
        "case": BenchCase(
            batch=1,
            num_heads=8,
            num_kv_heads=2,
            head_dim=64,
            mask="window:64",
            phase="train",
            dtype="float32",
            device="cpu",
        ),
        "machine": "a CPU of 2 cores, 2 threads",
        "versions": {"headwise": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "limits": Limits(
            flops_per_second=94e9,
            bytes_per_second=38.6e9,
            num_threads=2,
            products=(
                ProductRate(queries=64, keys=512, head_dim=64, flops_per_second=85e9),
                ProductRate(queries=256, keys=512, head_dim=64, flops_per_second=94e9),
            ),
        ),
        "rows": tuple(rows),
        "growth": (
            Growth(impl="auto", lengths=seqs, time_exponent=1.0, memory_exponent=1.0),
            Growth(impl="sdpa", lengths=seqs, time_exponent=2.0, memory_exponent=2.0),
            Growth(impl="flex", lengths=(), time_exponent=None, memory_exponent=None),
        ),
        "notes": ("flex at 256 was not run: flex computes no gradients on a CPU",),
    }
    return Benchmark(**{**fields, **changes})
