"""An encoder-decoder of ours scores as T5 does, cached as at once, and finds the texts that its beams find."""

import itertools

import pytest
import torch

from headwise.convert.seq2seq import seq2seq_from_huggingface
from headwise.errors import ConfigError, UnsupportedError
from headwise.nn.beam import beam_search
from headwise.nn.seq2seq import Seq2Seq

BATCH, SOURCE, TARGET, VOCAB, STOP = 3, 9, 6, 19, 1


def make(feed_forward="gated-gelu", scaled=True, std=0.4, vocab=VOCAB):
    import transformers

    torch.manual_seed(0)
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
        tie_word_embeddings=scaled,  # transformers ties the head in any case, and scales its states only if told to
        pad_token_id=0,
        eos_token_id=STOP,
        decoder_start_token_id=0,
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
def test_what_pads_a_source_changes_nothing(pair):
    ours, (ids, real) = pair[1], sources()
    target = torch.randint(2, VOCAB, (BATCH, TARGET))
    together = ours(ids, target, real_source=real)
    for row, length in enumerate((9, 4, 6)):
        alone = ours(ids[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-9)


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


@torch.no_grad()
def test_as_many_beams_as_there_are_texts_find_the_best_of_all():
    """With 4 tokens and 3 places every text can be scored: those that end, and those that are cut off."""
    ours = seq2seq_from_huggingface(make(vocab=4))
    ids = torch.tensor([[2, 3, 2, 1]])
    texts = [[*beginning, STOP] for size in range(3) for beginning in itertools.product((0, 2, 3), repeat=size)] + [
        list(text) for text in itertools.product((0, 2, 3), repeat=3)
    ]

    def score(text):
        scores = ours(ids, torch.tensor([[0, *text[:-1]]]))[0].log_softmax(-1)
        return float(scores[torch.arange(len(text)), torch.tensor(text)].sum()) / len(text) ** 0.7

    best = sorted(texts, key=score, reverse=True)[:3]
    (found,) = beam_search(
        ours, ids, start_token=0, stop_token=STOP, max_new_tokens=3, num_beams=64, length_penalty=0.7, num_best=3
    )
    assert [one.tokens for one in found] == best
    assert [one.score for one in found] == pytest.approx([score(text) for text in best], abs=1e-9)


def test_what_cannot_be_built_converted_or_searched_is_refused(pair):
    import transformers

    untied = make()
    untied.lm_head.weight = torch.nn.Parameter(untied.shared.weight.detach().clone())
    with pytest.raises(UnsupportedError, match="the head of a T5 must be its token table to be converted"):
        seq2seq_from_huggingface(untied)
    with pytest.raises(UnsupportedError, match="must be a T5 with its head to be converted; got a Linear of None"):
        seq2seq_from_huggingface(torch.nn.Linear(2, 2))
    import headwise

    bart = headwise.config.huggingface.read_config(transformers.BartConfig().to_dict(), name="bart", head=True)
    with pytest.raises(UnsupportedError, match=r"must be .* for an encoder-decoder to be built here"):
        Seq2Seq(bart)
    ids, _ = sources()
    with pytest.raises(ConfigError, match="num_best must be at most num_beams = 2; got 3"):
        beam_search(pair[1], ids, start_token=0, stop_token=1, max_new_tokens=2, num_beams=2, num_best=3)
