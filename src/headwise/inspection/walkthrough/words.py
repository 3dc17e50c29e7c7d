"""Which token a word of the text is."""

from collections.abc import Sequence

from headwise.errors import TextError

MAX_PLACES = 8  # that a message lists


def find_word(word: str, tokens: Sequence[str], text: str) -> tuple[int, int]:
    """Find a word among a text's tokens, in its own spelling.

    A word of several tokens is found where their labels, side by side, spell it.

    Args:
        word: the word.
        tokens: the words that the tokens stand for.
        text: what was tokenized; tokens side by side may spell a word that it does not hold.

    Returns:
        The first and the last token of the word.

    Raises:
        TextError: the word is not among the tokens, or stands in several places, which are listed.
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
        raise TextError(f"the word must be a token of the text, as the tokenizer cuts it; {word!r} is none{hint}")
    starts = _listed([start for start, _ in places])
    raise TextError(
        f"the word must stand in one place; {word!r} stands in {len(places)}: give its token, one of {starts}"
    )


def _listed(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:MAX_PLACES]))
    return f"{listed}, ..." if len(numbers) > MAX_PLACES else listed
