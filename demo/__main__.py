"""``python -m demo``: the sequence of events, and a summary of what happened."""

from __future__ import annotations

import argparse
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
    sys.exit("The demo needs the package rich: pip install 'celery-redlock[dev]'.")

from celery_redlock import RedlockError
from celery_redlock.devnodes import STORES, DevStore
from celery_redlock.locks.redlock import Redlock
from celery_redlock.operations.words import plural
from demo.journal import Event, Run, overlaps, record, runs
from demo.processes import Processes, start_processes
from demo.screen import Screen
from demo.tasks import import_catalogue, send_invoice

_ROUNDS, _INVOICES, _COPIES = 14, 4, 6
_PACE = 0.8  # seconds from round to round
_KILL_NODE, _START_IMPORT, _KILL_CHILD, _NODE_BACK = 4, 5, 8, 10  # rounds
_ONLY_SERVER_BACK = _KILL_NODE + 1  # without it no lock is renewed
_INVOICE_TAKES, _IMPORT_TAKES = 1.3, 5.0  # seconds
_IMPORT_BEGINS_WITHIN = 15.0  # seconds: on a busy machine its call waits in the queue
_RESULTS_WITHIN = 30.0  # seconds after the last round
_LOCK_FREE_WITHIN = 6.0  # seconds after the kill of its process


class Demo:
    """The published calls, the faults, and what became of the calls."""

    def __init__(self, processes: Processes, screen: Screen, redlock: Redlock) -> None:
        self.processes = processes
        self.screen = screen
        self.redlock = redlock
        self.states: dict[str, str] = {}
        self.published: Counter[str] = Counter()
        self.lock_free_after: float | None = None
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """Return what the task bodies have noted so far."""
        self._events += self.processes.journal.news()
        return self._events

    def run(self) -> None:
        """Publish, kill, and wait for all results: about twenty seconds."""
        is_alone = len(self.processes.nodes.nodes) == 1
        node_back = _ONLY_SERVER_BACK if is_alone else _NODE_BACK
        for number in range(1, _ROUNDS + 1):
            self._publish_invoices(number)
            if number == _KILL_NODE:
                self._kill_node()
            if number >= _START_IMPORT:
                self._publish("catalogue", import_catalogue, _IMPORT_TAKES)
            if number == _KILL_CHILD:
                self._kill_child()
            if number == node_back:
                self._start_node()
            self._watch(until=time.monotonic() + _PACE)
        self.screen.say("All calls are published. Waiting for their results.")
        end = time.monotonic() + _RESULTS_WITHIN
        while time.monotonic() < end and self.without_result():
            self._watch(until=time.monotonic() + 0.25)

    def without_result(self) -> list[str]:
        """Return the ids of calls that have no final result yet."""
        for task_id, state in self.states.items():
            if state not in READY_STATES:
                self.states[task_id] = self.processes.state_of(task_id)
        return [i for i, state in self.states.items() if state not in READY_STATES]

    def _publish(self, key: str, task: Any, *args: Any) -> None:
        self.states[task.delay(*args).id] = PENDING
        # The screen shows the keys that were published last.
        self.published[key] = self.published.pop(key, 0) + 1

    def _publish_invoices(self, number: int) -> None:
        invoices = [f"{number}-{letter}" for letter in "abcdefgh"[:_INVOICES]]
        for invoice in invoices * _COPIES:
            self._publish(f"invoice:{invoice}", send_invoice, invoice, _INVOICE_TAKES)
        self.screen.say(
            f"Round {number}: {_INVOICES} invoices, each published {_COPIES} times."
        )

    def _kill_node(self) -> None:
        servers = self.processes.nodes
        victim = servers.nodes[-1]
        victim.kill()
        if not isinstance(servers, DevStore):
            what = f"the node {self.redlock.labels[-1]}"
            effect = "The other four are a majority of five: locking goes on."
        elif len(servers.nodes) == 1:
            what = f"the {servers.title} server"
            effect = "It decides alone: no lock is granted until it runs again."
        else:
            what = f"the {servers.title} server 127.0.0.1:{victim.port}"
            effect = "The other two are a majority of three: locking goes on."
        self.screen.say(f"[red]kill -9[/] of {what}. {effect}")

    def _start_node(self) -> None:
        servers = self.processes.nodes
        servers.nodes[-1].restart()
        if isinstance(servers, DevStore):
            self.screen.say(
                f"The {servers.title} server runs again. A store writes each lock to "
                "its disk, so it has forgotten none, and takes part at once."
            )
            return
        self.screen.say(
            "The node runs again, and has lost its memory. It may have voted for locks "
            "that it does not know any more, so it does not vote for "
            f"{self.redlock.timing.quarantine:.0f} s."
        )

    def _kill_child(self) -> None:
        give_up_at = time.monotonic() + _IMPORT_BEGINS_WITHIN
        while not (victim := self._import()) and time.monotonic() < give_up_at:
            self._watch(until=time.monotonic() + 0.1)
        holder = self.redlock.inspect("catalogue").holder
        if victim is None or holder is None:
            self.screen.say("No process runs the import, so none is killed.")
            return
        os.kill(victim.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        record("killed", victim=victim.pid)
        self.screen.say(
            f"[red]kill -9[/] of process {victim.pid}, a child of a worker, which runs "
            "the import. The ttl of its lock is 30 s."
        )
        while (now := self.redlock.inspect("catalogue").holder) is not None:
            if now.base != holder.base:
                break
            if time.monotonic() > killed_at + self.redlock.timing.ttl:
                break
            self._watch(until=time.monotonic() + 0.02)
        self.lock_free_after = time.monotonic() - killed_at
        self.screen.say(
            f"The lock of the killed process was free after {self.lock_free_after:.2f}"
            " s. Celery delivers the job again, and it runs once more."
        )

    def _import(self) -> Run | None:
        """Return the run of the import that is under way, if there is one."""
        imports = (run for run in runs(self.events()) if run.key == "catalogue")
        return next((run for run in imports if run.ended is None), None)

    def _watch(self, until: float) -> None:
        while True:
            events = self.events()
            keys = {run.key for run in runs(events) if run.ended is None}
            inspections = {key: self.redlock.inspect(key) for key in keys}
            votes = self.redlock.check().ballot
            self.screen.draw(events, self.published, inspections, votes)
            if time.monotonic() >= until:
                return
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))


