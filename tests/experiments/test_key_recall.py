"""The values that are asked for are those that stand behind the keys of the list."""

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.examples import IGNORED
from headwise.experiments.key_recall import KeyRecall
from headwise.experiments.sequence_tasks import NUM_MARKS, PAD, SEPARATOR

TASK = KeyRecall(min_pairs=2, max_pairs=5, num_questions=3, vocab_size=17)


def test_every_text_asks_for_values_behind_its_keys():
    examples = TASK.draw(97, seed=3)
    counts = set()
    for ids, targets, length, real in zip(
        examples.ids.tolist(), examples.targets[..., 0].tolist(), examples.lengths.tolist(), examples.real, strict=True
    ):
        keys, values = ids[0:length:2], ids[1:length:2]
        counts.add(len(keys))
        assert len(set(keys)) == len(keys) and all(NUM_MARKS <= key < 10 for key in keys)  # (17 - 4) // 2 = 6 keys
        assert all(10 <= value < 17 for value in values)
        assert ids[length] == SEPARATOR and set(ids[length + 4 :]) <= {PAD}
        assert real.tolist() == [place < length + 4 for place in range(14)]
        behind = dict(zip(keys, values, strict=True))
        assert targets[length + 1 : length + 4] == [behind[key] for key in ids[length + 1 : length + 4]]
        assert targets[: length + 1] + targets[length + 4 :] == [IGNORED] * 11
    assert counts == {2, 3, 4, 5}


def test_every_pair_of_a_list_is_asked_for_and_a_seed_draws_the_same_again():
    task = KeyRecall(min_pairs=3, max_pairs=3, num_questions=1, vocab_size=17)
    examples = task.draw(60, seed=1)
    asked = {row[0:6:2].index(row[7]) for row in examples.ids.tolist()}
    assert asked == {0, 1, 2}
    assert torch.equal(task.draw(60, seed=1).ids, examples.ids)
    assert not torch.equal(task.draw(60, seed=2).ids, examples.ids)


def test_every_pair_is_asked_for_as_often():
    """Of 3 pairs each in a third of 6,000 questions, give or take four standard deviations of 0.0061."""
    examples = KeyRecall(min_pairs=3, max_pairs=3, num_questions=2, vocab_size=17).draw(3000, seed=4)
    keys, questions = examples.ids[:, 0:6:2], examples.ids[:, 7:9]
    places = (questions[..., None] == keys[:, None]).int().argmax(dim=-1)
    shares = torch.bincount(places.flatten(), minlength=3) / 6000
    assert (shares - 1 / 3).abs().max() < 4 * 0.0061
    same = (questions[:, 0] == questions[:, 1]).float().mean()  # put back: the second is the first again in a third
    assert abs(same - 1 / 3) < 4 * 0.0087


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_pairs": 3, "max_pairs": 2}, "max_pairs must be at least min_pairs = 3; got 2"),
        ({"max_pairs": 7, "vocab_size": 17}, "at least 18; got 17"),
        ({"min_pairs": 0}, "min_pairs"),
        ({"num_questions": 0}, "num_questions"),
    ],
)
def test_a_list_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        KeyRecall(**settings)
