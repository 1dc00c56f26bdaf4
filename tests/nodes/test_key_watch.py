"""The watch of keys: one thread tells when there is room for a holder of each."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.line import key_watch
from celery_redlock.line.key_watch import OTHERS_FIRST, KeyWatch
from celery_redlock.locks.limits import Limit, Wanted
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts.keys import key_of
from celery_redlock.testing import FakeNodes
from celery_redlock.wire.pubsub import Waiter
from tests.harness.waiting import until
from tests.nodes.support import held

WITHIN = 20.0  # seconds
NEVER = 600.0


class News(NamedTuple):
    """One message of the thread."""

    wanted: Wanted
    room: int
    is_woken: bool


class Told:
    """A watch, and the news of it in their order."""

    def __init__(self, redlock: Redlock) -> None:
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self.watch = KeyWatch(redlock, lambda *news: self._news.put(News(*news)))

    def next(self) -> News:
        """Return the next news."""
        return self._news.get(timeout=WITHIN)

    def until(self, room: int, *, is_woken: bool | None = None) -> None:
        """Read news until there is this one.

        None: a minority of the nodes may be so early that the thread looks.
        """

        def is_told() -> bool:
            news = self.next()
            return news.room == room and is_woken in (None, news.is_woken)

        until(is_told, WITHIN, what=f"news of room {room}")

    def until_look(self, room: int, wanted: Wanted) -> None:
        """Look after each wake-up, as one who starts a call, until this was seen.

        A release reaches the nodes one after the other: a look may come in between,
        and the nodes that are late wake the process once more.
        """

        def is_seen() -> bool:
            news = self.next()
            if news.is_woken:
                self.watch.watch(wanted, 1)
            return not news.is_woken and news.room == room

        until(is_seen, WITHIN, what=f"a look that sees room {room}")


@pytest.fixture
def told(redlock: Redlock) -> Iterator[Told]:
    """Give a watch on the shared nodes, to which the thread listens."""
    told = Told(redlock)
    yield told
    told.watch.stop()


@pytest.fixture
def without_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the thread look only when it is asked, or woken by a minority."""
    monkeypatch.setattr(key_watch, "_LEAST_LOOK_EVERY", NEVER)
    monkeypatch.setattr(key_watch, "_LONGEST_LOOK_EVERY", NEVER)


def queued(nodes: DevNodes, key: str) -> list[int]:
    """Return how many waiters the wait queue of a key has on each node."""
    return [int(node.command("ZCARD", f"redlock:line:{key}")) for node in nodes.nodes]


def until_listening(redlock: Redlock) -> None:
    """Wait until each node can wake this process."""
    assert redlock.listener is not None
    listener, nodes = redlock.listener, len(redlock.labels)
    until(lambda: listener.listening == nodes, WITHIN, what="subscriptions")


def test_free_lock_has_room_at_the_first_look(told: Told, key: str) -> None:
    """No client holds it."""
    told.watch.watch(Wanted(key), 1)

    assert told.next() == (Wanted(key), 1, False)


def test_free_lock_has_no_room_while_it_is_the_turn_of_others(
    told: Told, key: str
) -> None:
    """In order the line decides, and the thread looks on."""
    turns = iter([False])

    told.watch.watch(Wanted(key), 1, lambda: next(turns, True))

    assert told.next() == (Wanted(key), OTHERS_FIRST, False)
    assert told.next() == (Wanted(key), 1, False)


