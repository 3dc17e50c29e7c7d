"""Generated tokens are those of transformers and of full passes: in batches, looked up, stopped, interrupted."""

import pytest
import torch

import headwise
from headwise.caches.model import ModelCache
from headwise.caches.slots import GrowingCache, StaticCache
from headwise.convert.language_model import language_model_from_huggingface
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.generation import generate, stream
from headwise.nn.lookup import Lookup
from headwise.nn.sampling import Sampling

VOCAB, NEW = 29, 17
LLAMA = {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 17,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 6}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 6}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 24, "n_head": 6, "n_layer": 2, "vocab_size": VOCAB, "n_positions": 64, "bos_token_id": None}
        | {"eos_token_id": None, "pad_token_id": 0},
    ),
}


def pair(family):
    """A model of transformers and ours of the same weights; float64, so that no two scores are near each other."""
    import transformers

    torch.manual_seed(0)
    kind, config, settings = FAMILIES[family]
    theirs = getattr(transformers, kind)(getattr(transformers, config)(**settings)).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return theirs, language_model_from_huggingface(theirs)


@pytest.fixture(scope="module")
def llama():
    return pair("llama")[1]


def prompts(batch=3, seq_len=7):
    return torch.randint(1, VOCAB, (batch, seq_len), generator=torch.Generator().manual_seed(3))


def one_by_one(model, text, num):
    """Greedy by full passes: the oracle."""
    text = list(text)
    for _ in range(num):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[-num:]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family):
    theirs, ours = pair(family)
    ids = prompts()
    expected = theirs.generate(ids, max_new_tokens=NEW, do_sample=False)[:, ids.shape[1] :]
    assert generate(ours, ids, max_new_tokens=NEW) == expected.tolist()


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right", "none of both"])
def test_a_batch_of_prompts_of_any_length_is_each_alone(llama, side):
    ids, lengths = prompts(), torch.tensor([7, 2, 4])
    places = torch.arange(7)
    real = places >= 7 - lengths.unsqueeze(1) if side == "left" else places < lengths.unsqueeze(1)
    if side == "none of both":
        real = torch.tensor([[1, 0, 1, 0, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1]]).bool()
    found = generate(llama, ids, max_new_tokens=NEW, real_tokens=real)
    assert found == [one_by_one(llama, ids[row, real[row]].tolist(), NEW) for row in range(3)]


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_looked_up_tokens_are_the_same_in_fewer_calls(family, monkeypatch):
    model = pair(family)[1]
    with torch.no_grad():  # a model that soon repeats itself
        model.projection.weight.mul_(0.2).add_(model.body.token_table.weight.roll(1, 0))
    ids = prompts()
    calls = []
    run = model.body.forward
    monkeypatch.setattr(model.body, "forward", lambda *args, **more: calls.append(1) or run(*args, **more))
    expected = generate(model, ids, max_new_tokens=3 * NEW)
    plain, calls[:] = len(calls), []
    cache = model.make_cache(spare=4)
    found = generate(model, ids, max_new_tokens=3 * NEW, lookup=Lookup(num_tokens=4), cache=cache)
    assert found == expected and len(calls) < plain == 3 * NEW
    assert cache.lengths == (7 + 3 * NEW - 1,) * 3


def test_a_row_ends_where_it_is_told_and_the_others_go_on(llama):
    ids = prompts()
    whole = generate(llama, ids, max_new_tokens=NEW)
    stop = whole[0][4]
    found = generate(llama, ids, max_new_tokens=NEW, stop_tokens=[stop])
    for row, tokens in zip(found, whole, strict=True):
        assert row == (tokens[: tokens.index(stop) + 1] if stop in tokens else tokens)
    letters = [chr(97 + token) for token in range(VOCAB)]
    string = "".join(letters[token] for token in whole[1][5:7])

    def spell(tokens):
        return "".join(letters[token] for token in tokens)

    found = generate(llama, ids, max_new_tokens=NEW, stop_strings=[string], decode=spell)
    for row, tokens in zip(found, whole, strict=True):
        end = spell(tokens).find(string)
        assert row == (tokens if end < 0 else tokens[: end + len(string)])


