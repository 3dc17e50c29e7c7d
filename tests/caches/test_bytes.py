"""Bytes of a cache are those of the closed form; blocks are shared; codes are small; what is lost is told."""

import pytest
import torch

import headwise
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import LARGEST, QuantizedCache, decode, encode
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.cost.kv import kv_cache_bytes
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Causal, SlidingWindow

BATCH, KV_HEADS, DIM, V_DIM, WINDOW = 3, 2, 5, 7, 11


def heads(num_tokens, batch=BATCH, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, KV_HEADS, num_tokens, dim, generator=generator).to(dtype) for dim in (DIM, V_DIM)]


def closed_form(num_tokens, mask, dtype, kv_cache="model"):
    attention = headwise.AttentionConfig.from_keywords(
        embed_dim=12, num_heads=6, num_kv_heads=KV_HEADS, head_dim=DIM, v_head_dim=V_DIM, mask=mask
    )
    block = headwise.BlockConfig(
        attention=attention, feed_forward=headwise.FeedForwardConfig(embed_dim=12, hidden_dim=13)
    )
    config = headwise.ModelConfig(
        name="one layer",
        model_type="headwise",
        kind="decoder",
        embed_dim=12,
        vocab_size=17,
        max_positions=99,
        blocks=(block,),
    )
    return kv_cache_bytes(
        config, batch=BATCH, seq=num_tokens, dtype=str(dtype).removeprefix("torch."), kv_cache=kv_cache
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_tokens", [1, WINDOW, 29])
def test_bytes_are_those_of_the_closed_form(num_tokens, dtype):
    growing, static, rolling, paged = GrowingCache(), StaticCache(53), RollingCache(WINDOW), PagedCache(1)
    for cache in (growing, static, rolling, paged):
        for token in range(num_tokens):
            cache.update(*heads(1, dtype=dtype, seed=token))
    for cache in (growing, static, paged):
        assert cache.num_bytes == closed_form(num_tokens, Causal(), dtype)
    codes = QuantizedCache(GrowingCache())
    codes.update(*heads(num_tokens, dtype=dtype))
    assert codes.num_bytes == closed_form(num_tokens, Causal(), dtype, kv_cache="int8")
    assert rolling.num_bytes == closed_form(num_tokens, SlidingWindow(WINDOW), dtype)
    assert static.allocated_bytes == closed_form(53, Causal(), dtype)
    assert rolling.allocated_bytes == closed_form(WINDOW, Causal(), dtype)
    spare_of_a_start = closed_form(64, Causal(), dtype)
    assert growing.num_bytes <= growing.allocated_bytes <= max(1.5 * growing.num_bytes, spare_of_a_start)


def test_prompts_with_one_beginning_keep_it_once():
    cache = PagedCache(16)
    cache.update(*heads(1024, batch=1))
    cache.reorder([0] * 8)
    for token in range(40):
        cache.update(*heads(1, batch=8, seed=token))
    token_bytes = KV_HEADS * (DIM + V_DIM) * 4
    assert cache.allocated_bytes <= 1.05 * (1024 + 8 * 48) * token_bytes  # a tail of 40 takes three blocks of 16
    cache.crop(1024)
    assert cache.num_bytes == 1024 * token_bytes


def test_a_shared_block_is_copied_for_who_writes_and_left_for_who_reads():
    cache = PagedCache(4)
    keys, values = heads(6, batch=1)
    cache.update(keys, values)
    cache.reorder([0, 0, 0])
    assert cache.num_used_blocks == 2
    more = heads(1, seed=9)
    view = cache.update(*more, real_tokens=torch.tensor([[True], [False], [True]]))
    assert cache.num_used_blocks == 4 and cache.lengths == (7, 6, 7)
    for row in (0, 2):
        assert torch.equal(view.keys[row, :, 6], more[0][row, :, 0])
    assert torch.equal(view.keys[:, :, :6], keys.expand(3, -1, -1, -1))
    cache.reorder([1])
    assert cache.num_used_blocks == 2


def test_a_pool_of_fixed_size_takes_what_fits_and_not_more():
    cache = PagedCache(4, num_blocks=5)
    cache.update(*heads(6, batch=2))
    cache.reorder([0, 0])
    assert cache.num_used_blocks == 2
    cache.update(*heads(2, batch=2))  # one copies the shared block, the other keeps it
    assert cache.num_used_blocks == 3
    with pytest.raises(
        ConfigError, match="num_blocks must be at least 7 to take these tokens; got 5, of which 2 are f"
    ):
        cache.update(*heads(5, batch=2))
    assert cache.lengths == (8, 8)
    cache.update(*heads(4, batch=2))
    cache.reset()
    assert cache.num_used_blocks == 0 and cache.num_bytes == 0


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_off_by_half_a_scale_at_most_and_the_error_is_told(bits):
    keys, values = heads(31)
    keys[0, 0, 0], values[1, 1, 2] = 0.0, 1e-6
    cache = QuantizedCache(GrowingCache(), bits=bits) if bits == 8 else None
    lost = exact = 0.0
    for one in (keys[..., :4], values[..., :6]):
        shown = decode(encode(one, bits), bits, one.dtype)
        halves = one.abs().unflatten(-1, (2, -1)).amax(-1, keepdim=True)
        scale = (
            (halves / LARGEST[bits])
            .to(torch.float16)
            .float()
            .expand(*halves.shape[:-1], one.shape[-1] // 2)
            .flatten(-2)
        )
        # Half a scale, and L times what float16 rounds off of it (half of 2^-10, or 2^-25 near 0).
        bound = scale / 2 + LARGEST[bits] * (scale * 2.0**-11 + 2.0**-25)
        assert ((shown - one).abs() <= bound).all()
        lost, exact = lost + (shown - one).square().sum(), exact + one.square().sum()
    if cache is not None:
        cache.update(keys[..., :4], values[..., :6])
        assert cache.relative_error == pytest.approx(float((lost / exact).sqrt()), rel=1e-4)
        assert cache.num_bytes == BATCH * 31 * KV_HEADS * (4 + 4 + 6 + 4)


def test_eight_bits_take_little_more_than_half_of_sixteen():
    half, codes = GrowingCache(), QuantizedCache(GrowingCache())
    tensors = [torch.randn(1, 3, 20, 64).to(torch.float16) for _ in range(2)]
    for cache in (half, codes):
        cache.update(*tensors)
    assert codes.num_bytes / half.num_bytes == (64 + 4) / 128 <= 0.55


@pytest.mark.parametrize("kind", [GrowingCache, lambda: StaticCache(9), lambda: RollingCache(9), lambda: PagedCache(4)])
def test_what_does_not_fit_is_refused_and_changes_nothing(kind):
    cache = kind()
    with pytest.raises(ConfigError, match="must have had an update to be read"):
        cache.view()
    cache.update(*heads(2))
    wrong = {
        "a cache of 3 rows must be given as many; got 2": heads(1, batch=2),
        "keys must be like those in the cache": [one.double() for one in heads(1)],
        "must not ask for gradients": [one.requires_grad_() for one in heads(1)],
        "must have at least one row": heads(1, batch=0),
    }
    for text, tensors in wrong.items():
        with pytest.raises((ConfigError, UnsupportedError), match=text):
            cache.update(*tensors)
    for lengths in (-1, [1, 2], [0.5, 1, 1]):
        with pytest.raises(ConfigError):
            cache.crop(torch.tensor(lengths) if isinstance(lengths, list) else lengths)
    with pytest.raises(ConfigError, match="must name at least one row"):
        cache.reorder([])
    for rows in ([3], [-1]):
        with pytest.raises(ConfigError, match="rows must be from 0 to 2"):
            cache.reorder(rows)
    assert cache.lengths == (2, 2, 2)
    view = cache.update(*heads(1, seed=5))
    assert torch.equal(view.keys[:, :, :2], heads(2)[0]) and torch.equal(view.keys[:, :, 2:], heads(1, seed=5)[0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: StaticCache(0), "capacity must be between 1 and"),
        (lambda: RollingCache(True), "window_size must be a whole number"),
        (lambda: RollingCache(3, spare=-1), "spare must be between 0 and"),
        (lambda: PagedCache(True), "block_size must be a whole number"),
        (lambda: QuantizedCache(QuantizedCache(GrowingCache())), "cache must be an empty cache that is not quantised"),
    ],
)
def test_caches_of_no_size_are_refused(make, text):
    with pytest.raises((ConfigError, TypeError), match=text):
        make()


@pytest.mark.parametrize(
    "kind", [lambda: RollingCache(9), lambda: PagedCache(4), lambda: QuantizedCache(PagedCache(4))]
)
def test_positions_are_refused_where_none_are_kept(kind):
    with pytest.raises(UnsupportedError, match=r"positions must be left out of a .*Cache, which keeps none"):
        kind().update(*heads(2), positions=torch.arange(2))
    cache = QuantizedCache(GrowingCache())
    assert cache.update(*heads(2), positions=torch.arange(2)).key_positions.tolist() == [[0, 1]] * BATCH
