"""Waiting for a lock on real servers: woken by its release, and quiet until then."""

from __future__ import annotations

import functools
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import waiting, wakeup
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.permissions import acl_rules
from celery_redlock.devnodes import ServerOptions
from celery_redlock.errors import LockHeld
from celery_redlock.locking import lock
from tests.nodes.support import client, run_python, until, until_nothing_is_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes

LONG = 60.0  # seconds: whoever waited so long has failed


@pytest.fixture
def no_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody look again by itself, so that what wakes a waiter is a wake-up."""
    monkeypatch.setattr(waiting, "_LEAST_LOOK_EVERY", 10 * LONG)
    monkeypatch.setattr(waiting, "_LOOK_EVERY", 10 * LONG)


def in_line(node: DevNode, key: str) -> list[str]:
    """Return who waits, as this node knows it."""
    return list(node.command("ZRANGE", f"redlock:line:{key}", 0, -1))


def until_in_line(nodes: DevNodes, key: str, count: int) -> None:
    """Wait until every node knows so many waiters."""
    until(lambda: all(len(in_line(node, key)) == count for node in nodes.nodes))


def calls(nodes: DevNodes) -> int:
    """Return how many scripts the nodes have run."""
    stats = [node.command("INFO", "commandstats") for node in nodes.nodes]
    names = ("cmdstat_eval", "cmdstat_evalsha")
    return sum(s[name]["calls"] for s in stats for name in names if name in s)


def is_past(instant: float) -> bool:
    """Tell whether it is later than that."""
    return SYSTEM_CLOCK.monotonic() > instant


def looks_when_quiet(nodes: DevNodes) -> int:
    """Return how often people have looked; 0 if somebody just did, or might have."""
    counts = []
    for seconds in (0.0, 0.2):
        until(functools.partial(is_past, SYSTEM_CLOCK.monotonic() + seconds))
        stats = [node.command("INFO", "commandstats") for node in nodes.nodes]
        counts.append(sum(s["cmdstat_zadd"]["calls"] for s in stats))
    return counts[0] if counts[0] == counts[1] else 0


@contextmanager
def connected(nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service that is connected to all nodes."""
    with client(nodes, node_timeout=1.0) as redlock:
        until(lambda: redlock.inspect("any").ballot.answered == len(nodes.nodes))
        yield redlock


@dataclass
class Waiter:
    """A thread that waits for a lock with connections of its own."""

    redlock: Redlock
    key: str
    wait: float = LONG
    leases: list[Lease] = field(default_factory=list)
    errors: list[LockHeld] = field(default_factory=list)

    def start(self) -> None:
        """Begin to wait."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.leases.append(self.redlock.acquire(self.key, wait=self.wait))
        except LockHeld as error:
            self.errors.append(error)

    def has_it(self) -> bool:
        """Tell whether it got the lock."""
        return bool(self.leases)

    def hears(self) -> bool:
        """Tell whether it would be woken."""
        ears = self.redlock.ears
        return bool(ears and ears.listening == len(self.redlock.labels))


@contextmanager
def waiters(
    nodes: DevNodes, key: str, count: int, *, ahead: int = 0
) -> Iterator[list[Waiter]]:
    """Give so many waiters, who came in this order and are all in line."""
    with ExitStack() as stack:
        made: list[Waiter] = []
        for number in range(count):
            redlock = stack.enter_context(connected(nodes))
            made.append(Waiter(redlock, key))
            made[-1].start()
            until(made[-1].hears)
            until_in_line(nodes, key, ahead + number + 1)
        yield made
        for waiter in made:
            waiter.thread.join(LONG)


def release_in_turn(made: Sequence[Waiter]) -> None:
    """Let each who gets the lock release it, until all have had it."""
    todo = list(made)
    while todo:
        # On a busy machine a late answer may cost the first its turn.
        taker = until(lambda: [waiter for waiter in todo if waiter.has_it()], LONG)[0]
        todo.remove(taker)
        taker.redlock.release(taker.leases[0])


@pytest.mark.every_server
@pytest.mark.usefixtures("no_looking")
def test_release_wakes_who_waits(three_nodes: DevNodes, key: str) -> None:
    """The lock goes from one to the next, though nobody would look for long."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 3) as made:
            redlock.release(lease)

            release_in_turn(made)
    until_nothing_is_left(three_nodes)
    assert [in_line(node, key) for node in three_nodes.nodes] == [[]] * 3


