"""What a layer refuses to cache, cross-attention with a cache, and what a full ring shows a bias."""

import subprocess
import sys

import pytest
import torch

import headwise
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.config.attention import ALiBi, Rotary, T5Bias
from headwise.config.scaling import DynamicNTKScaling
from headwise.cost.kv import kv_cache_bytes
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.data import KeyPadding
from headwise.masks.patterns import Causal, Full, SlidingWindow
from headwise.masks.sparse import LocalWindow
from headwise.nn.multihead import MultiHeadAttention

EMBED, HEADS, WINDOW = 12, 3, 4


def make(**settings):
    torch.manual_seed(0)
    return MultiHeadAttention(EMBED, HEADS, **settings).double().eval()


def tokens(seq_len, batch=2, seed=1):
    return torch.randn(batch, seq_len, EMBED, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("fused_qkv", [False, True])
def test_a_source_is_projected_once_and_read_by_every_step(fused_qkv, monkeypatch):
    layer, source, x = make(fused_qkv=fused_qkv, qk_norm=True), tokens(7), tokens(5, seed=2)
    real = torch.tensor([[True] * 7, [True, False] * 3 + [True]])
    expected = layer(x, source, mask=KeyPadding(torch.tensor([7, 7])))
    padded = torch.stack([layer(x[:1], source[:1])[0], layer(x[1:], source[1:, ::2])[0]])
    for real_tokens, whole in ((None, expected), (real, padded)):
        cache = CrossCache()
        found = [layer(one, source, cache=cache, real_tokens=real_tokens) for one in x.split(1, dim=1)]
        # float64: what rounds is the order of sums
        torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="takes one source text; got a second"):
        cache.update(*(torch.zeros(2, HEADS, 1, EMBED // HEADS, dtype=torch.float64) for _ in range(2)))


@torch.no_grad()
@pytest.mark.parametrize("position", [ALiBi(), T5Bias(is_bidirectional=False, num_buckets=4, max_distance=9)])
def test_a_bias_knows_the_places_of_a_full_ring(position):
    layer, x = make(mask=SlidingWindow(WINDOW), position=position), tokens(11)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    cache = RollingCache(WINDOW)
    found = torch.cat([layer(one, cache=cache) for one in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-9)  # slopes are float32 in both


@torch.no_grad()
@pytest.mark.parametrize("mask", [Causal(), Full(), SlidingWindow(WINDOW + 1), LocalWindow(WINDOW, 0)])
@pytest.mark.parametrize("wrap", [lambda cache: cache, QuantizedCache])
def test_a_ring_that_drops_what_the_mask_shows_is_refused(mask, wrap):
    with pytest.raises(ConfigError, match="a cache that drops old tokens must keep all that the mask shows"):
        make(mask=mask)(tokens(3), cache=wrap(RollingCache(WINDOW)))
    make(mask=SlidingWindow(WINDOW - 1))(tokens(3), cache=wrap(RollingCache(WINDOW)))


@torch.no_grad()
def test_caches_of_another_kind_of_attention_are_refused():
    layer, x = make(), tokens(3)
    with pytest.raises(ConfigError, match=r"must be a CrossCache\(\); got a GrowingCache"):
        layer(x, tokens(5), cache=GrowingCache())
    with pytest.raises(ConfigError, match="must be no CrossCache"):
        layer(x, cache=CrossCache())
    rotary = make(position=Rotary(scaling=DynamicNTKScaling(factor=2.0, original_max_positions=4)))
    with pytest.raises(UnsupportedError, match="scaling must not depend on the length of a text"):
        rotary(x, cache=GrowingCache())


def poison(cache):
    """Write NaN into every slot that holds no token."""
    for name in ("_keys", "_values"):
        buffer = getattr(cache, name)
        if isinstance(cache, PagedCache):
            used = torch.zeros(buffer.shape[1], dtype=torch.bool)
            for row, length in enumerate(cache.lengths):
                used[cache._slots(cache.seq_len)[row, :length]] = True
            buffer[:, ~used] = torch.nan
        elif isinstance(cache, RollingCache):
            buffer.masked_fill_((cache._index() < 0)[:, None, :, None], torch.nan)
        else:
            places = torch.arange(buffer.shape[2])
            empty = places >= torch.tensor(cache.lengths).unsqueeze(1)
            buffer.masked_fill_(empty[:, None, :, None], torch.nan)


@torch.no_grad()
@pytest.mark.parametrize("is_even", [True, False])
@pytest.mark.parametrize("position", [None, Rotary(), ALiBi()], ids=str)
@pytest.mark.parametrize(
    "kind", [GrowingCache, lambda: StaticCache(40), lambda: RollingCache(WINDOW, spare=3), lambda: PagedCache(4)]
)
def test_what_is_in_empty_slots_changes_nothing_to_the_bit(kind, position, is_even):
    layer = make(mask=SlidingWindow(WINDOW), position=position)
    real = None if is_even else torch.tensor([[True] * 3, [False, True, False]])
    outputs = []
    for poisoned in (False, True):
        cache, seen = kind(), []
        for step, (chunk, real_tokens) in enumerate(
            ((tokens(3), real), (tokens(1, seed=2), None), (tokens(2, seed=3), None))
        ):
            if poisoned and step:
                poison(cache)
            seen.append(layer(chunk, cache=cache, real_tokens=real_tokens))
        outputs.append(torch.cat(seen, dim=1))
    assert torch.equal(*outputs) and outputs[0].isfinite().all()


GRAPHS = """
import torch
from torch._dynamo.testing import CompileCounterWithBackend
import headwise

torch.set_num_threads(1)


def layer(mask):
    return headwise.MultiHeadAttention(12, 6, num_kv_heads=2, mask=mask, position=headwise.Rotary()).eval()


def model():
    attention = headwise.AttentionConfig(embed_dim=12, num_heads=3, mask=headwise.Causal(), position=headwise.Rotary())
    block = headwise.BlockConfig(
        attention=attention, feed_forward=headwise.FeedForwardConfig(embed_dim=12, hidden_dim=17)
    )
    config = headwise.ModelConfig(
        name="small", model_type="headwise", kind="decoder", embed_dim=12, vocab_size=19, max_positions=64,
        blocks=(block, block), head=headwise.OutputHead(kind="language_model", num_outputs=19),
    )
    return headwise.build(config).eval()


window = headwise.SlidingWindow(7)
cases = [
    (layer(headwise.Causal()), headwise.StaticCache(40), 2),
    (layer(headwise.Causal()), headwise.GrowingCache(), 2),
    (layer(window), headwise.RollingCache(7), 3),  # one more for the full ring
    (model(), headwise.ModelCache([headwise.StaticCache(40), headwise.GrowingCache()]), 2),
]
for module, cache, most in cases:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    is_model = isinstance(module, headwise.LanguageModel)
    text = torch.randint(19, (2, 21)) if is_model else torch.randn(2, 21, 12)
    with torch.no_grad():
        seen = [module(text[:, :3], cache=cache)]
        seen += [compiled(text[:, at : at + 1], cache=cache) for at in range(3, 21)]
        # float32, whose sums are taken in another order
        torch.testing.assert_close(torch.cat(seen, dim=1), module(text), rtol=1e-4, atol=1e-5)
    assert counter.frame_count <= most, (module, cache, counter.frame_count)
"""


def test_a_compiled_step_serves_every_length():
    """In an interpreter of its own: the type checks that the other tests run with cannot be compiled."""
    result = subprocess.run([sys.executable, "-c", GRAPHS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_call_that_is_refused_leaves_the_cache_alone():
    layer = headwise.MultiHeadAttention(12, 3, mask=headwise.Causal(), impl="sdpa").eval()
    cache, tokens = headwise.GrowingCache(), torch.randn(2, 5, 12)
    with torch.no_grad():
        with pytest.raises(UnsupportedError, match="do not return weights"):
            layer.attend(tokens, cache=cache, return_weights=True)
        assert cache.lengths == ()
        with_dropout = headwise.MultiHeadAttention(12, 3, mask=headwise.Causal(), impl="decode", dropout_p=0.5).train()
        with pytest.raises(UnsupportedError, match="has no dropout"):
            with_dropout(tokens, cache=cache)
        assert cache.lengths == ()
        torch.testing.assert_close(layer(tokens, cache=cache), layer(tokens), rtol=0, atol=1e-6)


def test_a_cross_cache_that_was_emptied_takes_another_source():
    layer = headwise.MultiHeadAttention(12, 3).eval()
    cache, tokens = headwise.CrossCache(), torch.randn(2, 5, 12)
    with torch.no_grad():
        for length in (7, 3, 7):
            source = torch.randn(2, length, 12)
            for _ in range(2):  # the second call reads what the first has projected
                found = layer(tokens, source, cache=cache)
                torch.testing.assert_close(found, layer(tokens, source), rtol=0, atol=1e-6)
            cache.reset()


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        (headwise.LocalWindow(4, 0), 5),
        (headwise.Causal() & headwise.SlidingWindow(5), 5),
        (headwise.Causal() & headwise.LocalWindow(4, 4), 5),
        (headwise.Causal(), None),
        (headwise.Causal() & ~headwise.SlidingWindow(5), None),
    ],
    ids=str,
)
def test_a_model_caches_what_its_masks_look_back_on(mask, window):
    attention = headwise.AttentionConfig(embed_dim=12, num_heads=3, mask=mask)
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
        head=headwise.OutputHead(kind="language_model", num_outputs=17),
    )
    model = headwise.build(config).eval()
    cache = model.make_cache()
    assert cache.layers[0].window_size == window
    ids = torch.randint(17, (2, 30))
    with torch.no_grad():
        found = torch.cat([model(one, cache=cache) for one in ids.split(1, dim=1)], dim=1)
        torch.testing.assert_close(found, model(ids), rtol=0, atol=1e-5)
    assert cache.num_bytes == kv_cache_bytes(config, batch=2, seq=30, dtype="float32")
