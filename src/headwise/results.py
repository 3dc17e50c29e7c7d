"""What every result can do: become a plain dict, print itself, and show itself in a notebook."""

import dataclasses
import html
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def format_bytes(num_bytes: int | float) -> str:
    """Write a number of bytes with a binary unit: 1.50 GiB, 24.0 MiB, 3.0 KiB, 12 B."""
    magnitude = abs(num_bytes)
    if magnitude >= BYTES_PER_GIB:
        return f"{num_bytes / BYTES_PER_GIB:.2f} GiB"
    if magnitude >= BYTES_PER_MIB:
        return f"{num_bytes / BYTES_PER_MIB:.1f} MiB"
    if magnitude >= BYTES_PER_KIB:
        return f"{num_bytes / BYTES_PER_KIB:.1f} KiB"
    return f"{num_bytes:.0f} B"


def format_count(count: int | float) -> str:
    """Write a count with a decimal unit, as the field does: 109.48 M, 8.03 B, 1.71 T."""
    magnitude = abs(count)
    for size, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " K")):
        if magnitude >= size:
            return f"{count / size:.2f}{unit}"
    return f"{count:.0f}"


def format_flops(flops: int | float) -> str:
    """Write floating-point operations with a decimal unit: 5.48 GFLOP."""
    magnitude = abs(flops)
    for size, unit in ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP")):
        if magnitude >= size:
            return f"{flops / size:.2f} {unit}"
    return f"{flops:.0f} FLOP"
