"""The forms in which a traceback's frames are written: Python's own, rich's, and IPython's of several versions."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from headwise.cost.oom.results import Frame

MAX_CODE = 500  # characters of a line of code that are kept

_PYTHON = re.compile(r'File "([^"]{1,1000})",\s{1,40}line\s{1,40}(\d{1,9}),?\s{1,40}in\s{1,40}(\S{1,300})')
_RICH = re.compile(
    r"^[ \t]*[│|][ \t]*([^\s│|:][^│|\n:]{0,500}(?::[\\/][^│|\n:]{0,500})?):(\d{1,9}) in[ \t]+([^\s│|]{1,200})", re.M
)
_RICH_CODE = re.compile(r"^[ \t]*[│|][ \t]*❱[ \t]*(\d{1,9})[ \t]*│?([^\n]{0,500})", re.M)
_IPYTHON = re.compile(
    r"^(?:File[ \t])?[ \t]*(?P<file>[^\s:<(][^\n:]{0,500}?(?::[\\/][^\n:]{0,500}?)?|<ipython-input-[^>\n]{1,100}>)"
    r"(?::(?P<line>\d{1,9}),)?[ \t]in[ \t]{1,4}(?P<function>[\w.<>]{1,200})(?P<arguments>\([^\n]{0,500})?[ \t]*$|"
    r"^(?P<cell>(?:Cell In|Input In|In) ?\[\d{1,9}\]),? ?(?:line (?P<cell_line>\d{1,9})|in <cell line: \d{1,9}>\(\))?",
    re.M,
)
_ARROW = re.compile(r"^-{1,9}>[ \t]?(\d{1,9})(?:[ \t]([^\n]{0,500}))?$", re.M)
_NO_CODE = re.compile(r"[\s~^]*$|\[Previous line repeated|Traceback \(|During handling|The above exception")
_END_OF_CODE = re.compile(r"[ \t](?:[~^]{2,}|[\w.]{0,80}(?:Error|Exception): )")


@dataclass(frozen=True)
class Spot:
    """Where a frame stands in a text, and what reads it: of a long log only the last thousands are."""

    begin: int
    end: int
    read: Callable[[], Frame]


def find_python_frames(text: str) -> Iterator[Spot]:
    """Find `File "x.py", line 1, in f` with the line of code under it, behind any prefix, or all on one line."""
    matches = list(_PYTHON.finditer(text)) if "File " in text else []
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        limit = following.start() if following else len(text)
        yield Spot(match.start(), match.end(), partial(_read_python, text, match, limit))


def _read_python(text: str, match: re.Match[str], limit: int) -> Frame:
    line_start = max(text.rfind("\n", 0, match.start()) + 1, match.start() - 300)
    prefix, rest = text[line_start : match.start()], text[match.end() : min(limit, match.end() + 2000)]
    file = re.sub(r"\s*\n\s*", "", match[1])  # a terminal's line end inside a long path
    return Frame(file=file, line=int(match[2]), function=match[3], code=_python_code(prefix, rest))


def _python_code(prefix: str, rest: str) -> str | None:
    """Return the line of code below a frame, which is indented more, behind the same prefix but for its digits."""
    same_line, _, below = rest.partition("\n")
    if same_line.strip():  # all on one line
        return _END_OF_CODE.split(same_line, maxsplit=1)[0].strip()[:MAX_CODE] or None
    line = below.partition("\n")[0].rstrip()
    indent = len(prefix) - len(prefix.rstrip(" "))
    head = len(prefix) - indent
    if _without_digits(line[:head]) != _without_digits(prefix[:head]):
        return None
    line = line[head:]
    if len(line) - len(line.lstrip()) <= indent or _NO_CODE.match(line):
        return None
    return line.strip()[:MAX_CODE]


def _without_digits(text: str) -> str:
    return re.sub(r"\d", "0", text)


def find_rich_frames(text: str) -> Iterator[Spot]:
    """Find `│ x.py:1 in f │` and the line that `❱` marks."""
    if "│" in text or "❱" in text:
        for head, code in _pairs(text, _RICH, _RICH_CODE):
            yield Spot(head.start(), code.end() if code else head.end(), partial(_read_rich, head, code))


def _read_rich(head: re.Match[str], code: re.Match[str] | None) -> Frame:
    line = code[2].rstrip().rstrip("│|").replace("│", " ").strip() if code else None
    return Frame(file=head[1].strip(), line=int(head[2]), function=head[3], code=line or None)


def find_ipython_frames(text: str) -> Iterator[Spot]:
    """Find `File x.py:1, in f(a)`, `x.py in f(a)` and `Cell In[1], line 2`, and the line that an arrow marks."""
    if "-> " in text or "->\n" in text:
        for head, code in _pairs(text, _IPYTHON, _ARROW):
            if head["line"] or head["cell_line"] or code:  # else it is prose with an "in"
                yield Spot(head.start(), code.end() if code else head.end(), partial(_read_ipython, head, code))


def _read_ipython(head: re.Match[str], code: re.Match[str] | None) -> Frame:
    file, function = (head["cell"], "<module>") if head["cell"] else (head["file"], head["function"])
    number = head["line"] or head["cell_line"] or (code[1] if code else "0")
    line = (code[2] or "").strip() if code else ""
    return Frame(file=file.strip(), line=int(number), function=function, code=line or None)


def _pairs(
    text: str, head_pattern: re.Pattern[str], code_pattern: re.Pattern[str]
) -> Iterator[tuple[re.Match[str], re.Match[str] | None]]:
    """Put each head of a frame with the first marked line of code before the next head."""
    heads, codes = list(head_pattern.finditer(text)), list(code_pattern.finditer(text))
    index = 0
    for head, following in zip(heads, [*heads[1:], None], strict=False):
        limit = following.start() if following else len(text)
        while index < len(codes) and codes[index].start() < head.end():
            index += 1
        yield head, codes[index] if index < len(codes) and codes[index].start() < limit else None
