"""A reader who types the blocks of a page: a folder, and terminals in it."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.programs import end_of

PATIENCE = 60.0  # seconds


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Return the code blocks of a page, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


class Reader:
    """Types commands and saves files.

    Args:
        folder: The folder in which everything happens.
        environment: The variables of the terminals.
        patience: Seconds that a command may take.

    Attributes:
        replace: Texts of the page, such as addresses, and what is typed instead.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], patience: float = PATIENCE
    ) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.replace: dict[str, str] = {}
        self._patience = patience
        self._first = ""

    def activate(self, command: str = ". .venv/bin/activate") -> None:
        """Type this first in each terminal from now on."""
        self._first = f"{command}\n"

    def append(self, name: str, text: str) -> None:
        """Append a text to a file, with a blank line before it."""
        for shown, real in self.replace.items():
            text = text.replace(shown, real)
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")

    def run(self, command: str, *codes: int, typed: str = "") -> str:
        """Type a block of commands and return what the last of them printed.

        Args:
            command: The block.
            codes: The expected exit codes; 0 by default.
            typed: What the reader answers.
        """
        place: dict[str, Any] = {"cwd": self.folder, "env": self.environment}
        line = ("sh", "-c", self._first + command)
        done = end_of(*line, code=None, input=typed, seconds=self._patience, **place)
        said = f"{command}\n{done.stdout}\n{done.stderr}"
        assert done.returncode in (codes or (0,)), said
        return done.stdout

    @contextmanager
    def terminal(self, command: str, name: str) -> Iterator[Path]:
        """Keep a command running and give the file of its output."""
        output = self.folder / f"{name}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(  # noqa: S602  (the same)
                f"{self._first}exec {command}",
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
