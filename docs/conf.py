"""The site: Sphinx over the pages of this folder and the docstrings of the package.

``make docs`` builds it into ``site/``; a warning is an error.

Pages are written for readers on a code host. Four things differ on the site:

* The menu is made from the lists of ``index.md``, section by section.
* A link to a file outside of this folder becomes the name of that file.
* A picture with a dark twin (``x.png``, ``x-dark.png``) follows the reader's theme.
* A ``mermaid`` block becomes a drawing. ``make docs`` puts Mermaid beside the pages, so
  a browser asks no other host. Without Mermaid, readers see the text of the block.
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
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)\.png\)$", re.MULTILINE)
MERMAID = ROOT / ".venv" / "site" / "mermaid.min.js"  # from `make docs`
html_static_path = ["site", *([str(MERMAID.parent)] if MERMAID.exists() else [])]
DRAW = """
mermaid.initialize({ startOnLoad: false });
window.addEventListener("load", () => {
  const theme = document.body.dataset.theme;
  const system = matchMedia("(prefers-color-scheme: dark)").matches;
  const dark = theme === "dark" || (theme !== "light" && system);
  const bars = { doneTaskBkgColor: "#5b6470", activeTaskBkgColor: "#2f6fb0" };
  mermaid.initialize(
    dark ? { theme: "dark", themeVariables: bars } : { theme: "default" }
  );
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


def _with_dark_twin(text: str, folder: Path) -> str:
    """Show each picture, or its dark twin, as the reader's theme says."""

    def twins(match: re.Match[str]) -> str:
        words, name = match.groups()
        if not (folder / f"{name}-dark.png").exists():
            return match[0]
        return "\n".join(
            f"```{{image}} {name}{end}.png\n:alt: {words}\n:class: only-{theme}\n```"
            for end, theme in (("", "light"), ("-dark", "dark"))
        )

    return PICTURE.sub(twins, text)


def _with_menu(text: str) -> str:
    """Add the menu to the first page: one caption for each section that lists pages."""
    menu = ""
    for section in text.split("\n## ")[1:]:
        pages = re.findall(r"^- .*?\]\(([\w/-]+)\.md\)", section, re.MULTILINE)
        caption = section.partition("\n")[0]
        menu += "\n```{toctree}\n:hidden:\n"
        menu += f":caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
    return f"```{{rst-class}} landing\n```\n\n{text}{menu}"


def _prepare(_app: Any, name: str, content: list[str]) -> None:
    """Adapt a page that was read to the site."""
    folder = (HERE / name).parent
    text = _with_dark_twin(_for_the_site(content[0], folder, folder), folder)
    content[0] = _with_menu(text) if name == "index" else text


def setup(app: Any) -> None:
    """Connect what this file defines."""
    app.add_directive("mermaid", Mermaid)
    app.add_css_file("site.css")
    if MERMAID.exists():
        app.add_js_file(MERMAID.name)
        app.add_js_file(None, body=DRAW)
    app.connect("source-read", _prepare)
