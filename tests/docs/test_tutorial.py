"""The tutorial, typed as it stands, on real servers and with a real worker."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.reader import PATIENCE, Reader, blocks_of, until_said
from tests.docs.shown import assert_shown
from tests.harness.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(PAGE)
FILES = {
    code.split()[1]: code for language, code in BLOCKS if language == "python"
}  # each begins with a comment that names the file
NODES_SHOWN, TWICE_SHOWN, LOCKS_SHOWN, DOCTOR_SHOWN = (
    code for language, code in BLOCKS if language == "text"
)
COMMANDS = [code.strip() for language, code in BLOCKS if language == "sh"]
NODES = [f"redis://127.0.0.1:{port}/0" for port in (28661, 28662, 28663)]
# Machines that run tests are busy: nodes have time to answer, and a run lasts for as
# long as the test looks at it.
PATIENT = "app.conf.redlock_node_timeout = 2.0\n"
HOLD = "hold"  # the name of a file
LASTING = f"""
import pathlib
import types


def pause(seconds):
    real.sleep(seconds)
    while pathlib.Path("{HOLD}").exists():
        real.sleep(0.05)


real, time = time, types.SimpleNamespace(sleep=pause)
"""
BROKER = "redis://127.0.0.1:28671/0"
REFUSED = r"will be skipped \(on_conflict\)"  # in the worker's log


def of(word: str, among: list[str]) -> str:
    """Return the block of commands with this word in it."""
    (block,) = [command for command in among if word in command]
    return block


@pytest.fixture
def reader(tmp_path: Path, redis_server: str) -> Reader:
    """Give a reader who has installed this checkout and activated its environment."""
    folder = tmp_path / "folder"
    folder.mkdir()
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PATH": programs}
    return Reader(folder, {**environment, "REDLOCK_REDIS_SERVER": redis_server})


@pytest.mark.long
@pytest.mark.timeout(900)  # a slow machine starts each command for seconds
def test_tutorial_says_what_happens(reader: Reader) -> None:
    """All blocks in their order: a call runs, its duplicate does not, a node stops."""
    type_the_tutorial(reader)


def type_the_tutorial(reader: Reader, *, installed: bool = False) -> list[str]:
    """Type all blocks of the page, and check what they print.

    Args:
        reader: The reader; ``tests/packaging`` has another one.
        installed: Whether to type the installation, too.

    Returns:
        The commands of the page.
    """
    install, activate, *todo = COMMANDS
    if installed:
        reader.run(install)
        reader.activate(activate)
    url = r"redis://127\.0\.0\.1:\d+/0"
    with (
        reader.terminal(todo.pop(0), "nodes") as nodes,
        reader.terminal(todo.pop(0), "broker") as broker,
    ):
        found = until_said(nodes, url, 3) + until_said(broker, url)
        assert_shown(f"{NODES_SHOWN}…", nodes.read_text())
        reader.replace = dict(zip([*NODES, BROKER], found, strict=True))
        for name, code in FILES.items():
            reader.append(name, code)
        reader.append("shop.py", PATIENT + LASTING)
        with reader.terminal(todo.pop(0), "worker") as worker:
            until_said(worker, r"All nodes vote: 3 \(quorum: 2\)\.")

            (twice, look, explain, stop, doctor) = todo
            check_two_results(run_twice(reader, worker, twice))
            with runs_last(reader):
                # The worker may need longer than a second to begin.
                until(lambda: "invoice:7" in reader.run(look), PATIENCE)
                assert_shown(f"…\n{LOCKS_SHOWN}", reader.run(look))
                assert "invoice:7" in reader.run(explain, 1)
            until_said(worker, "invoice 7 was sent")
            check_two_results(run_twice(reader, worker, stop))
            said = reader.run(doctor, 1)
            assert_shown(f"{DOCTOR_SHOWN}…", said)
            assert "quorum-edge" in said
    return COMMANDS


@contextmanager
def runs_last(reader: Reader) -> Iterator[None]:
    """Let no run end within the block."""
    hold = reader.folder / HOLD
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def run_twice(reader: Reader, worker: Path, command: str) -> str:
    """Type a command that calls the task twice; its run ends after the refusal."""
    refusals = len(re.findall(REFUSED, worker.read_text()))
    with ThreadPoolExecutor(1) as pool:
        with runs_last(reader):
            typed = pool.submit(reader.run, command)
            until_said(worker, REFUSED, refusals + 1)
        return typed.result()


def check_two_results(said: str) -> None:
    """Assert that one call has run and that the other one names it."""
    assert_shown(TWICE_SHOWN, "\n".join(sorted(said.splitlines(), reverse=True)))


def test_tutorial_installs_what_exists() -> None:
    """The extra that the reader installs is one of the project's."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"'celery-redlock\[(\w+)\]'", of("pip install", COMMANDS))

    assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_tutorial_shows_addresses_that_the_test_replaces() -> None:
    """No other address is in a file or a command of the page."""
    shown = set(re.findall(r"redis://[^\"`\s]+", PAGE))

    assert shown == {*NODES, BROKER}
