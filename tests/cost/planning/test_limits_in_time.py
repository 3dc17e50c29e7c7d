"""A predictor that takes long may stop a search: then nothing is said of the largest size, rather than too little."""

from dataclasses import replace

import pytest

from headwise.config.presets import preset
from headwise.cost.devices import DEVICES
from headwise.cost.planning.closed_form import ClosedForm
from headwise.cost.planning.limits import largest_batch, largest_seq
from headwise.cost.planning.setup import OutOfTime, Setup
from headwise.cost.planning.verdict import Judge
from headwise.cost.workload import Workload


class Hurried(ClosedForm):
    """Tells so many different setups, and no more."""

    def __init__(self, num_told):
        super().__init__()
        self._told = set()
        self._num_told = num_told

    def step(self, setup):
        if setup not in self._told and len(self._told) >= self._num_told:
            raise OutOfTime("left out")
        self._told.add(setup)
        return super().step(setup)


@pytest.mark.parametrize("num_told", [1, 3, 6])
@pytest.mark.parametrize("find", [largest_batch, largest_seq])
def test_a_search_that_is_cut_short_says_nothing_of_sizes_that_were_not_tried(find, num_told):
    config = preset("gpt2")
    setup = Setup(config=replace(config, blocks=config.blocks[:1]), workload=Workload(batch=1, seq=64))
    hurried = Hurried(num_told)
    judge = Judge(hurried, DEVICES["t4"])
    assert find(hurried, setup, DEVICES["t4"], judge=judge) is None
    judge.predictor = ClosedForm()
    assert judge.fits(replace(setup, workload=replace(setup.workload, batch=2, seq=128))) == "yes"


@pytest.mark.parametrize("find", [largest_batch, largest_seq])
def test_what_was_not_found_in_time_is_not_told(find):
    config = preset("gpt2")
    setup = Setup(config=replace(config, blocks=config.blocks[:1]), workload=Workload(batch=1, seq=64))
    assert find(Hurried(3), setup, DEVICES["t4"]) is None
    assert find(Hurried(1000), setup, DEVICES["t4"]) == find(ClosedForm(), setup, DEVICES["t4"]) > 64
