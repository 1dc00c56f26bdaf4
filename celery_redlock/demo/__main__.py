"""``python -m celery_redlock.demo``: the plot, and what it came to."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from typing import Any

from celery.states import PENDING, READY_STATES

try:
    from rich.console import Console
    from rich.table import Table
except ImportError:
    sys.exit("The demo draws with rich: pip install 'celery-redlock[dev]'.")

from celery_redlock.core.redlock import Redlock
from celery_redlock.demo.journal import overlaps, record, runs
from celery_redlock.demo.screen import Screen
from celery_redlock.demo.stage import Stage, set_stage
from celery_redlock.demo.tasks import import_catalogue, send_invoice
from celery_redlock.errors import RedlockError

_ROUNDS, _INVOICES, _COPIES = 14, 4, 6
_PACE = 0.8  # seconds from round to round
_KILL_NODE, _START_IMPORT, _KILL_WORKER, _NODE_BACK = 4, 5, 8, 10  # rounds
_INVOICE_TAKES, _IMPORT_TAKES = 1.3, 5.0  # seconds
_CURTAIN = 30.0  # seconds after the last round
_LOCK_MAY_STAY = 6.0


class Play:
    """The calls that were made, and what became of them."""

    def __init__(self, stage: Stage, screen: Screen, redlock: Redlock) -> None:
        self.stage = stage
        self.screen = screen
        self.redlock = redlock
        self.states: dict[str, str] = {}
        self.published: Counter[str] = Counter()
        self.lock_stayed: float | None = None

    def run(self) -> None:
        """Play all of it. Takes about half a minute."""
        for number in range(1, _ROUNDS + 1):
            self._storm(number)
            if number == _KILL_NODE:
                self._kill_node()
            if number >= _START_IMPORT:
                self._publish("catalogue", import_catalogue, _IMPORT_TAKES)
            if number == _KILL_WORKER:
                self._kill_worker()
            if number == _NODE_BACK:
                self._bring_node_back()
            self._watch(until=time.monotonic() + _PACE)
        self.screen.say("The storm is over. Waiting for every call to have a result.")
        curtain = time.monotonic() + _CURTAIN
        while time.monotonic() < curtain and self.unready():
            self._watch(until=time.monotonic() + 0.25)

    def unready(self) -> list[str]:
        """Return the ids of calls that have no final result yet."""
        open_ = [i for i, state in self.states.items() if state not in READY_STATES]
        for task_id in open_:
            self.states[task_id] = self.stage.state_of(task_id)
        return [i for i in open_ if self.states[i] not in READY_STATES]

    def _publish(self, key: str, task: Any, *args: Any) -> None:
        self.states[task.delay(*args).id] = PENDING
        self.published[key] += 1

    def _storm(self, number: int) -> None:
        calls = [f"{number}-{letter}" for letter in "abcdefgh"[:_INVOICES]]
        for call in calls * _COPIES:
            self._publish(f"invoice:{call}", send_invoice, call, _INVOICE_TAKES)
        self.screen.say(f"Round {number}: {_INVOICES} invoices, each {_COPIES} times.")

    def _kill_node(self) -> None:
        self.stage.nodes.nodes[1].kill()
        self.screen.say(
            f"[red]kill -9[/] of the node {self.redlock.labels[1]}. "
            "Four of five are a majority."
        )

    def _bring_node_back(self) -> None:
        self.stage.nodes.nodes[1].restart()
        quarantine = self.redlock.timing.quarantine
        self.screen.say(
            f"The node is back with empty hands: it will not vote for "
            f"{quarantine:.0f} s, lest it grant what it has forgotten."
        )

    def _kill_worker(self) -> None:
        self.stage.journal.read()
        running = [run for run in runs(self.stage.journal.events) if not run.ended]
        victim = next((run for run in running if run.key == "catalogue"), None)
        holder = self.redlock.inspect("catalogue").holder
        if victim is None or holder is None:
            self.screen.say("The import is not running: its worker is not killed.")
            return
        os.kill(victim.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        record("killed", victim=victim.pid)
        self.screen.say(
            f"[red]kill -9[/] of pid {victim.pid}, a worker process in the middle of "
            "the import. Its lock has a ttl of 30 s."
        )
        while (now := self.redlock.inspect("catalogue").holder) is not None:
            if now.base != holder.base:
                break
            if time.monotonic() > killed_at + self.redlock.timing.ttl:
                break
            self._watch(until=time.monotonic() + 0.02)
        self.lock_stayed = time.monotonic() - killed_at
        self.screen.say(
            f"The lock of the killed process was free after {self.lock_stayed:.2f} s; "
            "the import runs once more."
        )

    def _watch(self, until: float) -> None:
        while True:
            self.stage.journal.read()
            events = self.stage.journal.events
            keys = {run.key for run in runs(events) if not run.ended}
            seen = {key: self.redlock.inspect(key) for key in keys}
            votes = self.redlock.check().ballot
            self.screen.draw(events, self.published, seen, votes)
            if time.monotonic() >= until:
                return
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))


def _summary(play: Play, console: Console) -> bool:
    """Print what the bodies recorded; return whether every promise was kept."""
    play.stage.journal.read()
    done = runs(play.stage.journal.events)
    finished = {run.key for run in done if run.ended}
    lost = sorted(set(play.published) - finished)
    clashes = overlaps(done)
    unready = play.unready()
    states = Counter(play.states.values())
    skips = sum(e["what"] == "skipped" for e in play.stage.journal.events)
    stayed = play.lock_stayed
    rows: list[tuple[str, str, bool | None]] = [
        ("calls published", f"{len(play.states)} of {len(play.published)} jobs", None),
        ("bodies run", f"{len(done)}, {len(done) - len(finished)} of them again", None),
        ("duplicates skipped", f"{skips}, each told who held the lock", None),
        ("renewals", str(sum(run.renewals for run in done)), None),
        ("results", ", ".join(f"{n} {s}" for s, n in sorted(states.items())), None),
        ("overlaps", str(len(clashes)), not clashes),
        ("jobs lost", str(len(lost)), not lost),
        ("results that never came", str(len(unready)), not unready),
        (
            "the killed worker's lock stayed",
            "it was not killed"
            if stayed is None
            else f"{stayed:.2f} s, of a ttl of 30",
            stayed is not None and stayed <= _LOCK_MAY_STAY,
        ),
    ]
    table = Table(title="What the bodies of the tasks wrote down", show_header=False)
    for name, value, kept in rows:
        mark = {None: "", True: "[green]✓ kept[/]", False: "[red]✗ BROKEN[/]"}[kept]
        table.add_row(name, value, mark)
    console.print(table)
    for first, second in clashes:
        console.print(f"[red]overlap[/] of {first.key}: {first} and {second}")
    for key in lost:
        console.print(f"[red]lost[/]: {key}")
    return all(kept is not False for _, _, kept in rows)


def main() -> int:
    """Play, and return 0 when every promise was kept, 1 when not."""
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        console.print("Starting five nodes, a broker and two workers ...")
        with set_stage() as stage:
            redlock = Redlock(stage.nodes.urls)
            with Screen(console, redlock.labels) as screen:
                play = Play(stage, screen, redlock)
                play.run()
            kept = _summary(play, console)
            if not kept:
                console.print(stage.logs(), markup=False, highlight=False)
            redlock.close()
    except KeyboardInterrupt:
        console.print("Interrupted. Everything is stopped.")
        return 130
    except RedlockError as error:
        console.print(f"[red]{error}[/]")
        return 1
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