@pytest.mark.usefixtures("without_looks")
def test_release_tells_of_room(
    told: Told, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The nodes wake the process, which does not look by itself."""
    lease = rival.acquire(key)
    told.watch.watch(Wanted(key), 1)
    told.until(0, is_woken=False)
    until_listening(redlock)

    rival.release(lease)

    told.until(1)


@pytest.mark.usefixtures("without_looks")
def test_late_news_of_an_earlier_release_tell_of_no_room(
    told: Told, redlock: Redlock, rival: Redlock, shared_nodes: DevNodes, key: str
) -> None:
    """Nodes may wake the process when it has joined again, for the next release."""

    def names() -> set[str]:
        queues = [
            node.command("ZRANGE", f"redlock:line:{key}", 0, -1)
            for node in shared_nodes.nodes
        ]
        return {str(name) for queue in queues for name in queue}

    rival.acquire(key)
    told.watch.watch(Wanted(key), 1)
    told.until(0, is_woken=False)
    until_listening(redlock)
    earlier = names()
    told.watch.watch(Wanted(key), 1)
    until(lambda: names() and not names() & earlier, WITHIN, what="another name")

    for node in shared_nodes.nodes:
        for name in earlier:
            channel, _, number = name.rpartition("/")
            assert node.command("PUBLISH", channel, f"{number} 0") == 1
    told.watch.watch(Wanted(key), 1)

    for _ in range(2):  # looks
        assert told.next() == (Wanted(key), 0, False)


@pytest.mark.usefixtures("without_looks")
def test_each_release_of_a_permit_tells_of_room(
    told: Told, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A wake-up takes the process out of the queues, and a look puts it back."""
    limits = (Limit(key, 2),)
    wanted = Wanted(key, limits)
    leases = [rival.acquire(key, limits=limits) for _ in range(2)]
    told.watch.watch(wanted, 1)
    told.until(0, is_woken=False)
    until_listening(redlock)

    for room, lease in enumerate(leases, 1):
        rival.release(lease)
        told.until_look(room, wanted)


@pytest.mark.usefixtures("without_looks")
def test_end_of_a_ttl_tells_of_room(
    told: Told, rival: Redlock, shared_nodes: DevNodes, key: str
) -> None:
    """No node tells of it, so the thread looks at the end of the ttl."""
    held(rival, shared_nodes, key)
    told.watch.watch(Wanted(key), 1)
    told.until(0, is_woken=False)

    end_ms = round((time.time() + 2.0) * 1000)
    for node in shared_nodes.nodes:
        assert node.command("PEXPIREAT", f"redlock:lock:{key}", end_ms)
    told.watch.watch(Wanted(key), 1)

    told.until(1, is_woken=False)


def test_start_has_room_when_the_period_is_over(
    told: Told, rival: Redlock, key: str
) -> None:
    """A permit for a start is kept after the work."""
    limits = (Limit(key, 1), Limit(key, 1, 3.0))
    lease = rival.acquire(key, limits=limits)
    lease.begin()
    rival.release(lease)

    told.watch.watch(Wanted(key, limits), 1)

    told.until(0, is_woken=False)
    told.until(1, is_woken=False)


@pytest.mark.usefixtures("without_looks")
def test_wake_up_that_is_not_needed_is_passed_on(
    told: Told, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The second process in the queue is told instead."""
    other = Told(rival)
    lease = rival.acquire(key)
    for one, rank in ((told, 1), (other, 2)):
        one.watch.watch(Wanted(key), rank)
        one.until(0, is_woken=False)
    until_listening(redlock)
    until_listening(rival)
    rival.release(lease)
    told.until(1)

    told.watch.forget(Wanted(key), passes_on=True)

    other.until(1)
    other.watch.stop()


@pytest.mark.usefixtures("without_looks")
def test_wake_up_for_one_of_two_keys_is_passed_on_after_a_look_that_saw_room(
    told: Told,
    redlock: Redlock,
    rival: Redlock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between that look and the next one, another client took the other key."""
    # On a busy machine, a majority of the wake-ups may come long after the first one.
    monkeypatch.setattr(key_watch, "_GRACE", NEVER)
    both, other = Wanted(key_of([key, f"{key}:b"])), Told(rival)
    told.watch.watch(both, 1)
    told.until(1, is_woken=False)
    other.watch.watch(Wanted(key), 2)
    other.until(1, is_woken=False)
    until_listening(rival)
    lease = redlock.acquire(f"{key}:b")

    told.watch.watch(both, 1)
    told.until(0, is_woken=False)

    other.until(1, is_woken=True)
    other.watch.stop()
    redlock.release(lease)


def test_stop_leaves_the_wait_queues(
    told: Told, rival: Redlock, shared_nodes: DevNodes, key: str
) -> None:
    """A process that ends is woken no more."""
    lease = rival.acquire(key)
    told.watch.watch(Wanted(key), 1)
    told.until(0, is_woken=False)
    until(lambda: all(queued(shared_nodes, key)), WITHIN, what="a waiter on each node")

    told.watch.stop()

    until(lambda: not any(queued(shared_nodes, key)), WITHIN, what="empty queues")
    rival.release(lease)


def test_watch_that_stops_leaves_all_queues_despite_an_error(
    told: Told, redlock: Redlock, shared_nodes: DevNodes, key: str
) -> None:
    """A release would else wake a process that starts no call any more."""
    names = [f"{key}:{number}" for number in range(3)]
    for name in names:
        told.watch.watch(Wanted(name), 1)
    until(lambda: all(all(queued(shared_nodes, name)) for name in names), WITHIN)
    assert redlock.listener is not None
    remove, left = redlock.listener.remove_waiter, itertools.count()

    def fail_once(waiter: Waiter) -> None:
        remove(waiter)
        if next(left) == 0:
            raise ValueError("of a driver")

    redlock.listener.remove_waiter = fail_once  # type: ignore[method-assign]
    told.watch.stop()

    # None is left where a look met the error, which may begin until the stop.
    until(lambda: sum(any(queued(shared_nodes, name)) for name in names) <= 1, WITHIN)
    assert next(left) > 0


def test_watch_that_got_no_thread_tries_again(
    told: Told, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is out of threads has some again later."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as no_thread:
        no_thread.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            told.watch.watch(Wanted(key), 1)

    told.watch.watch(Wanted(key), 1)

    told.until(1)


def test_watch_needs_a_listener() -> None:
    """Without one no release is heard of."""
    with pytest.raises(ValueError, match="no listener"):
        KeyWatch(FakeNodes(3).redlock(), lambda *_: None)
