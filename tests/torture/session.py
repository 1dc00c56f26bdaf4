"""One torture from begin to end."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import states

from tests.torture import journal_in
from tests.torture.faults import Faults
from tests.torture.histories import Histories
from tests.torture.report import Report
from tests.torture.site import MAX_TTL, Site
from tests.torture.verdicts import Verdicts

HISTORY = "history.jsonl"
_PATIENCE = 60.0  # seconds without progress
_WHEN_IDLE = 5.0  # the same, if the broker has no message
_FREE_WITHIN = 3 * MAX_TTL  # a ttl and a quarantine


def torture(
    seconds: float,
    seed: int,
    *,
    folder: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
    **chosen: Any,
) -> Report:
    """Do faults, wait until all jobs have ended, and judge the journal.

    Args:
        seconds: The duration of the faults.
        seed: Chooses faults and jobs.
        folder: An empty folder for journal and logs; a temporary one by default.
        say: Gets a line for each step.
        **chosen: Choices as for `Site`. On a network, Spin judges as well.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="redlock-torture-")
            folder = Path(stack.enter_context(temporary))
        site = stack.enter_context(Site(folder, seed, **chosen))
        if site.network and not site.clocks:
            say("no clock is stepped: no redis-server starts with libfaketime")
        say(f"all processes run; faults for {seconds:g} s, seed {seed}")
        faults = Faults(site, seed)
        seconds = faults.run(seconds, site.jobs)
        over = time.monotonic()
        say(f"{faults.counts.total()} faults are done and undone")
        site.end_production()
        site.heal()
        if not site.kinds:
            site.send_to_each_key()
        histories = Histories(journal_in(folder).news())
        results, restarts = _finish(site, histories.sent, say)
        took = time.monotonic() - over
        say("judging")
        left: list[str] = []
        over = time.monotonic()
        try:
            site.looks.until_free(seconds=_FREE_WITHIN)
        except AssertionError:
            left = site.looks.locks()
        free_after = time.monotonic() - over
        stubborn = site.end_workers()
        verdicts = Verdicts(Histories(journal_in(folder).news()))
        verdicts.judge(
            results=results,
            writes=site.ledger.writes(),
            elements=site.ledger.elements(),
            dropped=site.broker.dropped(),
        )
        if site.network:
            verdicts.judge_orders(folder / HISTORY)
        if site.database:
            verdicts.judge_effects(results, site.database.effects())
        verdicts.found("locks left behind", left)
        verdicts.found("processes left behind", site.left_behind())
        verdicts.apart["ms until no lock was left"] = round(free_after * 1000)
        verdicts.apart["workers restarted because no job ended"] = restarts
        verdicts.apart["workers that ended by themselves"] = faults.ended
        if site.network:  # and Redis as the broker, which lets workers end
            verdicts.found("workers that did not end by SIGTERM", stubborn)
        else:
            verdicts.apart["workers that did not end by SIGTERM"] = len(stubborn)
        return Report(
            broker=chosen.get("broker", "redis"),
            store=site.store,
            seed=seed,
            seconds=seconds,
            finished_after=took,
            jobs=dict(Counter(histories.sent.values())),
            runs=len(Histories(journal_in(folder).news()).runs),
            faults=dict(faults.counts),
            zero=verdicts.zero,
            apart=dict(verdicts.apart),
            evidence={what: seen for what, seen in verdicts.evidence.items() if seen},
            title="partitions" if site.network else "torture",
        )


def _finish(
    site: Site, jobs: dict[str, str], say: Callable[[str], object]
) -> tuple[dict[str, tuple[str, str]], int]:
    """Wait until all jobs have ended, or there is no progress any more.

    Celery's consumers sometimes take no messages after a failure of the broker. Then
    the workers are restarted once, and the report counts this.

    Returns:
        State and error of each job, and the number of restarted workers.
    """
    waiting, restarts = set(jobs), 0
    if not _all_end(site, waiting) and not site.broker.is_idle():
        say(f"{len(waiting)} jobs make no progress; the workers are restarted")
        site.restart_workers()
        restarts = len(site.workers)
        _all_end(site, waiting)
    return {job: _result(site, job) for job in jobs}, restarts


def _all_end(site: Site, waiting: set[str]) -> bool:
    """Wait until all jobs have ended (True), or none has for a while (False)."""
    last = time.monotonic()
    while waiting:
        patience = _WHEN_IDLE if site.broker.is_idle() else _PATIENCE
        if time.monotonic() - last > patience:
            break
        before = len(waiting)
        waiting -= {job for job in waiting if _is_ready(site, job)}
        if len(waiting) < before:
            last = time.monotonic()
        time.sleep(0.1)
    return not waiting


def _is_ready(site: Site, job: str) -> bool:
    return _result(site, job)[0] in states.READY_STATES


def _result(site: Site, job: str) -> tuple[str, str]:
    meta = site.app.backend.get_task_meta(job, cache=False)
    error = meta["result"] if meta["status"] in states.EXCEPTION_STATES else None
    known = isinstance(error, BaseException) and meta["status"] == states.FAILURE
    return meta["status"], type(error).__name__ if known else ""
