"""Recurrent rivals: sizes are what the formula says, no later token is read, attention reads earlier states."""

import itertools

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.errors import ConfigError
from headwise.experiments.recurrent import (
    RecurrentConfig,
    RecurrentModel,
    count_recurrent_parameters,
    recurrent_forward_flops,
)

CASES = list(itertools.product(("gru", "lstm"), (False, True), (1, 2)))


def make(cell, attends, num_layers, **more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "embed_dim": 7, "num_outputs": 11}
    config = RecurrentConfig(cell=cell, attends=attends, num_layers=num_layers, **sizes, **more)
    return RecurrentModel(config)


@pytest.mark.parametrize(("cell", "attends", "num_layers"), CASES)
def test_parameters_are_as_many_as_the_formula_says(cell, attends, num_layers):
    model = make(cell, attends, num_layers)
    assert sum(one.numel() for one in model.parameters()) == count_recurrent_parameters(model.config)


@pytest.mark.parametrize(("cell", "attends", "num_layers"), CASES)
def test_flops_are_those_that_torch_counts(cell, attends, num_layers):
    """Of attention torch counts the whole square, of which a state reads the half up to its own.

    In float64, whose products are torch's own one by one: those of a fused LSTM are not counted.
    """
    model = make(cell, attends, num_layers).double()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(torch.zeros(1, 17, dtype=torch.long))
    later = 4 * 7 * 17 * 16 // 2 if attends else 0
    assert recurrent_forward_flops(model.config, 17) == counter.get_total_flops() - later


@pytest.mark.parametrize(("cell", "attends", "num_layers"), CASES)
def test_a_later_token_changes_no_earlier_score(cell, attends, num_layers):
    model = make(cell, attends, num_layers, dropout_p=0.5).eval()
    ids = torch.randint(13, (3, 17))
    changed = ids.clone()
    changed[:, 11:] = (changed[:, 11:] + 1) % 13
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11:], after[:, 11:])


def test_attention_is_over_the_states_up_to_the_own_one():
    model = make("gru", True, 1).eval()
    ids = torch.randint(13, (2, 5))
    states, _ = model.cells(model.table(ids))
    for text in range(2):
        for place in range(5):
            seen = states[text, : place + 1]
            weights = functional.softmax(seen @ states[text, place] / 7**0.5, dim=0)
            joined = torch.tanh(model.join(torch.cat([weights @ seen, states[text, place]])))
            # float32, a few dozen sums of numbers below 1
            torch.testing.assert_close(model(ids)[text, place], model.out(joined), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numbers", [{"cell": "rnn"}, {"embed_dim": 0}, {"dropout_p": 1.5}])
def test_what_is_out_of_range_is_refused(numbers, without_type_checks):
    with pytest.raises(ConfigError, match=next(iter(numbers))):
        RecurrentConfig(**{"cell": "gru", "vocab_size": 3, "embed_dim": 3, "num_outputs": 3, **numbers})
