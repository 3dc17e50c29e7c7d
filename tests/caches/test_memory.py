"""What caches hold is what they say: no tensor that came in, or was in between, lives on in them."""

import pytest
import torch

import headwise

WINDOW, CAPACITY = 11, 53
CACHES = {
    "growing": headwise.GrowingCache,
    "static": lambda: headwise.StaticCache(CAPACITY),
    "rolling": lambda: headwise.RollingCache(WINDOW),
    "rolling with spare": lambda: headwise.RollingCache(WINDOW, spare=3),
    "paged": lambda: headwise.PagedCache(4),
    "8 bits": lambda: headwise.QuantizedCache(headwise.GrowingCache()),
    "8 bits, paged": lambda: headwise.QuantizedCache(headwise.PagedCache(4)),
    "cross": headwise.CrossCache,
}
SUMS = {"8 bits": 8, "8 bits, paged": 8}  # bytes of what the error is reckoned from


def heads(num_tokens, batch=3):
    """Return keys and values as a fused projection gives them: parts of one tensor."""
    both = torch.randn(batch, num_tokens, 2, 12).transpose(1, 2)
    return both[..., :5], both[..., 5:]


def held_bytes(ledger):
    return sum(entry.bytes for entry in ledger.alive(len(ledger.moments) - 1))


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_holds_the_memory_that_it_says_and_no_more(name):
    with headwise.track() as ledger:
        cache = CACHES[name]()
        cache.update(*heads(29))
        if name != "cross":
            for _ in range(5):
                cache.update(*heads(1))
            cache.reorder([0, 2, 2])
            cache.update(*heads(2))
    assert held_bytes(ledger) == cache.allocated_bytes + SUMS.get(name, 0)


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_was_loaded_or_emptied_holds_no_more_either(name, tmp_path):
    file = tmp_path / "cache.safetensors"
    first = headwise.ModelCache([CACHES[name]()])
    first.layers[0].update(*heads(29))
    first.save(file)
    with headwise.track() as ledger:
        cache = headwise.ModelCache([CACHES[name]()])
        cache.load(file)
    assert held_bytes(ledger) <= cache.allocated_bytes
    with headwise.track() as ledger:
        cache = CACHES[name]()
        cache.update(*heads(29))
        cache.reset()
    assert held_bytes(ledger) == cache.allocated_bytes


def test_eight_prompts_with_one_beginning_hold_it_once():
    prefix, tail, batch = 1024, 64, 8
    with headwise.track() as ledger:
        cache = headwise.PagedCache()
        cache.update(*heads(prefix, batch=1))
        cache.reorder([0] * batch)
        cache.update(*heads(tail, batch=batch))
    assert held_bytes(ledger) <= 1.05 * (prefix + batch * tail) * 2 * 12 * 4


def test_generation_leaves_behind_what_its_cache_holds():
    layer = headwise.MultiHeadAttention(16, 4, num_kv_heads=2, mask=headwise.Causal(), position=headwise.Rotary())
    layer.eval()
    weights = sum(one.numel() * one.element_size() for one in (*layer.parameters(), *layer.buffers()))
    with torch.no_grad(), headwise.track(layer) as ledger:
        cache = headwise.StaticCache(CAPACITY)
        for length in (17, 1, 1, 5):
            layer(torch.randn(3, length, 16), cache=cache)
    assert held_bytes(ledger) == cache.allocated_bytes + weights
