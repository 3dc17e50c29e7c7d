"""Every token of a stretch is asked for once, with what stands before it, at any length of windows."""

import dataclasses
import random

import pytest
import torch

from headwise.errors import ConfigError
from headwise.experiments.corpora.catalogue import CORPORA, find_corpus
from headwise.experiments.corpora.corpus import Corpus
from headwise.experiments.corpora.fetch import texts_of, version_of
from headwise.experiments.corpora.texts import SourceText, key_of
from headwise.experiments.examples import IGNORED
from headwise.experiments.language_modelling import LanguageModelling, bytes_per_token, token_stream
from headwise.experiments.models import transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.run import RunSettings
from headwise.experiments.vocabulary import BytePairs

SIZE = 263


def read(_):
    return [SourceText(text=f"Chapter {n}: {'the sea and the sky, ' * (n % 5 + 1)}{n * n}.") for n in range(41)]


@pytest.fixture(autouse=True)
def chapters(monkeypatch):
    corpus = Corpus(name="chapters", about="", licence="", labels=(), read=read)
    monkeypatch.setitem(CORPORA, "chapters", corpus)
    return corpus


def task(**numbers):
    return LanguageModelling(corpus="chapters", **{"seq_len": 13, "vocab_size": SIZE, **numbers})


def test_a_stream_holds_every_text_of_its_split_with_an_end_behind_it(chapters):
    pairs = BytePairs([text.text for text in texts_of(chapters) if text.split == "train"], SIZE)
    for split, stream in token_stream("chapters", SIZE).items():
        texts, current = [], []
        for token in stream.tolist():
            if token == pairs.end:
                texts.append(pairs.decode(current))
                current = []
            else:
                current.append(token)
        assert current == []
        assert sorted(texts) == sorted(text.text for text in texts_of(chapters) if text.split == split)


def test_no_pair_is_learned_from_the_other_splits(monkeypatch):
    train = [SourceText(text=f"qz qz qz {n}", split="train") for n in range(31)]
    test = SourceText(text="xy " * 500, split="test")
    corpus = Corpus(name="pairs", about="", licence="", labels=(), read=lambda _: [*train, test])
    monkeypatch.setitem(CORPORA, "pairs", corpus)
    assert len(token_stream("pairs", 258)["test"]) == 1500 + 1  # bytes and the end: the one pair is qz
    assert len(token_stream("pairs", 258)["train"]) < len(token_stream("pairs", 257)["train"])


def test_training_windows_ask_for_the_next_token_everywhere():
    stream = token_stream("chapters", SIZE)["train"].tolist()
    examples = task().draw(17, seed=3)
    assert examples.ids.shape == (17, 13) and examples.targets.shape == (17, 13, 1)
    joined = " ".join(map(str, stream)) + " "
    for ids, targets in zip(examples.ids.tolist(), examples.targets[..., 0].tolist(), strict=True):
        window = [*ids, targets[-1]]
        assert targets[:-1] == ids[1:] and " ".join(map(str, window)) + " " in joined
    assert torch.equal(examples.ids, task().draw(17, seed=3).ids)
    assert not torch.equal(examples.ids, task().draw(17, seed=4).ids)


def test_training_windows_begin_at_the_first_token_and_end_at_the_last():
    stream = token_stream("chapters", SIZE)["train"]
    longest = task(seq_len=len(stream) - 2)
    examples = longest.draw(64, seed=0)
    starts = {tuple(row[:3]) for row in examples.ids.tolist()}
    assert starts == {tuple(stream[:3].tolist()), tuple(stream[1:4].tolist())}
    assert stream[-1] in examples.targets[:, -1, 0]


@pytest.mark.parametrize(("seq_len", "stride"), [(13, None), (13, 1), (13, 5), (13, 13), (29, None), (1, None), (7, 3)])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_each_token_of_the_split_is_asked_for_once(seq_len, stride, split):
    stream = token_stream("chapters", SIZE)[split].tolist()
    examples = task(seq_len=seq_len, stride=stride).draw(10**6, seed=0, split=split)
    asked = stride or seq_len
    answers = [token for row in examples.targets[..., 0].tolist() for token in row if token != IGNORED]
    possible = len(stream) - 1 - (seq_len - asked)
    count = possible // asked * asked
    assert answers == stream[-count:] and possible - count < asked
    for ids, targets in zip(examples.ids.tolist(), examples.targets[..., 0].tolist(), strict=True):
        assert targets[: seq_len - asked] == [IGNORED] * (seq_len - asked) and IGNORED not in targets[seq_len - asked :]
        # of what was read, so many tokens stood before the first that is asked for
        assert [token for token in targets if token != IGNORED][:-1] == ids[seq_len - asked + 1 :]


