"""A log without what terminals, loggers and pasting have done to it.

Lines are wrapped at 80 columns, in the midst of a word or a number too; frames are drawn around them; every line has a
prefix; colours are in the text; JSON has turned line ends into backslashes. A message is therefore read from a text
without any blank, in small letters, in which all these look the same.
"""

import re

from headwise.errors import TextError

MAX_CHARS = 64 * 2**20

_COLOUR = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\^\[)\[[0-9;?]{0,40}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"
)
_BARE_COLOUR = re.compile(r"\[[0-9;]{1,12}m")  # a log that dropped the escape character only
_RANK = re.compile(r"\[(?:rank|default)\d{1,6}\]:[ \t]?")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|[nrt\"'\\/])")
_ESCAPED_BLANK = re.compile(r"\\[nrt]")  # further backslashes, of a string within a string, are marks
_ESCAPED_CODE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_LINE_ENDS = {"n": "\n", "r": "\r", "t": "\t"}
# Frames and marks around lines (│ | > # *), quotes, zero-width spaces, control characters; a message needs none.
_MARKS = re.compile("[\\x00-\\x1f\\x7f'\"`\\\\|>#*\\u2018\\u2019\\u200b-\\u200d\\u2060\\u2500-\\u257f\\ufeff]+")


def check_length(text: str) -> None:
    """Refuse a text that is too long to look through."""
    if len(text) > MAX_CHARS:
        raise TextError(
            f"a text may have {MAX_CHARS:,} characters; this one has {len(text):,}: give the part around the error"
        )


def strip_colours(text: str) -> str:
    """Remove what sets colours and titles in a terminal, and the prefix of a rank."""
    return _RANK.sub("", _COLOUR.sub("", text))


def unescape(text: str) -> str:
    r"""Turn `\n`, `\t`, `\"`, `\\` and `\u0041` of a JSON or Python string into what they mean."""
    return _ESCAPED.sub(_meaning, text)


def squeeze(text: str) -> str:
    """Return a text without blanks, marks, quotes and colours, in small letters."""
    check_length(text)
    text = _ESCAPED_BLANK.sub("", _without_blanks(text))
    text = _without_blanks(_ESCAPED_CODE.sub(lambda match: chr(int(match[1] or match[2], 16)), text))
    return _MARKS.sub("", _BARE_COLOUR.sub("", strip_colours(text))).lower()


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _meaning(match: re.Match[str]) -> str:
    name = match[1]
    if len(name) > 1:
        return chr(int(name[1:], 16))
    return _LINE_ENDS.get(name, name)
