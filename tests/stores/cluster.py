"""A PostgreSQL that tests may crash, and others that take its place."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil

from celery_redlock.devnodes.processes import free_port
from tests.harness.servers import PostgreSQL

DURABLE = {"fsync": "on", "full_page_writes": "on"}


class Primary(PostgreSQL):
    """A server that writes what it has committed to its disk.

    As PostgreSQL does by itself; a test may change ``synchronous_commit``.
    """

    def __init__(self, programs: Path) -> None:
        super().__init__(programs, **DURABLE)
        del self._settings["synchronous_commit"]

    def crash(self) -> None:
        """Kill all processes of the server at once."""
        whole = psutil.Process(self.pid)
        processes = [whole, *whole.children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=10)
        self.kill()

    def run(self, program: str, *words: str) -> None:
        """Run a program of PostgreSQL as the user of the server."""
        subprocess.run(  # noqa: S603  (the found PostgreSQL)
            [str(self._programs / program), *words],
            capture_output=True,
            check=True,
            **self._as_user,
        )

    def begin(self, program: str, *words: str) -> Callable[[], object]:
        """Begin to run such a program. Return what ends it."""
        running = subprocess.Popen(  # noqa: S603  (the found PostgreSQL)
            [str(self._programs / program), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._as_user,
        )

        def end() -> None:
            running.kill()
            running.wait()

        return end


class Publisher(Primary):
    """A server whose tables others may copy and follow (logical replication)."""

    def __init__(self, programs: Path) -> None:
        super().__init__(programs)
        self._settings["wal_level"] = "logical"


class Successor(Primary):
    """A server of its own, on a port that stays."""

    def _use_port(self, port: int) -> None:
        self.port = port
        server, data = str(self._programs / "postgres"), str(self._folder / "data")
        settings = {**self._settings, "port": str(port)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        self.words = [server, "-D", data, *options]


class Upgraded(Successor):
    """A new server with all that an old one had, which has ended (``pg_upgrade``)."""

    def __init__(self, old: Primary) -> None:
        super().__init__(old._programs)  # noqa: SLF001  (of this family)
        self._make_folder()
        data = str(self._folder / "data")
        self._make_data(data)
        programs = str(self._programs)
        self.run(
            *("pg_upgrade", "-U", "redlock", "-b", programs, "-B", programs),
            *("-d", str(old._folder / "data"), "-D", data),  # noqa: SLF001
        )
        self._use_port(free_port())


class Standby(Successor):
    """A standby that follows a primary, without making it wait."""

    def __init__(self, primary: Primary) -> None:
        super().__init__(primary._programs)  # noqa: SLF001  (of this family)
        self._primary = primary
        self._make_folder()
        data = str(self._folder / "data")
        address = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "redlock"]
        self.run("pg_basebackup", *address, "-D", data, "-R", "--checkpoint=fast")
        self._use_port(free_port())
        self.ready_text = "ready to accept read-only connections"

    def promote(self) -> None:
        """Make it the primary, and return when it accepts changes."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self._folder / "data"))
        self.ready_text = self._primary.ready_text

    def take_over(self) -> None:
        """Become the primary, at the address of the old one, which must be down."""
        self.stop()
        self._use_port(self._primary.port)
        self.start()
        self.promote()
