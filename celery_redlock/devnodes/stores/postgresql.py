"""A PostgreSQL on loopback, with an empty database."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes.processes import free_port
from celery_redlock.devnodes.stores.server import StoreNode
from celery_redlock.errors import RedlockError

_CHILDREN_END, _PAUSE = 60.0, 0.2  # seconds after a kill, and between two tries
_PORT_TRIES = 5
_USER = "redlock"
# Its data ends with the tests, so it need not survive a crash of the machine.
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "synchronous_commit": "off",
    "unix_socket_directories": "",
}


class PostgreSQL(StoreNode):
    """A PostgreSQL with an empty database and a user with all rights in it.

    PostgreSQL refuses to run as root; then it runs as ``postgres`` or as ``nobody``.

    Args:
        programs: The folder with ``initdb`` and ``postgres``.
        **settings: More of the server's settings.
    """

    def __init__(self, programs: Path, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        name = f"redlock-postgres-{secrets.token_hex(8)}"
        self._folder = Path(tempfile.gettempdir(), name)  # made by the start
        self._programs = programs
        self._as_user = {"cwd": self._folder, **unprivileged()}
        super().__init__(
            "postgresql",
            [],
            log=self._folder / "log",
            ready="database system is ready to accept connections",
            **self._as_user,
        )

    @property
    def members(self) -> list[StoreNode]:
        """The server, alone."""
        return [self]

    @property
    def url(self) -> str:
        """The URL for ``redlock_nodes``, in the notation of PostgreSQL."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start the server and return when it answers; create its database before.

        After a `kill` it has the data that it had, and the port.

        Raises:
            RedlockError: The server did not start.
        """
        if self.port:
            self._start_again()
            return
        self._make_folder()
        data, server = str(self._folder / "data"), self._programs / "postgres"
        self._make_data(data)
        for tries_left in reversed(range(_PORT_TRIES)):
            self.port = free_port()
            settings = {**self._settings, "port": str(self.port)}
            options = [f"--{name}={value}" for name, value in settings.items()]
            self.words = [str(server), "-D", data, *options]
            self.launch()
            try:
                self.wait_until_ready()
            except RedlockError:  # another program may have taken the port
                if self.is_running or not tries_left:
                    raise
            else:
                return

    def _start_again(self) -> None:
        """Start the server on its data, when children of a killed one have ended."""
        give_up_at = SYSTEM_CLOCK.monotonic() + _CHILDREN_END
        while True:
            self.launch()
            try:
                self.wait_until_ready()
            except RedlockError as error:
                is_late = SYSTEM_CLOCK.monotonic() > give_up_at
                if "shared memory block" not in str(error) or is_late:
                    raise
                self.kill()
                SYSTEM_CLOCK.sleep(_PAUSE)
            else:
                return

    def stop(self) -> None:
        """End the server, paused or not. Its data stay."""
        if not self.is_running:
            return
        try:
            self.resume()
            self.signal(signal.SIGINT)  # so it removes its shared memory
            self.wait()
        except RedlockError:
            self.kill()

    def remove(self) -> None:
        """End the server, and remove its data."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.port = 0

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if "user" in self._as_user:
            shutil.chown(self._folder, self._as_user["user"], self._as_user["group"])

    def _make_data(self, data: str) -> None:
        # Its messages, one of which is waited for, are English wherever it runs, and
        # it needs no locale that is not there.
        program, names = self._programs / "initdb", ("--locale=C", "--encoding=UTF8")
        words = ("-D", data, "--auth=trust", "--no-sync", f"--username={_USER}")
        made = subprocess.run(  # noqa: S603  (the found PostgreSQL)
            [str(program), *words, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._as_user,
        )
        if made.returncode:
            raise RedlockError(
                f"{program} could not make a database, so no server was started. It "
                f"ended with code {made.returncode}, after:\n{made.stdout.strip()}"
            )

    def _signal_group(self, name: str) -> None:
        # First the server stops, so that it starts no others in their place.
        if sys.platform == "linux" and os.getpid() == self._owner:
            super()._signal_group("SIGSTOP")
            self._wait_for_stop()
            for pid in self._children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, getattr(signal, name))
        super()._signal_group(name)

    def _children(self) -> list[int]:
        """Return its children, also those that live on when it has ended.

        Each of them is the leader of a group of its own, and all are in its folder.
        """
        data, own, children = str(self._folder / "data"), self._started().pid, []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if str(link.readlink()) == data and int(link.parent.name) != own:
                    children.append(int(link.parent.name))
        return children


def find_postgresql() -> Path | None:
    """Return the newest folder with PostgreSQL's programs, or None."""
    on_path = shutil.which("initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted(debian, key=lambda path: float(path.parts[-3]), reverse=True)
    if on_path:
        found.append(Path(on_path).resolve())
    return found[0].parent if found else None


def installed_postgresql(*, durable: bool = False) -> PostgreSQL:
    """Return a PostgreSQL that keeps its commits when it is killed.

    Args:
        durable: Whether a commit waits for the disk. Only a crash of the machine makes
            a difference, and not that of the server.

    Raises:
        RedlockError: There is none on this machine.
    """
    programs = find_postgresql()
    if programs is None:
        raise RedlockError(
            "No PostgreSQL was found: initdb is neither on PATH nor below "
            "/usr/lib/postgresql. No server was started. Install it with your "
            "system's packages (on Debian: postgresql)."
        )
    fsync = "on" if durable else "off"
    return PostgreSQL(
        programs, synchronous_commit="on", fsync=fsync, full_page_writes=fsync
    )


def unprivileged() -> dict[str, Any]:
    """Return the `subprocess` arguments to run a program as a user without rights.

    There are none if this process has no special rights itself.
    """
    if sys.platform == "win32" or os.geteuid():
        return {}
    import pwd  # noqa: PLC0415  (not on Windows)

    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    message = "there is neither a user 'postgres' nor 'nobody' to run PostgreSQL as"
    raise RedlockError(message)
