"""Reports of made-up numbers, and what a page holds, as fixtures: a tests folder is not imported from."""

import runpy
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def synthetic():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic.py"))))


@pytest.fixture(scope="session")
def synthetic_fit():
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic_fit.py"))))


class Elements(HTMLParser):
    """Tags, their attributes and the text inside script, style and everything else."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.inside, self.texts = [], [], {"script": [], "style": [], "": []}
        self.feed(page)

    @property
    def words(self):
        """What is read on the page, with single blanks."""
        return " ".join(" ".join(self.texts[""]).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        last = self.inside[-1] if self.inside else ""
        self.texts[last if last in self.texts else ""].append(data)


@pytest.fixture(scope="session")
def elements_of():
    """From a page, what it holds."""
    return Elements
