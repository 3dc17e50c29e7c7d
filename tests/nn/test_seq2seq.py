"""An encoder-decoder of ours scores as T5 does, cached as at once, and finds the texts that its beams find."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from headwise.caches.model import ModelCache
from headwise.caches.slots import CrossCache, GrowingCache
from headwise.convert.seq2seq import seq2seq_from_huggingface
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.beam import beam_search
from headwise.nn.seq2seq import DecoderCache, Seq2Seq

BATCH, SOURCE, TARGET, VOCAB, STOP = 3, 9, 6, 19, 1


def make(feed_forward="gated-gelu", scaled=True, std=0.4, vocab=VOCAB, seed=0, **more):
    import transformers

    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=vocab,
        d_model=12,
        d_kv=5,
        d_ff=17,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=3,
        relative_attention_num_buckets=6,
        relative_attention_max_distance=7,
        feed_forward_proj=feed_forward,
        # In transformers 5.24 this says whether the head's states are scaled; its matrix is the token table's in any
        # case, unless a checkpoint has two (tests/convert/test_seq2seq.py).
        tie_word_embeddings=scaled,
        pad_token_id=0,
        eos_token_id=STOP,
        decoder_start_token_id=0,
        **more,
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


def sources():
    generator = torch.Generator().manual_seed(4)
    lengths = torch.tensor([9, 4, 6])
    ids = torch.randint(2, VOCAB, (BATCH, SOURCE), generator=generator)
    return ids, torch.arange(SOURCE) < lengths.unsqueeze(1)


@pytest.fixture(scope="module")
def pair():
    theirs = make()
    return theirs, seq2seq_from_huggingface(theirs)


@torch.no_grad()
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("feed_forward", ["gated-gelu", "relu"])
def test_scores_are_those_of_t5(feed_forward, scaled):
    theirs = make(feed_forward, scaled=scaled)
    ours = seq2seq_from_huggingface(theirs)
    (ids, real), target = sources(), torch.randint(2, VOCAB, (BATCH, TARGET))
    expected = theirs(input_ids=ids, attention_mask=real.long(), decoder_input_ids=target).logits
    # Their softmax is float32 inside: off by some 1e-7 of each weight.
    torch.testing.assert_close(ours(ids, target, real_source=real), expected, rtol=0, atol=1e-4)
    tables = [one.attention.relative_bias.table for one in ours.decoder]
    assert (
        all(table is tables[0] for table in tables) and tables[0] is not ours.encoder[0].attention.relative_bias.table
    )


@torch.no_grad()
def test_decoded_token_by_token_is_decoded_at_once(pair):
    ours, (ids, real) = pair[1], sources()
    target = torch.randint(2, VOCAB, (BATCH, TARGET))
    cache, memory = ours.make_cache(), ours.encode(ids, real)
    found = [ours.decode(one, memory, real_source=real, cache=cache) for one in target.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(found, dim=1), ours(ids, target, real_source=real), rtol=0, atol=1e-9)
    assert cache.source.lengths == (9, 4, 6) and cache.own.lengths == (TARGET,) * 3


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_pads_a_source_changes_nothing(pair, side):
    ours, (ids, real) = pair[1], sources()
    target = torch.randint(2, VOCAB, (BATCH, TARGET))
    if side == "left":
        ids, real = ids.flip(1), real.flip(1)
    together = ours(ids, target, real_source=real)
    for row in range(BATCH):
        alone = ours(ids[row : row + 1, real[row]], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-9)


@torch.no_grad()
def test_padding_may_stand_within_a_source(pair):
    theirs, ours = pair
    ids, target = sources()[0], torch.randint(2, VOCAB, (BATCH, TARGET))
    real = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 1, 1, 0], [0, 0, 1, 0, 1, 1, 0, 1, 0]]).bool()
    expected = theirs(input_ids=ids, attention_mask=real.long(), decoder_input_ids=target).logits
    found = ours(ids, target, real_source=real)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)  # as above
    cache, memory = ours.make_cache(), ours.encode(ids, real)
    steps = [ours.decode(one, memory, real_source=real, cache=cache) for one in target.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), found, rtol=0, atol=1e-9)


@torch.no_grad()
def test_an_interrupted_step_leaves_the_cache_usable(pair, monkeypatch):
    ours, (ids, real) = pair[1], sources()
    target = torch.randint(2, VOCAB, (BATCH, TARGET))
    cache, memory = ours.make_cache(), ours.encode(ids, real)
    for number, one in enumerate(target.split(1, dim=1)):
        if number in (0, 3):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(ours.decoder[1], "forward", interrupt)
                ours.decode(one, memory, real_source=real, cache=cache)
        found = ours.decode(one, memory, real_source=real, cache=cache)
        expected = ours(ids, target[:, : number + 1], real_source=real)[:, -1:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def other(config, **changes):
    """The model of a T5's config with other norms and another head, with weights that hide no part."""
    blocks = tuple(replace(block, norm_placement="post", norm="layernorm") for block in config.blocks)
    head = replace(config.head, tied=False)
    model = Seq2Seq(replace(config, blocks=blocks, head=head, **changes)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@torch.no_grad()
@pytest.mark.parametrize("final_norm", [True, False])
def test_post_norm_and_a_head_of_its_own_are_the_equations(pair, final_norm):
    ours = other(pair[1].config, final_norm=final_norm)
    ids, target = sources()[0], torch.randint(2, VOCAB, (BATCH, TARGET))
    memory, x = ours.encode(ids), ours.token_table.weight[target]
    for block in ours.decoder:
        x = block.attention_norm(x + block.attention(x))
        x = block.cross_attention_norm(x + block.cross_attention(x, memory))
        x = block.feed_forward_norm(x + block.feed_forward(x))
    if final_norm:
        x = functional.layer_norm(x, (12,), ours.norm.weight, ours.norm.bias, ours.norm.eps)
    expected = x @ ours.projection.weight.T
    torch.testing.assert_close(ours(ids, target), expected, rtol=0, atol=1e-12)
    steps, cache = target.split(1, dim=1), ours.make_cache()
    found = torch.cat([ours.decode(one, memory, cache=cache) for one in steps], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_an_encoder_without_a_last_norm_has_none(pair):
    config = pair[1].config
    ours = other(config, encoder=replace(config.encoder, final_norm=False))
    ids = sources()[0]
    x = ours.token_table.weight[ids]
    for block in ours.encoder:
        x = block(x)
    torch.testing.assert_close(ours.encode(ids), x, rtol=0, atol=1e-12)


class Louder(torch.nn.Linear):
    def forward(self, tokens):
        return 2 * super().forward(tokens)


@torch.no_grad()
def test_a_head_of_its_own_is_called_as_a_module(pair):
    ours, ids = other(pair[1].config), sources()[0]
    before = ours(ids, ids)
    handle = ours.projection.register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(ours(ids, ids), before + 1, rtol=0, atol=1e-12)
    handle.remove()
    weight = ours.projection.weight
    ours.projection = Louder(12, VOCAB, bias=False)
    ours.projection.weight = weight
    torch.testing.assert_close(ours(ids, ids), 2 * before, rtol=0, atol=1e-12)


@torch.no_grad()
def test_dropout_falls_on_the_tokens_of_both_sides():
    ours = seq2seq_from_huggingface(make(dropout_rate=0.3))
    assert ours.dropout.p == 0.3
    ids, target = sources()[0], torch.randint(2, VOCAB, (BATCH, TARGET))
    memory = ours.encode(ids)
    ours.dropout = torch.nn.Dropout(1.0)  # of every number, in the only part that is in training mode
    for found in (ours.decode(target, memory), ours.encode(ids)):  # texts differ by what they look at alone
        assert (found - found[:, :1]).abs().max() < 1e-12


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.0, 2.0])
@pytest.mark.parametrize("num_beams", [1, 2, 4])
def test_beams_find_the_texts_that_transformers_finds(pair, num_beams, length_penalty):
    theirs, ours = pair
    ids, real = sources()
    found = beam_search(
        ours,
        ids,
        start_token=0,
        stop_token=STOP,
        max_new_tokens=8,
        num_beams=num_beams,
        length_penalty=length_penalty,
        num_best=num_beams,
        real_source=real,
    )
    if num_beams == 1:
        expected = theirs.generate(ids, attention_mask=real.long(), max_new_tokens=8, do_sample=False).tolist()
    else:
        expected = theirs.generate(
            ids,
            attention_mask=real.long(),
            max_new_tokens=8,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=length_penalty,
            early_stopping=False,
            do_sample=False,
        ).tolist()
    texts = [hypothesis.tokens for text in found for hypothesis in text]
    for mine, row in zip(texts, expected, strict=True):
        assert mine == row[1 : 1 + len(mine)] and set(row[1 + len(mine) :]) <= {0}


