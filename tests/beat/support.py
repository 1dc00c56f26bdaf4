"""Real beats as local processes, and what they have sent."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

import celery_redlock
from celery_redlock.beat.due import as_us
from celery_redlock.core.redlock import Redlock
from celery_redlock.leadership import leadership_of
from celery_redlock.slots import SlotRecord
from tests.worker.harness.processes import LocalProcess, LocalWorker
from tests.worker.harness.waiting import until
from tests.worker.project.app import SETTINGS
from tests.worker.project.body import STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.worker.harness.nodes import LockNodes
    from tests.worker.harness.processes import LocalRedis
    from tests.worker.harness.stage import Stage

__all__ = [
    "LONG_TTL",
    "NODE_TIMEOUT",
    "TTL",
    "Beats",
    "LocalBeat",
    "Sent",
    "Site",
    "until",
]

KEY = "beat:project"
NODE_TIMEOUT = 0.25  # seconds
TTL = 3.0  # seconds; short, where a test waits for the end of a term
LONG_TTL = 30.0  # where no term ends by itself, however busy the machine is
_TESTS = Path(__file__).parents[1]


class Sent(NamedTuple):
    """One message in the broker.

    Attributes:
        slot: The name of its slot; ``""`` without one.
        task: The name of the task.
        pid: The process that sent it.
    """

    slot: str
    task: str
    pid: int


class LocalBeat(LocalProcess):
    """A Celery beat.

    Args:
        folder: Where its log and its schedule file go.
        name: What it is called in failures.
        app: What follows ``celery -A``.
        environment: Variables that the app reads.
        options: More of the command line.
    """

    ready_prompt = "beat: Starting..."

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        app: str,
        environment: Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, name)
        self.app = app
        self.options = options
        self._environment = environment

    def command(self) -> Sequence[str]:
        """Return what is to be run."""
        return [
            *(sys.executable, "-m", "celery", "-A", self.app, "beat", "-l", "INFO"),
            *("-s", str(self.folder / f"{self.name}-schedule"), *self.options),
        ]

    def environment(self) -> Mapping[str, str]:
        """Return the variables that it gets beside ours."""
        return {"PYTHONUNBUFFERED": "1", **self._environment}

    def count(self, text: str) -> int:
        """Return how many lines of its log have this in them."""
        return sum(text in line for line in self.logs().splitlines())

    def until_logged(self, text: str, seconds: float = 20.0, *, times: int = 1) -> None:
        """Wait until its log has this in so many lines."""
        until(lambda: self.count(text) >= times, seconds, what=f"{self.name}: {text!r}")


class Beats:
    """The beats and workers of one project, with a broker database of their own.

    Attributes:
        nodes: The lock nodes.
        all: The beats that were started, oldest first.
        broker_url: Where they send to.
    """

    def __init__(
        self, site: Site, number: int, nodes: LockNodes, settings: Mapping[str, Any]
    ) -> None:
        self.nodes = nodes
        self.all: list[LocalBeat] = []
        self._workers: list[LocalWorker] = []
        self._site = site
        self._number = number
        self._settings = settings
        self._environment: dict[str, str] = {}
        port = site.broker.port
        self._broker = redis.Redis(port=port, db=number, protocol=2)
        self.broker_url = f"redis://127.0.0.1:{port}/{number}"
        self._redlock = Redlock(nodes.urls, node_timeout=NODE_TIMEOUT)

    # -- processes -------------------------------------------------------------

    def use(self, **environment: str) -> None:
        """Give all processes that are started from now on these variables."""
        self._environment |= environment

    def environment(self, **settings: Any) -> dict[str, str]:
        """Return the variables by which a process knows its settings."""
        conf = {
            "broker_url": self.broker_url,
            "broker_connection_retry_on_startup": True,
            "redlock_nodes": self.nodes.urls,
            "redlock_beat_ttl": TTL,
            "redlock_node_timeout": NODE_TIMEOUT,
            **self._settings,
            **settings,
        }
        return {
            SETTINGS: json.dumps(conf),
            STAGE: str(self._site.stage.folder),
            "PYTHONPATH": self._site.path,
            **self._environment,
        }

    def start(
        self,
        *,
        app: str = "tests.beat.project.app",
        options: Sequence[str] = ("-S", "redlock"),
        wait: bool = True,
        **settings: Any,
    ) -> LocalBeat:
        """Start a beat and wait until it ticks.

        Args:
            wait: Or do not wait.
            app: What follows ``celery -A``.
            options: Of the command line.
            settings: More of ``app.conf`` for this one.
        """
        beat = LocalBeat(
            self._site.folder,
            f"beat-{self._number}-{len(self.all)}",
            app=app,
            environment=self.environment(**settings),
            options=options,
        )
        self.all.append(beat)
        beat.start()
        if wait:
            beat.ready()
        return beat

    def start_worker(self, concurrency: int = 4, **settings: Any) -> LocalWorker:
        """Start a worker and wait until it is ready."""
        worker = LocalWorker(
            self._site.folder,
            f"beat-worker-{self._number}-{len(self._workers)}",
            app="tests.beat.project.app",
            concurrency=concurrency,
            environment=self.environment(**settings),
        )
        self._workers.append(worker)
        worker.start()
        worker.ready()
        return worker

    def command(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A project ...`` to its end."""
        return subprocess.run(  # noqa: S603  (our own command)
            [sys.executable, "-m", "celery", "-A", "tests.beat.project.app", *words],
            env={**os.environ, **self.environment(**settings)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    # -- what they do ------------------------------------------------------------

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
        """Return what this beat has sent, in any of its lives."""
        return [sent for sent in self.sent() if sent.pid == beat.pid]

    def until_sent(
        self, more: int, by: LocalBeat | None = None, seconds: float = 20.0
    ) -> list[Sent]:
        """Wait for so many messages more than there are now; return the new ones."""

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
        """Return the beat that leads, as the nodes say."""
        holder = leadership_of(self._redlock, KEY).leader
        for beat in self.all:
            if holder is not None and beat.pid == holder.pid:
                return beat
        return None

    def until_led(
        self, *, not_by: LocalBeat | None = None, seconds: float = 20.0
    ) -> LocalBeat:
        """Wait until a beat leads, and return it."""

        def other() -> LocalBeat | None:
            leader = self.leader()
            return None if leader is not_by else leader

        return until(other, seconds, what="a leader") or self.all[0]

    def freeze_between_slots(self, beat: LocalBeat) -> None:
        """Stop a beat (SIGSTOP) when all that it has sent is noted on the nodes.

        At any other moment the next leader sends a slot again, as it has to.
        """

        def is_frozen_there() -> bool:
            beat.pause()
            os.waitid(os.P_PID, beat.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            record = SlotRecord(self._redlock, KEY)
            record.load()
            for sent in self.sent_by(beat):
                entry, _, due = sent.slot.rpartition("@")
                if (record.upto(entry) or 0) < as_us(datetime.fromisoformat(due)):
                    beat.unpause()
                    return False
            return True

        until(is_frozen_there, 20, what=f"{beat.name}: a moment between two slots")

    def kill_between_slots(self, beat: LocalBeat) -> datetime:
        """Kill a beat (SIGKILL) when all that it has sent is noted; return when."""
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


class Site:
    """Where projects are put: shared servers, and numbers to tell them apart."""

    def __init__(self, folder: Path, broker: LocalRedis, stage: Stage) -> None:
        self.folder = folder
        self.broker = broker
        self.stage = stage
        self._numbers = itertools.count(1)
        # Processes find the tests through this link, and the package where this
        # process found it: a checkout or an installed wheel.
        with contextlib.suppress(FileExistsError):
            (folder / "tests").symlink_to(_TESTS)
        self.path = f"{folder}:{Path(celery_redlock.__path__[0]).parent}"

    def beats(self, nodes: LockNodes, **settings: Any) -> Beats:
        """Return a project with these settings and no process yet."""
        return Beats(self, next(self._numbers), nodes, settings)
