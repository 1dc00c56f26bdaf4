"""A project of a user, on whose behalf `celery -A proj redlock ...` is run."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import celery_redlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

__all__ = ["Project", "Run", "Running"]

_SOURCE = """
import json, os
from celery import Celery
from celery_redlock import singleton_task

app = Celery("proj", broker="memory://", backend="cache+memory://")
app.conf.update(json.loads(os.environ["PROJ_SETTINGS"]))

@singleton_task(app=app, key="invoice:{number}")
def send_invoice(number): ...
"""
_DEADLINE = 60.0  # seconds


@dataclass(frozen=True)
class Run:
    """How a command ended.

    Attributes:
        code: Its exit code.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What a program reads: all of stdout is one JSON document."""
        return json.loads(self.out)


class Running:
    """A command that runs until it is interrupted: a context manager."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def out(self) -> IO[str]:
        """What it writes to stdout, to be read line by line."""
        assert self.process.stdout is not None
        return self.process.stdout

    def line(self) -> str:
        """Return the next line that it writes."""
        return self.out.readline()

    def until_said(self, words: str) -> None:
        """Read what it writes to stderr until these words have come."""
        assert self.process.stderr is not None
        said = ""
        while words not in said:
            letter = self.process.stderr.read(1)
            assert letter, f"it ended without saying {words!r}, but {said!r}"
            said += letter

    def type(self, text: str) -> Run:
        """Type something in, and return how it ended."""
        out, err = self.process.communicate(text, timeout=_DEADLINE)
        return Run(self.process.returncode, out, err)

    def interrupt(self, number: int = signal.SIGINT) -> Run:
        """Press Ctrl-C, and return how it ended."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=_DEADLINE)
        return Run(self.process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Project:
    """A folder with an app in it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        (folder / "proj.py").write_text(_SOURCE)
        self._folder = folder
        self._settings = dict(settings)

    def redlock(self, *words: str, typed: str = "", **settings: Any) -> Run:
        """Run ``celery -A proj redlock ...`` to its end.

        Args:
            words: What comes after ``redlock``.
            typed: What is typed in meanwhile.
            settings: More of ``app.conf``.
        """
        done = subprocess.run(  # noqa: S603  (the command under test)
            self._command(words),
            cwd=self._folder,
            env=self.environment(settings),
            input=typed,
            capture_output=True,
            text=True,
            timeout=_DEADLINE,
            check=False,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **settings: Any) -> Running:
        """Start ``celery -A proj redlock ...``."""
        return Running(
            subprocess.Popen(  # noqa: S603  (the command under test)
                self._command(words),
                cwd=self._folder,
                env=self.environment(settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def on_a_terminal(self, *words: str, columns: int = 100, until: str = "") -> str:
        """Run it on a terminal of this width and return what came there.

        Args:
            words: What comes after ``redlock``.
            columns: The width.
            until: After these words have come, Ctrl-C is pressed.
        """
        master, slave = pty.openpty()
        process = subprocess.Popen(  # noqa: S603  (the command under test)
            self._command(words),
            cwd=self._folder,
            env={
                **self.environment(),
                "COLUMNS": str(columns),
                "LINES": "24",
                "TERM": "xterm-256color",
            },
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        shown = b""
        # Reading fails when the other end of the terminal is closed.
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 1 << 16):
                shown += chunk
                if until and until.encode() in shown:
                    process.send_signal(signal.SIGINT)
                    until = ""
        os.close(master)
        process.wait(timeout=_DEADLINE)
        return shown.decode()

    def environment(self, settings: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the variables of a process that is to find the project."""
        package = Path(celery_redlock.__path__[0]).parent
        path = [str(self._folder), str(package), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PROJ_SETTINGS": json.dumps({**self._settings, **(settings or {})}),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1",
        }

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", "proj", "redlock", *words]
