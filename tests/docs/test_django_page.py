"""The project of the page about Django: its files, and its own tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.docs.reader import blocks_of
from tests.harness.programs import end_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "django.md"
TITLE = re.compile(r"# (\S+\.py)\n")


def test_project_of_the_page_passes_its_tests(tmp_path: Path) -> None:
    """All three of them, with pytest-django and no server."""
    for language, code in blocks_of(PAGE.read_text("utf-8")):
        if language == "python" and (title := TITLE.match(code)):
            file = tmp_path / title[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(code)
    (tmp_path / "reports" / "__init__.py").touch()

    done = end_of(
        *(sys.executable, "-m", "pytest", "-q", "--ds=shop.settings"),
        *("-p", "no:cacheprovider", "-p", "no:randomly", "."),
        cwd=tmp_path,
    )

    assert "3 passed" in done.stdout
