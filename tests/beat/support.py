"""Beats of one project as local processes, and the messages that they have sent."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeAlias

import redis

from celery_redlock.beat.due_entries import as_us
from celery_redlock.locks.redlock import Redlock
from celery_redlock.records.beat_slots import SlotRecord
from celery_redlock.records.standbys import leadership_of
from tests.beat.project import DATABASE
from tests.harness.deployment import Site
from tests.harness.lock_nodes import LockNodes
from tests.harness.processes import LocalBeat, LocalWorker
from tests.harness.programs import Ended, end_of
from tests.harness.waiting import until

__all__ = ["KEY", "LONG_TTL", "NODE_TIMEOUT", "Beats", "MakeBeats", "often", "until"]

MakeBeats: TypeAlias = "Callable[..., Beats]"  # from a schedule and settings

APP = "tests.beat.project.app"
KEY = "beat:project"
NODE_TIMEOUT = 0.25  # seconds
TTL = 5.0  # seconds; short, because tests wait for the end of a term
LONG_TTL = 30.0  # for tests in which no term may end by itself on a busy machine


def often(seconds: float = 0.5) -> dict[str, Any]:
    """Return a schedule with one entry with this interval."""
    return {"often": {"task": "beat-quick", "schedule": seconds, "args": ["often"]}}


class Sent(NamedTuple):
    """One message in the broker."""

    slot: str  # "": without one
    task: str
    pid: int  # the process that sent it

    @property
    def entry(self) -> str:
        """The schedule entry of the slot."""
        return self.slot.partition("/")[2].rpartition("@")[0]

    @property
    def due(self) -> datetime:
        """When the slot was due."""
        return datetime.fromisoformat(self.slot.rpartition("@")[2])


class Beats:
    """The beats and workers of one project, with a broker database of their own."""

    def __init__(
        self, site: Site, nodes: LockNodes, settings: Mapping[str, Any]
    ) -> None:
        self.nodes = nodes
        self.all: list[LocalBeat] = []
        self._workers: list[LocalWorker] = []
        self._site = site
        self._number = number = site.number()
        self._settings = settings
        self._environment: dict[str, str] = {}
        port = site.broker.port
        self._broker = redis.Redis(port=port, db=number, protocol=2)
        self.broker_url = f"redis://127.0.0.1:{port}/{number}"
        self._redlock = Redlock(nodes.urls, node_timeout=NODE_TIMEOUT)

    # -- processes -------------------------------------------------------------

    def use(self, **environment: str) -> None:
        """Give these variables to all processes that are started from now on."""
        self._environment |= environment

    def environment(self, **settings: Any) -> dict[str, str]:
        """Return the variables by which a process finds its settings."""
        conf = {
            "broker_url": self.broker_url,
            "broker_connection_retry_on_startup": True,
            "redlock_nodes": self.nodes.urls,
            "redlock_beat_ttl": TTL,
            "redlock_node_timeout": NODE_TIMEOUT,
            **self._settings,
            **settings,
        }
        return {**self._site.environment(conf), **self._environment}

    def _place(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        folder = self._site.folder
        environment = self.environment(**settings)
        return {"folder": folder, "cwd": folder, "environment": environment}

    def start(
        self,
        *,
        app: str = APP,
        options: Sequence[str] = ("-S", "redlock"),
        wait: bool = True,
        **settings: Any,
    ) -> LocalBeat:
        """Start a beat and wait until it ticks."""
        name = f"beat-{self._number}-{len(self.all)}"
        beat = LocalBeat(app, name, options=options, **self._place(settings))
        self.all.append(beat)
        beat.start()
        if wait:
            beat.ready()
        return beat

    def start_standby(self, **settings: Any) -> LocalBeat:
        """Start a beat and wait until it stands by."""
        beat = self.start(**settings)
        beat.until_logged("Standing by")
        return beat

    def start_three(self, **settings: Any) -> LocalBeat:
        """Start three beats, and return the leader when the others stand by."""
        for _ in range(3):
            self.start(wait=False, **settings)
        leader = self.until_led()
        for other in self.others(leader):
            other.until_logged("Standing by")
        return leader

    def start_worker(self, concurrency: int = 4, **settings: Any) -> LocalWorker:
        """Start a worker and wait until it is ready."""
        name = f"beat-worker-{self._number}-{len(self._workers)}"
        place = self._place(settings)
        worker = LocalWorker(APP, name, concurrency=concurrency, **place)
        self._workers.append(worker)
        worker.start()
        worker.ready()
        return worker

    def command(self, *words: str, **settings: Any) -> Ended:
        """Run ``celery -A project ...`` to its end."""
        line = (sys.executable, "-m", "celery", "-A", APP, *words)
        return end_of(*line, code=None, variables=self.environment(**settings))

    # -- their messages and terms ------------------------------------------------

    def sent(self) -> list[Sent]:
        """Return the messages in the queue, oldest first."""
        found = []
        for data in reversed(self._broker.lrange("celery", 0, -1)):
            headers = json.loads(data)["headers"]
            slot = (headers.get("redlock") or {}).get("slot", "")
            pid = int(headers["origin"].partition("@")[0].removeprefix("gen"))
            found.append(Sent(slot, headers["task"], pid))
        return found

    def sent_by(self, beat: LocalBeat) -> list[Sent]:
        """Return the messages that this beat has sent."""
        return [sent for sent in self.sent() if sent.pid == beat.pid]

    def until_sent(
        self, more: int, by: LocalBeat | None = None, seconds: float = 20.0
    ) -> list[Sent]:
        """Wait for this number of new messages, and return them."""

        def those() -> list[Sent]:
            return self.sent() if by is None else self.sent_by(by)

        before = len(those())
        until(
            lambda: len(those()) >= before + more,
            seconds,
            what=f"{more} messages more than {before}",
        )
        return those()[before:]

    def leader(self) -> LocalBeat | None:
        """Return the beat that leads according to the nodes."""
        holder = leadership_of(self._redlock, KEY).leader
        if holder is None:
            return None
        return next((beat for beat in self.all if beat.pid == holder.pid), None)

    def until_no_standby(self) -> None:
        """Wait until the nodes know of no beat that stands by."""
        until(lambda: not leadership_of(self._redlock, KEY).standbys, 30)

    def until_led(self) -> LocalBeat:
        """Wait until a beat leads, and return it."""
        return until(self.leader, 20.0, what="a leader") or self.all[0]

    def freeze_between_slots(self, beat: LocalBeat) -> None:
        """Stop a beat (SIGSTOP) when the nodes have recorded all that it has sent.

        At any other moment the next leader must send a slot again. If it holds the
        scheduler's database, the next leader waits for that, and sends nothing.
        """

        def is_between_slots() -> bool:
            record = SlotRecord(self._redlock, KEY)
            record.load()
            return all(
                (record.upto(sent.entry) or 0) >= as_us(sent.due)
                for sent in self.sent_by(beat)
            )

        def is_frozen_there() -> bool:
            beat.pause()
            if is_between_slots() and self._is_database_free():
                return True
            beat.resume()
            return False

        until(is_frozen_there, 20, what=f"{beat.name}: a moment between two slots")

    def _is_database_free(self) -> bool:
        """Tell whether no process reads or writes the scheduler's SQLite database."""
        path = self._environment.get(DATABASE)
        if path is None:
            return True
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
        return True

    def kill_between_slots(self, beat: LocalBeat) -> datetime:
        """Kill a beat (SIGKILL) when its messages are recorded; return the time."""
        self.freeze_between_slots(beat)
        frozen = datetime.now(timezone.utc)
        beat.kill("SIGKILL")
        return frozen

    def others(self, *these: LocalBeat) -> list[LocalBeat]:
        """Return the beats that are not among these."""
        return [beat for beat in self.all if beat not in these]

    def teardown(self) -> None:
        """End everything."""
        for process in (*self.all, *self._workers):
            process.teardown()
        self._redlock.close()
        self._broker.close()
