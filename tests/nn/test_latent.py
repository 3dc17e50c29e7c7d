"""LatentAttention is its equation, by heads and by latents, and a model of DeepSeek-V3 by transformers."""

import pytest
import torch
from torch import nn

from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.config.position import Rotary
from headwise.config.scaling import DynamicNTKScaling, LongRoPEScaling
from headwise.errors import ConfigError, UnsupportedError
from headwise.masks.patterns import Causal, SlidingWindow
from headwise.nn.latent import LatentAttention
from headwise.positions.rotary import RotaryPositions

BATCH, SEQ, EMBED, HEADS, Q_RANK, RANK, NOPE, ROPE, V = 2, 11, 29, 3, 13, 17, 5, 4, 7


def make(dtype=torch.float64, q_lora_rank=Q_RANK, **settings):
    torch.manual_seed(0)
    layer = LatentAttention(
        EMBED,
        HEADS,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=RANK,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=V,
        **settings,
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer.to(dtype).eval()


def tokens(seq=SEQ, dtype=torch.float64):
    return torch.randn(BATCH, seq, EMBED, dtype=dtype, generator=torch.Generator().manual_seed(1))


def equation(layer, x):
    """The paper's equations 9 to 19, head by head; causal."""
    config = layer.config
    query = layer.q_proj(x).view(BATCH, -1, HEADS, NOPE + ROPE)
    down = layer.kv_down_proj(x)
    latent, rotary_key = layer.kv_norm(down[..., :RANK]), down[..., RANK:]
    turn = RotaryPositions(config.position, ROPE)
    places = torch.arange(x.shape[1])
    rotary_key = turn(rotary_key.unsqueeze(1), places).squeeze(1)
    up = layer.kv_up_proj(latent).view(BATCH, -1, HEADS, NOPE + V)
    heads = []
    for head in range(HEADS):
        q = torch.cat(
            [query[:, :, head, :NOPE], turn(query[:, :, head, NOPE:].unsqueeze(1), places).squeeze(1)], dim=-1
        )
        k = torch.cat([up[:, :, head, :NOPE], rotary_key], dim=-1)
        scores = q @ k.mT / (NOPE + ROPE) ** 0.5
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        heads.append(scores.softmax(-1) @ up[:, :, head, NOPE:])
    return layer.out_proj(torch.cat(heads, dim=-1))


@pytest.mark.parametrize("q_lora_rank", [None, Q_RANK])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_it_is_its_equation(q_lora_rank, bias, pairing):
    layer = make(q_lora_rank=q_lora_rank, projection_bias=bias, position=Rotary(pairing=pairing))
    # float64 inside, but for angles in float32: both sides turn by the same ones
    torch.testing.assert_close(layer(tokens()), equation(layer, tokens()), rtol=0, atol=1e-12)


def test_by_heads_and_by_latents_is_the_same_in_values_and_gradients(monkeypatch):
    found = []
    for by_latents in (False, True):
        layer, x = make(), tokens().requires_grad_()
        monkeypatch.setattr(layer, "_is_less_by_latents", lambda *sizes, answer=by_latents: answer)
        output = layer(x)
        found.append([output, *torch.autograd.grad(output.square().sum(), [x, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


CACHES = {
    "growing": GrowingCache,
    "static": lambda: StaticCache(SEQ),
    "paged": lambda: PagedCache(3),
    "rolling": lambda: RollingCache(4),
}


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * SEQ, [5, 1, 1, 3, 1], [SEQ]], ids=str)
@pytest.mark.parametrize("kind", CACHES)
def test_cached_in_any_chunks_is_the_full_pass(kind, chunks):
    layer = make(mask=SlidingWindow(4) if kind == "rolling" else Causal())
    x, cache = tokens(), CACHES[kind]()
    found = torch.cat([layer(chunk, cache=cache) for chunk in x.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-12)
    assert cache.num_bytes == BATCH * min(SEQ, 4 if kind == "rolling" else 12) * (RANK + ROPE) * 8 or kind == "paged"


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_those_of_each_text_alone(side):
    layer, lengths = make(), (SEQ, 6)
    x, more = tokens(), tokens(3)
    places = torch.arange(SEQ)
    real = torch.stack([places >= SEQ - n if side == "left" else places < n for n in lengths])
    batch = x.masked_fill(~real.unsqueeze(-1), torch.nan)
    cache = GrowingCache()
    found = [layer(batch, cache=cache, real_tokens=real), *(layer(one, cache=cache) for one in more.split(1, dim=1))]
    for row in range(BATCH):
        text = torch.cat([x[row, real[row]], more[row]]).expand(BATCH, -1, -1)
        expected = layer(text)[0]
        seen = torch.cat([found[0][row, real[row]], *(one[row] for one in found[1:])])
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_quantised_cache_of_latents_is_near():
    layer, x = make(), tokens()
    exact, cache = layer(x), QuantizedCache(GrowingCache())
    found = torch.cat([layer(chunk, cache=cache) for chunk in x.split(1, dim=1)], dim=1)
    assert 0 < cache.relative_error < 1 / 127
    assert (found - exact).norm() < 0.05 * exact.norm()


def test_what_does_not_fit_is_refused():
    layer = make()
    with pytest.raises(
        ConfigError, match=r"tokens must have shape \(batch, seq_len, embed_dim = 29\); got \(2, 11, 5\)"
    ):
        layer(tokens()[..., :5])


@torch.no_grad()
@pytest.mark.parametrize("seq_len", [1, 2])
def test_few_queries_attend_to_the_latents_themselves(seq_len, monkeypatch):
    layer, cache = make(), GrowingCache()
    layer(tokens(), cache=cache)
    ways = []
    for name in ("_attend_to_latents", "_attend_by_heads"):
        run = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda *args, name=name, run=run: ways.append(name) or run(*args))
    layer(tokens(seq_len), cache=cache)
    layer(tokens(), cache=GrowingCache())
    assert ways == ["_attend_to_latents", "_attend_by_heads"]


@torch.no_grad()
@pytest.mark.parametrize(
    "scaling",
    [
        DynamicNTKScaling(factor=2.0, original_max_positions=4),
        LongRoPEScaling(original_max_positions=4, short_factors=(1.0, 1.0), long_factors=(3.0, 3.0)),
    ],
)
def test_angles_that_depend_on_the_length_are_refused_beside_a_cache(scaling):
    layer = make(position=Rotary(pairing="interleaved", scaling=scaling))
    assert layer(tokens()).isfinite().all()
    with pytest.raises(UnsupportedError, match="scaling must not depend on the length of a text"):
        layer(tokens(), cache=GrowingCache())
