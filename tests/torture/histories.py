"""Who ran when, and until when its lease was valid: the journal, put together.

A run is *present* from its first to its last line. It is *proven* from its first
line to the last moment at which its own lease said that it was valid: what it said
was asked after the moment of the line, and a lease never becomes valid again, so
the moment is not too late. Where a later line says that the lease is over, the
validity that this lease names is the end, if the body was there until then.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Histories", "Run"]


@dataclass
class Run:
    """One execution of a body.

    Attributes:
        id: Unlike any other's.
        task_id: The job.
        task: The name of the job's task.
        key: What it locked.
        pid: The process.
        fence: Its lease's.
        asked: When the attempt that won its lease was begun, monotonic seconds.
        began: Its first line.
        last: Its last line.
        proven: Until when its lease was valid while it was there.
        outcome: ``"done"``, an error's name, or None for one that was killed.
        lines: What it noted besides steps.
    """

    id: str
    task_id: str
    task: str
    key: str
    pid: int
    fence: int
    asked: float
    began: float
    last: float
    proven: float
    outcome: str | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Take in one more line of it."""
        if line["valid"]:
            self.proven = line["at"]
        elif self.proven < line["until"] <= line["at"]:
            self.proven = line["until"]
        self.last = line["at"]
        if line["event"] != "step":
            self.lines.append(line)
        if line["event"] == "ended":
            self.outcome = line["outcome"]

    def overlaps(self, other: Run) -> bool:
        """Tell whether both were present at one instant."""
        return self.began < other.last and other.began < self.last

    def collides(self, other: Run) -> bool:
        """Tell whether both leases were valid at one instant, by their own word."""
        return self.began < other.proven and other.began < self.proven

    def moment(self, event: str) -> dict[str, Any] | None:
        """Return the first line of this kind."""
        return next((line for line in self.lines if line["event"] == event), None)


class Histories:
    """All that the journal tells.

    Attributes:
        runs: All runs, by their id.
        sent: The kind of each job that was sent, by its task id.
        chords: Of which chord a job is a part.
        events: The lines of each other kind of event.
    """

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.runs: dict[str, Run] = {}
        self.sent: dict[str, str] = {}
        self.chords: dict[str, str] = {}
        self.events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            self._take(line)
        self._frozen = self._pauses()
        self._lost = {(one["key"], one["fence"]) for one in self.events["lost"]}

    def _take(self, line: dict[str, Any]) -> None:
        if line["event"] == "began":
            names = ("task_id", "key", "pid", "fence", "asked")
            facts = {name: line[name] for name in names}
            at = line["at"]
            run = Run(
                line["run"], task=line["name"], began=at, last=at, proven=at, **facts
            )
            self.runs[run.id] = run
            run.add(line)
        elif "run" in line:
            self.runs[line["run"]].add(line)
        else:
            self.events[line["event"]].append(line)
            if line["event"] == "sent":
                self.sent[line["task_id"]] = line["kind"]
                if "chord" in line:
                    self.chords[line["task_id"]] = line["chord"]

    def _pauses(self) -> dict[int, list[tuple[float, float]]]:
        pauses: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        thawed: defaultdict[int, list[float]] = defaultdict(list)
        for line in self.events["thawed"]:
            thawed[line["victim"]].append(line["at"])
        for line in self.events["freezing"]:
            ends = thawed[line["victim"]]
            index = bisect_right(ends, line["at"])
            end = ends[index] if index < len(ends) else float("inf")
            pauses[line["victim"]].append((line["at"], end))
        return pauses

    # -- Questions -------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[Run, Run]]:
        """Return each two runs of one key, the earlier first, that were near."""
        by_key: defaultdict[str, list[Run]] = defaultdict(list)
        for run in self.runs.values():
            by_key[run.key].append(run)
        for runs in by_key.values():
            runs.sort(key=lambda run: run.began)
            yield from itertools.combinations(runs, 2)

    def was_frozen(self, run: Run, at: float) -> bool:
        """Tell whether its process stood still at some time of it up to a moment."""
        pauses = self._frozen.get(run.pid, ())
        return any(start <= at and run.began <= end for start, end in pauses)

    def was_told(self, run: Run) -> bool:
        """Tell whether its body was told that the lock is lost."""
        return run.outcome == "LockLost" or (run.key, run.fence) in self._lost

    def tasks(self, event: str) -> set[str]:
        """Return the jobs that an event tells of."""
        return {line["task_id"] for line in self.events[event]}

    def traces(self, task_id: str) -> str:
        """Tell what became of a job: where it may have been lost."""
        facts: dict[str, Any] = {
            event: sum(line["task_id"] == task_id for line in self.events[event])
            for event in ("published", "received", "conflict")
        }
        runs = [run for run in self.runs.values() if run.task_id == task_id]
        facts["runs"] = [run.outcome or "killed" for run in runs]
        return ", ".join(f"{name} {value}" for name, value in facts.items())