def _summarize(demo: Demo, console: Console) -> bool:
    """Print a summary of the journal; return whether every promise was kept."""
    events = demo.events()
    found = runs(events)
    finished = {run.key for run in found if run.ended and not run.killed}
    lost = sorted(set(demo.published) - finished)
    pairs = overlaps(found)
    without_result = demo.without_result()
    states = Counter(demo.states.values())
    skips = sum(event["event"] == "skipped" for event in events)
    imports = sum(run.key == "catalogue" for run in found)
    renewals = sum(run.renewals for run in found)
    calls, keys = len(demo.states), len(demo.published)
    free_after = demo.lock_free_after
    rows: list[tuple[str, str, bool | None]] = [
        ("published", f"{calls} calls, {keys} keys", None),
        ("ran", f"{len(found) - imports} invoices; {plural(imports, 'import')}", None),
        ("skipped as duplicates", plural(skips, "call"), None),
        ("locks renewed", plural(renewals, "time"), None),
        ("results", ", ".join(f"{n} {s}" for s, n in sorted(states.items())), None),
        ("overlapping runs of one key", str(len(pairs)), not pairs),
        ("keys without a finished run", str(len(lost)), not lost),
        ("calls without a result", str(len(without_result)), not without_result),
        (
            "lock of the killed process",
            "no process was killed"
            if free_after is None
            else f"free after {free_after:.2f} s (ttl: 30 s)",
            free_after is not None and free_after <= _LOCK_FREE_WITHIN,
        ),
    ]
    table = Table(title="What the task bodies recorded", show_header=False)
    for name, value, kept in rows:
        mark = {None: "", True: "[green]✓ as promised[/]", False: "[red]✗ BROKEN[/]"}
        table.add_row(name, value, mark[kept])
    console.print(table)
    for first, second in pairs:
        console.print(f"[red]overlap[/]: {first} and {second}")
    for key in lost:
        console.print(f"[red]no finished run[/]: {key}")
    return all(kept is not False for _, _, kept in rows)


def main() -> int:
    """Run the demo; return 0 if every promise was kept, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m demo")
    parser.add_argument("--store", choices=STORES, help="in place of five Redis nodes")
    store = parser.parse_args().store
    console = Console()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        what = f"the store {store}" if store else "five lock nodes"
        console.print(f"Starting {what}, a broker and two workers ...")
        with start_processes(store) as processes:
            redlock = Redlock(processes.nodes.urls)
            title = "Store" if store else "Nodes"
            with Screen(console, redlock.labels, title) as screen:
                demo = Demo(processes, screen, redlock)
                demo.run()
            kept = _summarize(demo, console)
            if not kept:
                console.print(processes.logs(), markup=False, highlight=False)
            redlock.close()
    except KeyboardInterrupt:
        console.print("Interrupted. All processes are stopped.")
        return 130
    except RedlockError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 1
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
