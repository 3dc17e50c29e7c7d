"""One headless Chromium for the tests of the page, and pages of made-up reports opened in it.

A new context costs Chromium more than loading a page, so tests share one tab for each kind of view; every test has a
document of its own in it.
"""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent
SCREENSHOTS = SimpleNamespace(**runpy.run_path(str(HERE / "screenshots.py")))
MISSING = "no Chromium: set CHROMIUM to its path or install Debian's package chromium"


@pytest.fixture(scope="session")
def synthetic():
    return SimpleNamespace(**runpy.run_path(str(HERE.parent / "report" / "synthetic.py")))


@pytest.fixture(scope="session")
def browser():
    if SCREENSHOTS.find_chromium() is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = SCREENSHOTS.launch(playwright)
        yield browser
        browser.close()


class Tab:
    """A page in a context of its own, which notes what goes wrong and lets nothing but one file through."""

    def __init__(self, browser, **view):
        self.path, self.complaints = None, []
        self.context = browser.new_context(**view)
        self.context.route("**/*", self.only_the_file)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog opened"), dialog.dismiss()))

    def only_the_file(self, route):
        if route.request.url == self.path.as_uri():
            route.continue_()
        else:
            self.complaints.append(f"asked for {route.request.url}")
            route.abort()

    def open(self, path, complaints, *, width, color_scheme="light", reduced_motion="no-preference"):
        """Load a file as a new tab would: in the size, the colours and the motion that are asked for."""
        self.path, self.complaints = path, complaints
        self.page.mouse.move(0, 0)  # no pointer rests on what comes
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(media="null", color_scheme=color_scheme, reduced_motion=reduced_motion)
        self.page.goto(path.as_uri())
        return self.page


@pytest.fixture(scope="session")
def kept_tabs(browser):
    """The tabs that tests share, by what a tab cannot change once it is open."""
    tabs = {}
    yield tabs
    for tab in tabs.values():
        tab.context.close()


@pytest.fixture
def open_page(browser, kept_tabs, tmp_path):
    """Open a report, a page or a file; at the end no error was logged and nothing but the file was asked for.

    `fresh` is for a test that changes what outlives the document, a clock or what the tools of the browser watch.
    """
    from headwise.report.page import write_page

    complaints, fresh_tabs, count = [], [], 0

    def open_report(report, *, width=1280, java_script_enabled=True, has_touch=False, fresh=False, **media):
        nonlocal count
        count += 1
        path = report if isinstance(report, Path) else write_page(report, tmp_path / f"page-{count}.html")
        view = {"java_script_enabled": java_script_enabled, "has_touch": has_touch}
        if fresh:
            tab = Tab(browser, **view)
            fresh_tabs.append(tab)
        else:
            kind = tuple(view.values())
            if kind not in kept_tabs:
                kept_tabs[kind] = Tab(browser, **view)
            tab = kept_tabs[kind]
        return tab.open(path, complaints, width=width, **media)

    open_report.complaints = complaints
    yield open_report
    for tab in fresh_tabs:
        tab.context.close()
    assert complaints == []


@pytest.fixture
def take_screenshots(browser):
    return lambda page_path, folder: SCREENSHOTS.take_screenshots(browser, page_path, folder)
