"""A comparison as a file says what it says, and what it does not know it refuses by name."""

import copy
import datetime as dt
import re
import tomllib
from pathlib import Path

import pytest

from headwise.errors import ConfigError, HeadwiseError
from headwise.experiments.asking import make_model
from headwise.experiments.claim_tests import ClaimTest
from headwise.experiments.compare import Arm, Comparison
from headwise.experiments.comparison_file import comparison_of, read_comparison
from headwise.experiments.models import recurrent_for, transformer_for
from headwise.experiments.recipe import Recipe
from headwise.experiments.results import Published
from headwise.experiments.sequence_tasks import Transduction
from headwise.masks.patterns import SlidingWindow

FILE = """
name = "lengths"
metric = "whole"
seeds = [3, 5]
learning_rates = [1e-3]
buckets = [2, 4]

[task]
kind = "transduction"
change = "reverse"
max_tokens = 4
vocab_size = 11

[test_task]
kind = "transduction"
max_tokens = 7
vocab_size = 11

[recipe]
steps = 7
batch_size = 4

[[arms]]
name = "two heads"
embed_dim = 12
num_heads = 2
mask = "window:3"
lengthen = "clamp"
max_positions = 16

[[arms]]
name = "gru"
kind = "gru"
num_parameters = 500
recipe = { steps = 5 }

[[further_tests]]
name = "far"
kind = "transduction"
min_len = 8
max_tokens = 9
vocab_size = 11

[[claims]]
text = "heads go on"
source = "somebody"
arm = "two heads"
other = "gru"
where = "far"

[[published]]
text = "0.5"
source = "somebody"
differs = "all"
"""


def test_a_file_is_the_comparison_that_it_describes(tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    task = Transduction(change="reverse", max_tokens=4, vocab_size=11)
    expected = Comparison(
        name="lengths",
        task=task,
        arms=(
            Arm(
                name="two heads",
                model=transformer_for(task, embed_dim=12, num_heads=2, mask=SlidingWindow(3), max_positions=16),
                lengthen="clamp",
            ),
            Arm(
                name="gru",
                model=recurrent_for(task, "gru", num_parameters=500),
                recipe=Recipe(steps=5, batch_size=4),
            ),
        ),
        recipe=Recipe(steps=7, batch_size=4),
        seeds=(3, 5),
        learning_rates=(1e-3,),
        metric="whole",
        test_task=Transduction(max_tokens=7, vocab_size=11),
        buckets=(2, 4),
        further_tests=(("far", Transduction(min_len=8, max_tokens=9, vocab_size=11)),),
        claims=(ClaimTest(text="heads go on", source="somebody", arm="two heads", other="gru", where="far"),),
        published=(Published(text="0.5", source="somebody", differs="all"),),
    )
    assert read_comparison(tmp_path / "c.toml") == expected


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            'kind = "transduction"\n',
            'kind = "copying"\n',
            "task must have a kind, one of multi-offset-copy",
        ),
        ("vocab_size = 11", "vocabulary = 11", "task has 'vocabulary', which is none of change, min_len"),
        ("batch_size = 4", "batch = 4", "recipe has 'batch', which is none of steps"),
        ("num_heads = 2", "heads = 2", r"arms\[0\] has 'heads', which is none of embed_dim, num_heads"),
        (
            'kind = "gru"',
            'kind = "rnn"',
            r"arms\[1\] must have a kind, one of .*, lstm, .*c3tr; got 'rnn'",
        ),
        ("num_heads = 2", "num_heads = 5", "multiple of num_heads"),
        ('metric = "whole"', 'metric = "bleu"', "metric must be one of"),
        ('name = "lengths"', 'title = "lengths"', "the comparison has 'title'"),
        ('name = "gru"\n', "", "name"),
        ("[recipe]", "[recipe", "must be TOML"),
        ("recipe = { steps = 5 }", "recipe = 5", r"arms\[1\].recipe must be a table; got 5"),
        ('mask = "window:3"', 'mask = "windows:3"', "mask must be full, causal, window:SIZE"),
        ('mask = "window:3"', 'mask = "documents:3"', "mask of a layer must be a structural mask"),
        ('lengthen = "clamp"', 'lengthen = "wrap"', "lengthen must be"),
        ('name = "far"\n', "", r"further_tests\[0\] must have a name"),
        ('where = "far"', 'where = "near"', "a claim must be about one of test, <=2, 3-4, >4, far; got 'near'"),
        ('differs = "all"', 'differ = "all"', r"published\[0\] has 'differ', which is none of text, source, differs"),
        ("[[published]]", "[published]", r"published must be tables, each under \[\[published\]\]"),
    ],
)
def test_what_a_file_does_not_know_is_named(tmp_path, before, after, message, without_type_checks):
    assert before in FILE
    (tmp_path / "c.toml").write_text(FILE.replace(before, after, 1))
    with pytest.raises(ConfigError, match=message):
        read_comparison(tmp_path / "c.toml")


