"""One run from begin to end."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.harness.journal import Journal
from tests.harness.waiting import until
from tests.partitions.faults import Faults
from tests.partitions.history import OPERATION, write_jepsen
from tests.partitions.site import KEYS, Site
from tests.partitions.verdicts import Verdicts
from tests.torture.report import Report

HISTORY = "history.jsonl"
_PATIENCE = 30.0  # seconds in which each key is locked again after the faults


@dataclasses.dataclass
class Outcome(Report):
    """The outcome of one run. Its jobs are the operations, by function and outcome."""

    def text(self) -> str:
        """Return the table, with its title in the words of this run."""
        _, _, table = super().text().partition("\n")
        count = sum(self.jobs.values())
        table = table.replace(f"{count} jobs, {self.runs} runs", f"{count} operations")
        return f"partitions: seed {self.seed}, {self.seconds:g} s of faults\n{table}"


def partitions(
    seconds: float,
    seed: int,
    *,
    split: bool = False,
    folder: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Do faults, end all processes, and judge the history.

    Args:
        seconds: The duration of the faults.
        seed: Chooses faults and operations.
        split: Plant a bug, see `Site`.
        folder: An empty folder for history and logs; a temporary one by default.
        say: Gets a line for each step.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="redlock-partitions-") as name:
            return partitions(seconds, seed, split=split, folder=Path(name), say=say)
    with Site(folder, seed, split=split) as site:
        say(f"all processes run; faults for {seconds:g} s, seed {seed}")
        if not site.has_clocks:
            say("no clock is stepped: no redis-server starts with libfaketime")
        faults = Faults(site, seed)
        faults.run(seconds)
        over = time.monotonic()
        say(f"{faults.counts.total()} faults are done and undone")
        locked = _locked_again(site.journal, over)
        took = time.monotonic() - over
        late = site.end()
        store = site.store_content()
    say("judging")
    lines = site.journal.events()
    write_jepsen(lines, folder / HISTORY)
    verdicts = Verdicts(lines, store)
    verdicts.judge()
    verdicts.found("keys that no client got", sorted({*KEYS} - locked))
    verdicts.found("processes that did not end", late)
    return Outcome(
        broker="",
        store="",
        seed=seed,
        seconds=seconds,
        finished_after=took,
        jobs=dict(verdicts.operations),
        runs=0,
        faults=dict(faults.counts),
        zero=verdicts.zero,
        apart=dict(verdicts.apart),
        evidence={what: seen for what, seen in verdicts.evidence.items() if seen},
    )


def _locked_again(journal: Journal, since: float) -> set[str]:
    """Wait until a client has got each lock after the faults; return these keys."""
    locked: set[str] = set()

    def all_were_locked() -> bool:
        for line in journal.news():
            is_grant = (line.get("f"), line.get("type")) == ("acquire", "ok")
            if line["event"] == OPERATION and is_grant and line["at"] > since:
                locked.add(line["key"])
        return locked == {*KEYS}

    with contextlib.suppress(AssertionError):
        until(all_were_locked, _PATIENCE)
    return locked
