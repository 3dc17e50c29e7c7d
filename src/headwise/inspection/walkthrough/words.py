"""Which token a word of the text is."""

import re
from collections.abc import Sequence

from headwise.errors import TextError

MAX_PLACES = 8  # that a message lists
MAX_WORDS = 8
MAX_LETTERS = 20  # of each


def find_word(word: str, tokens: Sequence[str], text: str, *, name: str = "the text") -> tuple[int, int]:
    """Find a word among a text's tokens, in its own spelling.

    A word of several tokens is found where their labels, side by side, spell it.

    Args:
        word: the word.
        tokens: the words that the tokens stand for.
        text: what was tokenized; tokens side by side may spell a word that it does not hold.
        name: of the text, for the message.

    Returns:
        The first and the last token of the word.

    Raises:
        TextError: the word is not among the tokens, the first of which are listed, or stands in several places, which
            are.
    """
    places = [(number, number) for number, token in enumerate(tokens) if token == word]
    if not places and word in text:
        places = [
            (start, end)
            for start in range(len(tokens))
            if tokens[start] and word.startswith(tokens[start])
            for end in range(start + 1, len(tokens))
            if "".join(tokens[start : end + 1]) == word
        ]
    if len(places) == 1:
        return places[0]
    if not places:
        near = [number for number, token in enumerate(tokens) if token.lower() == word.lower()]
        hint = f"; tokens that differ in capitals alone: {_listed(near)}" if near else ""
        raise TextError(
            f"the word must be a token of {name}, as the tokenizer cuts it; "
            f"{word!r} is none of {_words(tokens, text)}{hint}"
        )
    starts = _listed([start for start, _ in places])
    raise TextError(
        f"the word must stand in one place; {word!r} stands in {len(places)}: give its token, one of {starts}"
    )


def _words(tokens: Sequence[str], text: str) -> str:
    """List the first tokens of a text that are words of it, and say how many tokens there are."""
    whole = set(re.findall(r"\w+", text))
    words = [token for token in tokens if token in whole] or list(tokens)
    first = ", ".join(word[:MAX_LETTERS] for word in words[:MAX_WORDS])
    return f"its {len(tokens)} ({first}{', ...' if len(words) > MAX_WORDS else ''})"


def _listed(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:MAX_PLACES]))
    return f"{listed}, ..." if len(numbers) > MAX_PLACES else listed
