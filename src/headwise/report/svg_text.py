"""Text in a drawing: what XML may hold, in lines that fit."""

import re

# widths in sizes of the font, as those of the widest common fonts: of these signs, and of all others
NARROW = frozenset("abcdefghijklnopqrstuvxyz0123456789 .,:;!?'\"()[]{}|/\\-_*`^$")
NARROW_WIDTH, WIDTH = 0.65, 1.1
# what XML 1.0 has no place for (section 2.2), and what turns the direction of all that follows it
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")
REPLACEMENT = "\ufffd"


def drawn_text(text: str) -> str:
    """Return a text as a drawing may hold it: on one line, with � for what XML forbids or what turns others round."""
    return " ".join(FORBIDDEN.sub(REPLACEMENT, text).split())


def text_width(text: str, *, size: int | float) -> float:
    """Return how wide a line is at most, nearly, in the units of the font's `size`."""
    return size * sum(NARROW_WIDTH if sign in NARROW else WIDTH for sign in text)


def cut_text(text: str, width: int | float, *, size: int | float) -> str:
    """Return a text, cut with … to what fits into one line; of a width without room for a letter: nothing."""
    if text_width(text, size=size) <= width:
        return text
    kept = text[: int(width / (size * NARROW_WIDTH)) + 1]  # no more letters fit than narrow ones
    while kept and text_width(kept + "…", size=size) > width:
        kept = kept[:-1]
    return f"{kept.rstrip()}…" if kept else ""


def wrap_text(text: str, width: int | float, *, size: int | float, max_lines: int) -> list[str]:
    """Return a text in lines that fit, broken at blanks, and anywhere in a longer word; the last may end in …."""
    lines: list[str] = []
    rest = text
    while rest and len(lines) < max_lines - 1 and text_width(rest, size=size) > width:
        end = 1
        while end < len(rest) and text_width(rest[: end + 1], size=size) <= width:
            end += 1
        blank = rest.rfind(" ", 1, end + 1)
        end = blank if blank > 0 else end
        lines.append(rest[:end].rstrip())
        rest = rest[end:].lstrip()
    return [*lines, cut_text(rest, width, size=size)] if rest else lines
