"""The commands of the README run."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes

    Start = Callable[..., DevNodes]

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """Return the README's code blocks in this language."""
    return [text for kind, text in BLOCKS if kind == language]


def here(code: str, nodes: DevNodes) -> str:
    """Put servers that exist in the place of those of the README."""
    for name, url in zip("abc", nodes.urls, strict=False):
        code = code.replace(f"redis://redlock-{name}:6379/0", url)
    code = code.replace("redis://localhost:6379/0", "memory://")
    return code.replace("redis://localhost:6379/1", "cache+memory://")


def run(folder: Path, *command: str) -> str:
    """Run a command in a folder and return what it printed."""
    done = subprocess.run(  # noqa: S603  (our own commands)
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_readme_python_runs(three_nodes: DevNodes, tmp_path: Path) -> None:
    """All Python of the README runs, from top to bottom, as one program."""
    first, *rest = blocks("python")
    setup = "from celery import Celery\nCelery('reader', broker='memory://')\n"
    program = "\n".join([setup, first, *rest])

    (tmp_path / "reader.py").write_text(here(program, three_nodes))

    assert "print" in program
    fence, remaining = run(tmp_path, "reader.py").split()
    assert int(fence) > 0
    assert 0 < float(remaining) <= 30


def test_readme_first_command_runs(three_nodes: DevNodes, tmp_path: Path) -> None:
    """``celery -A proj redlock init`` works with the settings above it."""
    settings = next(text for text in blocks("python") if "redlock_nodes" in text)
    (tmp_path / "proj.py").write_text(here(settings, three_nodes))
    command = next(text for text in blocks("sh") if "redlock init" in text).split()

    said = run(tmp_path, "-m", *command, "--yes")

    assert all(label.split("/")[2] in said for label in three_nodes.urls)


def test_readme_names_make_targets_that_exist() -> None:
    """Each ``make`` command of the README has its target."""
    targets = set(
        re.findall(r"make (\w+)", " ".join(re.findall(r"`make \w+`", README)))
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert targets >= {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_readme_sql_refuses_the_late_writer() -> None:
    """The SQL lets the holder write twice, and matches no row for an older fence."""
    statement = re.sub(r"%\((\w+)\)s", r":\1", blocks("sql")[0])
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE invoice (id, number, fence)")
    database.execute("INSERT INTO invoice VALUES (1, 'none', 0)")

    matched = [
        database.execute(statement, {"id": 1, "number": n, "fence": n}).rowcount
        for n in (7, 7, 5)
    ]

    assert matched == [1, 1, 0]
    database.close()


def test_readme_single_redis_is_enough(start_nodes: Start, tmp_path: Path) -> None:
    """The Redis of the broker is the only node, by the README's line of settings."""
    (server,) = start_nodes(1, initialize=False).urls
    setting = next(line for line in re.findall("`(app.conf[^`]+)`", README))
    program = f"""
from celery import Celery
from celery_redlock import singleton_task

app = Celery("proj", broker="redis://localhost:6379/0")
{setting}

@singleton_task(app=app)
def job(): ...

if __name__ == "__main__":
    with job.lock() as lease:
        print(lease.votes)
"""
    program = program.replace("redis://localhost:6379/", server.removesuffix("0"))
    (tmp_path / "proj.py").write_text(program)

    said = run(tmp_path, "-m", "celery", "-A", "proj", "redlock", "init", "--yes")

    assert "/2" in said
    assert run(tmp_path, "proj.py") == "1\n"


def test_readme_costs_are_those_of_the_page_about_performance() -> None:
    """A figure of the first screen is the page's, rounded."""
    page = (ROOT / "docs/explanation/performance.md").read_text("utf-8")
    row = re.search(
        r"\*\*celery-redlock\*\* \| 5 \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)", page
    )
    said = re.search(r"([\d.]+) ms and ([\d.]+) ms of CPU for each call", README)
    rate = re.search(r"celery-redlock \| \d+ \| ([\d.]+) ×", page)
    assert row
    assert said
    assert rate

    for measured, rounded in zip(row.groups(), said.groups(), strict=True):
        assert float(rounded) == pytest.approx(int(measured) / 1000, rel=0.25)
    assert float(rate[1]) == pytest.approx(2 / 3, rel=0.1)
    assert re.search(r"265 bytes", README)
    assert re.search(r"memory of a lock with its key \| 265 bytes", page)
