"""The watchdog's thread: it starts, stops, survives errors, and is not its child's."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.basics import process
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.locks import renewal_schedule as schedule
from celery_redlock.locks.lease import Lease, LeaseState
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.requests import ScriptRequest
from tests.harness.threads import threads_started_here
from tests.harness.waiting import until
from tests.unit.lock.support import Site, asked

SOON = 5.0  # seconds within which a thread must have done its work
RENEW_EVERY = 0.01  # seconds


class Live:
    """A service in real time, and its watchdog; no thread is too slow for its ttl."""

    def __init__(self) -> None:
        self.redlock = FakeNodes(3, clock=SYSTEM_CLOCK).redlock(ttl=60.0)
        self.watchdog = Watchdog(self.redlock)

    def lose(self, on_lost: Callable[[Lease], None]) -> None:
        """Watch a lease whose validity soon ends."""
        lease = self.redlock.acquire("k", 0.3)
        self.watchdog.watch(lease, on_lost=on_lost, renew=False)

    def wait_for_its_end(self) -> None:
        """Wait until no thread is left."""
        until(lambda: not self.watchdog.is_running, SOON)


@pytest.fixture
def live() -> Iterator[Live]:
    """Give a service in real time; its watchdog is stopped afterwards."""
    live = Live()
    yield live
    live.watchdog.stop()


def wait(event: threading.Event) -> None:
    """Wait until a thread sets the event."""
    assert event.wait(SOON)


def test_thread_renews_by_itself(live: Live) -> None:
    """It starts with the first lease and ends with ``stop``; both may come twice."""
    before = live.watchdog.is_running
    event = threading.Event()

    lease = live.redlock.acquire("k")
    with threads_started_here() as started:
        live.watchdog.watch(
            lease, on_renewed=lambda *_: event.set(), renew_every=RENEW_EVERY
        )
        live.watchdog.start()
    wait(event)

    assert len(started) == 1
    assert (before, live.watchdog.is_running) == (False, True)
    live.watchdog.stop()
    live.watchdog.stop()
    live.wait_for_its_end()


def test_thread_announces_a_loss(live: Live) -> None:
    """The callback runs in the watchdog's thread."""
    event, names = threading.Event(), []

    def on_lost(_: Lease) -> None:
        names.append(threading.current_thread().name)
        event.set()

    live.lose(on_lost)
    wait(event)

    assert names == ["redlock-watchdog"]


