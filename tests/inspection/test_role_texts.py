import pytest
import torch

from headwise.inspection.roles.texts import batches_of_windows, draw_repeats, is_punctuation
from headwise.inspection.texts.windows import Window


def window(ids, labels=None, separators=None):
    labels = tuple(map(str, ids)) if labels is None else labels
    separators = (False,) * len(ids) if separators is None else separators
    return Window(text=0, ids=tuple(ids), labels=tuple(labels), separators=tuple(separators))


def random(seed):
    return torch.Generator().manual_seed(seed)


def batch_of(*windows, special_ids=(), pad_id=0):
    (batch,) = batches_of_windows(windows, special_ids=special_ids, pad_id=pad_id, batch_size=len(windows))
    return batch


def test_windows_are_padded_on_the_right_and_batched_in_their_order():
    windows = [window([3, 4, 5]), window([6]), window([7, 8])]
    first, second = batches_of_windows(windows, special_ids=(), pad_id=9, batch_size=2)
    assert first.ids.tolist() == [[3, 4, 5], [6, 9, 9]]
    assert first.real.tolist() == [[True] * 3, [True, False, False]]
    assert second.ids.tolist() == [[7, 8]]


def test_read_in_order_a_text_is_as_it_was_written():
    batch = batch_of(window([3, 4, 5]), window([6, 7]))
    assert batch.read_ids().tolist() == batch.ids.tolist()


def test_a_shuffle_moves_every_token_of_a_text_and_nothing_else():
    batch = batch_of(window(range(10, 23)), window(range(30, 37)), window([40, 41]), window([50]))
    shuffled = batch.shuffled(random(0))
    for row, length in enumerate((13, 7, 2, 1)):
        before, after = batch.ids[row, :length].tolist(), shuffled.read_ids()[row, :length].tolist()
        assert sorted(before) == sorted(after)
        assert length == 1 or all(a != b for a, b in zip(before, after, strict=True))
        assert shuffled.read_ids()[row, length:].tolist() == batch.ids[row, length:].tolist()
    assert shuffled.shuffled(random(1)).real is batch.real


def test_shuffles_of_one_seed_are_one_and_of_others_others():
    batch = batch_of(window(range(31)))
    assert torch.equal(batch.shuffled(random(5)).places, batch.shuffled(random(5)).places)
    assert not torch.equal(batch.shuffled(random(5)).places, batch.shuffled(random(6)).places)


def test_the_rare_words_of_a_text_are_its_two_least_frequent_tokens_among_all_texts():
    # counted over both texts: 3 thrice, 4 twice, 5 once, 6 once, 7 twice
    batch = batch_of(window([3, 4, 5, 3, 6]), window([3, 4, 7, 7]))
    assert batch.rare.tolist() == [[False, False, True, False, True], [False, False, True, True, False]]


def test_of_equally_frequent_tokens_the_one_with_the_higher_id_is_rarer_and_special_ones_never_are():
    batch = batch_of(window([99, 5, 8, 6, 98]), special_ids=(98, 99))
    assert batch.rare.tolist() == [[False, False, True, True, False]]


@pytest.mark.parametrize(
    ("label", "expected"),
    [(".", True), ("...", True), ("「", True), ("don't", False), ("$", False), ("␣", False), ("", False)],
)
def test_punctuation_is_what_unicode_calls_so(label, expected):
    assert is_punctuation(label) is expected


def test_a_special_token_is_no_punctuation():
    batch = batch_of(window([1, 2, 3], labels=["-", ",", "a"]), special_ids=(1,))
    assert batch.punctuation.tolist() == [[False, True, False]]


@pytest.mark.parametrize("first_id", [None, 2])
def test_random_texts_are_a_first_token_and_the_same_different_random_tokens_twice(first_id):
    vocabulary = torch.arange(100, 150)
    texts = draw_repeats(vocabulary, num_texts=3, num_random=7, first_id=first_id, seed=0)
    start = 0 if first_id is None else 1
    for ids, first_copy in zip(texts.ids.tolist(), texts.first_copy.tolist(), strict=True):
        assert len(ids) == start + 14
        assert ids[:start] == [first_id] * start
        copy = ids[start : start + 7]
        assert ids[start + 7 :] == copy
        assert len(set(copy)) == 7
        assert set(copy) <= set(range(100, 150))
        assert first_copy == [-1] * (start + 7) + [ids.index(token) for token in copy]
    assert len({tuple(ids) for ids in texts.ids.tolist()}) == 3


def test_random_tokens_are_uniform_over_the_vocabulary_and_follow_the_seed():
    vocabulary = torch.arange(5, 16)
    drawn = draw_repeats(vocabulary, num_texts=1100, num_random=2, first_id=None, seed=3)
    counts = drawn.ids[:, 0].bincount(minlength=16)[5:]
    # each of 11 tokens comes 100 times in 1,100; five standard deviations of a binomial count are 48
    assert (counts - 100).abs().max() < 48
    again = draw_repeats(vocabulary, num_texts=1100, num_random=2, first_id=None, seed=3)
    assert torch.equal(drawn.ids, again.ids)
    assert not torch.equal(drawn.ids, draw_repeats(vocabulary, num_texts=1100, num_random=2, first_id=None, seed=4).ids)
