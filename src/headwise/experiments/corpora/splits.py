"""Cleaning and splitting: no text twice, and nothing of what is tested among what is learned."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from headwise.experiments.corpora.texts import SourceText, Split, Text, key_of, words_of

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
SHINGLE_WORDS = 5
NEAR = 0.5  # share of the shorter text's shingles that stand in the other, from which they are one in other words
COMMON = 50  # texts with a shingle from which it is a phrase of the trade, and says nothing


def prepare(texts: Sequence[SourceText], *, near_duplicates: bool) -> list[Text]:
    """Return texts cleaned, split and in an order that does not depend on where they stood.

    Texts without a word are left out. Of texts with the same words one is kept, the first; none where their labels
    differ. Where the source has a test split it is kept whole, so that results can be held against published ones, and
    its texts are taken out of the training texts; a tenth of these is for validation. Else a fifth is for tests and a
    tenth for validation, by groups.

    Args:
        texts: as the source has them.
        near_duplicates: whether texts that share much (see `near_groups`) stay in one split; for texts without a test
            split of their own.
    """
    texts = [text for text in texts if words_of(text.text)]
    tests = [text for text in texts if text.split == "test"]
    tested = {key_of(text.text) for text in tests}
    kept = {key: text for key, text in distinct(texts).items() if key not in tested}
    keys = list(kept)
    groups = [kept[key].group or key for key in keys]
    if near_duplicates:
        groups = merged(groups, near_groups(keys))
    shares: dict[Split, float] = {"validation": VALIDATION_SHARE}
    if not tests:
        shares = {"test": TEST_SHARE, **shares}
    splits = split_groups(groups, shares)
    found = [Text(split, kept[key].label, kept[key].text) for key, split in zip(keys, splits, strict=True)] + [
        Text("test", text.label, text.text) for text in tests
    ]
    return sorted(found, key=lambda one: (one.split, _place_of(key_of(one.text)), one.text))


def distinct(texts: Iterable[SourceText]) -> dict[str, SourceText]:
    """Return the texts outside a test split by their words, each once; none whose label is told in two ways."""
    first: dict[str, SourceText] = {}
    labels: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        if text.split != "test":
            key = key_of(text.text)
            first.setdefault(key, text)
            labels[key].add(text.label)
    return {key: text for key, text in first.items() if len(labels[key]) == 1}


def near_groups(keys: Sequence[str]) -> list[int]:
    """Return a number for each text, the same for those of which half stands in the other, directly or in a chain.

    A shingle is 5 words in a row; of two texts with sets A and B of them the shorter one stands in the other by
    `|A & B| / min(|A|, |B|)`, so that a chapter and its parts, however many, are found. Shingles that stand in more
    than 50 texts do not count as shared.

    Source: Broder 1997, "On the resemblance and containment of documents", of which this is the containment.
    """
    shingles = [_shingles(key.split()) for key in keys]
    holders: dict[bytes, list[int]] = defaultdict(list)
    for number, own in enumerate(shingles):
        for shingle in own:
            holders[shingle].append(number)
    shared: Counter[tuple[int, int]] = Counter()
    for numbers in holders.values():
        if 1 < len(numbers) <= COMMON:
            shared.update(combinations(numbers, 2))
    root = list(range(len(keys)))
    for (one, other), count in shared.items():
        if count >= NEAR * min(len(shingles[one]), len(shingles[other])):
            _join(root, one, other)
    return [_find(root, number) for number in range(len(keys))]


def merged(groups: Sequence[str], others: Sequence[int]) -> list[str]:
    """Return groups in which two texts are together that are so in one of two groupings, or in a chain of both."""
    root = list(range(len(groups)))
    for grouping in (groups, [str(number) for number in others]):
        seen: dict[str, int] = {}
        for number, name in enumerate(grouping):
            _join(root, number, seen.setdefault(name, number))
    # the group's least name, so that the order of texts changes nothing
    names: dict[int, str] = {}
    for number, name in enumerate(groups):
        key = _find(root, number)
        names[key] = min(names.get(key, name), name)
    return [names[_find(root, number)] for number in range(len(groups))]


def split_groups(groups: Sequence[str], shares: Mapping[Split, float]) -> list[Split]:
    """Return the split of each text: whole groups, in an order that a hash of their names gives.

    Args:
        groups: the group of each text.
        shares: of all texts, in the order in which splits are filled; the rest is "train".
    """
    sizes = Counter(groups)
    order = sorted(sizes, key=_place_of)
    found: dict[str, Split] = {}
    for split, share in shares.items():
        wanted, count = round(share * len(groups)), 0
        while count < wanted and order:
            name = order.pop()
            found[name] = split
            count += sizes[name]
    return [found.get(name, "train") for name in groups]


def _shingles(words: Sequence[str]) -> set[bytes]:
    """Return every 5 words in a row, as 8 bytes each; of a shorter text the whole."""
    starts = range(max(1, len(words) - SHINGLE_WORDS + 1))
    return {
        hashlib.blake2b(" ".join(words[start : start + SHINGLE_WORDS]).encode(), digest_size=8).digest()
        for start in starts
    }


def _place_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _find(root: list[int], number: int) -> int:
    while root[number] != number:
        root[number] = root[root[number]]
        number = root[number]
    return number


def _join(root: list[int], one: int, other: int) -> None:
    one, other = _find(root, one), _find(root, other)
    root[max(one, other)] = min(one, other)