def test_one_stretch_is_asked_for_at_any_length_and_stride():
    answers = set()
    for seq_len, stride in ((5, None), (10, None), (30, None), (30, 5), (30, 1), (60, 30)):
        targets = task(seq_len=seq_len, stride=stride, stretch=60).draw(10**6, seed=0, split="test").targets
        answers.add(tuple(targets[targets != IGNORED].tolist()))
    assert len(answers) == 1 and len(answers.pop()) == 60


def test_the_first_windows_are_returned_whatever_the_seed():
    some, same = (task().draw(3, seed=seed, split="test") for seed in (1, 2))
    whole = task().draw(10**6, seed=0, split="test")
    assert torch.equal(some.ids, same.ids) and torch.equal(some.ids, whole.ids[:3])


def test_tasks_of_other_lengths_share_their_tokens():
    assert token_stream("chapters", SIZE) is token_stream("chapters", SIZE)
    assert task().vocab_size == task(seq_len=40).vocab_size == task().num_classes and not task().classifies


def test_bytes_of_a_token_tell_losses_of_vocabularies_apart(chapters):
    tests = [text.text for text in texts_of(chapters) if text.split == "test"]
    num_bytes = sum(len(text.encode()) for text in tests)
    assert bytes_per_token("chapters", 257) == num_bytes / (num_bytes + len(tests))
    assert bytes_per_token("chapters", 300) > bytes_per_token("chapters", SIZE) > bytes_per_token("chapters", 257)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"corpus": "none"}, "corpus must be"),
        ({"vocab_size": 256}, "vocab_size"),
        ({"stride": 14}, "stride must be at most seq_len = 13; got 14"),
        ({"stretch": 14}, "stretch must be a multiple of 13"),
        ({"stride": 5, "stretch": 13}, "stretch must be a multiple of 5"),
    ],
)
def test_what_cannot_be_is_refused(numbers, text):
    with pytest.raises(ConfigError, match=text):
        LanguageModelling(**{"corpus": "chapters", "seq_len": 13, **numbers})


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_that_is_too_short_is_told(split):
    with pytest.raises(ConfigError, match=f"the {split} split of chapters must have 99999 tokens to ask for"):
        task(seq_len=99999).draw(1, seed=0, split=split)


def test_texts_stand_in_an_order_that_is_the_same_everywhere_and_not_that_of_their_digests(chapters):
    """Numbers of language models depend on it: by hand from Python's generator, seeded with the corpus's name."""
    pairs = BytePairs([text.text for text in texts_of(chapters) if text.split == "train"], SIZE)
    texts = [text.text for text in texts_of(chapters) if text.split == "train"]
    order = random.Random("chapters").sample(range(len(texts)), k=len(texts))
    assert order != sorted(order)
    expected = list(texts)
    random.Random("chapters").shuffle(expected)
    written = pairs.decode(token_stream("chapters", SIZE)["train"].tolist())
    places = [written.index(text) for text in expected]
    assert places == sorted(places) and expected != texts


def test_a_run_on_other_texts_is_another_run(monkeypatch):
    """Chapters differ between versions of Python: a folder with runs of one is not gone on with by another."""
    task = LanguageModelling(vocab_size=257)
    settings = RunSettings(task=task, model=transformer_for(task, embed_dim=8), recipe=Recipe())
    before = settings.to_dict()
    assert before == settings.to_dict()
    others = [SourceText(text="other"), SourceText(text="ones")]
    changed = dataclasses.replace(find_corpus("pydoc"), read=lambda _: others)
    monkeypatch.setitem(CORPORA, "pydoc", changed)
    assert settings.to_dict() != before
    assert settings.to_dict()["task"]["LanguageModelling"]["data"] == version_of(changed)


def test_what_is_tested_of_pydoc_is_not_learned():
    """Chapters hold one another: a few turns of phrase may stand in both, and no chapter's part."""

    def runs_of_words(splits):
        texts = [key_of(text.text).split() for text in texts_of(find_corpus("pydoc")) if text.split in splits]
        return [tuple(words[start : start + 8]) for words in texts for start in range(len(words) - 7)]

    learned = set(runs_of_words(("train",)))
    for split in ("validation", "test"):
        asked = runs_of_words((split,))
        assert len(asked) > 5000
        assert sum(one in learned for one in asked) < 0.01 * len(asked)


def test_pydoc_needs_no_fetching(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path / "nothing"))
    examples = LanguageModelling(vocab_size=257).draw(2, seed=0)
    assert examples.ids.shape == (2, 128) and not (tmp_path / "nothing").exists()
