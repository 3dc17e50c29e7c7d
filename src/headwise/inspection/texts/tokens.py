"""Tokens as the words they stand for, never as the bytes or marks that a vocabulary writes them with."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
VISIBLE_SPACES = str.maketrans({" ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥"})
MAX_PIECES = 16  # tokens that together may spell one sign: an emoji of several code points takes up to about that
UNREADABLE = "▯"  # stands for bytes that no sign of the text explains
REPLACEMENT = "\ufffd"  # what decoding puts in place of bytes that are no whole sign


def label_by_offsets(
    tokenizer: Any, ids: Sequence[int], offsets: Sequence[tuple[int, int]], text: str
) -> tuple[str, ...]:
    """Label each token with the stretch of the text that it covers.

    Neighbours that cover the same stretch are byte pieces of one sign: each is labelled with the sign and its place
    among them, as a superscript. A token of white space is labelled with signs that can be seen, and one that covers
    nothing by decoding it.

    Args:
        tokenizer: the Hugging Face tokenizer.
        ids: the tokens.
        offsets: where in `text` each begins and ends.
        text: what was tokenized.
    """
    labels: list[str] = []
    tokens = list(zip(ids, offsets, strict=True))
    for (start, end), group in groupby(tokens, key=lambda token: tuple(token[1])):
        pieces = [token_id for token_id, _ in group]
        if start == end:
            labels += label_by_decoding(tokenizer, pieces)
        else:
            labels += _number(show_spaces(text[start:end]), len(pieces))
    return tuple(labels)


def label_by_decoding(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Label each token by decoding it, together with those after it where it is a byte piece of a sign.

    Special tokens go by name; a piece that no sign explains is labelled ▯.
    """
    labels: list[str] = []
    special_ids = set(tokenizer.all_special_ids)
    while len(labels) < len(ids):
        start = len(labels)
        if ids[start] in special_ids:
            labels.append(name_token(tokenizer, ids[start]))
            continue
        for num_pieces in range(1, MAX_PIECES + 1):
            decoded = tokenizer.decode(list(ids[start : start + num_pieces]))
            if decoded and REPLACEMENT not in decoded:
                labels += _number(show_spaces(decoded), min(num_pieces, len(ids) - start))
                break
        else:
            labels.append(UNREADABLE)
    return tuple(labels)


def show_spaces(piece: str) -> str:
    """Strip the spaces around a word; write a piece of nothing but white space with signs that can be seen."""
    return piece.strip() or piece.translate(VISIBLE_SPACES)


def _number(label: str, num_pieces: int) -> list[str]:
    if num_pieces == 1:
        return [label]
    return [label + str(piece).translate(SUPERSCRIPTS) for piece in range(1, num_pieces + 1)]


def name_token(tokenizer: Any, token_id: int) -> str:
    """Return the name that a special token has in the vocabulary."""
    return str(tokenizer.convert_ids_to_tokens(token_id))
