"""The commands of the README run."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes

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
    return code.replace("redis://localhost:6379/0", "memory://")


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
