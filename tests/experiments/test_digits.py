"""Digits are scikit-learn's, cut into patches that are tokens, in three splits without a picture in common."""

import sys

import pytest
import torch
from sklearn.datasets import load_digits

from headwise.errors import ConfigError, DataError, MissingExtraError
from headwise.experiments import digits
from headwise.experiments.digits import Digits, check_digits, digits_by_split
from headwise.experiments.examples import IGNORED


def test_splits_hold_every_picture_once_with_its_numeral():
    found = load_digits()
    wanted = sorted(
        (*map(int, image.flat), int(label)) for image, label in zip(found.images, found.target, strict=True)
    )
    splits = digits_by_split()
    assert {split: len(labels) for split, (_, labels) in splits.items()} == {
        "train": 1258,
        "validation": 180,
        "test": 359,
    }
    came = [
        (*row, label)
        for pixels, labels in splits.values()
        for row, label in zip(pixels.flatten(1).tolist(), labels.tolist(), strict=True)
    ]
    assert sorted(came) == wanted and len({row[:-1] for row in came}) == 1797


def test_a_patch_is_the_number_that_its_greys_write():
    pixels = torch.arange(64).view(1, 8, 8) % 17
    tokens = Digits(patch_size=2, levels=4).tokens_of(pixels)[0].tolist()
    for row in range(4):
        for column in range(4):
            greys = [int(pixels[0, 2 * row + y, 2 * column + x]) * 4 // 17 for y in (0, 1) for x in (0, 1)]
            assert tokens[4 * row + column] == int("".join(map(str, greys)), 4)


def test_single_pixels_in_17_greys_lose_nothing():
    pixels, labels = digits_by_split()["test"]
    examples = Digits(patch_size=1, levels=17).draw(10**6, seed=0, split="test")
    assert torch.equal(examples.ids[:, :64].view(-1, 8, 8), pixels)
    assert torch.equal(examples.targets[:, -1, 0], labels)


@pytest.mark.parametrize(
    ("patch_size", "levels", "seq_len", "vocab_size"), [(2, 4, 17, 257), (1, 17, 65, 18), (4, 2, 5, 65537)]
)
def test_the_class_is_asked_for_at_the_end_mark(patch_size, levels, seq_len, vocab_size):
    task = Digits(patch_size=patch_size, levels=levels)
    examples = task.draw(11, seed=2)
    assert (task.seq_len, task.max_len, task.vocab_size, task.num_classes) == (seq_len, seq_len, vocab_size, 10)
    assert examples.ids.shape == (11, seq_len) and task.classifies
    assert (examples.ids[:, -1] == task.end).all() and (examples.ids[:, :-1] < task.end).all()
    assert (examples.targets[:, :-1] == IGNORED).all() and examples.num_answers == 11


def test_training_pictures_are_drawn_by_the_seed_and_the_others_are_fixed():
    task = Digits()
    assert torch.equal(task.draw(5, seed=1).ids, task.draw(5, seed=1).ids)
    assert not torch.equal(task.draw(5, seed=1).ids, task.draw(5, seed=2).ids)
    assert torch.equal(task.draw(5, seed=1, split="test").ids, task.draw(5, seed=2, split="test").ids)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"patch_size": 3}, "patch_size must be"),
        ({"levels": 1}, "levels"),
        ({"levels": 18}, "levels must be at most 17"),
        ({"patch_size": 4, "levels": 3}, r"must be at most 65536; got levels 3 and patch_size 4"),
    ],
)
def test_what_cannot_be_is_refused(numbers, text):
    with pytest.raises(ConfigError, match=text):
        Digits(**numbers)


def test_other_pictures_than_recorded_are_an_error(monkeypatch):
    assert check_digits() == digits.DIGITS_SHA256
    monkeypatch.setattr(digits, "DIGITS_SHA256", "0" * 64)
    with pytest.raises(DataError, match="must have the SHA-256 00000"):
        check_digits()


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    digits_by_split.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match=r'pip install "headwise\[experiments\]"'):
        Digits().draw(1, seed=0)
