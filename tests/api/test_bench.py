"""`headwise.bench`: exponents, masks by name, turns, limits, rows of tiny calls, and what it refuses."""

import json
import math
from dataclasses import replace

import pytest
import torch

import headwise
from headwise.api import bench_memory, bench_rows, bench_timing
from headwise.api.bench import BUSY, bench, growth_of
from headwise.api.bench_growth import fit_exponent
from headwise.api.bench_limits import TILES, best_of, make_product, measure_limits, product_flops
from headwise.api.bench_memory import free_bytes, measure_call
from headwise.api.bench_results import Limits, ProductRate
from headwise.api.bench_timing import time_in_turns
from headwise.config.mask_text import KINDS, read_mask
from headwise.errors import ConfigError, HeadwiseError, OutputError, UnsupportedError
from headwise.masks.bigbird import BigBird
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import Dilated, GlobalTokens, LocalWindow, PrefixLM, Strided

CPU = torch.device("cpu")
LIMITS = Limits(
    flops_per_second=1e9,
    bytes_per_second=1e8,
    num_threads=1,
    products=(ProductRate(queries=64, keys=512, head_dim=3, flops_per_second=1e9),),
)
TINY = {"batch": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 3, "device": "cpu", "repeats": 2}


@pytest.fixture
def known_limits(monkeypatch):
    """A machine of 1 GFLOP/s and 100 MB/s."""
    monkeypatch.setattr("headwise.api.bench_limits.measure_limits", lambda **_: LIMITS)


