"""What has been said of one batch and length binds what is said of others."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.config.presets import preset
from headwise.cost.planning.limits import with_length
from headwise.cost.planning.said import Said
from headwise.cost.planning.setup import Setup
from headwise.cost.sharding.results import Sharding
from headwise.cost.workload import Workload

GPT2 = preset("gpt2")


def at(batch, seq, **workload):
    return with_length(Setup(config=GPT2, workload=Workload(batch=batch, seq=64, **workload)), seq)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.booleans()), max_size=12))
def test_whatever_is_said_first_no_smaller_step_is_refused_where_a_larger_one_fits(statements):
    said = Said()
    for batch, seq, fits in statements:
        said.add(at(batch, seq), fits)
    grid = {(batch, seq): said.tells(at(batch, seq)) for batch in range(1, 6) for seq in range(1, 6)}
    for (batch, seq), fits in grid.items():
        if fits:
            assert all(grid[b, s] for b in range(1, batch + 1) for s in range(1, seq + 1))
        if fits is False:
            assert not any(grid[b, s] for b in range(batch, 6) for s in range(seq, 6))
    if statements:
        batch, seq, fits = statements[0]
        assert grid[batch, seq] is fits


def test_a_longer_position_table_is_the_same_model_and_another_one_is_not():
    said = Said()
    said.add(at(2, 5000), True)
    assert said.tells(at(2, 512)) is True
    assert said.tells(at(3, 512)) is None
    assert said.tells(at(1, 6000)) is None
    assert said.tells(at(2, 512, checkpoint="full")) is None
    assert said.tells(replace(at(2, 512), sharding=Sharding(kind="zero1", num_devices=2))) is None
    assert said.tells(replace(at(2, 512), config=replace(GPT2, blocks=GPT2.blocks[:3]))) is None


@pytest.mark.parametrize("fits", [True, False])
def test_what_is_forgotten_tells_nothing(fits):
    said = Said()
    said.add(at(2, 30), fits)
    said.forget(at(2, 30))
    assert said.tells(at(2, 30)) is None
