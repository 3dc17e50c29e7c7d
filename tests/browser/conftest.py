"""One headless Chromium for the tests of the page, and pages of made-up reports opened in it."""

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


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a report as a page; at the end no error was logged and nothing but the file was asked for."""
    from headwise.report.page import write_page

    complaints, contexts = [], []

    def open_report(report, *, width=1280, **view):
        path = write_page(report, tmp_path / f"page-{len(contexts)}.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, **view)
        contexts.append(context)

        def only_the_file(route):
            if route.request.url == path.as_uri():
                route.continue_()
            else:
                complaints.append(f"asked for {route.request.url}")
                route.abort()

        context.route("**/*", only_the_file)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append("a dialog opened"), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    open_report.complaints = complaints
    yield open_report
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def take_screenshots(browser):
    return lambda page_path, folder: SCREENSHOTS.take_screenshots(browser, page_path, folder)
