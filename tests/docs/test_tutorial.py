"""The tutorial, typed as it stands, on real servers and with a real worker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = {
    code.split()[1]: code for language, code in BLOCKS if language == "python"
}  # each begins with a comment that names the file
COMMANDS = [code.strip() for language, code in BLOCKS if language == "sh"]
NODES = [f"redis://127.0.0.1:{port}/0" for port in (28661, 28662, 28663)]
BROKER = "redis://127.0.0.1:28671/0"
PATIENCE = 60.0


class Reader:
    """A reader of the tutorial: a folder, and terminals in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(folder), str(ROOT)])
        # `celery` and `python` are those of this environment, as after "activate".
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
        self.environment = {**os.environ, "PYTHONPATH": path, "PATH": programs}

    def run(self, command: str, *codes: int) -> str:
        """Type a block of commands and return what the last of them printed."""
        done = subprocess.run(  # noqa: S602  (the commands of our own page)
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode in (codes or (0,)), done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def terminal(self, command: str, name: str) -> Iterator[Path]:
        """Keep a command running and give the file of its output."""
        output = self.folder / f"{name}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(  # noqa: S602  (the same)
                f"exec {command}",
                shell=True,
                cwd=self.folder,
                env={**self.environment, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield output
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_said(output: Path, pattern: str, count: int = 1) -> list[str]:
    """Wait until a program has printed a pattern so often; return what was found."""
    deadline = time.monotonic() + PATIENCE
    while len(found := re.findall(pattern, output.read_text())) < count:
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
    return found


def of(word: str, among: list[str]) -> str:
    """Return the block of commands with this word in it."""
    (block,) = [command for command in among if word in command]
    return block


@pytest.fixture
def reader(tmp_path: Path, redis_server: str) -> Reader:
    """Give a reader in an empty folder, with a redis-server to find."""
    reader = Reader(tmp_path)
    reader.environment["REDLOCK_REDIS_SERVER"] = redis_server
    return reader


def test_tutorial_says_what_happens(reader: Reader) -> None:
    """All blocks in their order: a call runs, its duplicate does not, a node stops."""
    todo = COMMANDS[2:]  # after the installation
    url = r"redis://127\.0\.0\.1:\d+/0"
    with (
        reader.terminal(todo.pop(0), "nodes") as nodes,
        reader.terminal(todo.pop(0), "broker") as broker,
    ):
        found = until_said(nodes, url, 3) + until_said(broker, url)
        for name, code in FILES.items():
            text = code
            for placeholder, real in zip([*NODES, BROKER], found, strict=True):
                text = text.replace(placeholder, real)
            (reader.folder / name).write_text(text, encoding="utf-8")
        with reader.terminal(todo.pop(0), "worker") as worker:
            until_said(worker, r"All 3 nodes vote \(2 are a quorum\)\.")

            (twice, look, explain, stop, doctor) = todo
            check_two_results(reader.run(twice))
            assert "invoice:7" in reader.run(look)
            assert "invoice:7" in reader.run(explain, 0, 1)
            check_two_results(reader.run(stop))
            assert "quorum-edge" in reader.run(doctor, 1)


def check_two_results(said: str) -> None:
    """Assert that one call has run and that the other one names it."""
    refused, ran = sorted(said.splitlines())
    assert refused.startswith("REVOKED shop.send_invoice[")
    assert "'invoice:42' is held by shop.send_invoice[" in refused
    assert ran == "SUCCESS invoice 42 was sent"


def test_tutorial_installs_what_exists() -> None:
    """The extra that the reader installs is one of the project's."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (extra,) = re.findall(r"'celery-redlock\[(\w+)\]'", of("pip install", COMMANDS))

    assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


def test_tutorial_shows_addresses_that_the_test_replaces() -> None:
    """No other address is in a file or a command of the page."""
    shown = set(re.findall(r"redis://[^\"`\s]+", PAGE))

    assert shown == {*NODES, BROKER}
