"""Models of transformers generate the same tokens with our caches as with their own."""

import copy
import pickle

import pytest
import torch

from headwise.caches.model import ModelCache
from headwise.caches.paged import PagedCache
from headwise.caches.quantized import QuantizedCache
from headwise.caches.rolling import RollingCache
from headwise.caches.slots import CrossCache, GrowingCache, StaticCache
from headwise.errors import ConfigError, UnsupportedError
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


def uneven():
    """Two rows of 3 tokens and of 1."""
    caches = ours("growing")
    real_tokens = torch.tensor([[True, True, True], [False, False, True]])
    for layer in caches:
        layer.update(torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 3, 4), real_tokens=real_tokens)
    return caches


@torch.no_grad()
def test_rows_of_unequal_length_are_refused_before_they_are_read_without_their_indices(model):
    words = r"rows must be of one length to serve a model of transformers.*got \({}, {}\)"
    with pytest.raises(UnsupportedError, match=words.format(3, 1)) as caught:
        to_transformers_cache(uneven())
    assert "\n" not in str(caught.value)
    caches = ours("growing")
    cache = to_transformers_cache(caches)
    ids = prompts()["input_ids"][:2]
    model(ids, cache=cache)
    caches.crop([5, 2])
    with pytest.raises(UnsupportedError, match=words.format(5, 2)):
        model(ids[:, :1], cache=cache)
    assert caches.lengths == (5, 2)
    caches.crop(2)
    found = model(ids[:, 2:], cache=cache).logits
    torch.testing.assert_close(found, model(ids).logits[:, 2:], rtol=0, atol=1e-9)


@torch.no_grad()
def test_tokens_are_taken_back_as_by_the_cache_of_transformers(model):
    from transformers import DynamicCache

    ids = prompts()["input_ids"]
    for how_many in (1, 2, -2, -7, -9, 0):
        cache, theirs = to_transformers_cache(ours("growing")), DynamicCache()
        for one in (cache, theirs):
            one.crop(min(how_many, 0))  # of an empty one: nothing
            model(ids, cache=one)
        if how_many > 0:
            for one in (cache, theirs):
                with pytest.raises(ValueError, match=f"{how_many}"):
                    one.crop(how_many)
        else:
            cache.crop(how_many)
            theirs.crop(how_many)
        assert cache.get_seq_length() == theirs.get_seq_length()
    with pytest.raises(ConfigError, match="tokens_to_remove must be a negative number, or 0; got 2"):
        cache.crop(2)


@pytest.mark.parametrize("kind", [*KINDS, "quantised"])
@torch.no_grad()
def test_after_a_reset_another_batch_may_come(model, kind):
    caches = ours(kind) if kind in KINDS else ModelCache([QuantizedCache(GrowingCache()) for _ in range(LAYERS)])
    cache = to_transformers_cache(caches)
    ids = prompts()["input_ids"]
    model(ids[:2], cache=cache)
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.layers[0].is_initialized and cache.layers[0].keys is None
    for batch in (1, 3):
        found = model(ids[:batch], cache=cache).logits
        if kind in KINDS:
            torch.testing.assert_close(found, model(ids[:batch]).logits, rtol=0, atol=1e-9)
        assert len(caches.lengths) == batch
        cache.reset()


@torch.no_grad()
def test_another_batch_in_the_midst_of_texts_is_refused(model):
    caches = ours("growing")
    cache = to_transformers_cache(caches)
    ids = prompts()["input_ids"]
    model(ids[:2], cache=cache)
    with pytest.raises(ConfigError, match="a cache of 2 rows must be given as many; got 3"):
        model(ids, cache=cache)
    assert caches.lengths == (7, 7)


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy], ids=["pickle", "copy"])
@torch.no_grad()
def test_a_copy_goes_on_by_itself(model, copied):
    ids = prompts()["input_ids"]
    cache = to_transformers_cache(ours("growing"))
    model(ids[:, :4], cache=cache)
    other = copied(cache)
    model(ids[:, 4:5], cache=cache)
    assert (cache.get_seq_length(), other.get_seq_length()) == (5, 4)
    found = model(ids[:, 4:], cache=other).logits
    torch.testing.assert_close(found, model(ids).logits[:, 4:], rtol=0, atol=1e-9)


@torch.no_grad()
def test_a_model_of_more_layers_is_refused_in_words(model):
    cache = to_transformers_cache(ModelCache([GrowingCache()]))
    with pytest.raises(ConfigError, match="one for each layer of the model's attention; got 1, and a call of layer 2"):
        model(prompts()["input_ids"], cache=cache)


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (GrowingCache, -1),
        (lambda: StaticCache(40), 40),
        (lambda: PagedCache(4), -1),
        (lambda: PagedCache(4, num_blocks=6), 24),
        (lambda: QuantizedCache(StaticCache(40)), 40),
    ],
)
def test_a_cache_says_how_many_tokens_it_can_hold(make, most):
    assert to_transformers_cache(ModelCache([make()])).get_max_length() == most


@torch.no_grad()
def test_rows_are_repeated_and_chosen_as_by_the_cache_of_transformers(model):
    from transformers import DynamicCache

    ids = prompts()["input_ids"]
    cache, theirs = to_transformers_cache(ours("paged")), DynamicCache()
    for one in (cache, theirs):
        model(ids, cache=one)
        one.batch_repeat_interleave(2)
        one.batch_select_indices(torch.tensor([5, 0, 2]))
    for ours_, own in zip(cache.layers, theirs.layers, strict=True):
        assert torch.equal(ours_.keys, own.keys) and torch.equal(ours_.values, own.values)


@torch.no_grad()
def test_a_cache_that_is_in_use_says_so(model):
    caches = ours("growing")
    model(prompts()["input_ids"], cache=to_transformers_cache(caches))
    again = to_transformers_cache(caches)
    assert again.layers[0].is_initialized and again.get_seq_length() == 7
    assert not to_transformers_cache(ours("growing")).layers[0].is_initialized


@pytest.mark.parametrize("cross", [CrossCache, GrowingCache, lambda: PagedCache(4)], ids=["cross", "growing", "paged"])
@pytest.mark.parametrize("how", [{"do_sample": False}, {"num_beams": 3}])
def test_a_decoder_that_looks_at_a_source_is_served_too(how, cross):
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=20, d_kv=4, d_ff=17, num_layers=LAYERS, num_heads=5, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    given = {**prompts(), **how}
    own, source = ours("growing"), ModelCache([cross() for _ in range(LAYERS)])
    cache = transformers.EncoderDecoderCache(to_transformers_cache(own), to_transformers_cache(source))
    found = model.generate(**given, cache=cache)
    assert torch.equal(found, model.generate(**given))
    assert source.seq_len == 7 and own.seq_len == found.shape[1] - 1