class Clock:
    """Stands where it is put: each call moves it on by its own seconds, and is noted."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def perf_counter(self):
        return self.now

    def call(self, name, *seconds):
        taken = list(seconds)

        def run():
            self.log.append(name)
            self.now += taken.pop(0) if len(taken) > 1 else taken[0]

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(bench_timing, "time", clock)
    return clock


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5, 1.0, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("lengths", [(3, 7), (2, 3, 5, 7, 11), (16, 1000, 65_536)])
def test_the_exponent_of_a_power_law_is_found_exactly(exponent, lengths):
    values = [17.0 * length**exponent for length in lengths]
    # a logarithm is right within 2^-53 of itself, and the sums of a handful of them lose a few bits more
    assert fit_exponent(lengths, values) == pytest.approx(exponent, abs=1e-13)


def test_the_exponent_of_other_points_is_their_least_squares_slope():
    # in powers of 2: x = 0, 1, 2 and y = 0, 1, 4, so the slope is (-1 (0 - 5/3) + 1 (4 - 5/3)) / 2
    assert fit_exponent((1, 2, 4), (1, 2, 16)) == pytest.approx(2.0, abs=1e-14)


def test_values_of_0_have_no_logarithm_and_are_left_out():
    assert fit_exponent((1, 2, 4, 8), (0, 2, 4, 8)) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize(("lengths", "values"), [((), ()), ((5,), (1.0,)), ((5, 5), (1.0, 2.0)), ((5, 7), (0, 3.0))])
def test_one_length_tells_no_exponent(lengths, values):
    assert fit_exponent(lengths, values) is None


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("full", Full()),
        ("causal", Causal()),
        (" Window:5 ", SlidingWindow(5)),
        ("local:2:3", LocalWindow(2, 3)),
        ("dilated:3:2", Dilated(3, 2)),
        ("strided:4", Strided(4)),
        ("global:2", GlobalTokens(2)),
        ("prefix:3", PrefixLM(3)),
        ("longformer:6:1", LocalWindow(3, 3) | GlobalTokens(1)),
        ("bigbird:3", BigBird(num_blocks=5, block_size=3)),
        ("causal & local:2:3", Causal() & LocalWindow(2, 3)),
        ("causal&window:5|global:2", (Causal() & SlidingWindow(5)) | GlobalTokens(2)),
        ("global:2 | prefix:3 & window:5", GlobalTokens(2) | (PrefixLM(3) & SlidingWindow(5))),
    ],
)
def test_a_mask_is_read_as_it_is_written(text, mask):
    assert read_mask(text)(13) == mask


def test_documents_fill_the_length_and_the_last_may_be_shorter():
    assert read_mask("documents:3")(7).lengths.tolist() == [3, 3, 1]
    assert read_mask("causal & documents:3")(7).count_pairs(7, 7) == 6 + 6 + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "full, causal, window:SIZE"),
        ("windows:3", "window:SIZE"),
        ("window", "must be written window:SIZE; got 'window'"),
        ("local:3", "must be written local:LEFT:RIGHT"),
        ("causal:3", "must be written causal; got"),
        ("window:-3", "must be written window:SIZE"),
        ("window:0", "window_size counts the query itself"),
        ("window:99999999999", "must be written window:SIZE"),
        ("causal &", "got ''"),
        ("documents:0", "at least 1 token"),
        ("bigbird:0", "block_size"),
    ],
)
def test_a_mask_that_cannot_be_read_is_refused_with_what_there_is(text, words):
    with pytest.raises(ConfigError) as caught:
        read_mask(text)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_makes_a_mask_for_any_length(name):
    text = ":".join((name, *["2" for _ in KINDS[name].numbers]))
    for seq in (1, 2, 13):
        assert 0 < read_mask(text)(seq).count_pairs(seq, seq) <= seq * seq


def test_calls_take_turns_and_the_median_of_their_turns_counts(clock):
    calls = {"a": clock.call("a", 9.0, 1.0, 5.0, 2.0), "b": clock.call("b", 9.0, 3.0, 3.0, 4.0)}
    timings = time_in_turns(calls, repeats=3, warm_ups=1)
    assert clock.log == ["a", "b", "a", "b", "b", "a", "a", "b"]  # each round begins with another one
    assert timings == {"a": (2.0, 1.0, 3), "b": (3.0, 3.0, 3)}


def test_a_short_call_fills_its_turn_after_one_that_does_not_count(clock):
    timing = time_in_turns({"a": clock.call("a", 0.25e-3)}, repeats=2, warm_ups=2)["a"]
    per_turn = math.ceil(bench_timing.MIN_TURN_SECONDS / 0.25e-3)
    assert len(clock.log) == 2 + 2 * (1 + per_turn)
    assert timing.num_calls == 2 * per_turn and timing.seconds == pytest.approx(0.25e-3)


def test_no_round_of_turns_begins_after_the_time_that_is_given(clock):
    assert time_in_turns({"a": clock.call("a", 10.0)}, repeats=9, max_seconds=25.0)["a"].num_calls == 3
    assert time_in_turns({"a": clock.call("a", 10.0)}, repeats=9, max_seconds=0.0)["a"].num_calls == 1


def test_limits_are_those_of_the_fastest_tile_and_of_a_copy(monkeypatch, clock):
    monkeypatch.setattr("headwise.api.bench_limits.COPIED_BYTES", 4096)
    seconds = {tile: 0.5 * (index + 1) for index, tile in enumerate(TILES)}
    monkeypatch.setattr(
        "headwise.api.bench_limits.make_product", lambda tile, *_: clock.call(tile, 9.0, 9.0, seconds[tile])
    )
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: clock.call("copy", 0.25)())
    limits = measure_limits(num_heads=2, head_dim=3, dtype=torch.float32, device=CPU)
    rates = [4 * 2 * queries * keys * 3 / seconds[queries, keys] for queries, keys in TILES]
    assert [product.flops_per_second for product in limits.products] == pytest.approx(rates)
    assert limits.flops_per_second == max(rates)
    assert limits.bytes_per_second == 2 * 4096 / 0.25
    assert limits.num_threads == torch.get_num_threads()


def test_the_better_of_two_measurements_counts_rate_by_rate():
    product = LIMITS.products[0]
    other = replace(
        LIMITS, flops_per_second=2e9, bytes_per_second=5e7, products=(replace(product, flops_per_second=2e9),)
    )
    best = replace(other, bytes_per_second=1e8)
    assert best_of(LIMITS, other) == best_of(other, LIMITS) == best


def test_shares_are_of_the_limits_measured_before_and_after(monkeypatch):
    measured = [LIMITS, replace(LIMITS, flops_per_second=1e8)]  # the better one comes last
    monkeypatch.setattr("headwise.api.bench_limits.measure_limits", lambda **_: measured.pop())
    result = bench(seq=127, mask="full", impl="reference", **TINY)
    assert measured == [] and result.limits == LIMITS
    assert result.rows[0].share_of_limit == result.rows[0].flops / 1e9 / result.rows[0].seconds


def test_limits_that_a_row_beats_are_doubted(monkeypatch):
    slow = replace(LIMITS, flops_per_second=1e6)  # which any row beats, however busy the machine
    monkeypatch.setattr("headwise.api.bench_limits.measure_limits", lambda **_: slow)
    assert BUSY in bench(seq=127, mask="full", impl="reference", **TINY).notes
    fast = replace(LIMITS, flops_per_second=1e15, bytes_per_second=1e15)
    monkeypatch.setattr("headwise.api.bench_limits.measure_limits", lambda **_: fast)
    assert BUSY not in bench(seq=127, mask="full", impl="reference", **TINY).notes


def test_a_tile_has_the_flops_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    call = make_product((5, 7), 2, 3, torch.float32, CPU)
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() == product_flops((5, 7), 2, 3) == 4 * 2 * 5 * 7 * 3


@pytest.mark.parametrize(("phase", "products", "moves"), [("forward", 1.0, 1), ("train", 3.5, 3)])
def test_a_row_says_what_a_call_must_do_and_how_near_it_comes(known_limits, phase, products, moves):
    result = bench(seq=5, impl="reference", phase=phase, **TINY)
    (row,) = result.rows
    query_bytes, key_bytes = 2 * 4 * 5 * 3 * 4, 2 * 2 * 5 * 3 * 4
    assert row.pairs == 2 * 4 * 15
    assert row.flops == products * 4 * row.pairs * 3
    assert row.moved_bytes == moves * 2 * (query_bytes + key_bytes)
    assert row.input_bytes == query_bytes * (2 if phase == "train" else 1) + 2 * key_bytes
    assert row.limit_seconds == max(row.flops / 1e9, row.moved_bytes / 1e8) and row.binds == "bandwidth"
    assert row.share_of_limit == row.limit_seconds / row.seconds
    assert row.flops_per_second == row.flops / row.seconds
    assert (row.impl, row.chosen, row.kernels, row.obstacle) == ("reference", "reference", (), None)
    assert row.num_calls >= 2 and row.peak_bytes > 0


def test_products_bind_where_they_take_longer(known_limits):
    (row,) = bench(seq=127, mask="full", impl="reference", **TINY).rows
    assert row.binds == "FLOPs" and row.limit_seconds == row.flops / 1e9


def test_implementations_stand_in_the_order_of_lengths_then_of_the_request(known_limits):
    result = bench(seq=(7, 3, 7), impl=("sdpa", "auto", "sdpa"), **TINY)
    assert [(row.seq, row.impl) for row in result.rows] == [(3, "sdpa"), (3, "auto"), (7, "sdpa"), (7, "auto")]
    assert [growth.impl for growth in result.growth] == ["sdpa", "auto"]
    assert result.growth[0].lengths == (3, 7)
    assert result.case.dtype == "float32" and result.limits == LIMITS


def test_growth_is_fitted_to_the_rows_that_were_run(known_limits):
    rows = bench(seq="3,5,7", impl="reference", **TINY).rows
    made = [replace(row, seconds=float(row.seq**2), peak_bytes=11 * row.seq) for row in rows]
    missing = replace(rows[0], seq=1000, seconds=None, peak_bytes=None, obstacle="too large")
    growth = growth_of([*made, missing], "reference")
    assert growth.lengths == (3, 5, 7)
    assert (growth.time_exponent, growth.memory_exponent) == pytest.approx((2.0, 1.0), abs=1e-13)


@pytest.mark.parametrize("phase", ["forward", "train"])
@pytest.mark.parametrize("mask", ["full", "causal", "window:40"])
@pytest.mark.parametrize("impl", ["reference", "sdpa"])
def test_the_least_memory_that_is_predicted_is_near_what_is_measured(known_limits, impl, mask, phase):
    settings = {**TINY, "batch": 1, "num_kv_heads": 4, "head_dim": 8}
    (row,) = bench(seq=251, impl=impl, mask=mask, phase=phase, **settings).rows
    assert row.predicted_bytes <= row.peak_bytes
    if impl == "reference":
        assert row.peak_bytes < 1.5 * row.predicted_bytes


def test_the_kernels_that_really_ran_are_seen(known_limits):
    (row,) = bench(seq=5, impl="sdpa", **TINY).rows
    assert row.kernels == ("flash_cpu",)
    query = torch.ones(1, 2, 5, 3)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert measure_call(lambda: attend(query, query, query, dropout_p=0.5), CPU)[1] == ("math",)


def test_the_peak_beyond_the_inputs_is_what_is_alive_at_once():
    there_before = torch.ones(1000)

    def call():
        first = there_before.clone()
        second = first.clone()
        del first
        return second.clone()

    assert measure_call(call, CPU)[0] == 2 * 4000


def test_what_cannot_fit_is_not_run_and_says_so(known_limits, monkeypatch):
    monkeypatch.setattr(bench_rows, "free_bytes", lambda _: 1_000_000)
    result = bench(seq=(16, 256), impl="reference,sdpa", mask="causal", **TINY)
    rows = {(row.impl, row.seq): row for row in result.rows}
    refused = rows["reference", 256]
    assert refused.seconds is None and refused.peak_bytes is None
    assert refused.obstacle.startswith("reference takes at least 6.0 MiB beyond its inputs, of ")
    assert rows["reference", 16].seconds and rows["sdpa", 256].seconds
    assert any(note.startswith("reference at 256 was not run: ") for note in result.notes)


def test_what_is_refused_makes_no_tensor_and_no_call(known_limits, monkeypatch):
    monkeypatch.setattr(bench_rows, "make_call", lambda *_: pytest.fail("made tensors"))
    monkeypatch.setattr(bench_rows, "free_bytes", lambda _: 1000)
    with pytest.raises(
        HeadwiseError, match=r"at least one row must be possible; none is: inputs take 4\.5 KiB of 750 B"
    ):
        bench(seq=24, **TINY)
    monkeypatch.setattr(bench_rows, "free_bytes", lambda _: 2**60)
    with pytest.raises(HeadwiseError, match="a call takes at least 4 minutes at this machine's limits"):
        bench(seq=70_000, **TINY)


def test_what_an_implementation_refuses_or_fails_at_is_the_rows_answer(known_limits, monkeypatch):
    real = bench_rows.AttentionCall.choose

    def choose(self, impl):
        if impl == "sdpa":
            raise UnsupportedError("attention(...):\n  sdpa has no such thing")
        return real(self, impl)

    monkeypatch.setattr(bench_rows.AttentionCall, "choose", choose)
    result = bench(seq=5, impl="reference,sdpa", **TINY)
    assert [row.obstacle for row in result.rows] == [None, "sdpa has no such thing"]

    def fail():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(bench_rows.AttentionCall, "runner", lambda self, impl: fail)
    with pytest.raises(HeadwiseError, match="none is: RuntimeError: out of memory"):
        bench(seq=5, impl="reference", **TINY)


def test_training_asks_for_every_gradient_and_forward_for_none(known_limits, monkeypatch):
    seen = []
    real = bench_rows.AttentionCall.choose

    def choose(self, impl):
        seen.append([tensor.requires_grad for tensor in self[:3]])
        return real(self, impl)

    monkeypatch.setattr(bench_rows.AttentionCall, "choose", choose)
    for phase in ("forward", "train"):
        bench(seq=5, impl="sdpa", phase=phase, **TINY)
    assert seen == [[False] * 3, [True] * 3]


def test_free_memory_is_what_the_system_grants():
    total = bench_memory.usable_ram_bytes()
    assert 0 < free_bytes(CPU) <= total


def test_a_mask_in_hand_is_used_and_named(known_limits):
    result = bench(seq=5, mask=SlidingWindow(2), impl="reference", **TINY)
    assert result.case.mask == "SlidingWindow(window_size=2)"
    assert result.rows[0].pairs == 2 * 4 * (1 + 4 * 2)


def test_the_answer_is_plain_json_with_the_promised_keys(known_limits):
    answer = json.loads(json.dumps(bench(seq="5,7", **TINY).to_dict(), allow_nan=False))
    keys = {"impl", "seconds", "flops_per_second", "share_of_limit", "peak_bytes"}
    assert all(keys <= set(row) for row in answer["rows"])
    assert set(answer["limits"]) >= {"flops_per_second", "bytes_per_second", "num_threads"}
    assert answer["page"] is None


def test_progress_rises_to_its_end(known_limits):
    told = []
    bench(seq=(3, 5), impl="sdpa", progress=lambda *one: told.append(one), **TINY)
    done = [one[1] for one in told]
    assert done == sorted(done) and told[-1][1] == told[-1][2]
    assert told[0][0] == "the machine's limits" and "length 5" in {one[0] for one in told}


def test_a_page_is_written_and_no_other_file_is_replaced(known_limits, tmp_path):
    page = tmp_path / "page.html"
    result = headwise.bench(seq=(3, 5), impl="sdpa", out=page, **TINY)
    assert result.page == str(page) and page.read_text(encoding="utf-8").lower().startswith("<!doctype html")
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(OutputError, match="earlier page only"):
        bench(seq=3, out=other, **TINY)
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"seq": "12,x"}, "seq must be lengths with commas between them, as 1024,2048; got '12,x'"),
        ({"seq": ()}, "seq must be a length or several"),
        ({"seq": 0}, "seq must be between 1"),
        ({"seq": "1" * 30}, "seq must be lengths"),
        ({"batch": 0}, "batch must be between 1"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads; got 4 and 3"),
        ({"head_dim": -3}, "head_dim must be between 1"),
        ({"impl": "fast"}, "impl must be one of"),
        ({"impl": ""}, "impl must be one of"),
        ({"impl": ()}, "impl must be an implementation or several"),
        ({"phase": "decode"}, 'phase must be "forward" or "train"'),
        ({"dtype": "int8"}, 'dtype must be "fp32"'),
        ({"device": "tpu"}, 'device must be "here"'),
        ({"repeats": 0}, "repeats must be between 1"),
        ({"mask": ""}, "mask must not be empty"),
        ({"mask": "none"}, "mask must be full, causal"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(monkeypatch, wrong, words):
    monkeypatch.setattr("headwise.api.bench_limits.measure_limits", lambda **_: pytest.fail("measured"))
    with pytest.raises(HeadwiseError) as caught:
        bench(**{**TINY, "seq": 5, **wrong})
    assert words in str(caught.value)


def test_a_gpu_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ConfigError, match="torch finds no GPU"):
        bench(**{**TINY, "device": "cuda"})


def test_the_numbers_are_the_same_in_every_run(known_limits, monkeypatch):
    seen = []
    monkeypatch.setattr(bench_rows.AttentionCall, "runner", lambda self, impl: lambda: seen.append(self.query.clone()))
    for _ in range(2):
        bench(seq=5, impl="reference", **TINY)
    assert all(torch.equal(one, seen[0]) for one in seen)
