"""What the documentation claims has its test, and its links lead somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


@cache
def known_tests() -> set[str]:
    """Return the names of all tests of the project."""
    sources = (ROOT / "tests").rglob("test_*.py")
    found = (
        re.findall(
            r"^(?:async )?def (test_\w+)", source.read_text("utf-8"), re.MULTILINE
        )
        for source in sources
    )
    return {name for names in found for name in names}


def claims() -> list[tuple[str, str]]:
    """Return the tests that pages name, each with its page."""
    return sorted(
        {
            (page.name, name)
            for page in PAGES
            for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8"))
        }
    )


def anchor_of(heading: str) -> str:
    """Return what a heading is linked by on the usual hosts."""
    plain = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return plain.replace(" ", "-")


@pytest.mark.parametrize(("page", "name"), claims())
def test_docs_name_tests_that_exist(page: str, name: str) -> None:
    """Each test that a page names is a test of this project."""
    assert name in known_tests(), f"{page} names a test that does not exist"


def test_docs_have_claims() -> None:
    """The pages do name tests."""
    assert len(claims()) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_links_lead_somewhere(page: Path) -> None:
    """Links to headings and to files of the project have their target."""
    text = page.read_text("utf-8")
    headings = {
        anchor_of(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)\s]+)\)", text)

    broken = [link[1:] for link in links if link.startswith("#")]
    broken = [link for link in broken if link not in headings]
    broken += [
        link
        for link in links
        if not re.match(r"#|https?:", link)
        and not (page.parent / link.partition("#")[0]).exists()
    ]

    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_rows_end_in_a_test(page: Path) -> None:
    """A table with a column of tests names one in each of its rows."""
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text("utf-8"), re.MULTILINE)
    for table in tables:
        head, _, *rows = table.splitlines()
        if head.endswith("| test |"):
            assert [row for row in rows if not row.endswith("` |")] == []