def test_lock_that_no_thread_renews_is_logged(
    live: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its end comes without a notice. The next lease tries to start the thread."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    event = threading.Event()
    first, second = (live.redlock.acquire(key) for key in ("k", "other"))
    with monkeypatch.context() as no_thread:
        no_thread.setattr(process, "_thread", SimpleNamespace(start_new_thread=refuse))
        live.watchdog.watch(
            first, on_renewed=lambda *_: event.set(), renew_every=RENEW_EVERY
        )

    (line,) = caplog.messages
    assert re.fullmatch(
        r"The lock 'k' \(fence \d+\) could not be renewed: no further thread can "
        r"start\. It is valid for 59\.\d s more\.",
        line,
    )
    live.watchdog.watch(second)
    wait(event)


def test_thread_that_was_stopped_can_be_started_again(live: Live) -> None:
    """Its leases are still under watch."""
    event = threading.Event()
    live.lose(lambda _: event.set())
    live.watchdog.stop()

    live.watchdog.start()

    wait(event)


def test_callback_that_exits_ends_no_renewal(live: Live) -> None:
    """``sys.exit`` ends no process from here, so it must not end the thread either."""
    lost, renewed = threading.Event(), threading.Event()

    def leave(_: Lease) -> None:
        lost.set()
        sys.exit("theirs")

    def on_renewed(*_: Any) -> None:
        if lost.is_set():
            renewed.set()

    other = live.redlock.acquire("other")
    live.watchdog.watch(other, on_renewed=on_renewed, renew_every=RENEW_EVERY)
    live.lose(leave)

    wait(renewed)


def test_thread_can_be_stopped_from_a_callback(live: Live) -> None:
    """The thread does not wait for itself."""
    event = threading.Event()

    def on_renewed(*_: Any) -> None:
        live.watchdog.stop()
        event.set()

    lease = live.redlock.acquire("k")
    live.watchdog.watch(lease, on_renewed=on_renewed, renew_every=RENEW_EVERY)
    wait(event)

    live.wait_for_its_end()


class Cut:
    """A lock on one node, and a connection that has broken, which is not noticed yet.

    Args:
        longest_sleep: Seconds for which the watchdog's thread sleeps.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, longest_sleep: float) -> None:
        monkeypatch.setattr(schedule, "_LONGEST_SLEEP", longest_sleep)
        self._nodes = FakeNodes(1, clock=SYSTEM_CLOCK)
        self.redlock = self._nodes.redlock(ttl=60.0)
        self.watchdog = Watchdog(self.redlock)
        self.lease = self.redlock.acquire("k")
        self._nodes.partition()

    def notice(self) -> None:
        """Let the client see it; the node has kept the lock."""
        (node,) = self._nodes.nodes
        node.kill()
        node.restart(keep_memory=True)
        self._nodes.heal()

    @property
    def is_free(self) -> bool:
        """Whether the lock is gone, as another client sees it."""
        other = self._nodes.another_client().redlock(ttl=60.0)
        return other.inspect("k").holder is None


def test_thread_stays_until_all_replies_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A release without a reply may have to be sent again."""
    cut = Cut(monkeypatch, longest_sleep=0.001)
    cut.redlock.transport.send(cut.redlock.release_request("k", cut.lease.token))
    steps = itertools.count()
    drain = cut.redlock.transport.drain

    def count() -> None:
        next(steps)
        drain()

    monkeypatch.setattr(cut.redlock.transport, "drain", count)
    cut.watchdog.resend_releases()
    until(lambda: next(steps) > 100, SOON)  # it sleeps many times
    assert cut.watchdog.is_running

    cut.notice()

    until(lambda: cut.is_free, SOON)
    until(lambda: not cut.watchdog.is_running, SOON)


def test_thread_looks_soon_for_the_reply_to_a_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is late, the thread does not sleep as long as it does otherwise."""
    cut = Cut(monkeypatch, longest_sleep=60.0)
    cut.watchdog.start()
    cut.redlock.release(cut.lease)
    cut.watchdog.resend_releases()

    cut.notice()

    until(lambda: cut.is_free, SOON)
    cut.watchdog.stop()


class Broken(FakeNodes):
    """Nodes whose transport fails unexpectedly."""

    broken = 0

    def send(self, *requests: ScriptRequest) -> None:
        """Raise for the first requests."""
        if self.broken:
            self.broken -= 1
            raise OSError("Bad file descriptor")
        super().send(*requests)


def renew_after_an_error() -> None:
    """Have a watchdog renew a lease after a step that failed."""
    nodes = Broken(3, clock=SYSTEM_CLOCK)
    redlock = nodes.redlock(ttl=60.0)
    watchdog = Watchdog(redlock)
    renewed = threading.Event()
    lease = redlock.acquire("k")
    nodes.broken = 1
    watchdog.watch(lease, on_renewed=lambda *_: renewed.set(), renew_every=RENEW_EVERY)

    wait(renewed)
    watchdog.stop()


def test_thread_survives_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    """An error in one step is logged, and the thread renews after it."""
    renew_after_an_error()

    assert "The watchdog had an error and continues." in caplog.text


@pytest.mark.usefixtures("failing_log")
def test_log_handler_that_raises_ends_no_renewal() -> None:
    """A handler whose server is away may fail just when nodes are away, too."""
    renew_after_an_error()


@pytest.mark.usefixtures("failing_log")
def test_log_handler_that_raises_hides_no_loss(live: Live) -> None:
    """The holder is told of it, as without that handler."""
    lost = threading.Event()

    live.lose(lambda _: lost.set())

    wait(lost)


# -- forks -----------------------------------------------------------------------


@pytest.fixture
def forked(site: Site, monkeypatch: pytest.MonkeyPatch) -> Lease:
    """Give a lease of the parent, and pose as the child from then on."""
    lease = site.watched("parent")
    site.watchdog.step()
    site.nodes.asked.clear()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    return lease


@pytest.mark.parametrize("call", ["forget", "renew_now", "start"])
def test_forked_child_has_none_of_its_parents_leases(
    site: Site, forked: Lease, call: str
) -> None:
    """The parent renews its leases; the child does not."""
    if call == "start":
        Watchdog.start(site.watchdog)
        site.watchdog.stop()
    else:
        assert not getattr(site.watchdog, call)(forked)

    site.renew_for(20.0)

    assert asked(site.nodes) == []
    assert forked.state is LeaseState.HELD


@pytest.mark.usefixtures("forked")
def test_forked_child_renews_its_own_leases(site: Site) -> None:
    """Its watchdog starts empty, and works."""
    lease = site.watched("child")

    site.renew_for(4.0)

    assert [renewed for renewed, _, _ in site.told.renewed] == [lease]


def test_forked_child_that_stops_ends_nothing_of_its_parent(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread belongs to the parent: it goes on."""
    monkeypatch.setattr(schedule, "_LONGEST_SLEEP", 0.0)
    renewed = threading.Event()
    lease = live.redlock.acquire("k")
    live.watchdog.watch(lease, on_renewed=lambda *_: renewed.set())
    pid = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: pid + 1)
        live.watchdog.stop()

    live.watchdog.renew_now(lease)
    wait(renewed)

    assert live.watchdog.forget(lease)
