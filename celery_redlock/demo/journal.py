"""What really happened: a file to which the bodies of the tasks append lines.

One line is one ``write`` to a file opened for appending, so lines of different
processes do not mix. Instants are of the machine's monotonic clock, which is the
same for all of its processes.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Journal", "Run", "overlaps", "record", "runs"]

JOURNAL = "CELERY_REDLOCK_DEMO_JOURNAL"

Event = dict[str, Any]


def record(what: str, **facts: Any) -> None:
    """Append one line to the file named by the environment."""
    line = json.dumps(
        {"what": what, "at": time.monotonic(), "pid": os.getpid()} | facts
    )
    file = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)


class Journal:
    """Reads the file as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        self.events: list[Event] = []
        self._read = 0

    def read(self) -> list[Event]:
        """Return the events that have come since the last time."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        news = [json.loads(line) for line in whole.splitlines()]
        self.events += news
        return news


@dataclass(slots=True)
class Run:
    """One execution of a body.

    Attributes:
        key: What it had locked.
        pid: Of the process that ran it.
        began: Instant.
        ended: Instant; None when it never ended by itself.
        renewals: How often its lock was renewed.
    """

    key: str
    pid: int
    began: float
    ended: float | None = None
    renewals: int = 0
    facts: Event = field(default_factory=dict)


def runs(events: list[Event]) -> list[Run]:
    """Return the executions of all bodies, in the order in which they began."""
    found: list[Run] = []
    open_: dict[tuple[str, int], Run] = {}
    for event in events:
        where = (event.get("key", ""), event["pid"])
        if event["what"] == "began":
            run = Run(event["key"], event["pid"], event["at"], facts=event)
            open_[where] = run
            found.append(run)
        elif event["what"] == "ended":
            open_.pop(where).ended = event["at"]
        elif event["what"] == "renewed" and where in open_:
            open_[where].renewals += 1
        elif event["what"] == "killed":
            for place in [place for place in open_ if place[1] == event["victim"]]:
                open_.pop(place).facts = {**event, "killed_at": event["at"]}
    return found


def overlaps(found: list[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of executions of one key that ran at the same time.

    A run that was killed ends at the kill.
    """
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in found:
        by_key[run.key].append(run)
    pairs = []
    for same in by_key.values():
        same.sort(key=lambda run: run.began)
        for index, run in enumerate(same):
            end = run.ended or run.facts.get("killed_at", float("inf"))
            pairs += [(run, later) for later in same[index + 1 :] if later.began < end]
    return pairs
