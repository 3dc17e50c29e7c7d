"""Relations between words that a user labels in a file: subject and verb, pronoun and noun."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.errors import TextError
from headwise.loading.files import read_whole

MAX_FILE_BYTES = 4 * 2**20
# letters of scripts that put no blanks between words: Thai, Lao, Myanmar, Khmer; wide ones are found by their width
WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")

Span = tuple[int, int]  # characters of a text, from 0, the second one left out
SpanPair = tuple[int, Span, Span]  # the number of a text, and where the first and the second word of a pair stand in it


def read_relations(path: Path, texts: Sequence[str]) -> dict[str, tuple[SpanPair, ...]]:
    """Read the relations that a JSON file labels in texts.

    The file holds one object: each name with its pairs, each pair a list [from, to] of two words of the first text, or
    [text, from, to] with the number of a text, from 0. A word stands as itself, `"cat"`, where the text has it once; as
    `["cat", 2]`, the second time it comes; or as `[12, 17]`, its characters from 12 up to 17, left out, counted from 0:

        {"pronoun and noun": [["it", "cat"], [1, ["she", 2], [12, 17]]]}

    Args:
        path: the file.
        texts: what the words stand in.

    Returns:
        Of each relation its pairs: the number of the text, and where its two words stand in it.

    Raises:
        TextError: it cannot be opened, is larger than 4 MiB, is no JSON of that form, or names what is not there.
    """
    content = read_whole(path, what="a file of relations", max_bytes=MAX_FILE_BYTES, error=TextError)
    try:
        read = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_doubles)
    except TextError:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError alone
        raise TextError(f"relations must be JSON in UTF-8; {path} is not: {error}") from None
    if not isinstance(read, dict) or not read:
        raise TextError(
            'relations must be an object of names with pairs, as in {"pronoun and noun": [["it", "cat"]]}; '
            f"{path} holds {_shown(read)}"
        )
    return {name: _pairs(name, pairs, texts) for name, pairs in read.items()}


def _without_doubles(items: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in items).items():
        if count > 1:
            raise TextError(f"each relation must stand once; {name!r:.60} stands {count} times")
    return dict(items)


def _pairs(name: str, pairs: Any, texts: Sequence[str]) -> tuple[SpanPair, ...]:
    if not isinstance(pairs, list) or not pairs:
        raise TextError(f"a relation must be a list of at least one pair; {name!r} is {_shown(pairs)}")
    return tuple(_pair(name, pair, texts) for pair in pairs)


def _pair(name: str, pair: Any, texts: Sequence[str]) -> SpanPair:
    where = f"{name!r} has {_shown(pair)}"
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        raise TextError(f"a pair must be [from, to] or [text, from, to]; {where}")
    text, first, second = (0, *pair) if len(pair) == 2 else pair
    if not _is_number(text) or text >= len(texts):
        raise TextError(f"a pair's text must be a number from 0 to {len(texts) - 1}; {where}")
    return text, _span(first, texts[text], text, where), _span(second, texts[text], text, where)


def _span(word: Any, content: str, text: int, where: str) -> Span:
    """Return where a word stands: one that is given as itself, as itself and which time it comes, or by characters."""
    if isinstance(word, str):
        places = _find(word, content)
        if len(places) == 1:
            return places[0]
        if not places:
            raise TextError(f"a word must stand in its text; text {text} has no {word!r}, which {where}")
        raise TextError(
            f"a word that comes {len(places)} times must say which one, as [{json.dumps(word)}, 2] for the second in "
            f"text {text}; {where}"
        )
    match word:
        case [str(), number] if _is_number(number):
            places = _find(word[0], content)
            if not 1 <= number <= len(places):
                raise TextError(f"text {text} has {word[0]!r} {len(places)} times, counted from 1; {where}")
            return places[int(number) - 1]
        case [start, end] if _is_number(start) and _is_number(end):
            if not start < end <= len(content) or not content[start:end].strip():
                raise TextError(
                    f"characters must be a start and a later end up to {len(content)}, with a sign between; {where}"
                )
            return int(start), int(end)
    raise TextError(f'a word must be "cat", ["cat", 2] or its characters [12, 17]; {where}')


def _find(word: str, content: str) -> list[Span]:
    """Return where a word stands as a whole; one of a script without blanks may stand within others."""
    if not word.strip():
        return []
    alone = not any(unicodedata.east_asian_width(sign) in "WF" or WITHOUT_BLANKS.match(sign) for sign in word)
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)" if alone else re.escape(word)
    return [match.span() for match in re.finditer(pattern, content)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping | list) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
