"""The site: Sphinx over the pages of this folder and the docstrings of the package.

``make docs`` builds it into ``site/``; a warning is an error.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any

import django
from django.conf import settings

settings.configure()  # its models cannot be imported without
django.setup()

project = "celery-redlock"
author = "celery-redlock contributors"
copyright = author  # noqa: A001  (Sphinx's name for it)
release = version = importlib.metadata.version(project)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["monitoring/**", "pictures/**"]
html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
nitpicky = False  # types of other packages have no page here

# Pages are written for the reader on a code host, too: headings are linked as there.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# In docstrings single backticks are code, as in the sentences of the pages.
default_role = "code"
autodoc_default_options = {"show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# In this order, as far as they are there; other pages come after them.
ORDER = (
    *("duplicates", "schedules", "safety", "operations", "monitoring"),
    *("performance", "testing", "api"),
)
HERE = Path(__file__).parent
ROOT = HERE.parent
README = ROOT / "README.md"
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def _for_the_site(text: str, folder: Path) -> str:
    """Let links lead to pages; name files of the project that are none."""

    def lead(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        path = (folder / link).resolve()
        if path == README:
            return f"[{words}](index.md{anchor or ''})"
        if path.is_relative_to(HERE) or not path.exists():  # the latter is a mistake
            there = os.path.relpath(path, HERE)
            return f"[{words}]({there}{anchor or ''})"
        return f"{words} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(lead, text)


def _prepare(app: Any, name: str, content: list[str]) -> None:
    """Make a page of what was read; the index is the README and a list of pages."""
    content[0] = _for_the_site(content[0], HERE)
    if name == "index":
        there = {page.stem for page in HERE.glob("*.md")} - {"index"}
        named = [page for page in ORDER if page in there]
        pages = [*named, *sorted(there - {*named})]
        readme = _for_the_site(README.read_text("utf-8"), ROOT)
        content[0] = content[0].replace("PAGES", "\n".join(pages))
        content[0] = content[0].replace("README\n", readme, 1)
        app.env.note_dependency(str(README))


def setup(app: Any) -> None:
    """Connect what this file defines."""
    app.connect("source-read", _prepare)