def until_stop(tokens):
    return tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens


@pytest.mark.parametrize(
    ("vocab", "std", "num_beams"), [(3, 0.3, 2), (3, 0.3, 4), (5, 0.4, 2), (5, 0.4, 4), (19, 0.2, 3)]
)
def test_beams_over_few_tokens_are_those_of_transformers(vocab, std, num_beams):
    """Where stops are likely: they take the places of beams, and say when a search is over."""
    for seed, (length_penalty, longest) in enumerate(itertools.product((1.0, 0.0, -1.0, 2.0), (3, 10))):
        theirs = make(vocab=vocab, std=std, seed=seed)
        ids = torch.randint(2, vocab, (BATCH, 5))
        found = beam_search(
            seq2seq_from_huggingface(theirs),
            ids,
            start_token=0,
            stop_token=STOP,
            max_new_tokens=longest,
            num_beams=num_beams,
            length_penalty=length_penalty,
            num_best=num_beams,
        )
        expected = theirs.generate(
            ids,
            max_new_tokens=longest,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=length_penalty,
            early_stopping=False,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        texts = [hypothesis for text in found for hypothesis in text]
        assert [one.tokens for one in texts] == [until_stop(row[1:]) for row in expected.sequences.tolist()]
        scores = torch.tensor([one.score for one in texts])
        torch.testing.assert_close(scores, expected.sequences_scores, rtol=1e-5, atol=1e-5)  # theirs are float32


@torch.no_grad()
@pytest.mark.parametrize("vocab", [2, 3, 4, 5])
def test_as_many_beams_as_there_are_texts_find_all_of_them_in_order(vocab):
    """With 3 places every text can be scored: those that end, and those that are cut off."""
    others = [token for token in range(vocab) if token != STOP]
    cut_off = list(itertools.product(others, repeat=3))
    for seed, length_penalty in enumerate((1.0, 0.7, 0.0, -1.0)):
        ours = seq2seq_from_huggingface(make(vocab=vocab, seed=seed, std=0.3))
        ids = torch.randint(0, vocab, (1, 4))
        targets = torch.tensor([(0, *text[:-1]) for text in cut_off])
        log_probs = ours(ids.expand(len(cut_off), -1), targets).log_softmax(-1)
        sums = {}
        for text, scores in zip(cut_off, log_probs, strict=True):
            for size in range(3):
                before = sum(float(scores[place, text[place]]) for place in range(size))
                sums[(*text[:size], STOP)] = before + float(scores[size, STOP])
                sums[text] = before + float(scores[size, text[size]])
        expected = sorted(((total / len(text) ** length_penalty, text) for text, total in sums.items()), reverse=True)
        for num_beams in (len(sums), len(sums) + 3):
            (found,) = beam_search(
                ours,
                ids,
                start_token=0,
                stop_token=STOP,
                max_new_tokens=3,
                num_beams=num_beams,
                length_penalty=length_penalty,
                num_best=num_beams,
            )
            assert [tuple(one.tokens) for one in found] == [text for _, text in expected]
            assert [one.score for one in found] == pytest.approx([score for score, _ in expected], abs=1e-9)


@torch.no_grad()
def test_scores_are_summed_in_float64_whatever_the_model_is(pair):
    ours, ids = seq2seq_from_huggingface(make().float()), sources()[0][:1]
    ((found,),) = beam_search(ours, ids, start_token=0, stop_token=STOP, max_new_tokens=8, num_beams=1)
    memory, cache, total = ours.encode(ids), ours.make_cache(), 0.0
    for last, token in itertools.pairwise([0, *found.tokens]):
        scores = ours.decode(torch.tensor([[last]]), memory, cache=cache)[0, -1]
        assert scores.dtype == torch.float32
        total += float(scores.double().log_softmax(-1)[token])
    assert found.score == pytest.approx(total / len(found.tokens), abs=1e-13)  # a sum of 8 in float64


def test_what_cannot_be_built_is_refused():
    import transformers

    from headwise.config.huggingface import read_config

    bart = read_config(transformers.BartConfig().to_dict(), name="bart", head=True)
    with pytest.raises(UnsupportedError, match=r"must be .* for an encoder-decoder to be built here"):
        Seq2Seq(bart)


IDS = torch.randint(2, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
REAL = torch.ones(2, 9, dtype=torch.bool)
NO_SEARCH = {
    "num_best": ({"num_beams": 2, "num_best": 3}, "num_best must be at most num_beams = 2; got 3"),
    "ids: none": ({"source_ids": None}, "source_ids must hold one whole number a token, .*; got None"),
    "ids: one text": ({"source_ids": IDS[0]}, r"source_ids must .*, shape \(batch, seq_len\); got .* shape \(9,\)"),
    "ids: floats": ({"source_ids": IDS.float()}, "source_ids must hold one whole number a token"),
    "ids: beyond": ({"source_ids": IDS + 100}, "ids of sources must be from 0 to vocab_size - 1 = 18; got 1"),
    "ids: below": ({"source_ids": IDS - 100}, "ids of sources must be from 0 to vocab_size - 1 = 18; got -"),
    "ids: meta": ({"source_ids": IDS.to("meta")}, "ids of sources must be on the device of the table, cpu; got meta"),
    "start: beyond": ({"start_token": VOCAB}, "start_token must be between 0 and 18; got 19"),
    "start: below": ({"start_token": -1}, "start_token must be between 0 and 18; got -1"),
    "start: none": ({"start_token": None}, "start_token must be a whole number; got None"),
    "stop: several": ({"stop_token": [1]}, r"stop_token must be a whole number; got \[1\]"),
    "stop: none": ({"stop_token": None}, "stop_token must be a whole number; got None"),
    "stop: beyond": ({"stop_token": 99}, "stop_token must be between 0 and 18; got 99"),
    "real: rows": ({"real_source": REAL[:1]}, r"real_source must .*, shape \(2, 9\); got .* of shape \(1, 9\)"),
    "real: numbers": ({"real_source": REAL.long()}, r"real_source must hold a bool for each.*; got torch.int64"),
    "real: a list": ({"real_source": REAL.tolist()}, r"real_source must hold a bool for each token .*; got \[\[True"),
    "penalty": ({"length_penalty": 800}, r"length_penalty must keep 3 \*\* length_penalty between 1e-250 .*; got 800"),
    "penalty: vast": ({"length_penalty": 1e200}, r"length_penalty must keep .*; got 1e\+200"),
    "penalty: below": ({"length_penalty": -1e200}, r"length_penalty must keep .*; got -1e\+200"),
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(("call", "text"), NO_SEARCH.values(), ids=NO_SEARCH)
def test_what_cannot_be_searched_is_refused_at_the_door(pair, call, text):
    usual = {"source_ids": IDS, "start_token": 0, "stop_token": 1, "max_new_tokens": 3}
    with pytest.raises(ConfigError, match=text):
        beam_search(pair[1], **{**usual, **call})


@torch.no_grad()
def test_a_penalty_at_the_limit_still_counts(pair):
    for length_penalty in (500.0, -500.0):
        ((found,), _) = beam_search(
            pair[1], IDS, start_token=0, stop_token=1, max_new_tokens=3, length_penalty=length_penalty
        )
        assert math.isfinite(found.score) and found.score <= 0


def filled(model, *, real_source=None):
    cache = model.make_cache()
    model.decode(IDS[:, :1], model.encode(IDS, real_source), real_source=real_source, cache=cache)
    return cache


def padded():
    real = REAL.clone()
    real[1, 4:] = False
    return real


NOT_DECODED = {
    "ids: beyond": (lambda model: {"ids": IDS + 100}, "ids of targets must be from 0 to vocab_size - 1 = 18; got 1"),
    "ids: none": (lambda model: {"ids": None}, "ids of targets must hold one whole number a token"),
    "ids: meta": (lambda model: {"ids": IDS.to("meta")}, "ids of targets must be on the device of the table, cpu"),
    "memory: rows": (lambda model: {"memory": model.encode(IDS[:1])}, "memory must have a row a target, 2; got 1"),
    "memory: width": (
        lambda model: {"memory": torch.zeros(2, 9, 5, dtype=torch.float64)},
        r"memory must have shape \(batch, seq_len, embed_dim = 12\); got \(2, 9, 5\)",
    ),
    "real: length": (
        lambda model: {"real_source": REAL[:, :4], "cache": model.make_cache()},
        r"real_source must hold a bool for each token of the sources, shape \(2, 9\); got .* of shape \(2, 4\)",
    ),
    "cache: of tokens alone": (
        lambda model: {"cache": ModelCache([GrowingCache() for _ in range(2)])},
        "cache must be of type DecoderCache; got",
    ),
    "cache: of lists": (
        lambda model: {"cache": DecoderCache([GrowingCache()], [CrossCache()])},
        "cache must be of type ModelCache; got",
    ),
    "cache: a layer less": (
        lambda model: {"cache": DecoderCache(ModelCache([GrowingCache()]), model.make_cache().source)},
        "cache must have one layer a block, 2; got 1",
    ),
    "cache: a layer more": (
        lambda model: {"cache": DecoderCache(model.make_cache().own, ModelCache([CrossCache() for _ in range(3)]))},
        "cache must have one layer a block, 2; got 3",
    ),
    "cache: another length": (
        lambda model: {"memory": model.encode(IDS[:, :4]), "cache": filled(model)},
        r"cache must be of these sources, of \(4, 4\) tokens; got one of \(9, 9\) \(make another\)",
    ),
    "cache: other padding": (
        lambda model: {"cache": filled(model), "real_source": padded()},
        r"cache must be of these sources, of \(9, 4\) tokens; got one of \(9, 9\)",
    ),
    "cache: no padding": (
        lambda model: {"cache": filled(model, real_source=padded())},
        r"cache must be of these sources, of \(9, 9\) tokens; got one of \(9, 4\)",
    ),
    "cache: other rows": (
        lambda model: {"ids": IDS[:1], "memory": model.encode(IDS[:1]), "cache": filled(model)},
        r"cache must be of these sources, of \(9,\) tokens; got one of \(9, 9\)",
    ),
}


@torch.no_grad()
@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(("make_call", "text"), NOT_DECODED.values(), ids=NOT_DECODED)
def test_what_cannot_be_decoded_is_refused_at_the_door(pair, make_call, text):
    ours = pair[1]
    with pytest.raises(ConfigError, match=text):
        ours.decode(**{"ids": IDS[:, :3], "memory": ours.encode(IDS), **make_call(ours)})
