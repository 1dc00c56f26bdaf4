"""The histories: the runs in the journal, and until when their leases were valid.

A run is *present* from its first line to its last. It is *proven* from its first line
to the last moment at which its own lease said that it was valid. The run asks the lease
after the time of the line, and a lease never becomes valid again, so this moment is not
too late. If a later line says that the lease is over, the end of validity that the
lease names is the end of the proof, if the body was present then.

A lock that g of the N nodes granted survives forward steps of the clocks of
g − (N − q) − 1 of them, so of g − 3 of five: ``docs/explanation/safety.md`` promises no
more. With one more, the proof ends at this step. Fences do not depend on clocks.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from celery_redlock.scripts.keys import keys_of

STEP = "clock stepped"  # the event of a node
STEP_TAKES = 0.5  # seconds within which a node surely reads its stepped clock
_QUORUM = 3  # of five nodes, which alone have clocks to step


@dataclass
class Run:
    """One run of a body; times are in monotonic seconds."""

    id: str
    task_id: str
    task: str  # its name
    key: str  # of several keys, one a line
    pid: int
    fence: int
    asked: float  # the begin of the attempt that won the lease
    limits: dict[str, int]  # how many holders each of its keys may have
    votes: int  # the fewest nodes that had granted its lease
    began: float  # the first line
    last: float  # the last line
    proven: float  # until when its lease was valid while it was present
    is_cut: bool = False  # whether steps of clocks have ended its proof
    outcome: str | None = None  # "done" or the name of an error; None: it was killed
    lines: list[dict[str, Any]] = field(default_factory=list)  # without the steps

    def add(self, line: dict[str, Any]) -> None:
        """Add a line."""
        if line["valid"]:
            self.proven = line["at"]
        elif self.proven < line["until"] <= line["at"]:
            self.proven = line["until"]
        self.last = line["at"]
        self.votes = min(self.votes, line["votes"])
        if line["event"] != "step":
            self.lines.append(line)
        if line["event"] == "ended":
            self.outcome = line["outcome"]

    def overlaps(self, other: Run) -> bool:
        """Tell whether both runs were present at one instant."""
        return self.began < other.last and other.began < self.last

    def collides(self, other: Run) -> bool:
        """Tell whether both leases said at one instant that they were valid."""
        begun = max(self.began, other.began)
        return begun < self.proven and begun < other.proven

    @property
    def keys(self) -> list[str]:
        """The keys that it held: one, or several that it took together."""
        return keys_of(self.key)

    def moment(self, event: str, counter: str) -> dict[str, Any] | None:
        """Return the first line of this kind about a counter."""
        wanted = event, counter
        lines = ((one["event"], one.get("counter"), one) for one in self.lines)
        return next((line for *what, line in lines if (*what,) == wanted), None)


class Histories:
    """The contents of the journal.

    Attributes:
        runs: The runs by their id.
        sent: The kind of each sent job by its task id.
        chords: The chord of each job that is a part of one.
        events: The other lines by the kind of event.
    """

    def __init__(self, lines: Iterable[dict[str, Any]]) -> None:
        self.runs: dict[str, Run] = {}
        self.sent: dict[str, str] = {}
        self.chords: dict[str, str] = {}
        self.events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            self._take(line)
        self._frozen = self._pauses()
        self._cut_proofs()
        self._lost = {(one["key"], one["fence"]) for one in self.events["lost"]}

    def _take(self, line: dict[str, Any]) -> None:
        if line["event"] == "began":
            names = ("task_id", "key", "pid", "fence", "asked", "votes")
            facts = {name: line[name] for name in names}
            facts["limits"] = line.get("limits", {})
            at = line["at"]
            if line["run"] in self.runs:
                message = f"two runs have the id {line['run']}"
                raise ValueError(message)
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

    def _cut_proofs(self) -> None:
        """End proofs where too many clocks of nodes were stepped forward."""
        forward = [line for line in self.events[STEP] if line["step"] > 0]
        for run in self.runs.values():
            stepped: set[str] = set()
            for line in forward:
                at = line["at"]
                if run.asked <= at + STEP_TAKES and at < run.proven:
                    stepped.add(line["node"])
                    if len(stepped) > run.votes - _QUORUM:
                        run.proven, run.is_cut = at, True
                        break

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

    # -- Queries --------------------------------------------------------------------

    def pairs(self) -> Iterator[tuple[Run, Run]]:
        """Return each pair of runs that share a key, the earlier run first.

        A pair that shares two keys comes once.
        """
        by_key: defaultdict[str, list[Run]] = defaultdict(list)
        for run in self.runs.values():
            for key in run.keys:
                by_key[key].append(run)
        for key, runs in by_key.items():
            runs.sort(key=lambda run: run.began)
            for older, younger in itertools.combinations(runs, 2):
                shared = {*older.keys}.intersection(younger.keys)
                if key == min(shared):
                    yield older, younger

    def copies(self) -> Iterator[tuple[Run, Run]]:
        """Return each pair of runs of one job, the earlier run first."""
        by_job: defaultdict[str, list[Run]] = defaultdict(list)
        for run in sorted(self.runs.values(), key=lambda run: run.began):
            by_job[run.task_id].append(run)
        for runs in by_job.values():
            yield from itertools.combinations(runs, 2)

    def crowds(self) -> Iterator[tuple[str, int, list[Run]]]:
        """Return the runs with a valid lease at the begin of each run, by limit.

        Each time the key with the limit, the limit, and these runs.
        """
        by_limit: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
        for run in sorted(self.runs.values(), key=lambda run: run.began):
            for limit in run.limits.items():
                crowd = by_limit[limit]
                crowd[:] = [one for one in crowd if one.proven > run.began]
                if run.proven > run.began:  # else it began after its lease
                    crowd.append(run)
                yield *limit, [*crowd]

    def was_frozen(self, run: Run, at: float) -> bool:
        """Tell whether the process of a run was frozen during it, up to a moment."""
        pauses = self._frozen.get(run.pid, ())
        return any(start <= at and run.began <= end for start, end in pauses)

    def was_notified(self, run: Run) -> bool:
        """Tell whether the body of a run was notified of the loss of its lock."""
        return run.outcome == "LockLost" or (run.key, run.fence) in self._lost

    def tasks(self, event: str) -> set[str]:
        """Return the jobs of this kind of event."""
        return {line["task_id"] for line in self.events[event]}

    def traces(self, task_id: str) -> str:
        """List what happened to a job, to find out where it was lost.

        Each event with its seconds since the job was sent, and its process.
        """
        events = [
            *itertools.chain.from_iterable(self.events.values()),
            *itertools.chain.from_iterable(run.lines for run in self.runs.values()),
        ]
        ours = [event for event in events if event.get("task_id") == task_id]
        ours.sort(key=lambda event: float(event["at"]))
        return ", ".join(
            f"{event['event']} {event['at'] - ours[0]['at']:.2f} ({event['pid']})"
            for event in ours
        )
