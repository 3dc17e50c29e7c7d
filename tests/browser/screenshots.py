"""Pictures of a page for a person to look at: `python tests/browser/screenshots.py PAGE.html FOLDER`."""

import os
import shutil
import sys
from pathlib import Path

CHROMIUM_ARGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
    "phone-dark": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}


def find_chromium():
    """Path of the browser: what CHROMIUM names, else Debian's; None where there is none."""
    return shutil.which(os.environ.get("CHROMIUM") or "chromium")


def launch(playwright):
    """Start the browser that find_chromium found."""
    return playwright.chromium.launch(executable_path=find_chromium(), args=list(CHROMIUM_ARGS))


def take_screenshots(browser, page_path, folder):
    """Save each view of the whole page, and of one opened head, as FOLDER/NAME.png and FOLDER/NAME-head.png."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, view in VIEWS.items():
        context = browser.new_context(**view)
        page = context.new_page()
        page.goto(Path(page_path).resolve().as_uri())
        pictures.append(folder / f"{name}.png")
        page.screenshot(path=pictures[-1], full_page=True)
        if page.locator(".cell").count():
            page.locator(".cell").nth(min(2, page.locator(".cell").count() - 1)).click()
            pictures.append(folder / f"{name}-head.png")
            page.screenshot(path=pictures[-1])
            page.locator("#head").evaluate("dialog => dialog.scrollTop = dialog.scrollHeight")
            pictures.append(folder / f"{name}-tokens.png")
            page.screenshot(path=pictures[-1])
        context.close()
    return pictures


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        for picture in take_screenshots(launch(playwright), *sys.argv[1:3]):
            print(picture)
