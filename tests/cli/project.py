"""A user's project, on which the commands are run."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from celery.bin.base import CLIContext
from click.testing import CliRunner

import celery_redlock
from celery_redlock import ConfigurationError, runtime_of
from celery_redlock.cli import redlock
from celery_redlock.line.claims import Claims
from celery_redlock.locks.lease import Holder
from tests.cli.app import SETTINGS, new_app
from tests.nodes.support import PATIENT, client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery import Celery
    from typing_extensions import Self

    from celery_redlock.devnodes import DevNodes
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.redlock import Redlock

_SOURCE = """
from tests.cli.app import app_of_the_environment

app = app_of_the_environment()
"""
_DEADLINE = 60.0  # seconds
HOUR = 3600.0
FOREIGN = f"{'f' * 32}.{'0' * 16}\n7\nproj.other\nother-id\nworker-9\n99\n0"


@dataclass(frozen=True)
class Run:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """All of stdout, as one JSON document."""
        return json.loads(self.out)


class Running:
    """A command that runs until it is interrupted: a context manager."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """Return the next line on stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def document(self) -> Any:
        """Return the next JSON document on stdout."""
        return json.loads(self.line())

    def wait_for(self, words: str) -> None:
        """Read stderr until these words have come."""
        assert self.process.stderr is not None
        seen = ""
        while words not in seen:
            letter = self.process.stderr.read(1)
            assert letter, f"it ended without {words!r}, but with {seen!r}"
            seen += letter

    def type(self, text: str = "") -> Run:
        """Type a text, and return how the command ended."""
        out, err = self.process.communicate(text, timeout=_DEADLINE)
        return Run(self.process.returncode, out, err)

    def interrupt(self, number: int = signal.SIGINT) -> Run:
        """Press Ctrl-C, and return how the command ended."""
        self.process.send_signal(number)
        return self.type()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


class Typing(io.BytesIO):
    """The answer of an operator, before which something else happens.

    Args:
        happens: Called when a command asks for the first time.
        text: What is typed then.
    """

    def __init__(self, happens: Callable[[], object], text: str) -> None:
        super().__init__(text.encode())
        self._happens = [happens]

    def read1(self, size: int | None = -1, /) -> bytes:
        """Return what is typed."""
        while self._happens:
            self._happens.pop()()
        return super().read1(size)


def run_here(app: Celery, *words: str, typed: str | Typing = "") -> Run:
    """Run ``celery redlock ...`` with this app in this process, and close the app."""
    context = CLIContext(app=app, no_color=False, workdir=None)
    try:
        done = CliRunner().invoke(
            redlock, words, obj=context, input=typed, catch_exceptions=False
        )
    finally:
        with contextlib.suppress(ConfigurationError):
            runtime_of(app).redlock.close()
        app.close()
    return Run(done.exit_code, done.stdout, done.stderr)


class Project:
    """A project on lock nodes: a context manager."""

    def __init__(self, folder: Path, nodes: DevNodes, **settings: Any) -> None:
        (folder / "proj.py").write_text(_SOURCE)
        # `celery` imports this for a shell that no test uses; see `tests.harness`.
        (folder / "click_repl.py").write_text("def register_repl(_): ...\n")
        self.nodes = nodes.nodes
        self._folder = folder
        patient = {"redlock_nodes": nodes.urls, "redlock_node_timeout": PATIENT}
        self._settings = {**patient, **settings}
        self._stack = contextlib.ExitStack()
        self.app_name = "proj"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        """The URLs of the nodes."""
        return [node.url for node in self.nodes]

    def label(self, index: int) -> str:
        """Return the name of a node."""
        return f"127.0.0.1:{self.nodes[index].port}/0"

    def kill(self, *indexes: int) -> None:
        """Kill these nodes."""
        for index in indexes:
            self.nodes[index].kill()

    def change(self, **settings: Any) -> None:
        """Change ``app.conf`` for the commands that follow."""
        self._settings |= settings

    @functools.cached_property
    def service(self) -> Redlock:
        """The lock service of a worker or a publisher, connected to all nodes."""
        redlock = self._stack.enter_context(client(self.urls))
        redlock.check()
        return redlock

    def hold(
        self, key: str | list[str], *, limits: Limits = (), **fields: Any
    ) -> Lease:
        """Take a lock, or permits, on all nodes, as a task in a worker does."""
        facts: dict[str, Any] = {"task": "proj.send_invoice", "task_id": f"id-of-{key}"}
        facts |= {"host": "worker-1", "pid": 4711, **fields}
        holder = Holder("", **facts)
        return self.service.acquire(key, ttl=60.0, holder=holder, limits=limits)

    def steal(self, key: str, *indexes: int) -> None:
        """Let another client hold this lock on these nodes."""
        for index in indexes:
            words = (f"redlock:lock:{key}", FOREIGN, "PX", 60_000)
            self.nodes[index].command("SET", *words)

    def redlock(self, *words: str, typed: str | Typing = "", **settings: Any) -> Run:
        """Run ``celery redlock ...`` in this process."""
        return run_here(new_app({**self._settings, **settings}), *words, typed=typed)

    def run(self, *words: str, redirected: str = "") -> Run:
        """Run ``celery -A proj redlock ...`` in a process of its own."""
        with self.start(*words, redirected=redirected) as running:
            return running.type()

    def start(
        self,
        *words: str,
        stdout: int | IO[str] = subprocess.PIPE,
        redirected: str = "",
    ) -> Running:
        """Start ``celery -A proj redlock ...``, perhaps redirected as in a shell."""
        pipe = subprocess.PIPE
        shell = ["sh", "-c", f'exec "$@" {redirected}', "sh"]
        return Running(
            subprocess.Popen(  # noqa: S603  (the command under test)
                shell + self._command(words),
                cwd=self._folder,
                env=self._environment(),
                stdin=pipe,
                stdout=stdout,
                stderr=pipe,
                text=True,
            )
        )

    def on_a_terminal(
        self, *words: str, columns: int = 100, until: str = "", typed: str = ""
    ) -> str:
        """Run the command on a terminal and return what appeared there.

        Args:
            words: The rest of the command line.
            columns: The width of the terminal.
            until: After these words have appeared, Ctrl-C is pressed.
            typed: What is typed then instead.
        """
        master, slave = pty.openpty()
        terminal = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
        process = subprocess.Popen(  # noqa: S603  (the command under test)
            self._command(words),
            cwd=self._folder,
            env={**self._environment(), **terminal},
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
                    if typed:
                        os.write(master, typed.encode())
                    else:
                        process.send_signal(signal.SIGINT)
                    until = ""
        os.close(master)
        process.wait(timeout=_DEADLINE)
        return shown.decode()

    def _environment(self) -> dict[str, str]:
        package = str(Path(celery_redlock.__path__[0]).parent)
        given, root = os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])
        path = [str(self._folder), package, given, root]
        return {
            **os.environ,
            SETTINGS: json.dumps(self._settings),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1",
        }

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", self.app_name, "redlock", *words]


def claim(project: Project, key: str = "invoice:1", job: str = "job") -> None:
    """Claim a call, as a publisher does."""
    claims = Claims(project.service)
    holder = Holder("", task="proj.send_invoice", task_id=job, host="web")
    assert claims.take(key, holder, at_lock=False, at_cooldown=False) is None
    claims.keep(key, job, HOUR)
