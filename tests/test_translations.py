"""Pages in Chinese say what the English ones say: the same code, commands, tests, files and figures, part by part."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAIRS = {"README.md": "README.zh-CN.md", "docs/claims.md": "docs/claims.zh.md"}
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r" *# .*$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(?:\]\(|src=\")([^)\"]+)")
# a figure: no part of a word (BERT's float32, C3TR), but with a share's point in front
FIGURE = re.compile(r"(?<![A-Za-z0-9_.])\.?\d[\d,]*(?:\.\d+)?")
HAN = re.compile(r"[\u4e00-\u9fff]")


def parts_of(path: str) -> list[str]:
    """Return what stands before the first headline of the second level, and each such part."""
    return re.split(r"^## ", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE)


def code_of(part: str) -> list[tuple[str, str]]:
    """Return the blocks of code, without their comments, which are translated."""
    return [(kind, COMMENT.sub("", body)) for kind, body in FENCE.findall(part)]


def figures_of(part: str) -> Counter[str]:
    prose = INLINE.sub("", LINK.sub("", FENCE.sub("", part)))
    return Counter(figure.rstrip(",") for figure in FIGURE.findall(prose))


def links_of(part: str, page: str) -> Counter[str]:
    """Return what a part links to; of a translation, translations stand for their pages and pages for translations."""
    folder = (ROOT / page).parent
    links = [
        link if "://" in link else (folder / link).resolve().relative_to(ROOT.resolve()).as_posix()
        for link in LINK.findall(part)
    ]
    if page in PAIRS.values():
        other = PAIRS | {chinese: english for english, chinese in PAIRS.items()}
        links = [other.get(link, link) for link in links]
    return Counter(links)


@pytest.mark.parametrize(("english", "chinese"), PAIRS.items())
def test_a_translation_has_the_code_names_links_and_figures_of_its_page(english, chinese):
    parts = list(zip(parts_of(english), parts_of(chinese), strict=True))
    for page, translated in parts:
        head = page.splitlines()[0]
        assert code_of(translated) == code_of(page), head
        assert Counter(INLINE.findall(FENCE.sub("", translated))) == Counter(INLINE.findall(FENCE.sub("", page))), head
        assert links_of(translated, chinese) == links_of(page, english), head
        assert figures_of(translated) == figures_of(page), head


@pytest.mark.parametrize("chinese", PAIRS.values())
def test_a_translation_is_in_chinese(chinese):
    """Every paragraph, item and cell of prose has Chinese in it, but for citations and what is a link alone."""
    prose = FENCE.sub("", (ROOT / chinese).read_text(encoding="utf-8"))
    for line in prose.splitlines():
        words = re.sub(r"<[^>]*>|\[[^\]]*\]\([^)]*\)", "", INLINE.sub("", line)).strip("-#|. \t")
        assert words in ("", "headwise") or HAN.search(words), line


@pytest.mark.parametrize(("english", "chinese"), PAIRS.items())
def test_a_page_and_its_translation_link_to_each_other_at_their_top(english, chinese):
    for page, other in ((english, chinese), (chinese, english)):
        top = (ROOT / page).read_text(encoding="utf-8").splitlines()[:3]
        assert any(f"]({Path(other).name})" in line for line in top), page
