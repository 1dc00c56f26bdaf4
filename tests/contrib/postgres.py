"""A real PostgreSQL on loopback that lives as long as the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from celery_redlock.devnodes.server import free_port

__all__ = ["Postgres", "find_postgres"]

_USER = "redlock"
_START_WITHIN, _STOP_WITHIN = 60.0, 30.0
_PORT_TRIES = 5
# Nothing in it outlives the tests, so it need not survive a crash.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "synchronous_commit": "off",
    "unix_socket_directories": "",
}


def find_postgres() -> Path | None:
    """Return the newest folder with PostgreSQL's programs, or None."""
    on_path = shutil.which("initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(debian, key=lambda path: float(path.parts[-3]), reverse=True)
    if on_path:
        found.append(Path(on_path).resolve())
    return found[0].parent if found else None


class Postgres:
    """A server with an empty database and a user who may do everything in it.

    It refuses to run as root; then it runs as ``postgres``, or as ``nobody``.

    Args:
        programs: The folder with ``initdb`` and ``postgres``.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="redlock-postgres-"))
        self._as_user = _unprivileged() if os.geteuid() == 0 else {}
        if self._as_user:
            shutil.chown(self._folder, self._as_user["user"], self._as_user["group"])
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it is, as SQLAlchemy writes it (Django gets the parts)."""
        return f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and return when it answers.

        Raises:
            RuntimeError: It did not come up. The message ends with its log.
        """
        self._run("initdb", "--auth=trust", "--no-sync", f"--username={_USER}")
        for _ in range(_PORT_TRIES):
            self.port = free_port()
            self._process = self._launch()
            if self._comes_up():
                return
        log = self._log.read_text()
        self.stop()
        message = f"PostgreSQL did not come up:\n{log[-2000:]}"
        raise RuntimeError(message)

    def stop(self) -> None:
        """End it, whoever is connected, and remove what it stored."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOP_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _run(self, program: str, *args: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data")]
        subprocess.run(  # noqa: S603  (all words are ours)
            [*command, *args],
            cwd=self._folder,
            capture_output=True,
            check=True,
            **self._as_user,
        )

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {**_SETTINGS, "port": str(self.port)}
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        command += [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("wb") as log:
            return subprocess.Popen(  # noqa: S603  (all words are ours)
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._as_user,
            )

    def _comes_up(self) -> bool:
        assert self._process is not None
        pid_file = self._folder / "data" / "postmaster.pid"
        deadline = time.monotonic() + _START_WITHIN
        while self._process.poll() is None and time.monotonic() < deadline:
            # Its last line is the state; the file belongs to this very process.
            lines = pid_file.read_text().split() if pid_file.exists() else []
            if lines and lines[-1] == "ready" and lines[0] == str(self._process.pid):
                return True
            time.sleep(0.02)
        return False


def _unprivileged() -> dict[str, Any]:
    """Return what makes `subprocess` run a program as somebody without rights."""
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    message = "there is neither a user 'postgres' nor 'nobody' to run PostgreSQL as"
    raise RuntimeError(message)
