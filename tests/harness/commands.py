"""``celery worker`` and ``celery beat`` as child processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_redlock.devnodes.processes import Process


class Worker(Process):
    """A Celery worker: ``celery -A APP worker -n NAME@HOST``; its log is in a folder.

    ``options`` are more words of the command line, and ``more`` is as for `Process`.
    """

    def __init__(  # noqa: PLR0913  (each of them differs between workers)
        self,
        app: str,
        name: str,
        *,
        folder: Path,
        pool: str = "prefork",
        concurrency: int = 4,
        host: str = "%h",
        options: Sequence[str] = (),
        **more: Any,
    ) -> None:
        command = [
            *(sys.executable, "-u", "-m", "celery", "-A", app, "worker"),
            *("-n", f"{name}@{host}", "-P", pool, "-c", str(concurrency)),
            *("-l", "INFO", "--without-gossip", "--without-mingle", *options),
        ]
        log = folder / f"{name}.log"
        super().__init__(name, command, log=log, ready=" ready.", **more)
        self.pool = pool


class Beat(Process):
    """A Celery beat: ``celery -A APP beat``; its log and schedule are in a folder.

    ``options`` are more words of the command line, and ``more`` is as for `Process`.
    """

    def __init__(
        self,
        app: str,
        name: str,
        *,
        folder: Path,
        options: Sequence[str] = ("-S", "redlock"),
        **more: Any,
    ) -> None:
        command = [
            *(sys.executable, "-u", "-m", "celery", "-A", app, "beat", "--pidfile="),
            *("-s", str(folder / f"{name}-schedule"), "-l", "INFO", *options),
        ]
        log = folder / f"{name}.log"
        super().__init__(name, command, log=log, ready="beat: Starting...", **more)