def test_a_file_that_is_not_there_or_no_text_is_told_in_a_line(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_comparison(tmp_path / "none.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="must be TOML"):
        read_comparison(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_text("a = 1\n" * 2**18)
    with pytest.raises(ConfigError, match="at most 1 MiB"):
        read_comparison(tmp_path / "c.toml")


def test_the_file_of_the_results_of_digits_is_one():
    page = (Path(__file__).parents[2] / "docs" / "results" / "digits.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = comparison_of(tomllib.loads(shown))
    sizes = [sum(one.numel() for one in make_model(arm.model).parameters()) for arm in found.arms]
    assert max(sizes) < 1.12 * min(sizes)  # nearly the same, as the page says
    assert [type(arm.model).__name__ for arm in found.arms].count("ImageClassifierConfig") == 3


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("recipe", {"betas": [0.9]}, "betas must be two numbers"),
        ("recipe", {"betas": [0.9, "x"]}, "betas must be a finite number; got"),
        ("recipe", {"impl": dt.date(2020, 1, 1)}, "impl must be a string; got datetime.date"),
        ("recipe", {"impl": "fast"}, "impl must be one of .* got 'fast'"),
        ("task", {"offsets": [1.5]}, "offsets must be a whole number; got 1.5"),
        ("task", {"offsets": 3}, "offsets must be whole numbers, one behind the other; got 3"),
        ("task", {"kind": []}, r"task must have a kind, one of .*; got \[\]"),
        ("arms", {"kind": ["gru"]}, r"arms\[0\] must have a kind, one of .*; got \['gru'\]"),
        ("claims", {"minus": []}, r"minus must be a string; got \(\)|minus must be a string; got \[\]"),
        ("claims", {"metric": 3}, "metric must be a string; got 3"),
        ("", {"seeds": {"x": 1}}, "seeds must be whole numbers, one behind the other; got {'x': 1}"),
        ("", {"seeds": [0.5, 1]}, "seeds must be a whole number; got 0.5"),
        ("", {"buckets": {"x": 1}}, "buckets must be whole numbers"),
        ("", {"buckets": [True]}, "buckets must be a whole number; got True"),
        ("", {"learning_rates": 0.1}, "learning_rates must be of type tuple; got 0.1"),
        ("", {"question": dt.date(2020, 1, 1)}, "question must be a string"),
        ("", {"question": ["a"]}, "question must be a string"),
    ],
)
def test_a_value_of_another_kind_is_one_line_before_anything_is_run(table, change, message, without_type_checks):
    content = {
        "name": "small",
        "seeds": [0, 1],
        "task": {"kind": "multi-offset-copy", "vocab_size": 8, "seq_len": 8, "offsets": [1, 3]},
        "recipe": {"steps": 2},
        "arms": [{"name": name, "num_heads": 1, "embed_dim": 8} for name in "ab"],
        "claims": [{"text": "t", "source": "s", "arm": "a", "other": "b"}],
    }
    comparison_of(content)
    changed = content[table] if table else content
    (changed[0] if isinstance(changed, list) else changed).update(change)
    with pytest.raises(HeadwiseError, match=f"^[^\n]*{message}"):
        comparison_of(content)


def test_whole_numbers_serve_as_betas(without_type_checks):
    table = {"steps": 2, "betas": [0, 0.98]}
    kinds = {"name": "small", "task": {"kind": "multi-offset-copy"}, "arms": [{"name": name} for name in "ab"]}
    assert comparison_of({**kinds, "recipe": table}).recipe.betas == (0.0, 0.98)
    assert Recipe(betas=(0, 0.98)).betas == (0.0, 0.98) and isinstance(Recipe(betas=(0, 0.98)).betas[0], float)


@pytest.mark.parametrize("sign", ["\x1b", "\x00", "\x7f", "\u202e", "\u2067"])
def test_signs_that_nobody_sees_are_refused_wherever_words_are_and_get_into_no_error(sign, without_type_checks):
    """They would change the words around them, in a terminal or in a page."""
    words = f"a{sign}b"
    content = {
        "name": "small",
        "question": "one line\nand another: 比较\t",
        "task": {"kind": "multi-offset-copy", "seq_len": 8},
        "arms": [{"name": name, "num_heads": 1, "embed_dim": 8} for name in ("a", "b")],
        "claims": [{"text": "t", "source": "s", "arm": "a", "other": "b"}],
        "published": [{"text": "t", "source": "s", "differs": "d"}],
        "further_tests": [{"name": "far", "kind": "multi-offset-copy", "seq_len": 9}],
    }
    comparison_of(content)
    places = [("name",), ("question",), ("arms", 0, "name"), ("claims", 0, "text"), ("claims", 0, "source")]
    places += [("claims", 0, "arm"), ("published", 0, "differs"), ("further_tests", 0, "name")]
    for place in places:
        changed = copy.deepcopy(content)
        table = changed
        for step in place[:-1]:
            table = table[step]
        table[place[-1]] = words
        with pytest.raises(ConfigError, match="control characters") as caught:
            comparison_of(changed)
        assert str(caught.value).isprintable()
    with pytest.raises(ConfigError) as caught:
        comparison_of({**content, "task": {"kind": 10**400}})
    assert len(str(caught.value)) < 300
