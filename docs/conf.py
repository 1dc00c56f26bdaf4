"""The site: Sphinx over the pages of this folder and the docstrings of the package.

``make docs`` builds it into ``site/``; a warning is an error.

Pages are written for readers on a code host. Three things differ on the site:

* The first page is the README, followed by ``index.md``. The menu is made from the
  links of ``index.md``, section by section.
* A link to a file outside of this folder becomes the name of that file.
* A ``mermaid`` block becomes a drawing. The browser loads Mermaid for that; without it
  the reader sees the text of the block.
"""

from __future__ import annotations

import html
import importlib.metadata
import os
import re
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from docutils import nodes
from docutils.parsers.rst import Directive

settings.configure()  # Django's models cannot be imported without
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

myst_heading_anchors = 4  # headings are linked as on a code host
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]

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

HERE = Path(__file__).parent
ROOT = HERE.parent
README = ROOT / "README.md"
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
MERMAID = "https://cdn.jsdelivr.net/npm/mermaid@11/dist/mermaid.min.js"
DRAW = """
window.addEventListener("load", () => {
  const dark = getComputedStyle(document.body).colorScheme.includes("dark");
  mermaid.initialize({ theme: dark ? "dark" : "default" });
  mermaid.run();
});
"""


class Mermaid(Directive):
    """A drawing, given as text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the element that Mermaid looks for in the page."""
        text = html.escape("\n".join(self.content))
        return [nodes.raw("", f'<pre class="mermaid">\n{text}\n</pre>', format="html")]


def _for_the_site(text: str, source: Path, page: Path) -> str:
    """Adapt the links of a text to the site.

    Args:
        text: The text.
        source: The folder in which its links begin.
        page: The folder of the page that shows it.
    """

    def adapt(match: re.Match[str]) -> str:
        words, link, anchor = match.groups()
        path = (source / link).resolve()
        if path == README:
            path = HERE / "index.md"
        if path.is_relative_to(HERE) or not path.exists():  # the latter is a mistake
            return f"[{words}]({os.path.relpath(path, page)}{anchor or ''})"
        return f"{words} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(adapt, text)


def _index(text: str) -> str:
    """Return the first page: the README, the list of pages, and the menu."""
    menu = ""
    for section in text.split("\n## ")[1:]:
        pages = re.findall(r"\]\(([\w/-]+)\.md\)", section)
        caption = section.partition("\n")[0]
        menu += "\n```{toctree}\n:hidden:\n"
        menu += f":caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
    readme = _for_the_site(README.read_text("utf-8"), ROOT, HERE)
    readme = readme.partition("\n## Documentation\n")[0]
    return readme + re.sub("^#", "\n##", text, flags=re.MULTILINE) + menu


def _prepare(app: Any, name: str, content: list[str]) -> None:
    """Adapt a page that was read to the site."""
    if name == "index":
        content[0] = _index(content[0])
        app.env.note_dependency(str(README))
    else:
        folder = (HERE / name).parent
        content[0] = _for_the_site(content[0], folder, folder)


def setup(app: Any) -> None:
    """Connect what this file defines."""
    app.add_directive("mermaid", Mermaid)
    app.add_js_file(MERMAID)
    app.add_js_file(None, body=DRAW)
    app.connect("source-read", _prepare)
