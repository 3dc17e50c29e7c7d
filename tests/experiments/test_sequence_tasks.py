"""Tasks of made-up tokens ask what they say: every answer is looked up again by hand."""

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.examples import IGNORED
from headwise.experiments.sequence_tasks import (
    END,
    NUM_MARKS,
    PAD,
    SEPARATOR,
    START,
    AssociativeRecall,
    Induction,
    MultiOffsetCopy,
    Needle,
    Transduction,
)

TASKS = (
    MultiOffsetCopy(vocab_size=7, seq_len=13, offsets=(1, 5)),
    AssociativeRecall(num_pairs=3, seq_len=22, vocab_size=17),
    Needle(seq_len=19, min_len=5, vocab_size=11),
    Induction(num_tokens=7, vocab_size=13),
    Transduction(change="sort", min_len=2, max_tokens=7, vocab_size=13),
)


def asked(examples, row):
    """Return (place, answer) of every question of a text, first answers only."""
    return [(place, answer[0]) for place, answer in enumerate(examples.targets[row].tolist()) if answer[0] != IGNORED]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_examples_are_of_the_sizes_that_a_task_says_and_of_the_seed_alone(task):
    examples = task.draw(23, seed=3)
    assert examples.ids.shape == (23, task.max_len)
    assert examples.targets.shape == (23, task.max_len, task.num_answers)
    assert examples.ids.min() >= 0 and examples.ids.max() < task.vocab_size
    given = examples.targets[examples.targets != IGNORED]
    assert given.min() >= 0 and given.max() < task.num_classes
    torch.manual_seed(99)  # the global stream has no part in it, and does not move
    before = torch.get_rng_state()
    again = task.draw(23, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.ids, examples.ids) and torch.equal(again.targets, examples.targets)
    assert not torch.equal(task.draw(23, seed=4).ids, examples.ids)


def test_offsets_are_counted_back_from_every_token():
    examples = MultiOffsetCopy(vocab_size=11, seq_len=13, offsets=(2, 5)).draw(3, seed=0)
    for row in range(3):
        ids = examples.ids[row].tolist()
        for place in range(13):
            answers = examples.targets[row, place].tolist()
            assert answers == ([ids[place - 2], ids[place - 5]] if place >= 5 else [IGNORED] * 2)


def test_every_key_is_asked_once_for_the_value_that_followed_it():
    task = AssociativeRecall(num_pairs=5, seq_len=34, vocab_size=23)
    examples = task.draw(29, seed=1)
    for row in range(29):
        ids = examples.ids[row].tolist()
        value_of = dict(zip(ids[0:10:2], ids[1:10:2], strict=True))
        assert len(value_of) == len(set(value_of.values())) == 5
        assert all(0 < key < 11 <= value for key, value in value_of.items())
        questions = asked(examples, row)
        assert sorted(ids[place] for place, _ in questions) == sorted(value_of)
        for place, answer in questions:
            assert place >= 10 and place % 2 == 0 and answer == value_of[ids[place]]


def test_keys_and_values_stand_in_no_order():
    """Of two neighbours the first is as often the larger one: a half of 8,000 pairs, within four deviations of 0.0056.

    A model could tell a key's place from its rank else, and need not look it up.
    """
    ids = AssociativeRecall(num_pairs=3, seq_len=12, vocab_size=23).draw(4000, seed=2).ids
    for first in (0, 1):
        drawn = ids[:, first:6:2]
        falls = (drawn[:, :-1] > drawn[:, 1:]).float().mean()
        assert abs(falls - 0.5) < 4 * 0.0056


def test_a_low_power_asks_soon_and_a_power_of_one_anywhere():
    """With one key and n places, place i has the chance of its weight: i^(power - 1) over the sum of all."""
    places = {}
    for power in (0.5, 1.0):
        examples = AssociativeRecall(num_pairs=1, seq_len=12, vocab_size=9, power=power).draw(20_000, seed=5)
        first = (examples.targets[..., 0] != IGNORED).int().argmax(dim=1)
        weights = torch.arange(1, 6, dtype=torch.float64) ** (power - 1)
        expected = weights / weights.sum()
        places[power] = torch.bincount((first - 2) // 2, minlength=5) / 20_000
        # four standard deviations of a share of 20,000 draws: sqrt(p (1 - p) / n) is at most 0.0036
        assert (places[power] - expected).abs().max() < 4 * 0.0036
    assert places[0.5][0] > places[1.0][0] + 0.05


def test_the_needle_is_marked_before_the_question_at_any_depth():
    examples = Needle(seq_len=11, min_len=4, vocab_size=13).draw(499, seed=2)
    depths = set()
    for row, length in enumerate(examples.lengths.tolist()):
        ids = examples.ids[row].tolist()
        assert ids[length - 1] == SEPARATOR and set(ids[length:]) <= {PAD}
        depth = ids.index(SEPARATOR)
        assert depth < length - 2 and ids[:length].count(SEPARATOR) == 2
        assert asked(examples, row) == [(length - 1, ids[depth + 1])] and ids[depth + 1] >= NUM_MARKS
        depths.add((length, depth))
    assert depths == {(length, depth) for length in range(4, 12) for depth in range(length - 2)}


def test_the_second_copy_asks_for_each_next_token():
    examples = Induction(num_tokens=5, vocab_size=17).draw(3, seed=0)
    for row in range(3):
        ids = examples.ids[row].tolist()
        assert ids[0] == START and ids[1:6] == ids[6:]
        assert asked(examples, row) == [(place, ids[place + 1]) for place in range(6, 10)]


@pytest.mark.parametrize(
    ("kind", "change"),
    [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)],
    ids=lambda case: str(case)[:7],
)
def test_a_text_is_written_again_token_by_token(kind, change):
    examples = Transduction(change=kind, min_len=2, max_tokens=5, vocab_size=11).draw(97, seed=4)
    assert set(examples.lengths.tolist()) == {2, 3, 4, 5}
    for row, length in enumerate(examples.lengths.tolist()):
        ids = examples.ids[row].tolist()
        x = ids[:length]
        assert min(x) >= NUM_MARKS
        assert ids[length:] == [SEPARATOR, *change(x), END, *[PAD] * (2 * (5 - length))]
        assert asked(examples, row) == list(enumerate([*change(x), END], start=length))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiOffsetCopy(seq_len=5, offsets=(5,)), "offsets must be distances from 1 to seq_len - 1 = 4"),
        (lambda: MultiOffsetCopy(offsets=()), "at least one"),
        (lambda: AssociativeRecall(num_pairs=3, seq_len=11), "at least 4 \\* num_pairs = 12; got 11"),
        (lambda: AssociativeRecall(num_pairs=8, vocab_size=17), "at least 18; got 17"),
        (lambda: AssociativeRecall(power=0.0), "power"),
        (lambda: Needle(min_len=3), "min_len must be from 4"),
        (lambda: Transduction(min_len=5, max_tokens=4), "max_tokens must be at least min_len = 5; got 4"),
        (lambda: Transduction(change="shuffle"), "change"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, message, without_type_checks):
    with pytest.raises(ConfigError, match=message):
        make()
