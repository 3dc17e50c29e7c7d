"""A template with its style and script as one HTML file that needs nothing else."""

import base64
import hashlib
from functools import cache
from importlib import metadata, resources
from typing import Any

from headwise.errors import MissingExtraError
from headwise.results import format_bytes


def render_html(
    template: str, *, styles: tuple[str, ...], scripts: tuple[str, ...], data: str | None, **shown: Any
) -> str:
    """Return a whole page as HTML.

    The page loads nothing: a content security policy inside it allows its own style and script alone, by their
    SHA-256, and no other origin. Every text that is shown is escaped (jinja2's autoescape for what stands in the HTML,
    JSON for what the script inserts as text).

    Args:
        template: file name of the template, which extends `frame.html`.
        styles, scripts: file names, in the order in which they are joined.
        data: what the script reads, as JSON that can stand inside HTML; None where there is nothing.
        shown: what the template shows, by name.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        from markupsafe import Markup

        environment = template_environment()
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        raise MissingExtraError("jinja2", "report") from error

    style = _read_assets(styles)
    # one scope for all files, so that nothing of ours is a global of the page
    script = '"use strict";\n(() => {\n' + _read_assets(scripts) + "})();\n"
    page: str = environment.get_template(template).render(
        version=metadata.version("headwise"),
        style=Markup(style),
        script=Markup(script),
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        data=None if data is None else Markup(data),
        **shown,
    )
    # half of a surrogate pair, which a broken tokenizer can give, is no character and cannot be written
    return page.encode("utf-8", "replace").decode("utf-8")


@cache
def template_environment() -> Any:
    """Return what reads our templates, and keeps them once they are read."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("headwise.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bytes"] = format_bytes
    return environment


def _read_assets(names: tuple[str, ...]) -> str:
    folder = resources.files("headwise.report") / "assets"
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _policy_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
