"""The runs of the task bodies, as the journal has them, and overlaps of these runs.

The times come from the monotonic clock of the machine, which all its processes share.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

from tests.harness.journal import Journal

JOURNAL = "DEMO_JOURNAL"  # the variable with the path of the file

Event = dict[str, Any]


def record(what: str, **facts: Any) -> None:
    """Append one line to the journal."""
    Journal(os.environ[JOURNAL]).note(what, **facts)


@dataclass(slots=True)
class Run:
    """One run of a task body.

    Attributes:
        key: The key of its lock.
        pid: Its process.
        began: When it began.
        ended: When it ended or was killed; None while it runs.
        killed: Whether it was killed.
        renewals: How often its lock was renewed.
    """

    key: str
    pid: int
    began: float
    ended: float | None = None
    killed: bool = False
    renewals: int = 0


def runs(events: list[Event]) -> list[Run]:
    """Return the runs in the order in which they began."""
    found: list[Run] = []
    running: dict[tuple[str, int], Run] = {}
    for event in events:
        at = (event.get("key", ""), event["pid"])
        match event["event"]:
            case "began":
                running[at] = Run(event["key"], event["pid"], event["at"])
                found.append(running[at])
            case "ended":
                running.pop(at).ended = event["at"]
            case "renewed" if at in running:
                running[at].renewals += 1
            case "killed":
                for place in [one for one in running if one[1] == event["victim"]]:
                    run = running.pop(place)
                    run.ended, run.killed = event["at"], True
    return found


def overlaps(found: list[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs of one key that ran at the same time."""
    by_begin = sorted(found, key=lambda run: run.began)
    return [
        (run, later)
        for run, later in itertools.combinations(by_begin, 2)
        if run.key == later.key and (run.ended is None or later.began < run.ended)
    ]
