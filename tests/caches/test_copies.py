"""Caches are copied, pickled, printed and emptied; they take no tokens, and grow seldom."""

import copy
import pickle

import pytest
import torch

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.nn.multihead import MultiHeadAttention

KINDS = {
    "GrowingCache()": GrowingCache,
    "StaticCache(capacity=40)": lambda: StaticCache(40),
    "RollingCache(window_size=5, spare=2)": lambda: RollingCache(5, spare=2),
    "PagedCache(block_size=4, num_blocks=None)": lambda: PagedCache(4),
    "QuantizedCache(RollingCache(window_size=5, spare=2), bits=8)": lambda: QuantizedCache(RollingCache(5, spare=2)),
    "QuantizedCache(PagedCache(block_size=4, num_blocks=9), bits=4)": lambda: QuantizedCache(
        PagedCache(4, num_blocks=9), bits=4
    ),
}


def heads(num_tokens, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, num_tokens, width, generator=generator) for width in (4, 6)]


def assert_alike(one, other):
    """Compare views; what is in empty slots is nothing."""
    for a, b in zip(one[2:], other[2:], strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    is_empty = torch.tensor(False)
    if one.key_index is not None:
        is_empty = (one.key_index < 0).expand(one.keys.shape[0], -1)[:, None, :, None]
    for a, b in zip(one[:2], other[:2], strict=True):
        assert torch.equal(a.masked_fill(is_empty, 0), b.masked_fill(is_empty, 0))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))], ids=["deep", "pickle"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_alike_and_by_itself(kind, copied):
    for then in (lambda cache: None, lambda cache: cache.reorder([1, 1]), lambda cache: cache.crop([8, 7])):
        cache, expected = KINDS[kind](), KINDS[kind]()
        for each in (cache, expected):
            each.update(*heads(9))
            then(each)
        other = copied(cache)
        assert repr(other) == repr(cache)
        view = expected.update(*heads(2, seed=1))
        assert_alike(other.update(*heads(2, seed=1)), view)
        other.reset()
        other.update(*heads(3, seed=2))
        assert_alike(cache.update(*heads(2, seed=1)), view)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens_change_nothing(kind):
    cache, none = KINDS[kind](), [one[:, :, :0] for one in heads(1)]
    view = cache.update(*none)
    assert view.keys.shape == (2, 3, 0, 4) and view.values.shape == (2, 3, 0, 6) and cache.lengths == (0, 0)
    for num_tokens in (3, 9, 1):  # through the end of a ring, and to one that is full
        cache.update(*heads(num_tokens))
        before = cache.view()
        before = before._replace(keys=before.keys.clone(), values=before.values.clone())
        cache.update(*none)
        assert_alike(cache.view(), before)
        cache.update(*heads(2), real_tokens=torch.zeros(2, 2, dtype=torch.bool))
        assert_alike(cache.view(), before)
    assert cache.lengths == (13, 13)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_prints_what_it_is_and_how_much_it_holds(kind):
    cache = KINDS[kind]()
    assert repr(cache) == f"{kind}: empty"
    cache.update(*heads(7))
    assert repr(cache) == f"{kind}: 2 rows of 7 tokens"
    cache.crop([6, 7])
    assert repr(cache) == f"{kind}: 2 rows of 6 to 7 tokens"
    cache.reset()
    assert repr(cache) == f"{kind}: 2 rows of 0 tokens"
    cache = KINDS[kind]()
    cache.update(*heads(1, batch=1))
    assert repr(cache) == f"{kind}: 1 row of 1 token"


def test_a_cache_of_a_model_prints_its_layers_by_kind():
    cache = ModelCache([GrowingCache(), RollingCache(3), GrowingCache()])
    assert repr(cache) == "ModelCache(2 of GrowingCache(), 1 of RollingCache(window_size=3, spare=0)): empty"


def test_a_growing_cache_takes_memory_for_half_as_many_tokens_again():
    cache, sizes = GrowingCache(), []
    for _ in range(400):
        cache.update(*heads(1))
        sizes.append(cache.num_slots)
    assert sorted(set(sizes)) == [64, 96, 144, 216, 324, 486]


@torch.no_grad()
def test_a_source_that_was_forgotten_makes_way_for_another_of_any_size():
    torch.manual_seed(0)
    layer, cache, query = MultiHeadAttention(12, 3).double().eval(), CrossCache(), torch.randn(2, 3, 12).double()
    for source_len in (7, 5, 11):
        source = torch.randn(2, source_len, 12).double()
        # float64: what rounds is the order of sums
        torch.testing.assert_close(layer(query, source, cache=cache), layer(query, source), rtol=0, atol=1e-12)
        assert cache.lengths == (source_len,) * 2
        cache.reset()
        assert (cache.lengths, cache.num_bytes, cache.allocated_bytes) == ((), 0, 0)
    cache.update(*heads(2, batch=3))
    cache.crop(0)
    assert cache.lengths == (0, 0, 0)
