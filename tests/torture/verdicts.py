"""The verdicts: counts that must be zero, and counts that may be more.

=============================  ===================================================
must be zero                   one is
=============================  ===================================================
overlaps under valid leases    two bodies that share a key ran at one instant, and
                               both leases were valid by their own statement
increments lost by them        one body wrote a counter between another's read and
                               write, and both leases were valid at their writes
more runs than permits         more runs of a key with a limit than its limit were
                               present at one instant, and all their leases were
                               valid by their own statement
copies of a job at once        two runs of one job were present at one instant, and
                               both leases were valid by their own statement
grants with a lower fence      a grant that was asked for after another run had
                               begun has no greater fence; or two have the same one
locks without an order         no order of the operations on a lock explains their
                               results (see ``linearizability``)
registers without an order     the same for a fenced cell
accepted writes with a lower   a fenced cell accepted a write with a lower fence
fence                          than that of the write before
effects that are there twice   the row of a job is greater than 1
effects missing                a job reported success, and its row is not there
acknowledged elements missing  a job reported that its element is in a set, and the
                               element is not there
jobs lost                      a sent job did not run to its end, and neither its
                               kind nor a revoke explains this
results that never came        a sent job has no result
locks left behind              a node has a lock, a ttl and a quarantine after the
                               end
processes left behind          a process below a worker has outlived the worker
workers that did not end by    a worker on a network outlived SIGTERM
SIGTERM
=============================  ===================================================

Celery's Redis transport loses a message if a process dies while a worker takes the
message; `DurableRedis.dropped` finds these jobs. They may be more than zero, and so may
the chords that wait for them.

If a body retries itself, Celery stores RETRY after it has published the retry. Another
worker may have discarded the retry by then, because the job was revoked. The result is
RETRY for ever, and so these jobs may be more than zero, too.

A counter has no fence. A body that was frozen between its last look at its lease and
its write does write late. Such increments may be more than zero. So may overlaps with
an older body that had been notified of its loss, or was frozen when its lease ended. So
may overlaps after the clocks of too many nodes were stepped (see ``histories``).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from celery import states

from tests.torture.histories import Histories, Run
from tests.torture.linearizability import (
    mutexes,
    registers_of,
    unexplained,
    write_jepsen,
)
from tests.torture.report import Counts

# How each kind of job may end, besides by success.
_LOST_ALLOWED = {
    "skip": {"LockLost", states.REVOKED},
    "soft limit": {"SoftTimeLimitExceeded"},
    "hard limit": {"TimeLimitExceeded"},
    "chord": {"ChordError"},  # a part of it was revoked
}


class Verdicts(Counts):
    """Counts what the histories show."""

    def __init__(self, histories: Histories) -> None:
        super().__init__()
        self._histories = histories

    def judge(
        self,
        *,
        results: dict[str, tuple[str, str]],
        writes: list[tuple[str, int, str]],
        elements: set[str],
        dropped: set[str],
    ) -> None:
        """Count everything in the histories.

        Args:
            results: State and error (or ``""``) of each sent job.
            writes: The accepted writes, in order: name, fence, run.
            elements: The elements of the sets at the end.
            dropped: The jobs whose message was lost between broker and worker.
        """
        self._judge_pairs()
        self._judge_limits()
        self._judge_copies()
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

    def judge_effects(
        self, results: dict[str, tuple[str, str]], effects: dict[str, int]
    ) -> None:
        """Count the effects in a database that are there twice or not at all.

        Args:
            results: State and error (or ``""``) of each sent job.
            effects: How often each job has had its effect.
        """
        twice = [f"{job}: {count} times" for job, count in effects.items() if count > 1]
        missing = [
            self._fate(job, state)
            for job, (state, _) in results.items()
            if state == states.SUCCESS and not effects.get(job)
        ]
        self.found("effects that are there twice", twice)
        self.found("effects missing", missing)
        self.apart["effects"] = sum(effects.values())

    def _judge_pairs(self) -> None:
        overlaps, increments, fences = [], [], []
        for older, younger in self._histories.pairs():
            if older.collides(younger):
                overlaps.append(_described(older, younger))
            elif older.overlaps(younger):
                self.apart[f"overlaps: the older {self._why(older, younger)}"] += 1
            is_lower = younger.fence < older.fence and older.began < younger.asked
            if is_lower or older.fence == younger.fence:
                fences.append(_described(older, younger))
            for one, other in ((older, younger), (younger, older)):
                for counter in {*one.keys}.intersection(other.keys):
                    valid = _tears(one, other, counter)
                    if valid:
                        increments.append(_described(one, other))
                    elif valid is not None:
                        self.apart["increments lost to a late writer"] += 1
        self.found("overlaps under valid leases", overlaps)
        self.found("increments lost by them", increments)
        self.found("grants with a lower fence", fences)

    def _judge_limits(self) -> None:
        crowded = []
        for key, most, runs in self._histories.crowds():
            what = f"most runs at once of {key!r}, limit {most}"
            self.apart[what] = max(self.apart[what], len(runs))
            if len(runs) > most:
                crowded.append(
                    f"{len(runs)} of {key!r}, limit {most}: " + _described(*runs)
                )
        self.found("more runs than permits", crowded)

    def _judge_copies(self) -> None:
        pairs = [*self._histories.copies()]
        both = [_described(*pair) for pair in pairs if pair[0].collides(pair[1])]
        self.found("copies of a job at once", both)

    def judge_orders(self, file: Path) -> None:
        """Have Spin look for an order of the operations on each lock and each cell.

        Args:
            file: Gets these operations, in the form of Jepsen.
        """
        locks = mutexes(self._histories.runs.values())
        registers = registers_of(self._histories.runs.values())
        for what, histories in (("locks", locks), ("registers", registers)):
            failures = unexplained(histories).items()
            seen = [f"{name}: {one}" for name, one in failures]
            self.found(f"{what} without an order", seen)
        write_jepsen({**locks, **registers}, file)

    def _why(self, older: Run, younger: Run) -> str:
        if older.is_cut or younger.is_cut:
            return "or its successor lost nodes to steps of clocks"
        if self._histories.was_frozen(older, younger.began):
            return "was frozen"
        if self._histories.was_notified(older):
            return "had been notified of its loss"
        return "was neither frozen nor notified"

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
            self.apart["bodies that went on after a loss"] += "went on" in events

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
        lost, without_result = [], []
        chords = self._histories.chords
        waits_for_dropped = {chords[job] for job in dropped if job in chords}
        for job, kind in self._histories.sent.items():
            state, error = results[job]
            self.apart[f"ended in {error or state}"] += 1
            fate = {state, error}
            if not fate & states.READY_STATES and job in dropped | waits_for_dropped:
                self.apart["jobs dropped between Redis and worker by Celery"] += 1
                continue
            if state == states.RETRY and job in revoked and self._retried_itself(job):
                self.apart["revoked jobs of which Celery stored RETRY last"] += 1
                continue
            if not fate & states.READY_STATES:
                without_result.append(self._fate(job, state))
            if job in revoked or fate & _LOST_ALLOWED.get(kind, set()):
                continue
            # A job that ran to its end without a result is not lost.
            is_well = state == states.SUCCESS or not fate & states.READY_STATES
            if not (ended[job] and is_well):
                lost.append(self._fate(job, error or state))
        self.found("jobs lost", lost)
        self.found("results that never came", without_result)

    def _retried_itself(self, job: str) -> bool:
        """Tell whether the last run of a job ended in a retry of its own."""
        runs = [run for run in self._histories.runs.values() if run.task_id == job]
        last = max(runs, key=lambda run: run.last, default=None)
        return last is not None and last.outcome == "Retry"

    def _fate(self, job: str, end: str) -> str:
        kind, traces = self._histories.sent[job], self._histories.traces(job)
        chords = self._histories.chords
        parts = [part for part, chord in chords.items() if chord == job]
        of_parts = "".join(
            f"; part {part}: {self._histories.traces(part)}" for part in parts
        )
        return f"{kind} {job} is {end}; {traces}{of_parts}"


def _tears(reader: Run, writer: Run, counter: str) -> bool | None:
    """Tell whether a write of one run fell between read and write of the other.

    Args:
        reader: The run whose write may overwrite the other one.
        writer: The other run.
        counter: What they both write.

    Returns:
        None if it did not. Otherwise, whether both leases were valid.
    """
    read, wrote = reader.moment("read", counter), reader.moment("wrote", counter)
    between = writer.moment("wrote", counter)
    if not (read and wrote and between and read["at"] < between["at"] < wrote["at"]):
        return None
    return bool(
        (wrote["valid"] and wrote["at"] <= reader.proven)
        and (between["valid"] and between["at"] <= writer.proven)
    )


def _described(*runs: Run) -> str:
    return " and ".join(
        f"{run.task}[{run.task_id}] on {run.key!r}, pid {run.pid}, fence {run.fence}, "
        f"ran from {run.began:.3f} to {run.last:.3f}, valid to {run.proven:.3f}, "
        f"asked at {run.asked:.3f}"
        for run in runs
    )
