"""A learned table is lengthened as it is said to be, and nothing else of the model changes."""

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.asking import make_model
from headwise.experiments.lengthen import lengthen
from headwise.experiments.models import transformer_for
from headwise.experiments.sequence_tasks import MultiOffsetCopy

TASK = MultiOffsetCopy(vocab_size=7, seq_len=3, offsets=(1,))
CONFIG = transformer_for(TASK, embed_dim=2, num_heads=1)
TABLE = torch.tensor([[1.0, -4.0], [3.0, 0.0], [11.0, 2.0]])
ROWS = {
    # the last row again and again
    "clamp": [[1.0, -4.0], [3.0, 0.0], [11.0, 2.0], [11.0, 2.0], [11.0, 2.0]],
    # five rows over three: every other one lies half-way between two
    "interpolate": [[1.0, -4.0], [2.0, -2.0], [3.0, 0.0], [7.0, 1.0], [11.0, 2.0]],
}


def model():
    torch.manual_seed(0)
    module = make_model(CONFIG).eval()
    with torch.no_grad():
        module.body.positions.table.copy_(TABLE)
    return module


@pytest.mark.parametrize("how", ROWS)
def test_rows_are_those_computed_by_hand_and_the_model_itself_stays_as_it_is(how):
    module = model()
    longer = lengthen(module, CONFIG, 5, how)
    assert longer.body.positions.table.tolist() == ROWS[how]
    assert module.body.positions.table.tolist() == TABLE.tolist()
    others = {name: tensor for name, tensor in module.state_dict().items() if "positions" not in name}
    assert others and all(torch.equal(longer.state_dict()[name], tensor) for name, tensor in others.items())
    assert not longer.training
    with torch.no_grad():
        longer.body.token_table.weight.zero_()
    assert module.body.token_table.weight.abs().sum() > 0


def test_texts_of_the_trained_length_are_read_as_before_by_a_table_that_repeats_its_last_row():
    module, ids = model(), TASK.draw(5, seed=0).ids
    torch.testing.assert_close(lengthen(module, CONFIG, 8, "clamp")(ids), module(ids), rtol=0, atol=0)
    longer = lengthen(module, CONFIG, 8, "clamp")
    assert longer(ids.repeat(1, 2)).shape == (5, 6, 7)
    with pytest.raises(ConfigError, match="positions must be below max_positions = 3"):
        module(ids.repeat(1, 2))


@pytest.mark.parametrize(
    ("config", "rows", "how", "message"),
    [
        (CONFIG, 2, "clamp", "rows must be at least the 3 that the table has; got 2"),
        (CONFIG, 5, "wrap", "how a table is lengthened must be"),
        (transformer_for(TASK, embed_dim=2, num_heads=1, position="rotary"), 5, "clamp", "has none"),
    ],
)
def test_what_cannot_be_lengthened_is_refused(config, rows, how, message, without_type_checks):
    with pytest.raises(ConfigError, match=message):
        lengthen(model(), config, rows, how)
