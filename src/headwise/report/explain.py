"""A walkthrough for the terminal."""

import sys

from headwise.inspection.results import Walkthrough

BAR, ASCII_BAR = "█", "#"


def print_walkthrough(walkthrough: Walkthrough) -> None:
    """Print a walkthrough on stdout."""
    print(draw_bars(walkthrough.to_text(), getattr(sys.stdout, "encoding", None) or "utf-8"))


def draw_bars(text: str, encoding: str) -> str:
    """Draw bars with what an encoding has: blocks, or else #."""
    try:
        BAR.encode(encoding)
    except UnicodeEncodeError:
        return text.replace(BAR, ASCII_BAR)
    return text
