"""Texts cut into the windows that a model reads, with what each token is and stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headwise.config.checks import shown
from headwise.errors import TextError
from headwise.inspection.texts.tokens import label_by_decoding, label_by_offsets, name_token
from headwise.integrations.text_config import text_config_of

UNKNOWN_LENGTH = 512  # tokens read at once where neither model nor tokenizer names a number: T5 was trained on so many
NO_LIMIT = 10**9  # tokenizers without a length write a huge number (1e30) instead


@dataclass(frozen=True, kw_only=True)
class Window:
    """One stretch of a text as the model reads it.

    Args:
        text: number of the text that it is from.
        ids: token ids, special tokens included.
        labels: the words that the tokens stand for.
        separators: which tokens separate texts.
    """

    text: int
    ids: tuple[int, ...]
    labels: tuple[str, ...]
    separators: tuple[bool, ...]


def model_length(model: Any, tokenizer: Any) -> int | None:
    """Return how many tokens the model reads at once: the smaller of what its config and its tokenizer say, or None."""
    config = text_config_of(model.config)
    lengths = [getattr(config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    known = [int(length) for length in lengths if length is not None and 0 < length < NO_LIMIT]
    return min(known, default=None)


def require_window(window: int | None, longest: int | None) -> None:
    """Refuse a window that is longer than what the model reads at once; None stands for any length.

    Raises:
        TextError: it is.
    """
    if window is not None and longest is not None and window > longest:
        raise TextError(f"window must not exceed the {longest} tokens that the model reads at once; got {window}")


def require_texts(texts: object, *, name: str = "texts") -> None:
    """Refuse what is no sequence of texts, or holds none.

    Args:
        texts: what came.
        name: of the argument.

    Raises:
        TextError: it is none, or a text holds half of a surrogate pair, as one of bytes that are no UTF-8 does.
    """
    is_sequence = isinstance(texts, Sequence) and not isinstance(texts, str | bytes)
    if not is_sequence or not texts or not all(isinstance(text, str) for text in texts):  # type: ignore[attr-defined]
        raise TextError(f"{name} must be a sequence of at least one text, each a str; got {shown(texts)}")
    for number, text in enumerate(texts):  # type: ignore[arg-type, var-annotated]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"a text must be Unicode; text {number + 1} of {name} holds half of a surrogate pair at {error.start}, "
                "as bytes that are no UTF-8 are read"
            ) from None


def cut_into_windows(
    tokenizer: Any,
    texts: Sequence[str],
    *,
    window: int | None,
    max_length: int | None,
    is_open: bool = False,
    as_target: bool = False,
) -> tuple[list[Window], int]:
    """Tokenize texts and cut each into windows that follow one another without overlap.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: what to read.
        window: tokens per window, special tokens included; None = no limit.
        max_length: tokens of each text after which the rest is dropped, special tokens included; None = all.
        is_open: whether to leave out the special tokens after a text, for a model that goes on from it.
        as_target: whether to read with the tokenizer's other language, that of what a model writes, where it has one.

    Returns:
        The windows, text by text, and how many texts were cut short by `max_length`.

    Raises:
        TextError: there is no text, one holds no token, or a window has no room for one.
    """
    require_texts(texts)
    tokenized = [_tokenize(tokenizer, text, as_target) for text in texts]
    for number, tokens in enumerate(tokenized):
        if not tokens:
            raise TextError(
                f"a text must hold at least one token; text {number + 1} of {len(texts)} is {texts[number]!r:.60}"
            )
    frame = _find_frame(tokenizer, texts[0], tokenized[0], as_target)
    if is_open:
        frame = frame._replace(after=())
    num_special = len(frame.before) + len(frame.after)
    for name, size in (("window", window), ("max_length", max_length)):
        if size is not None and size <= num_special:
            raise TextError(
                f"{name} must leave room for a token beside the tokenizer's {num_special} special tokens; got {size}"
            )
    windows: list[Window] = []
    num_truncated = 0
    for number, tokens in enumerate(tokenized):
        kept = tokens if max_length is None else tokens[: max_length - num_special]
        num_truncated += len(kept) < len(tokens)
        size = len(kept) if window is None else window - num_special
        for start in range(0, len(kept), size):
            framed = (*frame.before, *kept[start : start + size], *frame.after)
            windows.append(
                Window(
                    text=number,
                    ids=tuple(token.id for token in framed),
                    labels=tuple(token.label for token in framed),
                    separators=tuple(token.id == tokenizer.sep_token_id for token in framed),
                )
            )
    return windows, num_truncated


class _Token(NamedTuple):
    id: int
    label: str


class _Frame(NamedTuple):
    """The special tokens that a tokenizer puts before and after a text."""

    before: tuple[_Token, ...]
    after: tuple[_Token, ...]


def _encode(tokenizer: Any, text: str, as_target: bool, **keywords: Any) -> Any:
    given = {"text_target": text} if as_target else {"text": text}
    return tokenizer(**given, truncation=False, verbose=False, **keywords)


def _tokenize(tokenizer: Any, text: str, as_target: bool) -> list[_Token]:
    """Return a text's own tokens, without those that frame it."""
    encoded = _encode(
        tokenizer, text, as_target, add_special_tokens=False, return_offsets_mapping=bool(tokenizer.is_fast)
    )
    ids = encoded["input_ids"]
    if tokenizer.is_fast:
        labels = label_by_offsets(tokenizer, ids, encoded["offset_mapping"], text)
    else:
        labels = label_by_decoding(tokenizer, ids)
    return [_Token(token_id, label) for token_id, label in zip(ids, labels, strict=True)]


def _find_frame(tokenizer: Any, text: str, tokens: Sequence[_Token], as_target: bool) -> _Frame:
    """Find the special tokens by what the tokenizer adds to a text: no public method names them for every kind."""
    framed = _encode(tokenizer, text, as_target)["input_ids"]
    own = [token.id for token in tokens]
    for start in range(len(framed) - len(own) + 1):
        if framed[start : start + len(own)] == own:
            return _Frame(
                tuple(_Token(token_id, name_token(tokenizer, token_id)) for token_id in framed[:start]),
                tuple(_Token(token_id, name_token(tokenizer, token_id)) for token_id in framed[start + len(own) :]),
            )
    raise TextError(
        f"{type(tokenizer).__name__} must put special tokens around a text without changing its own tokens; "
        f"with them {text!r:.40} has other tokens than without"
    )
