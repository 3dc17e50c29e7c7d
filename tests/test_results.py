"""What every result can do: turn into JSON, print itself; and how figures are written."""

import json
from dataclasses import dataclass

import pytest

from headwise.results import Result, format_bytes, format_count, format_flops


@dataclass(frozen=True)
class Inner(Result):
    number: float


@dataclass(frozen=True)
class Outer(Result):
    inner: Inner
    many: tuple[Inner, ...]
    named: dict[str, Inner]
    raw: bytes


OUTER = Outer(Inner(float("nan")), (Inner(2.5), Inner(float("inf"))), {"a": Inner(3)}, b"\x00\xff")


def test_a_result_turns_into_plain_json_at_any_depth():
    answer = json.loads(json.dumps(OUTER.to_dict(), allow_nan=False))
    assert answer == {
        "inner": {"number": None},
        "many": [{"number": 2.5}, {"number": None}],
        "named": {"a": {"number": 3}},
        "raw": "AP8=",
    }


def test_a_result_prints_one_line_a_field_and_escapes_itself_in_a_notebook():
    @dataclass(frozen=True)
    class Named(Result):
        name: str

    assert str(Named("<b>")) == "name: <b>"
    assert Named("<b>")._repr_html_() == "<pre>name: &lt;b&gt;</pre>"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**20, "1.0 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1024.00 GiB"),
        (9_999 * 2**30, "9999.00 GiB"),
        (10_000 * 2**30, "9.77 TiB"),
        (-(2**44), "-16.00 TiB"),
        (2**60, "1.00 EiB"),
        (2**74, "16.00 ZiB"),
        (2**100, "1048576.00 YiB"),
        (-3 * 2**10, "-3.0 KiB"),
    ],
)
def test_bytes_are_written_in_binary_units(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999_999, "1.00 M"),
        (109_482_240, "109.48 M"),
        (8_030_261_248, "8.03 B"),
        (2e15, "2000.00 T"),
    ],
)
def test_counts_are_written_in_the_fields_units(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("flops", "text"), [(12, "12 FLOP"), (5_738_397_696, "5.74 GFLOP"), (999_999_999, "1.00 GFLOP")]
)
def test_flops_are_written_in_decimal_units(flops, text):
    assert format_flops(flops) == text
