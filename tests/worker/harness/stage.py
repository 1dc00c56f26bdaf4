"""What task bodies record, and what they wait for; outside of the lock's path.

Task bodies append one line per event to a file (``O_APPEND``: whole lines, from
any number of processes) with the machine's monotonic clock, which all processes
share. A body that should stay waits for a gate: a file that the test makes. Both
sides use this module; it knows neither locks nor Celery.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Run", "Stage"]

_runs = itertools.count()
_HOST = socket.gethostname()  # pids repeat between containers


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a body.

    Attributes:
        task_id: Celery's id of it.
        pid: The process that ran it.
        thread: The thread or greenlet that ran it.
        began: When its body began, monotonic seconds.
        ended: When it ended; None while it runs, or if it was killed unseen.
        outcome: ``"done"``, the name of the exception that ended it, or
            ``"killed"``; None while it runs.
        host: The machine or container that ran it.
    """

    task_id: str
    pid: int
    thread: int
    began: float
    ended: float | None = None
    outcome: str | None = None
    host: str = ""

    def overlaps(self, other: Run) -> bool:
        """Tell whether both bodies were running at one instant."""
        mine = float("inf") if self.ended is None else self.ended
        theirs = float("inf") if other.ended is None else other.ended
        return self.began < theirs and other.began < mine


class Stage:
    """A folder with one record per key, and with the gates that are open."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    # -- In task bodies ----------------------------------------------------

    def note(self, key: str, event: str, **facts: Any) -> None:
        """Append one line to the record of this key."""
        here = {"pid": os.getpid(), "host": _HOST}
        line = {"event": event, "at": time.monotonic(), **here, **facts}
        data = (json.dumps(line) + "\n").encode()
        handle = os.open(self._record(key), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, data)
        finally:
            os.close(handle)

    @contextmanager
    def run(self, key: str, task_id: str) -> Iterator[None]:
        """Record that a body runs for as long as the block does."""
        number = f"{_HOST}-{os.getpid()}-{next(_runs)}"
        thread = threading.get_ident()
        self.note(key, "began", run=number, task_id=task_id, thread=thread)
        outcome = "done"
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            self.note(key, "ended", run=number, outcome=outcome)

    def wait(self, gate: str, seconds: float = 60.0) -> None:
        """Stay until the gate is open; the pauses let greenlets switch."""
        deadline = time.monotonic() + seconds
        while not self._gate(gate).exists():
            if time.monotonic() > deadline:
                message = f"nobody opened the gate {gate!r} within {seconds:g} s"
                raise TimeoutError(message)
            time.sleep(0.01)

    def is_open(self, gate: str) -> bool:
        """Tell whether a body need not wait for this gate."""
        return self._gate(gate).exists()

    @staticmethod
    def pause() -> None:
        """Let others run; a moment for a body that asks again and again."""
        time.sleep(0.01)

    @staticmethod
    def now() -> float:
        """Return the present on the clock of the records, in seconds."""
        return time.monotonic()

    # -- In tests ----------------------------------------------------------

    def open(self, gate: str) -> None:
        """Let all bodies go on that wait for this gate, now and later."""
        self._gate(gate).touch()

    def close(self, gate: str) -> None:
        """Let all bodies wait again that come to this gate."""
        self._gate(gate).unlink(missing_ok=True)

    def open_all(self, key: str) -> None:
        """Let all bodies go on whose key begins like this."""
        for record in self.folder.glob(f"{key}*.jsonl"):
            self.open(record.stem)

    def notes(self, key: str, event: str) -> list[dict[str, Any]]:
        """Return what was noted under this key as this event, oldest first."""
        return [line for line in self._lines(key) if line["event"] == event]

    def runs(self, key: str) -> list[Run]:
        """Return the executions of bodies with this key, oldest first."""
        began, ended, killed = {}, {}, {}
        for line in self._lines(key):
            if line["event"] == "began":
                began[line["run"]] = line
            elif line["event"] == "ended":
                ended[line["run"]] = line
            elif line["event"] == "killed":
                killed[line["victim"]] = line
        runs = []
        for number, first in began.items():
            last = ended.get(number) or killed.get(first["pid"])
            last = last or killed.get(first["host"]) or {}
            runs.append(
                Run(
                    first["task_id"],
                    first["pid"],
                    first["thread"],
                    first["at"],
                    last.get("at"),
                    last.get("outcome"),
                    first["host"],
                )
            )
        return runs

    def running(self, key: str) -> list[Run]:
        """Return the executions that have begun and have not ended."""
        return [run for run in self.runs(key) if run.ended is None]

    def overlaps(self, key: str) -> list[tuple[Run, Run]]:
        """Return each pair of executions that ran at the same time."""
        pairs = itertools.combinations(self.runs(key), 2)
        return [(one, other) for one, other in pairs if one.overlaps(other)]

    def killed(self, key: str, victim: int | str) -> None:
        """Record that a process (by pid) or all on a host are killed now.

        So their runs have an end.

        Call it immediately before the kill: an end that is named too early by
        microseconds cannot blame an innocent successor.
        """
        self.note(key, "killed", victim=victim, outcome="killed")

    # -- Files -------------------------------------------------------------

    def _record(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def _gate(self, gate: str) -> Path:
        return self.folder / f"{gate}.open"

    def _lines(self, key: str) -> list[dict[str, Any]]:
        try:
            text = self._record(key).read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]
