from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.config.presets import preset
from headwise.cost.devices import find_device
from headwise.cost.memory import predict_step
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import largest_seq
from headwise.cost.planning.positions import with_positions
from headwise.cost.planning.setup import Setup
from headwise.cost.planning.sweep import parse_axes, parse_range, sweep_sizes
from headwise.cost.planning.verdict import Judge
from headwise.cost.results import Device
from headwise.cost.workload import Workload
from headwise.errors import ConfigError

CPU = Device(name="here", description="a machine", memory_bytes=16 * 2**30, kind="cpu", source="-", date="2026-01-01")
GPT2 = replace(preset("gpt2"), blocks=preset("gpt2").blocks[:3])


def test_a_sweep_predicts_every_point_also_beyond_the_position_table():
    step = Workload(batch=1, seq=64, attention="eager", device="cpu")
    result = sweep_sizes(ClosedForm(), Setup(config=GPT2, workload=step), CPU, (1, 31), (512, 2048))
    assert [(point.batch, point.seq) for point in result.points] == [(1, 512), (1, 2048), (31, 512), (31, 2048)]
    for point in result.points:
        at = Workload(batch=point.batch, seq=point.seq, attention="eager", device="cpu")
        assert point.peak_bytes == predict_step(with_positions(GPT2, point.seq), at).peak_bytes
    assert [point.fits for point in result.points] == ["yes", "yes", "yes", "no"]


def test_the_frontier_is_the_largest_length_at_each_batch():
    setup = Setup(config=GPT2, workload=Workload(batch=1, seq=64, device="cpu"))
    result = sweep_sizes(ClosedForm(), setup, CPU, (1, 2, 3, 1000, 1001, 1002), (256,))
    for edge in result.frontier:
        alone = Setup(config=GPT2, workload=Workload(batch=edge.batch, seq=64, device="cpu"))
        assert edge.largest_seq == largest_seq(ClosedForm(), alone, CPU)
        assert not edge.is_limit
    assert result.frontier[0].largest_seq > result.frontier[1].largest_seq


def test_each_edge_fits_and_the_next_length_does_not():
    t4 = find_device("t4")
    setup = Setup(config=GPT2, workload=Workload(batch=1, seq=512, compute_capability=(7, 5)))
    judge = Judge(ClosedForm(), t4)
    edges = sweep_sizes(ClosedForm(), setup, t4, (1, 2, 3, 7, 50, 5003), judge=judge).frontier
    lengths = [edge.largest_seq for edge in edges]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > 8000
    for edge in edges:
        at_edge, beyond = (
            replace(setup, workload=replace(setup.workload, batch=edge.batch, seq=edge.largest_seq + more))
            for more in (0, 1)
        )
        assert judge.fits(at_edge) == "yes"
        assert judge.fits(beyond) != "yes"


def test_edges_are_found_with_few_steps():
    setup = Setup(config=GPT2, workload=Workload(batch=1, seq=64, device="cpu"))
    judge = Judge(ClosedForm(), CPU)
    batches = tuple(range(1, 41))
    edges = sweep_sizes(ClosedForm(), setup, CPU, batches, judge=judge).frontier
    assert [edge.batch for edge in edges] == list(batches)
    assert judge.num_judged < 5 * len(batches)  # one of them is the point
    beyond = sweep_sizes(ClosedForm(), setup, CPU, tuple(range(2**22, 2**22 + 40)), judge=judge).frontier
    assert {edge.largest_seq for edge in beyond} == {None}
    assert judge.num_judged < 5 * len(batches) + 2 * len(beyond)


def test_a_sweep_of_layers_that_do_not_repeat_has_fewer_points():
    blocks = [GPT2.blocks[0], replace(GPT2.blocks[0], dropout_p=0.25)]
    layers = [blocks[number.bit_count() % 2] for number in range(96)]  # no cycle comes twice in a row
    setup = Setup(config=replace(GPT2, blocks=tuple(layers)), workload=Workload(batch=1, seq=64, device="cpu"))
    sizes = tuple(range(1, 21))
    with pytest.raises(ConfigError, match="at most 34 points of this model, to end in seconds; got 20 batches x 20"):
        sweep_sizes(ClosedForm(), setup, CPU, sizes, sizes)


def test_a_batch_of_which_nothing_fits_has_no_length():
    setup = Setup(config=GPT2, workload=Workload(batch=1, seq=64, device="cpu"))
    result = sweep_sizes(ClosedForm(), setup, CPU, (2**22,), (1,))
    assert result.points[0].fits == "no"
    assert result.frontier[0].largest_seq is None


def test_an_axis_that_is_left_out_is_the_setups_own():
    setup = Setup(config=GPT2, workload=Workload(batch=3, seq=64, device="cpu"))
    assert [(p.batch, p.seq) for p in sweep_sizes(ClosedForm(), setup, CPU, (), (8, 16)).points] == [(3, 8), (3, 16)]
    assert [(p.batch, p.seq) for p in sweep_sizes(ClosedForm(), setup, CPU, (2,)).points] == [(2, 64)]


def test_images_have_one_length():
    vit = preset("vit-b-16")
    setup = Setup(config=vit, workload=Workload(batch=1, seq=197, device="cpu"))
    edge = sweep_sizes(ClosedForm(), setup, CPU, (1,)).frontier[0]
    assert (edge.largest_seq, edge.is_limit) == (197, True)
    with pytest.raises(ConfigError, match="an image's 197 tokens; got 64"):
        sweep_sizes(ClosedForm(), setup, CPU, (1,), (64,))


def test_a_sweep_is_bounded():
    setup = Setup(config=GPT2, workload=Workload(batch=3, seq=64, device="cpu"))
    with pytest.raises(ConfigError, match="at most 400 points; got 21 batches x 20 lengths"):
        sweep_sizes(ClosedForm(), setup, CPU, tuple(range(1, 22)), tuple(range(1, 21)))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1..64", (1, 2, 4, 8, 16, 32, 64)),
        ("512..3000", (512, 1024, 2048, 3000)),
        ("3..3", (3,)),
        ("3..4", (3, 4)),
        ("8", (8,)),
        ("8, 1,2,2", (1, 2, 8)),
        (" 1 .. 2 ", (1, 2)),
    ],
)
def test_ranges_double_and_lists_are_sorted(text, sizes):
    assert parse_range(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "written as"),
        ("  ", "written as"),
        ("64..1", "must rise"),
        ("a..b", "whole numbers"),
        ("1,,2", "whole numbers"),
        ("0..4", "between 1 and"),
        ("-1", "whole numbers"),
        ("1.5", "whole numbers"),
        ("1...4", "whole numbers"),
        ("1..2..3", "whole numbers"),
        ("4294967296", "between 1 and"),
        ("9" * 5000, "written as"),
        ("١", "whole numbers"),
    ],
)
def test_what_is_no_range_gets_one_clear_line(text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_range(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@given(st.text(max_size=40))
def test_any_text_is_a_range_or_a_clear_error(text):
    try:
        sizes = parse_range(text)
    except ConfigError:
        return
    assert list(sizes) == sorted(set(sizes))
    assert all(size >= 1 for size in sizes)


def test_axes_are_named():
    assert parse_axes(["seq=512..1024", "batch=1,3"]) == ((1, 3), (512, 1024))
    assert parse_axes(["batch=7"]) == ((7,), ())
    for texts, message in (
        (["heads=1"], "must go over batch or seq"),
        (["batch"], "must go over batch or seq"),
        (["batch=1", "batch=2"], "must name batch once"),
        (["seq="], "written as"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_axes(texts)
