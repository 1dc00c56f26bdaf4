"""A journal: one file to which any number of processes append whole lines.

Each line is one ``write`` to a file that is open for appending. The times come from the
monotonic clock of the machine. All its processes share this clock, and leases use it,
too. So a moment in one process can be compared with the validity of a lease in another.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

HOST = socket.gethostname()  # pids repeat between containers


class Journal:
    """Appends events to a file, and reads them."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._read = 0

    def note(self, event: str, *, at: float | None = None, **facts: Any) -> None:
        """Append one event.

        Args:
            event: The kind of the event.
            at: Its time in monotonic seconds; by default now.
            **facts: The facts of the event.
        """
        when = time.monotonic() if at is None else at
        line = {"event": event, "at": when, "pid": os.getpid(), "host": HOST, **facts}
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)

    def events(self) -> list[dict[str, Any]]:
        """Return all events, oldest first."""
        return self._events_from(0)[0]

    def news(self) -> list[dict[str, Any]]:
        """Return the events since the last call, oldest first."""
        news, self._read = self._events_from(self._read)
        return news

    def _events_from(self, start: int) -> tuple[list[dict[str, Any]], int]:
        """Return the events from this byte of the file, and the byte of their end."""
        lines, end = _lines_from(self.path, start)
        return [json.loads(line) for line in lines], end


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a file to which another process may just append.

    The last one is left out if it has no end yet. One ``write`` is seen in two parts
    where it goes from one page of the file to the next.
    """
    return _lines_from(path, 0)[0]


def _lines_from(path: Path, start: int) -> tuple[list[str], int]:
    """Return the whole lines from this byte of a file, and the byte of their end."""
    if not path.exists():
        return [], start
    with path.open("rb") as file:
        file.seek(start)
        whole, newline, _ = file.read().rpartition(b"\n")
    return whole.decode().splitlines(), start + len(whole) + len(newline)
