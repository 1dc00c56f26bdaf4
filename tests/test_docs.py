"""Pages: each claim has its test, links lead to pages, and words are plain."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from docs.reference import generate

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "example_project/README.md"),
]
FOR_CONTRIBUTORS = [
    *(ROOT / "CODE_OF_CONDUCT.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md")
]
# A plainer word says more. What is quoted as code is left out.
BANNED = {
    "nobody": "no call, no node, no process ...",
    "people": "users, operators, readers",
    "somebody": "another call, a client, a user ...",
    "whatever": "everything that, each",
    "whoever": "the call that, a client that, a user who",
    "give back": "release",
    "given back": "released",
    "gives back": "releases",
    "in vain": "without a result",
    "lest": "because ... may",
    "let go": "release",
    "put back": "republish",
    "stands before": "precedes",
    "is told": "gets, is notified",
}


def name_of(page: Path) -> str:
    """Return how a page is called in a report."""
    return page.relative_to(ROOT).as_posix()


@cache
def text_of(page: Path) -> str:
    """Return the text of a page."""
    return page.read_text(encoding="utf-8")


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
            (name_of(page), name)
            for page in PAGES
            for name in re.findall(r"`(test_\w+)`", text_of(page))
        }
    )


def prose_of(page: Path) -> str:
    """Return a page without its code, and without what is generated from the code."""
    text = generate.MARKS.sub("", text_of(page))
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "", text)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return what the headings of a page are linked by on the usual hosts."""
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.strip().lower()) for title in titles)
    return frozenset(title.replace(" ", "-") for title in plain)


def test_docs_name_tests_that_exist() -> None:
    """Each test that a page names is a test of this project."""
    assert [claim for claim in claims() if claim[1] not in known_tests()] == []


def test_docs_have_claims() -> None:
    """The pages do name tests."""
    assert len(claims()) > 20


@pytest.mark.parametrize("page", [*PAGES, *FOR_CONTRIBUTORS], ids=name_of)
def test_docs_links_lead_somewhere(page: Path) -> None:
    """Links to headings, pages and files of the project have their target."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if re.match("https?:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)

    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_docs_rows_end_in_a_test(page: Path) -> None:
    """A table with a column of tests names one in each of its rows."""
    tables = re.findall(r"(?:^\|.*\n)+", text_of(page), re.MULTILINE)
    for table in tables:
        head, _, *rows = table.splitlines()
        if head.endswith("| test |"):
            assert [row for row in rows if not row.endswith("` |")] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_docs_say_it_plainly(page: Path) -> None:
    """No page has a turn for which there is a plainer one."""
    words = " ".join(prose_of(page).lower().split())
    found = {
        turn: instead
        for turn, instead in BANNED.items()
        if re.search(rf"\b{turn}\b", words)
    }

    assert found == {}


def test_docs_are_all_in_the_index() -> None:
    """Each page can be found from the first one."""
    index = DOCS / "index.md"
    listed = re.findall(r"^- .*?\]\(([\w/-]+\.md)\)", text_of(index), re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}

    assert sorted(listed) == sorted(pages - {"index.md"})


def test_docs_explain_each_term_in_one_sentence() -> None:
    """A reader of the admission of a call needs sixty terms at most."""
    page = (DOCS / "contributing" / "architecture.md").read_text("utf-8")
    terms = page.partition("\n## Terms\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", terms, re.MULTILINE)

    assert 0 < len(rows) == len(dict(rows)) <= 60
    assert [term for term, text in rows if text.find(". ") >= 0] == []
    assert [term for term, text in rows if not text.endswith(".")] == []


def test_docs_timelines_count_in_milliseconds() -> None:
    """Mermaid takes the start of a bar for milliseconds, and its end for the unit."""
    timelines = [
        text
        for page in PAGES
        for text in re.findall(
            r"^```mermaid\ngantt\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL
        )
    ]

    assert timelines
    assert all("dateFormat x\n" in text for text in timelines)


def test_docs_are_up_to_date_with_the_code() -> None:
    """Generated blocks are what ``python -m docs.reference.generate`` writes."""
    assert [name_of(page) for page in generate.out_of_date()] == []


def test_docs_use_every_generated_block_once() -> None:
    """Each block of the generator has its place in one page."""
    used = [
        match["name"]
        for page in generate.pages()
        for match in generate.MARKS.finditer(text_of(page))
    ]

    assert sorted(used) == sorted(generate.BLOCKS)


@pytest.mark.parametrize(
    ("block", "column"),
    [
        ("settings", 2),
        ("options", 2),
        ("on-conflict", 1),
        ("on-lock-lost", 1),
        ("on-backend-error", 1),
        ("errors", 1),
        ("signals", 1),
        ("metrics", 3),
    ],
)
def test_docs_describe_each_name_of_the_reference(block: str, column: int) -> None:
    """No setting, option, word, error, signal or metric is without its meaning."""
    _, _, *rows = generate.BLOCKS[block]().splitlines()

    assert rows
    for row in rows:
        assert row.split(" | ")[column].strip(" |"), row


def test_docs_explain_every_policy_word() -> None:
    """Each word of ``on_conflict`` has a section with its explanation."""
    rows = generate.policy_rows()
    words = {word for option, word, _ in rows if option == "on_conflict"}

    assert words
    assert words <= anchors_of(DOCS / "explanation" / "duplicates.md")
