"""The README, typed from top to bottom; what is printed is what it shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks import report
from celery_redlock.devnodes import DevNodes
from tests.docs.reader import Reader, blocks_of, until_said
from tests.docs.shown import assert_shown
from tests.docs.test_tutorial import LASTING, PATIENT, REFUSED, reader, runs_last

Start = Callable[..., DevNodes]

__all__ = ["reader"]  # a fixture

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(README)
INSTALL, *_ = (text for language, text in BLOCKS if language == "sh")
SHOWN, *_ = (text for language, text in BLOCKS if language == "text")
PROJ, TWICE, THREE_NODES = (text for language, text in BLOCKS if language == "python")
TYPED = re.findall(r"(?<!`)`([^`]+)`(?!`)", README)
INIT, WORKER, RUN_TWICE = (
    next(word for word in TYPED if part in word)
    for part in ("redlock init", "proj worker", "python twice.py")
)


def type_the_readme(reader: Reader, redis: str) -> None:
    """Type its first example against a Redis that has just started.

    Args:
        reader: The reader, with the package installed.
        redis: The URL of that Redis, for the broker, the results and the locks.
    """
    reader.replace = {"localhost:6379": urlsplit(redis).netloc}
    reader.append("proj.py", PROJ + PATIENT + LASTING)
    reader.append("twice.py", TWICE)
    reader.run(INIT, typed="y\n")

    with (
        reader.terminal(f"{WORKER} -l INFO", "worker") as worker,
        ThreadPoolExecutor(1) as pool,
    ):
        until_said(worker, "ready")
        with runs_last(reader):
            typed = pool.submit(reader.run, RUN_TWICE)
            until_said(worker, REFUSED)
        said = typed.result()

    assert_shown(SHOWN, "\n".join(sorted(said.splitlines())))


def test_readme_first_example_prints_what_it_shows(
    reader: Reader, start_nodes: Start
) -> None:
    """One of two equal calls runs; the other one names it."""
    (redis,) = start_nodes(1, initialize=False).urls

    type_the_readme(reader, redis)


def test_readme_three_nodes_vote(reader: Reader, three_nodes: DevNodes) -> None:
    """The block with three nodes is a setting of the same project."""
    reader.replace = {
        f"redis://redlock-{name}:6379/0": url
        for name, url in zip("abc", three_nodes.urls, strict=True)
    }
    reader.append("proj.py", PROJ + THREE_NODES + PATIENT)
    reader.append("locked.py", "from proj import send_invoice\n")
    reader.append(
        "locked.py", "with send_invoice.lock(42) as lease: print(lease.votes)"
    )

    assert int(reader.run("python locked.py")) >= 2


def test_readme_is_short() -> None:
    """It is read to its end: what is longer has a page."""
    assert len(README.encode()) < 9_000
    assert len((ROOT / "CHANGELOG.md").read_bytes()) < 9_000


def test_readme_costs_are_those_of_the_pages_about_performance() -> None:
    """A figure of the README is the one of a page, rounded."""
    page = "".join(one.read_text("utf-8") for one in report.PAGES)
    row = re.search(
        r"\*\*celery-redlock\*\* \| 5 \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)", page
    )
    said = re.search(r"([\d.]+) ms and ([\d.]+) ms of CPU on five", README)
    more = re.search(r"([\d.]+) ms more CPU", README)
    runs = re.search(r"([\d.]+) × as many tasks", README)
    parts = re.findall(r"CPU of one task, (?!the five nodes)[^|]*\| ([\d.]+) µs", page)
    rate = re.search(r"celery-redlock \| \d+ \| ([\d.]+) ×", page)
    assert row
    assert said
    assert rate
    assert more
    assert runs
    assert len(parts) == 3

    for measured, rounded in zip(row.groups(), said.groups(), strict=True):
        assert float(rounded) == pytest.approx(int(measured) / 1000, rel=0.25)
    assert float(runs[1]) == pytest.approx(float(rate[1]), rel=0.1)
    assert float(more[1]) == pytest.approx(sum(map(float, parts)) / 1000, rel=0.1)
    assert re.search(r"265 bytes", README)
    assert re.search(r"memory of a lock with its key \| 265 bytes", page)