@pytest.mark.usefixtures("no_looking")
def test_release_wakes_one_waiter_alone(three_nodes: DevNodes, key: str) -> None:
    """The others are not stirred up: they stay in line and ask nothing."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 4) as made:
            before = until(lambda: looks_when_quiet(three_nodes))
            redlock.release(lease)
            (successor,) = until(lambda: made[0].leases)

            assert until(lambda: looks_when_quiet(three_nodes)) == before
            assert [len(in_line(node, key)) for node in three_nodes.nodes] == [3] * 3
            made[0].redlock.release(successor)
            release_in_turn(made[1:])


@pytest.mark.usefixtures("no_looking")
def test_waiters_of_other_keys_are_left_alone(three_nodes: DevNodes, key: str) -> None:
    """A process that waits for two locks is told of the one that is free."""
    with client(three_nodes) as redlock, connected(three_nodes) as other:
        held = [redlock.acquire(f"{key}:{name}") for name in "ab"]
        pair = [Waiter(other, f"{key}:{name}") for name in "ab"]
        for waiter in pair:
            waiter.start()
            until_in_line(three_nodes, waiter.key, 1)
        until(pair[0].hears)

        redlock.release(held[1])
        until(lambda: pair[1].leases)

        assert not pair[0].leases
        redlock.release(held[0])
        release_in_turn(pair)
        for waiter in pair:
            waiter.thread.join(LONG)


@pytest.mark.usefixtures("no_looking")
def test_waiter_who_is_gone_is_passed_over(three_nodes: DevNodes, key: str) -> None:
    """A process that was killed in line takes no wake-up with it."""
    with connected(three_nodes) as redlock:
        lease = redlock.acquire(key)
        program = """
import os, sys, time
from celery_redlock.core import waiting
from celery_redlock.core.redlock import Redlock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)

def until(event):
    end = time.monotonic() + 20
    while not event():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)

def die_in_line(*_):
    until(lambda: redlock.ears.listening == 3)
    os._exit(0)

until(lambda: redlock.inspect(key).ballot.answered == 3)
waiting.Waiting._listen = die_in_line
redlock.acquire(key, wait=60)
"""
        run_python(program, key, *three_nodes.urls)
        assert [len(in_line(node, key)) for node in three_nodes.nodes] == [1] * 3
        second = Waiter(redlock, key)
        second.start()
        until(second.hears)
        until_in_line(three_nodes, key, 2)

        redlock.release(lease)

        release_in_turn([second])
        second.thread.join(LONG)


@pytest.mark.usefixtures("no_looking")
def test_who_gives_up_passes_a_wake_up_on(three_nodes: DevNodes, key: str) -> None:
    """One that was woken and leaves without the lock wakes the next."""
    with connected(three_nodes) as redlock:
        lease = redlock.acquire(key)
        ears = wakeup.Ears(redlock.addresses, "redlock", redlock.timing)
        first = waiting.Waiting(key, ears, redlock)
        first.pause(SYSTEM_CLOCK.monotonic() + 0.01)
        until(lambda: ears.listening == len(three_nodes.nodes))
        with waiters(three_nodes, key, 1, ahead=1) as made:
            redlock.release(lease)
            assert [len(in_line(node, key)) for node in three_nodes.nodes] == [1] * 3
            assert not made[0].leases

            first.end(acquired=False)

            release_in_turn(made)
        ears.close()


def test_waiting_is_quiet(three_nodes: DevNodes, key: str) -> None:
    """Once in line, a waiter asks each node no more than once a second."""
    with client(three_nodes, ttl=30.0) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 4) as made:
            before, began = calls(three_nodes), SYSTEM_CLOCK.monotonic()
            until(functools.partial(is_past, began + 3.0))
            asked = calls(three_nodes) - before
            seconds = SYSTEM_CLOCK.monotonic() - began

            assert 0 < asked <= 3 * seconds * len(made)
            redlock.release(lease)
            release_in_turn(made)


def test_lost_wake_up_delays_until_the_next_look(
    three_nodes: DevNodes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of the release; whoever looks finds that it is free."""
    monkeypatch.setattr(wakeup.Waiter, "call", lambda *_: None)
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 2) as made:
            redlock.release(lease)

            release_in_turn(made)


@pytest.mark.usefixtures("no_looking")
def test_end_of_a_ttl_is_not_slept_through(three_nodes: DevNodes, key: str) -> None:
    """A holder that dies announces nothing: its waiters know when its lock ends."""
    with client(three_nodes) as redlock:
        redlock.acquire(key, ttl=2.0)
        with waiters(three_nodes, key, 2) as made:
            release_in_turn(made)


