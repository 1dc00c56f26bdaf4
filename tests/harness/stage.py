"""The stage of task bodies: they record when they run, and wait at gates.

Every key has a journal of its own. A gate is a file: a body waits until the test
creates it. Tests and bodies both use this module, which knows neither locks nor Celery.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.journal import HOST, Journal

_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a body; times are in monotonic seconds."""

    task_id: str
    pid: int
    thread: int  # or the greenlet
    began: float
    ended: float | None = None  # None: it runs, or was killed without a record
    outcome: str | None = None  # "done", "killed", or the name of an exception
    host: str = ""  # the machine or container

    def overlaps(self, other: Run) -> bool:
        """Tell whether both bodies were running at one instant."""
        mine = float("inf") if self.ended is None else self.ended
        theirs = float("inf") if other.ended is None else other.ended
        return self.began < theirs and other.began < mine

    def runs_at(self, instant: float) -> bool:
        """Tell whether the body was running at this instant."""
        return self.began <= instant and (self.ended is None or instant < self.ended)


class Stage:
    """A folder with the journals of the keys, and with the open gates."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    # -- In task bodies ----------------------------------------------------

    def note(self, key: str, event: str, **facts: Any) -> None:
        """Append one event to the journal of this key."""
        self._journal(key).note(event, **facts)

    @contextmanager
    def run(self, key: str, task_id: str) -> Iterator[None]:
        """Record the block as a run of a body."""
        number = f"{HOST}-{os.getpid()}-{next(_runs)}"
        thread = threading.get_ident()
        self.note(key, "began", run=number, task_id=task_id, thread=thread)
        outcome, is_recorded = "done", False
        try:
            try:
                yield
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                self.note(key, "ended", run=number, outcome=outcome)
                is_recorded = True
        except BaseException:
            # The interrupt of another thread may have come in the middle of the record.
            if not is_recorded:
                self.note(key, "ended", run=number, outcome=outcome)
            raise

    def wait(self, gate: str, seconds: float = 60.0) -> None:
        """Wait until the gate is open; the pauses let other greenlets run."""
        deadline = time.monotonic() + seconds
        while not self._gate(gate).exists():
            if time.monotonic() > deadline:
                message = f"no test opened the gate {gate!r} within {seconds:g} s"
                raise TimeoutError(message)
            time.sleep(0.01)

    def is_open(self, gate: str) -> bool:
        """Tell whether a gate is open."""
        return self._gate(gate).exists()

    @staticmethod
    def pause() -> None:
        """Pause for a moment, in a body that polls."""
        time.sleep(0.01)

    @staticmethod
    def now() -> float:
        """Return the time of the journals, in seconds."""
        return time.monotonic()

    # -- In tests ----------------------------------------------------------

    def open(self, gate: str) -> None:
        """Open a gate for all bodies, now and later."""
        self._gate(gate).touch()

    def close(self, gate: str) -> None:
        """Close a gate again."""
        self._gate(gate).unlink(missing_ok=True)

    def open_all(self, key: str) -> None:
        """Open the gates of all keys that begin with this text."""
        for record in self.folder.glob(f"{key}*.jsonl"):
            self.open(record.stem)

    def notes(self, key: str, event: str) -> list[dict[str, Any]]:
        """Return the events of this kind in the journal of this key, oldest first."""
        events = self._journal(key).events()
        return [line for line in events if line["event"] == event]

    def runs(self, key: str) -> list[Run]:
        """Return the runs of bodies with this key, oldest first."""
        ends: dict[object, dict[str, Any]] = {}
        first = {}
        for line in self._journal(key).events():
            if line["event"] == "began":
                first[line["run"]] = line
            elif line["event"] == "ended":
                ends[line["run"]] = line
            elif line["event"] == "killed":
                ends[line["victim"]] = line
        runs = []
        for number, line in first.items():
            last = ends.get(number) or ends.get(line["pid"]) or ends.get(line["host"])
            began = (line["task_id"], line["pid"], line["thread"], line["at"])
            last = last or {}
            ended = (last.get("at"), last.get("outcome"), line["host"])
            runs.append(Run(*began, *ended))
        return runs

    def outcomes(self, key: str) -> list[str | None]:
        """Return how each run of a body with this key ended; None while it runs."""
        return [run.outcome for run in self.runs(key)]

    def running(self, key: str) -> list[Run]:
        """Return the runs that have begun and have not ended."""
        return [run for run in self.runs(key) if run.ended is None]

    def overlaps(self, key: str) -> list[tuple[Run, Run]]:
        """Return each pair of runs that ran at the same time."""
        pairs = itertools.combinations(self.runs(key), 2)
        return [(one, other) for one, other in pairs if one.overlaps(other)]

    def most_at_once(self, key: str) -> int:
        """Return the greatest number of runs that ran at one instant."""
        runs = self.runs(key)
        # The number is greatest when a run begins.
        return max(
            (sum(one.runs_at(it.began) for one in runs) for it in runs), default=0
        )

    def killed(self, key: str, victim: int | str) -> None:
        """Record the end of all runs of a process (by pid) or of a host.

        Call it immediately before the kill. The recorded end is then some
        microseconds too early, and not after the begin of a successor.
        """
        self.note(key, "killed", victim=victim, outcome="killed")

    # -- Files -------------------------------------------------------------

    def _journal(self, key: str) -> Journal:
        return Journal(self.folder / f"{key}.jsonl")

    def _gate(self, gate: str) -> Path:
        return self.folder / f"{gate}.open"
