"""Relations between words of texts as relations between the tokens that a model reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.errors import TextError
from headwise.inspection.relations.relation import Relation
from headwise.inspection.texts.windows import cut_into_windows

Span = tuple[int, int]


def relations_between_words(
    tokenizer: Any,
    texts: Sequence[str],
    labelled: Mapping[str, Sequence[tuple[int, Span, Span]]],
    *,
    window: int | None,
    max_length: int | None,
) -> tuple[Relation, ...]:
    """Turn pairs of words into pairs of tokens, as `Inspection.tokens` counts them.

    Of a word of several tokens it is the last one: in a causal model the only one that has read the whole word.

    Args:
        tokenizer: a Hugging Face tokenizer that tells where in a text its tokens stand.
        texts: what is read.
        labelled: of each relation its pairs: the number of a text, and where in it the two words stand, in characters
            from 0, the second one left out.
        window, max_length: tokens that are read at once, and of a text at all, special tokens included; None = all.

    Raises:
        TextError: a word has no token or stands behind the first window, which alone relations are read in; or the
            tokenizer does not tell where tokens stand.
    """
    if not tokenizer.is_fast:
        raise TextError(
            f"words are found by a tokenizer that tells where tokens stand, and {type(tokenizer).__name__} does not: "
            "give Relations between tokens"
        )
    windows, _ = cut_into_windows(tokenizer, texts, window=window, max_length=max_length)
    first_windows = {each.text: each.ids for each in reversed(windows)}
    tokenized = {
        text: tokenizer(texts[text], truncation=False, verbose=False, return_offsets_mapping=True)
        for text in {pair[0] for pairs in labelled.values() for pair in pairs}
    }

    def token_of(name: str, text: int, span: Span) -> int:
        start, end = span
        word = texts[text][start:end]
        offsets = tokenized[text]["offset_mapping"]
        found = [index for index, (first, last) in enumerate(offsets) if first < end and start < last]
        if not found:
            raise TextError(f"a word must have a token; {name!r} has {word!r} of text {text}, which has none")
        index, read = found[-1], first_windows[text]
        if tuple(tokenized[text]["input_ids"][: index + 1]) != read[: index + 1]:
            raise TextError(
                f"relations are read in the first {len(read)} tokens of a text, one window; {name!r} has {word!r} of "
                f"text {text}, which is token {index}: give a longer window, or shorter texts"
            )
        return index

    return tuple(
        Relation(
            name=name,
            pairs=tuple(
                (text, token_of(name, text, first), token_of(name, text, second)) for text, first, second in pairs
            ),
        )
        for name, pairs in labelled.items()
    )
