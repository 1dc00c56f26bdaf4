"""Scheduled runs do not overlap, though each is longer than its interval."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from tests.beat.project import HELD, LONG
from tests.beat.support import NODE_TIMEOUT, MakeBeats, until
from tests.harness.deployment import Site

SKIPPED = "will be skipped (on_conflict)"
MINUTE = float(os.environ.get("REDLOCK_OVERLAP_SECONDS", "60"))


def every(seconds: float, task: str, key: str) -> dict[str, object]:
    """Return an entry with this interval."""
    return {"task": task, "schedule": seconds, "args": [key]}


@pytest.mark.long
def test_runs_never_overlap(project: MakeBeats, site: Site, key: str) -> None:
    """For a minute, a task of three seconds is sent every second.

    There are two workers and two beats, and the leader is killed halfway. ``skip``
    runs again with the next tick, ``wait`` as soon as the last run has ended,
    ``buffer_one`` soon after.
    """
    skip, wait, buffer = f"{key}-skip", f"{key}-wait", f"{key}-buffer"
    beats = project(
        {
            "skip": every(1.0, "beat-skip", skip),
            "wait": every(1.0, "beat-wait", wait),
            "buffer": every(1.0, "beat-buffer", buffer),
        }
    )
    workers = [beats.start_worker(), beats.start_worker()]
    leader = beats.start()
    beats.start()
    stage = site.stage
    end = stage.now() + MINUTE
    until(lambda: stage.now() >= end - MINUTE / 2, MINUTE)
    leader.kill("SIGKILL")
    until(lambda: stage.now() >= end, MINUTE)

    for name in (skip, wait, buffer):
        assert stage.overlaps(name) == []
        ended = [run for run in stage.runs(name) if run.ended]
        assert {run.outcome for run in ended} == {"done"}
        assert len(ended) >= MINUTE / (LONG + 2) - 3
    said = "\n".join(worker.logs() for worker in workers)
    assert SKIPPED in said
    waits = [f"{run.task_id}] will wait for" in said for run in stage.runs(wait)]
    assert sum(waits) > len(waits) / 2  # a waiting call needs no new tick
    assert "runs instead" in said  # all ticks of one run but the last


def test_backlog_of_ticks_collapses_to_one_run(
    project: MakeBeats, site: Site, key: str
) -> None:
    """The calls that were sent while there was no worker run once."""
    beats = project({"gated": every(0.5, "beat-gated", key)})
    beat = beats.start()
    beats.until_sent(6)
    beat.kill("SIGTERM")
    ticks = len(beats.sent())

    worker = beats.start_worker()
    until(lambda: worker.logs().count(SKIPPED) == ticks - 1, 20)
    site.stage.open(key)
    until(lambda: not site.stage.running(key), 20)

    assert len(site.stage.runs(key)) == 1
    assert beats.sent() == []


@pytest.mark.long
def test_schedulers_whose_clocks_differ_are_covered_by_hold_at_least(
    project: MakeBeats, site: Site, key: str
) -> None:
    """Two beats without election send each tick twice, and it runs once."""
    beats = project({"held": every(1.0, "beat-held", key)})
    worker = beats.start_worker()
    plain = ("-S", "celery.beat:Scheduler")
    beats.start(options=plain)
    until(lambda: site.stage.runs(key), 20)
    beats.start(options=plain)

    until(lambda: worker.logs().count(SKIPPED) >= 3, 30)  # of runs of a millisecond
    until(lambda: len(site.stage.runs(key)) >= 5, 30)

    granted = [note["since"] for note in site.stage.notes(key, "granted")]
    for since, later in pairwise(granted):
        assert later - since > HELD - NODE_TIMEOUT  # an attempt may take so long
