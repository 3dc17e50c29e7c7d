"""Models of transformers generate the same tokens with our caches as with their own."""

import pytest
import torch

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.errors import UnsupportedError
from headwise.integrations.transformers_cache import to_transformers_cache

VOCAB, LAYERS, NEW = 31, 2, 13
KINDS = {"growing": GrowingCache, "static": lambda: StaticCache(40), "paged": lambda: PagedCache(4)}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request):
    import transformers

    torch.manual_seed(0)
    common = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if request.param == "llama":
        config = transformers.LlamaConfig(
            hidden_size=24,
            num_attention_heads=6,
            num_key_value_heads=2,
            num_hidden_layers=LAYERS,
            intermediate_size=17,
            max_position_embeddings=64,
            **common,
        )
        made = transformers.LlamaForCausalLM(config)
    else:
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=24, n_head=6, n_layer=LAYERS, n_positions=64, **common)
        )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def prompts():
    ids = torch.randint(1, VOCAB, (3, 7), generator=torch.Generator().manual_seed(1))
    keep = torch.arange(7) >= torch.tensor([0, 3, 5]).unsqueeze(1)
    return {"input_ids": ids, "attention_mask": keep.long(), "max_new_tokens": NEW}


def ours(kind):
    return ModelCache([KINDS[kind]() for _ in range(LAYERS)])


@pytest.mark.parametrize("how", [{"do_sample": False}, {"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tokens_are_generated(model, kind, how):
    caches = ours(kind)
    found = model.generate(**prompts(), **how, cache=to_transformers_cache(caches))
    assert torch.equal(found, model.generate(**prompts(), **how))
    assert caches.seq_len == 7 + NEW - 1


@torch.no_grad()
def test_tokens_are_taken_back_and_the_rest_goes_on(model):
    ids = prompts()["input_ids"]
    caches = ours("growing")
    cache = to_transformers_cache(caches)
    model(ids, cache=cache)
    cache.crop(-3)
    assert cache.get_seq_length() == caches.seq_len == 4
    found = model(ids[:, 4:], cache=cache).logits
    torch.testing.assert_close(found, model(ids).logits[:, 4:], rtol=0, atol=1e-9)
    cache.reset()
    assert cache.get_seq_length() == 0


@torch.no_grad()
def test_a_quantised_cache_serves_any_model(model):
    ids = prompts()["input_ids"]
    exact, caches = model(ids).logits, ModelCache([QuantizedCache(GrowingCache()) for _ in range(LAYERS)])
    cache = to_transformers_cache(caches)
    found = torch.cat([model(one, cache=cache).logits for one in ids.split([4, 1, 1, 1], dim=1)], dim=1)
    assert torch.nn.functional.cosine_similarity(found, exact, dim=-1).min() > 0.999
    assert 0 < caches.layers[0].relative_error < 1 / 127


def test_a_ring_is_refused():
    with pytest.raises(
        UnsupportedError, match="a cache must keep all tokens to serve a model of transformers; got Roll"
    ):
        to_transformers_cache(ModelCache([RollingCache(3)]))