@torch.no_grad()
@pytest.mark.parametrize("lookup", [None, Lookup(num_tokens=3)], ids=["plain", "lookup"])
def test_between_steps_the_cache_goes_on_wherever_it_was_left(llama, lookup):
    ids, cache = prompts(), llama.make_cache()
    whole = generate(llama, ids, max_new_tokens=NEW)
    had = [[] for _ in whole]
    for step in stream(llama, ids, max_new_tokens=NEW, cache=cache, lookup=lookup):
        for row, tokens in zip(had, step, strict=True):
            row.extend(tokens)
        if min(map(len, had)) >= 5:
            break
    assert cache.lengths == tuple(7 + len(row) - 1 for row in had)
    last = torch.tensor([[row[-1]] for row in had])
    more = generate(llama, last, max_new_tokens=4, cache=cache)
    assert [a + b for a, b in zip(had, more, strict=True)] == [
        row[: len(a) + 4] for a, row in zip(had, whole, strict=True)
    ]


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("at", [1, 3])
def test_an_interrupted_call_leaves_the_cache_as_before_it(llama, monkeypatch, layer, at):
    ids, cache = prompts(), llama.make_cache()
    whole = generate(llama, ids, max_new_tokens=NEW)
    block, calls = llama.body.blocks[layer], []
    run = block.feed_forward.forward

    def interrupt(tokens):
        calls.append(1)
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        return run(tokens)

    monkeypatch.setattr(block.feed_forward, "forward", interrupt)
    had = [[] for _ in whole]
    with pytest.raises(KeyboardInterrupt):
        for step in stream(llama, ids, max_new_tokens=NEW, cache=cache):
            for row, tokens in zip(had, step, strict=True):
                row.extend(tokens)
    assert [len(row) for row in had] == [at] * 3 and cache.lengths == (7 + at - 1,) * 3
    more = generate(llama, torch.tensor([[row[-1]] for row in had]), max_new_tokens=4, cache=cache)
    assert [a + b for a, b in zip(had, more, strict=True)] == [row[: at + 4] for row in whole]


def test_a_seed_repeats_what_is_drawn(llama):
    drawn = [
        generate(llama, prompts(), max_new_tokens=NEW, sampling=Sampling(temperature=2.0, top_k=9, seed=seed))
        for seed in (5, 5, 6)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_penalty_counts_the_prompt_and_what_was_generated():
    theirs, ours = pair("llama")
    ids = prompts()
    expected = theirs.generate(ids, max_new_tokens=NEW, do_sample=False, repetition_penalty=1.7)[:, 7:].tolist()
    found = generate(ours, ids, max_new_tokens=NEW, sampling=Sampling(repetition_penalty=1.7))
    assert found == expected != generate(ours, ids, max_new_tokens=NEW)


def test_a_cache_of_ones_own_choice_is_used_and_too_small_a_one_refused(llama):
    ids = prompts()
    cache = ModelCache([StaticCache(7 + NEW - 1) for _ in llama.body.blocks])
    assert generate(llama, ids, max_new_tokens=NEW, cache=cache) == generate(llama, ids, max_new_tokens=NEW)
    small = ModelCache([StaticCache(7 + 2) for _ in llama.body.blocks])
    with pytest.raises(ConfigError, match="capacity must be at least 10 to take these tokens; got 9, of which 9"):
        generate(llama, ids, max_new_tokens=NEW, cache=small)
    with pytest.raises(ConfigError, match="cache must have one layer a block, 2; got 1"):
        generate(llama, ids, max_new_tokens=NEW, cache=ModelCache([GrowingCache()]))


def test_what_cannot_be_is_refused(llama):
    ids = prompts()
    with pytest.raises(UnsupportedError, match="lookup needs the token of the highest score"):
        generate(llama, ids, max_new_tokens=2, lookup=Lookup(), sampling=Sampling(temperature=1.0))
    with pytest.raises(ConfigError, match="each row must have a token to continue from"):
        generate(llama, ids, max_new_tokens=2, real_tokens=torch.tensor([[False] * 7, [True] * 7, [True] * 7]))
    with pytest.raises(ConfigError, match="max_new_tokens must be between 1"):
        generate(llama, ids, max_new_tokens=0)
    gpt2 = pair("gpt2")[1]
    assert len(generate(gpt2, ids, max_new_tokens=58)[0]) == 58
    with pytest.raises(ConfigError, match="max_new_tokens must be at most 58 for the longest text, as the model's pos"):
        generate(gpt2, ids, max_new_tokens=59)
    with pytest.raises(UnsupportedError, match="must not ask for gradients to be kept"):
        llama(ids, cache=llama.make_cache())
    with torch.no_grad(), pytest.raises(ConfigError, match="mask must hold no tensors beside a cache"):
        llama(ids, cache=llama.make_cache(), mask=headwise.KeyPadding(torch.tensor([7, 3, 4])))
    with pytest.raises(ConfigError, match="real_tokens are read with a cache"):
        llama(ids, real_tokens=torch.ones(3, 7, dtype=torch.bool))
