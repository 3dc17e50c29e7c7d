"""The positions that a view shows are those that were given with its tokens, through whatever is done to a cache."""

import pytest
import torch

from headwise.caches.quantized import QuantizedCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.errors import ConfigError

KINDS = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(200),
    "8 bits": lambda: QuantizedCache(GrowingCache()),
}


def heads(num_tokens, batch=2):
    return [torch.randn(batch, 3, num_tokens, 4) for _ in range(2)]


def held(view):
    """Return the positions of the tokens of each row."""
    batch, _, key_len, _ = view.keys.shape
    index = torch.arange(key_len).expand(batch, -1) if view.key_index is None else view.key_index
    return [row[at >= 0].tolist() for row, at in zip(view.key_positions, index, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_positions_follow_their_tokens(kind):
    cache = KINDS[kind]()
    rows = [[], []]

    def give(num_tokens, first, real=None):
        positions = torch.stack([torch.arange(num_tokens) * 7 + first + 1000 * row for row in range(len(rows))])
        real = torch.ones(len(rows), num_tokens, dtype=torch.bool) if real is None else torch.tensor(real)
        view = cache.update(*heads(num_tokens, len(rows)), real_tokens=real, positions=positions)
        for row, (numbers, is_real) in enumerate(zip(positions, real, strict=True)):
            rows[row] += numbers[is_real].tolist()
        assert held(view) == held(cache.view()) == rows

    give(3, 5)
    give(2, 70, [[False, True], [True, True]])  # uneven from here on
    give(1, 200)
    cache.reorder([1, 0, 1])
    rows = [list(rows[row]) for row in (1, 0, 1)]
    assert held(cache.view()) == rows
    give(80, 300)  # more than the first buffer of a growing cache
    cache.crop([9, 4, 0])
    rows = [row[:length] for row, length in zip(rows, (9, 4, 0), strict=True)]
    give(2, 900)
    cache.reset()
    rows = [[], [], []]
    give(3, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_of_positions_stands_for_all_rows(kind):
    cache = KINDS[kind]()
    cache.update(*heads(3), positions=torch.tensor([4, 4, 9]))
    assert held(cache.update(*heads(1), positions=torch.tensor([2], dtype=torch.int32))) == [[4, 4, 9, 2]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_positions_come_always_or_never_and_a_cache_that_was_emptied_chooses_anew(kind):
    cache = KINDS[kind]()
    cache.update(*heads(3), positions=torch.arange(3))
    with pytest.raises(ConfigError, match="positions must come with every update of a cache or with none"):
        cache.update(*heads(1))
    assert held(cache.view()) == [[0, 1, 2]] * 2
    cache.reset()
    assert cache.update(*heads(2)).key_positions is None
    with pytest.raises(ConfigError, match="positions must come with every update of a cache or with none"):
        cache.update(*heads(1), positions=torch.arange(1))
    assert cache.lengths == (2, 2) and cache.view().key_positions is None
    cache.reset()
    assert held(cache.update(*heads(2), positions=torch.tensor([8, 6]))) == [[8, 6]] * 2
