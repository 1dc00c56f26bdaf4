"""The record: one file to which every process appends whole lines.

The clock is the machine's monotonic one, which all processes share and which the
leases use too, so that a moment in one process can be compared with the validity
of a lease in another.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Journal"]

FOLDER = "TORTURE_FOLDER"  # the variable that tells every process where to write


class Journal:
    """Appends events to a file, and reads them back."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / "journal.jsonl"
        self._read = 0

    @classmethod
    def here(cls) -> Journal:
        """Return the journal of the torture that this process is part of."""
        return cls(os.environ[FOLDER])

    def note(self, event: str, *, at: float | None = None, **facts: Any) -> None:
        """Append one event.

        Args:
            event: What happened.
            at: When, monotonic seconds; now by default. Facts that are looked up
                after this moment are to be given with it.
            **facts: What is known about it.
        """
        when = time.monotonic() if at is None else at
        line = {"event": event, "at": when, "pid": os.getpid(), **facts}
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)

    def news(self) -> list[dict[str, Any]]:
        """Return the events since this was last asked for, oldest first."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
