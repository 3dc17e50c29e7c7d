"""Generated tokens are those of transformers and of full passes: in batches, looked up, stopped, interrupted."""

from dataclasses import replace

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


def test_an_iterator_that_was_left_touches_its_cache_no_more(llama):
    cache = llama.make_cache()
    steps = stream(llama, prompts(), max_new_tokens=9, cache=cache)
    given = [next(steps) for _ in range(3)]
    generate(llama, torch.tensor(given[-1]), max_new_tokens=4, cache=cache)
    lengths = cache.lengths
    del steps
    assert cache.lengths == lengths == (7 + 2 + 4,) * 3


def test_an_iterator_notices_that_its_cache_was_used_by_others(llama):
    cache = llama.make_cache()
    steps = stream(llama, prompts(), max_new_tokens=9, cache=cache)
    last = next(steps)
    generate(llama, torch.tensor(last), max_new_tokens=4, cache=cache)
    with pytest.raises(ConfigError, match=r"as the last step left it, of .7, 7, 7. tokens; got .11, 11, 11."):
        next(steps)


@pytest.mark.parametrize("lookup", [None, Lookup(num_tokens=3)])
def test_what_was_not_handed_out_is_not_in_the_cache(llama, lookup):
    """`decode` fails for the second row in the second step, after the first row has taken its token."""
    calls = []

    def decode(tokens):
        calls.append(tokens)
        if len(calls) == 5:
            raise RuntimeError("no text")
        return ""

    cache = llama.make_cache()
    steps = stream(llama, prompts(), max_new_tokens=9, cache=cache, stop_strings=["x"], decode=decode, lookup=lookup)
    given = next(steps)
    with pytest.raises(RuntimeError, match="no text"):
        next(steps)
    assert [len(row) for row in given] == [1, 1, 1]
    assert cache.lengths == (7, 7, 7)


def test_a_ring_that_cannot_take_back_what_is_looked_up_is_refused_at_the_door():
    model = pair("mistral")[1]
    cache = model.make_cache(spare=2)
    generate(model, prompts(), max_new_tokens=9, cache=cache)
    lengths = cache.lengths
    with pytest.raises(ConfigError, match=r"lookup.num_tokens must be at most 3, .*make_cache.spare=10"):
        generate(model, prompts(), max_new_tokens=9, cache=cache, lookup=Lookup())
    assert cache.lengths == lengths
    same = generate(model, prompts(), max_new_tokens=NEW)
    spare = model.make_cache(spare=2)
    assert generate(model, prompts(), max_new_tokens=NEW, cache=spare, lookup=Lookup(num_tokens=3)) == same


def test_a_stopped_row_takes_no_more_memory(llama):
    cache = llama.make_cache()
    free = generate(llama, prompts(), max_new_tokens=NEW)
    stop = free[0][2]
    new = generate(llama, prompts(), max_new_tokens=NEW, stop_tokens=[stop], cache=cache)
    assert cache.lengths == tuple(7 + len(row) - 1 for row in new) and len(new[0]) <= 3


def test_a_head_that_is_listened_to_or_of_another_kind_is_called():
    config = pair("llama")[1].config
    model = headwise.build(replace(config, head=replace(config.head, tied=False))).eval()
    heard = []
    hook = model.projection.register_forward_hook(lambda *call: heard.append(1))
    generate(model, prompts(), max_new_tokens=2)
    hook.remove()
    assert len(heard) == 2

    class Twice(torch.nn.Linear):
        def forward(self, hidden):
            return 2 * super().forward(hidden)

    plain = model.project(torch.ones(1, 24))
    twice = Twice(24, VOCAB, bias=False)
    twice.load_state_dict(model.projection.state_dict())
    model.projection = twice
    torch.testing.assert_close(model.project(torch.ones(1, 24)), 2 * plain)


def test_a_model_whose_tokens_read_later_ones_continues_nothing(llama):
    blocks = tuple(
        replace(block, attention=replace(block.attention, mask=headwise.Full())) for block in llama.config.blocks
    )
    model = headwise.build(replace(llama.config, blocks=blocks)).eval()
    with pytest.raises(ConfigError, match="no token may read later ones, where texts are continued; layer 0"):
        generate(model, prompts(), max_new_tokens=2)


def test_a_cache_of_other_rows_and_one_of_inference_mode_are_refused(llama):
    cache = llama.make_cache()
    generate(llama, prompts(), max_new_tokens=2, cache=cache)
    with pytest.raises(ConfigError, match="the cache must be of 2 rows, one for each text; got 3"):
        generate(llama, prompts(2), max_new_tokens=2, cache=cache)
    with torch.inference_mode():
        cache = llama.make_cache()
        new = generate(llama, prompts(), max_new_tokens=2, cache=cache)
        generate(llama, torch.tensor(new)[:, -1:], max_new_tokens=2, cache=cache)
    with pytest.raises(ConfigError, match=r"inference_mode.. must be used under it"):
        generate(llama, torch.tensor(new)[:, -1:], max_new_tokens=2, cache=cache)


def test_a_text_longer_than_the_table_of_positions_is_named():
    model = pair("gpt2")[1]
    with pytest.raises(ConfigError, match=r"a text must be of at most 64 tokens, .*; got 65"):
        generate(model, prompts(1, 65), max_new_tokens=1)
    with pytest.raises(ConfigError, match="max_new_tokens must be at most 1 "):
        generate(model, prompts(1, 64), max_new_tokens=2)


def test_ids_without_numbers_are_named(llama):
    with pytest.raises(ConfigError, match="ids must"):
        generate(llama, torch.ones(2, 3, device="meta", dtype=torch.long), max_new_tokens=1)
