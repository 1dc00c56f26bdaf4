"""What must be zero, and what is counted apart.

=============================  ===================================================
must be zero                   that is
=============================  ===================================================
overlaps under valid leases    two bodies of one key were there at one instant,
                               each with a lease that said that it was valid
increments lost by them        a counter was written between another's read and
                               write, and both leases were valid when they wrote
grants with a lower fence      a grant that was begun after another was there has
                               no greater fence
accepted writes with a lower   a fenced cell took a write under a lower fence than
fence                          that of the write before
acknowledged elements missing  a job told that it had put its element into a set
jobs lost                      it was sent, and neither ran to its end nor ended
                               in a way that its kind, or a revoke, explains
results that never came        it was sent, and its result is not ready
locks left behind              a node has one, a ttl and a quarantine after the end
processes left behind          it was below a worker, and outlived it
=============================  ===================================================

Celery's Redis transport loses a message when somebody dies while it is being handed
over; `DurableRedis.dropped` knows of each. Such jobs, and chords that wait for them,
are counted apart.

A counter is not fenced: a body that was frozen between its last look at its lease
and its write does write late. That is counted apart, as is each overlap with an
older body that had been told, or stood still when its lease ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from celery import states

if TYPE_CHECKING:
    from tests.torture.histories import Histories, Run

__all__ = ["Verdicts"]

# By kind of job: how else than by success it may end.
_LOST_ALLOWED = {
    "skip": {"LockLost", states.REVOKED},
    "soft limit": {"SoftTimeLimitExceeded"},
    "hard limit": {"TimeLimitExceeded"},
    "chord": {"ChordError"},  # if a part of it was revoked
}


class Verdicts:
    """Judges the histories.

    Attributes:
        zero: What must be zero, with how often it was seen.
        apart: What may happen, with how often it did.
        evidence: What was seen of each that must be zero, in words.
    """

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self.zero: dict[str, int] = {}
        self.apart: Counter[str] = Counter()
        self.evidence: defaultdict[str, list[str]] = defaultdict(list)

    def found(self, what: str, evidence: list[str]) -> None:
        """Add what must be zero."""
        self.zero[what] = len(evidence)
        self.evidence[what] += evidence

    def judge(
        self,
        *,
        results: dict[str, tuple[str, str]],
        writes: list[tuple[str, int, str]],
        elements: set[str],
        dropped: set[str],
    ) -> None:
        """Judge what the jobs did.

        Args:
            results: State and error (or ``""``) of each job that was sent.
            writes: Those that were accepted, in order: name, fence, run.
            elements: What the sets hold in the end.
            dropped: Jobs whose message was lost between broker and worker.
        """
        self._judge_pairs()
        self._judge_writes(writes)
        self._judge_jobs(results, dropped)
        added = {
            line["element"]
            for run in self._histories.runs.values()
            for line in run.lines
            if line["event"] == "added"
        }
        acknowledged = {
            job
            for job, kind in self._histories.sent.items()
            if kind == "add" and results[job][0] == states.SUCCESS
        }
        missing = sorted((added | acknowledged) - elements)
        self.found("acknowledged elements missing", missing)

    def _judge_pairs(self) -> None:
        overlaps, increments, fences = [], [], []
        for older, younger in self._histories.pairs():
            if older.collides(younger):
                overlaps.append(_words(older, younger))
            elif older.overlaps(younger):
                self.apart[f"overlaps: the older {self._why(older, younger)}"] += 1
            if older.began < younger.asked and older.fence >= younger.fence:
                fences.append(_words(older, younger))
            for one, other in ((older, younger), (younger, older)):
                valid = _tears(one, other)
                if valid:
                    increments.append(_words(one, other))
                elif valid is not None:
                    self.apart["increments lost to a late writer"] += 1
        self.found("overlaps under valid leases", overlaps)
        self.found("increments lost by them", increments)
        self.found("grants with a lower fence", fences)

    def _why(self, older: Run, younger: Run) -> str:
        if self._histories.was_frozen(older, younger.began):
            return "was frozen"
        if self._histories.was_told(older):
            return "had been told lock_lost"
        return "was neither frozen nor told"

    def _judge_writes(self, writes: list[tuple[str, int, str]]) -> None:
        lower, latest = [], dict[str, int]()
        for name, fence, run in writes:
            if fence < latest.get(name, 0):
                lower.append(f"{name}: {fence} by {run} after {latest[name]}")
            latest[name] = fence
        self.found("accepted writes with a lower fence", lower)
        for one in self._histories.runs.values():
            events = {line["event"] for line in one.lines}
            self.apart["late writes refused"] += "refused" in events
            self.apart["bodies that went on after a loss"] += "deaf" in events

    def _judge_jobs(
        self, results: dict[str, tuple[str, str]], dropped: set[str]
    ) -> None:
        ended = Counter(
            run.task_id
            for run in self._histories.runs.values()
            if run.outcome == "done"
        )
        ended.update(self._histories.tasks("tail"))
        self.apart["jobs that ran to their end twice"] += sum(
            number > 1 for number in ended.values()
        )
        revoked = self._histories.tasks("revoking")
        lost, silent = [], []
        chords = self._histories.chords
        waits_for_dropped = {chords[job] for job in dropped if job in chords}
        for job, kind in self._histories.sent.items():
            state, error = results[job]
            self.apart[f"ended in {error or state}"] += 1
            fate = {state, error}
            if not fate & states.READY_STATES and job in dropped | waits_for_dropped:
                self.apart["jobs dropped between Redis and worker by Celery"] += 1
                continue
            if not fate & states.READY_STATES:
                silent.append(self._fate(job, state))
            if job in revoked or fate & _LOST_ALLOWED.get(kind, set()):
                continue
            # Without a result, a job that ran to its end is not lost.
            is_well = state == states.SUCCESS or not fate & states.READY_STATES
            if not (ended[job] and is_well):
                lost.append(self._fate(job, error or state))
        self.found("jobs lost", lost)
        self.found("results that never came", silent)

    def _fate(self, job: str, end: str) -> str:
        kind, traces = self._histories.sent[job], self._histories.traces(job)
        return f"{kind} {job} is {end}; {traces}"


def _tears(reader: Run, writer: Run) -> bool | None:
    """Tell whether a write of one fell between read and write of the other.

    Returns:
        None: it did not. True: it did, and both leases were valid. False: one was
        not.
    """
    read, wrote = reader.moment("read"), reader.moment("wrote")
    between = writer.moment("wrote")
    if not (read and wrote and between and read["at"] < between["at"] < wrote["at"]):
        return None
    return bool(wrote["valid"] and between["valid"])


def _words(*runs: Run) -> str:
    return " and ".join(
        f"{run.task}[{run.task_id}] on {run.key!r}, pid {run.pid}, fence {run.fence}, "
        f"there {run.began:.3f} to {run.last:.3f}, valid to {run.proven:.3f}, "
        f"asked at {run.asked:.3f}"
        for run in runs
    )
