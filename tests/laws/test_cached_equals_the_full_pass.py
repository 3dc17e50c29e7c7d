"""Cached in any schedule of chunks, crops and reorders, padded or not, a model gives what it gives at once."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import headwise
from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.config.attention import ALiBi, Rotary, T5Bias
from headwise.errors import ConfigError
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.masks.sparse import GlobalTokens

EMBED, HEADS, VOCAB, LONGEST, WINDOW = 12, 6, 23, 24, 5
LAYERS = {
    "none": {},
    "rotary": {"position": Rotary()},
    "rotary, pairs, half": {"position": Rotary(pairing="interleaved", rotary_dim=2), "head_dim": 4},
    "alibi": {"position": ALiBi(), "num_kv_heads": 3},
    "t5": {"position": T5Bias(is_bidirectional=False, num_buckets=6, max_distance=9)},
    "table": {"table": LONGEST},
    "one kv head, sink, cap": {"num_kv_heads": 1, "position": Rotary(), "sink": True, "softcap": 3.0, "qk_norm": True},
    "own value size": {"num_kv_heads": 2, "v_head_dim": 3, "head_dim": 5},
}
MASKS = {"causal": Causal(), "window": SlidingWindow(WINDOW), "global": Causal() & (SlidingWindow(3) | GlobalTokens(2))}
CACHES = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(LONGEST),
    "paged": lambda: PagedCache(3),
    "rolling": lambda: RollingCache(WINDOW, spare=3),
    "rolling, none to spare": lambda: RollingCache(WINDOW),
}


def make(layer, mask, dtype=torch.float64):
    settings = dict(LAYERS[layer])
    table = settings.pop("table", 0)
    attention = headwise.AttentionConfig.from_keywords(embed_dim=EMBED, num_heads=HEADS, mask=mask, **settings)
    block = headwise.BlockConfig(
        attention=attention, feed_forward=headwise.FeedForwardConfig(embed_dim=EMBED, hidden_dim=7)
    )
    config = headwise.ModelConfig(
        name="small",
        model_type="headwise",
        kind="decoder",
        embed_dim=EMBED,
        vocab_size=VOCAB,
        max_positions=LONGEST,
        position_table_size=table,
        blocks=(block, block),
        head=headwise.OutputHead(kind="language_model", num_outputs=VOCAB),
    )
    torch.manual_seed(0)
    model = headwise.build(config).to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def padding(batch, num_tokens, kind, generator):
    if kind == 0:
        return torch.ones(batch, num_tokens, dtype=torch.bool)
    if kind == 3:
        return torch.rand(batch, num_tokens, generator=generator) < 0.7
    counts = torch.randint(0, num_tokens + 1, (batch, 1), generator=generator)
    places = torch.arange(num_tokens)
    return places >= num_tokens - counts if kind == 1 else places < counts


steps = st.one_of(
    st.tuples(st.just("chunk"), st.sampled_from([1, 1, 2, 3, WINDOW, WINDOW + 1]), st.integers(0, 3)),
    st.tuples(st.just("crop"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("reorder"), st.integers(1, 3), st.just(0)),
)


def check(model, cache, batch, schedule, seed, tolerance):
    generator = torch.Generator().manual_seed(seed)
    texts = [[] for _ in range(batch)]
    for word, number, kind in schedule:
        if word == "chunk":
            if max(map(len, texts)) + number > LONGEST:
                continue
            ids = torch.randint(VOCAB, (len(texts), number), generator=generator)
            real = padding(len(texts), number, kind, generator)
            scores = model(ids, cache=cache, real_tokens=None if real.all() else real)
            for row, text in enumerate(texts):
                text.extend(ids[row, real[row]].tolist())
                if text:
                    expected = model(torch.tensor([text]))[0, len(text) - int(real[row].sum()) :]
                    torch.testing.assert_close(scores[row, real[row]], expected, rtol=0, atol=tolerance)
        elif cache.lengths and word == "crop":
            lengths = [max(0, len(text) - number * (1 + kind * row)) for row, text in enumerate(texts)]
            try:
                cache.crop(lengths)
            except ConfigError:
                continue  # a ring that holds them no more; that nothing else is refused is a law of caches
            texts = [text[:length] for text, length in zip(texts, lengths, strict=True)]
        elif cache.lengths:
            rows = torch.randint(len(texts), (number,), generator=generator).tolist()
            cache.reorder(rows)
            texts = [list(texts[row]) for row in rows]
        assert cache.lengths in ((), tuple(map(len, texts)))


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layer", LAYERS)
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(CACHES)),
    batch=st.integers(1, 3),
    schedule=st.lists(steps, min_size=2, max_size=8),
    seed=st.integers(0, 99),
)
def test_in_any_schedule_each_row_is_its_text_alone(layer, mask, kind, batch, schedule, seed):
    if kind.startswith("rolling") and mask != "window":
        kind = "growing"
    model = make(layer, MASKS[mask])
    cache = ModelCache([CACHES[kind]() for _ in model.body.blocks])
    # float64, but for angles and biases of positions, which are float32 in both
    check(model, cache, batch, schedule, seed, tolerance=1e-9)
