"""What every result can do: become a plain dict, print itself, and show itself in a notebook."""

import base64
import dataclasses
import html
import math
from typing import Any

BYTES_PER_GIB = 2**30
BYTES_PER_MIB = 2**20
BYTES_PER_KIB = 2**10


class Result:
    """Base of the frozen dataclasses that headwise answers with.

    A result holds only plain values (numbers, strings, bytes, tuples, dicts, other results), never a tensor,
    so that it compares, hashes where its fields do, and turns into JSON.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the result as dicts, lists, numbers and strings: what `--json` prints."""
        assert dataclasses.is_dataclass(self)
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def to_text(self) -> str:
        """Return the result as lines of plain text, one field a line; results with a better form override it."""
        return "\n".join(f"{name}: {value}" for name, value in self.to_dict().items())

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.to_text())}</pre>"


def plain(value: Any) -> Any:
    """Turn a value of a result into what JSON can hold."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN and no infinity
    return value


def format_bytes(num_bytes: int | float) -> str:
    """Write a number of bytes with a binary unit: 1.50 GiB, 24.0 MiB, 3.0 KiB, 12 B.

    GiB go on to 10,000, so that a step stands beside what a device holds in one unit; then come TiB, PiB and so on.
    """
    units = ((1, " B", 0), (BYTES_PER_KIB, " KiB", 1), (BYTES_PER_MIB, " MiB", 1), (BYTES_PER_GIB, " GiB", 2))
    larger = tuple((2.0 ** (10 * power), f" {prefix}iB", 2) for power, prefix in enumerate("TPEZY", start=4))
    return _with_unit(num_bytes, units if abs(num_bytes) < 10_000 * BYTES_PER_GIB else larger, limit=1024)


def format_count(count: int | float) -> str:
    """Write a count with a decimal unit, as the field does: 109.48 M, 8.03 B, 1.71 T."""
    return _with_unit(count, ((1, "", 0), (1e3, " K", 2), (1e6, " M", 2), (1e9, " B", 2), (1e12, " T", 2)), limit=1000)


def format_flops(flops: int | float) -> str:
    """Write floating-point operations with a decimal unit: 5.48 GFLOP."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    units = tuple((1000.0**power, f" {prefix}FLOP", 2 if power else 0) for power, prefix in enumerate(prefixes))
    return _with_unit(flops, units, limit=1000)


def _with_unit(value: int | float, units: tuple[tuple[int | float, str, int], ...], *, limit: int) -> str:
    """Write a value in the first unit in which, as it is written, it stays below the limit."""
    written = [(f"{value / size:.{decimals}f}", unit) for size, unit, decimals in units]
    text, unit = next((pair for pair in written if abs(float(pair[0])) < limit), written[-1])
    return text + unit