@pytest.mark.usefixtures("no_looking")
def test_hold_at_least_is_announced_with_its_end(
    three_nodes: DevNodes, key: str
) -> None:
    """The first in line is told how long the lock is still kept, and comes then."""
    with client(three_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 1) as made:
            redlock.release(lease, keep=0.5)

            release_in_turn(made)
            assert made[0].leases[0].fence > lease.fence


@pytest.mark.usefixtures("no_looking")
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_minority_of_nodes_may_be_away(
    five_nodes: DevNodes, key: str, lost: int
) -> None:
    """Nodes that died with the line on them are not needed to be woken."""
    with client(five_nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(five_nodes, key, 2) as made:
            for node in five_nodes.nodes[:lost]:
                node.kill()
            redlock.release(lease)

            release_in_turn(made)


def test_nodes_that_come_back_are_listened_to_again(
    three_nodes: DevNodes, key: str
) -> None:
    """A subscription that broke is made anew while one waits."""
    with client(three_nodes, ttl=30.0) as redlock:
        lease = redlock.acquire(key)
        with waiters(three_nodes, key, 1) as made:
            three_nodes.nodes[1].kill()
            until(lambda: not made[0].hears())
            three_nodes.nodes[1].start()
            until(made[0].hears)

            redlock.release(lease)
            release_in_turn(made)


def test_waiting_works_without_permission_to_listen(
    start_nodes: Callable[..., DevNodes], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Then it is asked again and again; the log says why, once for each node."""
    rules = acl_rules("redlock").replace("&redlock:wake:*", "")
    options = ServerOptions(username="u", password="p", acl=rules)
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock, client(nodes) as other:
        lease = redlock.acquire(key)
        waiter = Waiter(other, key)
        waiter.start()
        until(lambda: caplog.text.count("cannot be listened to") == 3)

        assert redlock.release(lease) >= 2

        release_in_turn([waiter])
        waiter.thread.join(LONG)
    assert caplog.text.count("cannot be listened to") == 3


@pytest.mark.every_server
@pytest.mark.usefixtures("no_looking")
def test_acl_of_the_doctor_is_enough_to_be_woken(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Whoever has no more permissions than are printed waits like everybody."""
    options = ServerOptions(username="u", password="p", acl=acl_rules("redlock"))
    nodes = start_nodes(3, options=options)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        with waiters(nodes, key, 2) as made:
            redlock.release(lease)

            release_in_turn(made)
    refused = [str(node.command("ACL", "LOG")) for node in nodes.nodes]
    assert not [said for said in refused if "publish" in said or "subscribe" in said]


def test_wait_that_ends_leaves_the_line(three_nodes: DevNodes, key: str) -> None:
    """The error names who has the lock then; nothing of the waiter is left."""
    with client(three_nodes) as redlock, client(three_nodes) as other:
        with lock(redlock, key) as lease, pytest.raises(LockHeld) as caught:
            other.acquire(key, wait=0.3)
        assert caught.value.holder
        assert caught.value.holder.token == lease.token
        until(lambda: not any(in_line(node, key) for node in three_nodes.nodes))
    until_nothing_is_left(three_nodes)


def test_forked_child_waits_with_ears_of_its_own(
    three_nodes: DevNodes, key: str
) -> None:
    """A child of a process that waits is woken, and so is its parent after that."""
    program = """
import os, sys, threading, time
from celery_redlock.core import waiting
from celery_redlock.core.redlock import Redlock
waiting._LEAST_LOOK_EVERY = waiting._LOOK_EVERY = 600.0
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)
holder = Redlock(urls, node_timeout=1.0)

def until(event):
    end = time.monotonic() + 20
    while not event():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)

def all_hear():
    return redlock.ears.listening == 3

mine = holder.acquire(key)
got = []
thread = threading.Thread(target=lambda: got.append(redlock.acquire(key, wait=60)))
thread.start()
until(all_hear)
channel = redlock.ears.channel
ready, say = os.pipe()
child = os.fork()
if not child:
    lease = holder.acquire(key + ":child")
    taken = []
    waits = threading.Thread(
        target=lambda: taken.append(redlock.acquire(key + ":child", wait=60)))
    waits.start()
    until(all_hear)
    assert redlock.ears.channel != channel
    time.sleep(0.2)
    holder.release(lease)
    waits.join(30)
    redlock.release(taken[0])
    os._exit(0)
print("child", os.waitpid(child, 0)[1])
assert redlock.ears.channel == channel and all_hear()
holder.release(mine)
thread.join(30)
redlock.release(got[0])
print("parent", len(got))
"""
    assert run_python(program, key, *three_nodes.urls) == ["child 0", "parent 1"]
    until_nothing_is_left(three_nodes)
