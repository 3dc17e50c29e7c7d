"""Where memory ends, or a key is pressed, in the middle of an update, the cache goes on as it was."""

import pytest
import torch

from headwise.caches import quantized
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache

HEADS, DIM, V_DIM, WINDOW = 2, 4, 6, 5
EMPTY, ZEROS = torch.Tensor.new_empty, torch.Tensor.new_zeros


def heads(num_tokens, batch=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(batch, HEADS, num_tokens, width, generator=generator, dtype=torch.float32).to(dtype)
        for width in (DIM, V_DIM)
    ]


def uneven(cache):
    cache.crop([3, 1])


def shared(cache):
    """Three rows share a block that is not full; they have other numbers of its tokens, and no block is free."""
    cache.crop([6, 6])
    cache.reorder([0, 0, 0])
    cache.crop([6, 5, 6])
    while cache._free:
        cache._num_users[cache._free.pop()] = 1


# what is held, what is done to it, and the tokens in whose update memory ends
CASES = {
    "growing, first": (GrowingCache, 0, None, 3),
    "growing": (GrowingCache, 60, None, 10),
    "growing, uneven": (GrowingCache, 60, uneven, 70),
    "static, first": (lambda: StaticCache(20), 0, None, 3),
    "cross, first": (CrossCache, 0, None, 3),
    "rolling, first": (lambda: RollingCache(WINDOW), 0, None, 3),
    "rolling, one token": (lambda: RollingCache(WINDOW, spare=2), 9, None, 1),
    "rolling, chunk": (lambda: RollingCache(WINDOW, spare=2), 9, None, 8),
    "paged, first": (lambda: PagedCache(4), 0, None, 3),
    "paged": (lambda: PagedCache(4), 30, None, 20),
    "paged, shared": (lambda: PagedCache(4), 10, shared, 1),
    "8 bits, first": (lambda: QuantizedCache(GrowingCache()), 0, None, 3),
    "8 bits": (lambda: QuantizedCache(GrowingCache()), 60, None, 10),
    "4 bits, paged": (lambda: QuantizedCache(PagedCache(4), bits=4), 30, None, 20),
}


def make(name):
    kind, num_held, then, _ = CASES[name]
    cache = kind()
    if num_held:
        cache.update(*heads(num_held))
    if then is not None:
        then(cache)
    return cache


def content(cache):
    """Return all that can be read of a cache, with zeros in empty slots."""
    if not cache.lengths:
        return cache.lengths, cache.num_bytes, cache._like
    keys, values, index, positions = cache._hold()[:4]
    view = cache.view()
    error = getattr(cache, "relative_error", None)
    rest = (view.key_index, view.key_positions, view.first_index, view.reach, error)
    return (cache.lengths, cache.num_bytes, keys, values, index, positions, *rest)


def assert_same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def fail_at(monkeypatch, place):
    """Let the allocation with this number fail, and return how many there have been, in a list."""
    count = [0]

    def take(allocate):
        def failing(*args, **keywords):
            count[0] += 1
            if count[0] == place:
                raise torch.OutOfMemoryError("out of memory")
            return allocate(*args, **keywords)

        return failing

    monkeypatch.setattr(torch.Tensor, "new_empty", take(EMPTY))
    monkeypatch.setattr(torch.Tensor, "new_zeros", take(ZEROS))
    return count


def test_a_cache_survives_each_of_its_allocations(monkeypatch):
    for name, (_, _, _, num_tokens) in CASES.items():
        expected = make(name)
        new = heads(num_tokens, batch=len(expected.lengths) or 2, seed=1)
        expected.update(*new)
        for place in range(1, 99):
            cache = make(name)
            before = content(cache)
            count = fail_at(monkeypatch, place)
            try:
                cache.update(*new)
            except torch.OutOfMemoryError:
                failed = True
            else:
                failed = False
            monkeypatch.undo()
            if not failed:
                assert place > count[0] >= (2 if name.endswith("first") else 0), name
                break
            assert_same(content(cache), before)
            cache.update(*new)
            assert_same(content(cache), content(expected))


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("first")])
def test_a_first_update_that_failed_binds_to_nothing(name, monkeypatch):
    for place in range(1, 20):
        cache = make(name)
        fail_at(monkeypatch, place)
        try:
            cache.update(*heads(3))
        except torch.OutOfMemoryError:
            pass
        else:
            assert place > 2
            monkeypatch.undo()
            return
        monkeypatch.undo()
        view = cache.update(*heads(2, batch=3, dtype=torch.float64))
        assert cache.lengths == (2, 2, 2) and view.keys.dtype == torch.float64
    raise AssertionError("no place left memory for all")


def test_positions_survive_an_allocation_that_fails(monkeypatch):
    for place in range(1, 9):
        cache = GrowingCache()
        cache.update(*heads(60), positions=torch.arange(60) * 3)
        fail_at(monkeypatch, place)
        try:
            cache.update(*heads(9, seed=1), positions=torch.arange(9))
        except torch.OutOfMemoryError:
            monkeypatch.undo()
            assert cache.view().key_positions.tolist() == [list(range(0, 180, 3))] * 2
            cache.update(*heads(9, seed=1), positions=torch.arange(9))
        monkeypatch.undo()
        assert cache.view().key_positions.tolist() == [[*range(0, 180, 3), *range(9)]] * 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("inner", [GrowingCache, lambda: RollingCache(WINDOW), lambda: PagedCache(4)])
@pytest.mark.parametrize("num_held", [0, 11])
def test_codes_that_could_not_be_shown_are_taken_back(inner, num_held, error, monkeypatch):
    cache = QuantizedCache(inner())
    if num_held:
        cache.update(*heads(num_held))
    lengths, lost = cache.lengths, cache.relative_error
    calls = []

    def decode(codes, bits, dtype):
        calls.append(codes)
        if len(calls) == 3:  # the first two tell the error
            raise error
        return real(codes, bits, dtype)

    real = quantized.decode
    monkeypatch.setattr(quantized, "decode", decode)
    with pytest.raises(type(error)):
        cache.update(*heads(1, seed=1))
    monkeypatch.undo()
    assert (cache.lengths, cache.relative_error) == (lengths, lost)
    if not num_held:
        wide = [torch.cat([one, one], dim=3) for one in heads(1, batch=3)]
        assert cache.update(*wide).keys.shape == (3, HEADS, 1, 2 * DIM)
        return
    expected = QuantizedCache(inner())
    expected.update(*heads(num_held))
    for step in (1, 2):
        views = [one.update(*heads(1, seed=step)) for one in (cache, expected)]
        assert torch.equal(views[0].keys, views[1].keys) and torch.equal(views[0].values, views[1].values)


def test_a_ring_whose_chunk_could_not_be_shown_is_emptied(monkeypatch):
    cache = QuantizedCache(RollingCache(WINDOW))
    cache.update(*heads(11))
    monkeypatch.setattr(cache, "_decode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cache.update(*heads(4))
    assert cache.lengths == (0, 0)


def test_a_first_chunk_longer_than_a_ring_binds_to_nothing_where_it_fails(monkeypatch):
    cache = RollingCache(WINDOW)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(torch, "cat", lambda *_, **__: 1 / 0)
        cache.update(*heads(2 * WINDOW))
    view = cache.update(*heads(2, batch=3, dtype=torch.float64))
    assert cache.lengths == (2, 2, 2) and view.keys.dtype == torch.float64
