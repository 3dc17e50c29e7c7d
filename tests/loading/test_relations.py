"""A user's file of relations: what it may say, and every way that it can be bad."""

import json

import pytest

from headwise.errors import TextError
from headwise.loading.relations import read_relations

TEXTS = ("The cats chase it, and it hides with a mouse.", "她爱猫,猫也爱她 แมวกินปลา")


@pytest.fixture
def read(tmp_path):
    def read_content(content):
        path = tmp_path / "relations.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_relations(path, TEXTS)

    return read_content


def words_of(relations):
    return {
        name: [(TEXTS[text][slice(*first)], TEXTS[text][slice(*second)]) for text, first, second in pairs]
        for name, pairs in relations.items()
    }


def test_words_are_found_where_they_stand(read):
    relations = read({"verb": [["cats", "chase"], [0, ["it", 2], "hides"]], "noun": [[1, "爱猫", [9, 11]]]})
    assert relations == {
        "verb": ((0, (4, 8), (9, 14)), (0, (23, 25), (26, 31))),
        "noun": ((1, (1, 3), (9, 11)),),
    }
    assert words_of(relations)["verb"] == [("cats", "chase"), ("it", "hides")]


def test_a_word_within_another_is_not_that_word(read):
    assert read({"of": [[["it", 1], "with"]]})["of"] == ((0, (15, 17), (32, 36)),)
    with pytest.raises(TextError, match="text 0 has 'it' 2 times, counted from 1"):
        read({"of": [[["it", 3], "with"]]})  # the third would be the one in "with"


def test_a_word_of_a_script_without_blanks_is_found_within_others(read):
    assert words_of(read({"of": [[1, ["猫", 2], "กิน"]]})) == {"of": [("猫", "กิน")]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe{}", "must be JSON in UTF-8"),
        (b"{", "must be JSON in UTF-8"),
        (b"[" * 100_000, "must be JSON in UTF-8"),
        (b'{"a": [[' + b"9" * 5000 + b', "cats", "chase"]]}', "must be JSON in UTF-8.*digits"),
        (b'{"a": [["cats", "chase"]], "a": [["cats", "it"]]}', "'a' stands 2 times"),
        ([], "must be an object of names with pairs"),
        ({}, "must be an object of names with pairs"),
        ({"a": []}, "at least one pair; 'a' is "),
        ({"a": "cats"}, "at least one pair; 'a' is 'cats'"),
        ({"a": [["cats"]]}, r"must be \[from, to\] or \[text, from, to\]; 'a' has \[\"cats\"\]"),
        ({"a": [[2, "cats", "chase"]]}, "a number from 0 to 1; 'a' has"),
        ({"a": [[True, "cats", "chase"]]}, "a number from 0 to 1"),
        ({"a": [["dogs", "chase"]]}, "text 0 has no 'dogs'"),
        ({"a": [["", "chase"]]}, "text 0 has no ''"),
        ({"a": [["it", "chase"]]}, r"comes 2 times must say which one, as \[\"it\", 2\]"),
        ({"a": [[["it", 0], "chase"]]}, "counted from 1"),
        ({"a": [[[8, 4], "chase"]]}, "a start and a later end up to 45"),
        ({"a": [[[4, 46], "chase"]]}, "a start and a later end up to 45"),
        ({"a": [[[3, 4], "chase"]]}, "with a sign between"),
        ({"a": [[{"word": "cats"}, "chase"]]}, 'a word must be "cat"'),
        ({"a": [[4.5, "chase"]]}, 'a word must be "cat"'),
    ],
)
def test_what_is_no_file_of_relations_is_refused_in_one_line(read, content, text):
    with pytest.raises(TextError, match=text) as refused:
        read(content)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TextError, match=r"a file of relations .*No such file"):
        read_relations(tmp_path / "missing.json", TEXTS)
