"""A worker: threads that take, renew and release locks and write under them.

A process that `site` starts in the namespace of a host. On SIGTERM, each thread ends
its turn, and the process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import RedlockError
from celery_redlock.locks.lease import Lease, LeaseState
from celery_redlock.locks.redlock import Redlock
from tests.harness.journal import Journal
from tests.partitions.history import Recorder
from tests.partitions.store import Connection

READY = "worker is ready"
FENCED, UNFENCED = "fenced", "unfenced"
_EPOCH = 20.0  # seconds until the lists get other names, so that they stay short
_THINK = 0.3  # seconds, at most, between a read and the write that follows from it
_WAIT = 1.5  # seconds, at most, for a lock


@dataclasses.dataclass
class Settings:
    """The settings of one worker; a process gets them as JSON.

    Attributes:
        number: The number of the worker.
        workers, threads: How many workers there are, and threads in each.
        nodes: The URLs of the nodes.
        store: The address of the store.
        journal: The file of the journal.
        keys: The names of the locks.
        ttl, max_ttl, node_timeout: The durations of the locks in seconds.
        patience: Seconds for an answer of the store.
        seed: Chooses the operations.
        initialize: Initialize the nodes before all else.
    """

    number: int
    workers: int
    threads: int
    nodes: list[str]
    store: str
    journal: str
    keys: list[str]
    ttl: float
    max_ttl: float
    node_timeout: float
    patience: float
    seed: int
    initialize: bool

    def redlock(self) -> Redlock:
        """Return a lock service with these settings."""
        return Redlock(
            self.nodes,
            ttl=self.ttl,
            max_ttl=self.max_ttl,
            node_timeout=self.node_timeout,
        )


class Client:
    """One thread of a worker. The threads share one lock service."""

    def __init__(self, settings: Settings, redlock: Redlock, thread: int) -> None:
        journal = Journal(Path(settings.journal))
        clients = settings.workers * settings.threads
        number = settings.number * settings.threads + thread
        # A lease can end during an operation on the store. So two processes of the
        # history record the operations of one client.
        self._locks = Recorder(journal, number, 2 * clients)
        self._writes = Recorder(journal, clients + number, 2 * clients)
        self._settings, self._redlock, self._number = settings, redlock, number
        self._random = random.Random(f"{settings.seed} {number}")  # noqa: S311
        self._store = Connection(settings.store, settings.patience)
        self._values = 0

    def run(self, end: threading.Event) -> None:
        """Use locks until the end."""
        while not end.is_set():
            self._turn(self._random.choice(self._settings.keys))
            end.wait(self._random.uniform(0, 0.1))
        self._store.close()

    def _turn(self, key: str) -> None:
        wait = self._random.uniform(0, _WAIT)
        self._locks.invoke("acquire", key)
        try:
            lease = self._redlock.acquire(key, wait=wait)
        except RedlockError as error:
            self._locks.end("fail", "acquire", key, error=type(error).__name__)
            return
        began = time.monotonic()
        if lease.is_valid():
            facts = {"votes": lease.votes, "at": began}
            self._locks.end("ok", "acquire", key, lease.fence, **facts)
            _Turn(self, lease, began).do()
        else:  # a pause since the grant: this client never believed that it holds it
            self._locks.end("info", "acquire", key, error="late")
        with contextlib.suppress(RedlockError):
            self._redlock.release(lease)

    # -- Operations on the store: each tells whether to continue with the lease --------

    def steps(self, lease: Lease) -> list[Callable[[], bool]]:
        """Return what to do under this lease."""
        key, fence = lease.key, lease.fence
        steps: list[Callable[[], bool]] = [
            lambda: self._write(key, fence),
            lambda: self._read(key),
            lambda: self._add(FENCED, lease),
            lambda: self._add(UNFENCED, lease),
            self._pause,
        ]
        return self._random.choices(steps, k=self._random.randint(1, 6))

    def _pause(self) -> bool:
        time.sleep(self._random.uniform(0, 0.3 * self._settings.ttl))
        return True

    def _value(self) -> str:
        self._values += 1
        return f"{self._number}.{self._values}"

    def _write(self, key: str, fence: int) -> bool:
        text = self._value()
        value = [fence, text]
        self._writes.invoke("write", key, value)
        try:
            accepted, *_ = self._store.ask("write", f"{key}/register", fence, text)
        except OSError as error:
            self._writes.end("info", "write", key, value, error=type(error).__name__)
            return False  # it may be applied later, so nothing more with this fence
        self._writes.end("ok", "write", key, value, refused=not accepted)
        return accepted

    def _read(self, key: str) -> bool:
        self._writes.invoke("read", key)
        try:
            _, fence, found = self._store.ask("read", f"{key}/register")
        except OSError as error:
            self._writes.end("fail", "read", key, error=type(error).__name__)
            return False
        self._writes.end("ok", "read", key, [fence, found])
        return True

    def _add(self, how: str, lease: Lease) -> bool:
        name = f"{lease.key}/{how}/{time.monotonic() // _EPOCH:.0f}"
        fence = lease.fence if how == FENCED else None
        element, outcome, error = self._value(), "fail", ""
        self._writes.invoke("add", name, element)
        try:
            accepted, _, found = self._store.ask("read", name, fence)
            time.sleep(self._random.uniform(0, _THINK))
            if accepted:  # the lease may be over by now: only the fence can tell
                outcome = "info"
                elements = [*(found or []), element]
                accepted, *_ = self._store.ask("write", name, fence, elements)
                outcome = "ok" if accepted else "fail"
            if not accepted:
                error = "refused"
        except OSError as raised:
            error = type(raised).__name__
        self._writes.end(outcome, "add", name, element, error=error)
        return outcome == "ok"

    def end_of(self, turn: _Turn) -> None:
        """Record the end of the belief in a lease."""
        lease = turn.lease
        facts = {"votes": turn.votes}
        self._locks.invoke("release", lease.key, lease.fence, at=turn.believed)
        self._locks.end("ok", "release", lease.key, lease.fence, at=turn.ended, **facts)

    def renew(self, lease: Lease) -> None:
        """Renew a lease when a third of its ttl has passed."""
        if lease.remaining() < self._settings.ttl * 2 / 3:
            with contextlib.suppress(RedlockError):
                self._redlock.extend(lease)


class _Turn:
    """The work under one lease, and for how long the client believed to hold it."""

    def __init__(self, client: Client, lease: Lease, began: float) -> None:
        self._client, self.lease = client, lease
        self.believed = self.ended = began
        self.votes = lease.votes

    def do(self) -> None:
        """Work until the steps are done, or the lease is over, or a step fails."""
        for step in self._client.steps(self.lease):
            if not (self._believes() and step()):
                break
            self._client.renew(self.lease)
            self.votes = min(self.votes, self.lease.votes)
        self._believes()
        self._client.end_of(self)

    def _believes(self) -> bool:
        """Ask the lease, and note the latest moment at which it was valid."""
        lease, before = self.lease, time.monotonic()
        is_valid = lease.is_valid()
        if is_valid:
            self.believed = before
        elif lease.state is LeaseState.HELD:
            # It was valid until its end, and every question until then had this answer.
            offset = SYSTEM_CLOCK.monotonic() - time.monotonic()
            self.believed = max(self.believed, min(before, lease.until - offset))
        self.ended = time.monotonic()
        return is_valid


def main() -> None:
    """Use locks until SIGTERM."""
    settings = Settings(**json.loads(sys.argv[1]))
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    redlock = settings.redlock()
    if settings.initialize:
        redlock.initialize()
    threads = [
        threading.Thread(target=Client(settings, redlock, number).run, args=(end,))
        for number in range(settings.threads)
    ]
    for thread in threads:
        thread.start()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    redlock.close()


if __name__ == "__main__":
    main()
