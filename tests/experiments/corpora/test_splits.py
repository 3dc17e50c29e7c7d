"""No text stands in a corpus twice, and what is tested, or is much like it, is not learned."""

import random
from collections import Counter

import pytest

from headwise.experiments.corpora.splits import merged, near_groups, prepare, split_groups
from headwise.experiments.corpora.texts import SourceText, Text, key_of, words_of


def prepared(*texts, near_duplicates=False):
    return prepare([SourceText(**text) for text in texts], near_duplicates=near_duplicates)


def numbered(count, **fields):
    return [SourceText(text=f"text number {number}", label="a", **fields) for number in range(count)]


def test_words_are_runs_of_letters_and_digits_in_lower_case():
    assert words_of("It's 5% of_Ünîcode,\n\nover!") == ["it", "s", "5", "of", "ünîcode", "over"]


def test_texts_that_differ_in_signs_and_capitals_are_one_the_first():
    found = prepared({"text": "One, two.", "label": "a"}, {"text": "one TWO", "label": "a"})
    assert [text.text for text in found] == ["One, two."]


def test_a_text_with_two_labels_is_left_out_and_so_is_one_without_words():
    found = prepared(
        {"text": "one two", "label": "a"},
        {"text": "One two!", "label": "b"},
        {"text": " ?! ", "label": "a"},
        {"text": "three", "label": "b"},
    )
    assert [(text.text, text.label) for text in found] == [("three", "b")]


def test_a_published_test_split_is_kept_whole_and_taken_out_of_the_training_texts():
    tests = [SourceText(text=text, label="a", split="test") for text in ("seen", "seen", "unseen 1")]
    train = [SourceText(text=text, label="b", split="train") for text in ("Seen.", *(f"own {n}" for n in range(20)))]
    found = prepare([*train, *tests], near_duplicates=False)
    splits = {split: [text.text for text in found if text.split == split] for split in ("train", "validation", "test")}
    assert sorted(splits["test"]) == ["seen", "seen", "unseen 1"]
    assert len(splits["validation"]) == 2 and len(splits["train"]) == 18  # a tenth of the 20 that are left
    assert sorted(splits["train"] + splits["validation"]) == sorted(f"own {n}" for n in range(20))


def test_a_fifth_is_for_tests_and_a_tenth_for_validation():
    counts = Counter(text.split for text in prepare(numbered(101), near_duplicates=False))
    assert counts == {"train": 71, "validation": 10, "test": 20}


def test_splits_do_not_depend_on_the_order_of_the_source():
    texts = numbered(53)
    shuffled = random.Random(0).sample(texts, len(texts))
    assert prepare(texts, near_duplicates=True) == prepare(shuffled, near_duplicates=True)
    assert prepare(texts, near_duplicates=False) == prepare(shuffled, near_duplicates=False)


def test_the_first_texts_of_a_split_are_not_of_the_first_class():
    texts = [SourceText(text=f"{label} {number}", label=label) for label in "ab" for number in range(50)]
    first = [text.label for text in prepare(texts, near_duplicates=False) if text.split == "train"][:30]
    assert 8 <= first.count("a") <= 22  # fair draws leave this range once in 200 orders; this order is fixed


def test_no_group_is_in_two_splits():
    texts = [SourceText(text=f"review {n}", label="ab"[n % 2], group=f"film {n % 13}") for n in range(97)]
    groups = {text.text: text.group for text in texts}
    found = prepare(texts, near_duplicates=False)
    splits_of = {}
    for text in found:
        splits_of.setdefault(groups[text.text], set()).add(text.split)
    assert len(found) == 97 and len(splits_of) == 13
    assert all(len(splits) == 1 for splits in splits_of.values())
    assert {split for splits in splits_of.values() for split in splits} == {"train", "validation", "test"}


def test_near_duplicates_stay_in_one_split_with_their_groups():
    stem = " ".join(f"w{number}" for number in range(12))
    copies = [SourceText(text=f"{stem} end{number}", group="film" if number == 3 else None) for number in range(13)]
    others = [
        SourceText(text=f"quite another text {number}", group="film" if number < 5 else None) for number in range(70)
    ]
    together = {text.text for text in [*copies, *others[:5]]}

    def splits(near_duplicates):
        return {
            text.split for text in prepare([*copies, *others], near_duplicates=near_duplicates) if text.text in together
        }

    assert len(splits(near_duplicates=True)) == 1 and len(splits(near_duplicates=False)) == 3


def test_split_groups_fills_splits_in_turn_by_whole_groups():
    splits = split_groups(["a", "a", "a", "b", "b", "b", "c", "c", "c", "c"], {"test": 0.2, "validation": 0.1})
    assert len(set(splits[:3])) == len(set(splits[3:6])) == len(set(splits[6:])) == 1
    assert sorted({splits[0], splits[3], splits[6]}) == ["test", "train", "validation"]


@pytest.mark.parametrize(("num_more", "is_near"), [(3, True), (4, True), (5, False)])
def test_half_of_the_shorter_texts_shingles_are_enough(num_more, is_near):
    # 8 words in common are 4 shingles, each word more is one: 4 of 7, 8 or 9 stand in the other, which has 40 more
    common = " ".join(f"w{number}" for number in range(8))
    keys = [
        " ".join([common, *(f"{name}{number}" for number in range(count))])
        for name, count in (("a", num_more), ("b", 40))
    ]
    assert (len(set(near_groups(keys))) == 1) is is_near


def brute_force(keys):
    """Group texts pair by pair, from the definition."""
    sets = [{tuple(k.split()[n : n + 5]) for n in range(max(1, len(k.split()) - 4))} for k in keys]
    group = list(range(len(keys)))
    for one in range(len(keys)):
        for other in range(one):
            if len(sets[one] & sets[other]) / min(len(sets[one]), len(sets[other])) >= 0.5:
                old, new = group[one], group[other]
                group = [new if g == old else g for g in group]
    return group


def partition(groups):
    seen = {}
    for number, group in enumerate(groups):
        seen.setdefault(group, set()).add(number)
    return {frozenset(members) for members in seen.values()}


def test_near_groups_are_those_of_the_definition():
    chance = random.Random(3)
    stems = [[f"w{chance.randrange(40)}" for _ in range(29)] for _ in range(7)]
    keys = []
    for number in range(41):
        words = list(chance.choice(stems))
        for _ in range(chance.randrange(5)):
            words[chance.randrange(29)] = f"x{number}"
        keys.append(" ".join(words[: chance.choice((29, 23, 17))]))
    expected = partition(brute_force(keys))
    assert partition(near_groups(keys)) == expected
    assert 3 < len(expected) < 41


def test_a_phrase_of_more_than_50_texts_is_no_likeness():
    keys = [f"this package contains the files of {number}" for number in range(51)]
    assert len(set(near_groups(keys))) == 51 and len(set(near_groups(keys[:50]))) == 1


def test_merged_groups_are_chains_of_both_and_named_by_their_least():
    assert merged(["b", "a", "c", "d", "a"], [7, 7, 5, 8, 5]) == ["a", "a", "a", "d", "a"]


def test_a_text_without_a_group_stands_for_itself():
    found = prepare(numbered(10), near_duplicates=False)
    assert isinstance(found[0], Text) and len({key_of(text.text) for text in found}) == 10
