"""One report as one HTML file that needs nothing else: style, script and data stand inside it."""

import base64
import hashlib
import os
from importlib import metadata, resources
from pathlib import Path

from headwise.api.results import Report
from headwise.errors import MissingExtraError
from headwise.report import figures, headlines
from headwise.report.files import check_writable, write_whole
from headwise.report.page_data import STATISTICS, heads_json
from headwise.results import format_bytes

__all__ = ["check_writable", "render_page", "write_page"]

STYLES = ("base.css", "tables.css", "heads.css", "print.css")
SCRIPTS = (
    "dom.js",
    "data.js",
    "colour.js",
    "theme.js",
    "map.js",
    "tokens.js",
    "head.js",
    "grid.js",
    "table.js",
    "main.js",
)


def render_page(report: Report) -> str:
    """Return the whole page of a report as HTML.

    The page loads nothing: a content security policy inside it allows its own style and script alone, by their
    SHA-256, and no other origin. Every text of the report is escaped (jinja2's autoescape for what stands in the HTML,
    JSON for what the script inserts as text).

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        raise MissingExtraError("jinja2", "report") from error

    environment = Environment(
        loader=PackageLoader("headwise.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    style = _read_assets(STYLES)
    # one scope for all files, so that nothing of ours is a global of the page
    script = '"use strict";\n(() => {\n' + _read_assets(SCRIPTS) + "})();\n"
    return environment.get_template("page.html").render(
        report=report,
        version=metadata.version("headwise"),
        figures=figures,
        headlines=headlines,
        statistics=STATISTICS,
        style=Markup(style),
        script=Markup(script),
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        heads_json=Markup(heads_json(report.heads)) if report.heads is not None else None,
    )


def write_page(page: Report | str, path: str | os.PathLike[str]) -> Path:
    """Write a report, or a page that is rendered already, to `path`, whole or not at all.

    Raises:
        MissingExtraError: jinja2 is not installed.
        OutputError: the path cannot be written.
    """
    return write_whole(page if isinstance(page, str) else render_page(page), path)


def _read_assets(names: tuple[str, ...]) -> str:
    folder = resources.files("headwise.report") / "assets"
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _policy_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
