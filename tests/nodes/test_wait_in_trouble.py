"""Waiting when people leave the line, nodes die, and wake-ups are lost or forbidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core import waiting, wakeup
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.permissions import acl_rules
from celery_redlock.devnodes import ServerOptions
from tests.nodes.support import client, run_python, until, until_nothing_is_left
from tests.nodes.waiters import (
    LONG,
    Waiter,
    connected,
    release_in_turn,
    until_in_line,
    waiters,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.devnodes import DevNodes


@pytest.mark.usefixtures("no_looking")
def test_waiter_who_is_gone_is_passed_over(three_nodes: DevNodes, key: str) -> None:
    """A process that was killed in line takes no wake-up with it."""
    with connected(three_nodes) as redlock:
        lease = redlock.acquire(key)
        program = """
import os, sys
from celery_redlock.core import waiting
from celery_redlock.core.redlock import Redlock
from tests.worker.harness.waiting import until
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)

def die_in_line(*_):
    until(lambda: redlock.ears.listening == 3)
    os._exit(0)

until(lambda: redlock.inspect(key).ballot.answered == 3)
waiting.Waiting._listen = die_in_line
redlock.acquire(key, wait=60)
"""
        run_python(program, key, *three_nodes.urls)
        until_in_line(three_nodes, key, 1)
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
            until_in_line(three_nodes, key, 1)
            assert not made[0].leases

            first.end(acquired=False)

            release_in_turn(made)
        ears.close()


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


def test_forked_child_waits_with_ears_of_its_own(
    three_nodes: DevNodes, key: str
) -> None:
    """A child of a process that waits is woken, and so is its parent after that."""
    program = """
import os, sys, threading
import redis
from celery_redlock.core import waiting
from celery_redlock.core.redlock import Redlock
from tests.worker.harness.waiting import until
waiting._LEAST_LOOK_EVERY = waiting._LOOK_EVERY = 600.0
key, *urls = sys.argv[1:]
redlock = Redlock(urls, node_timeout=1.0)
holder = Redlock(urls, node_timeout=1.0)

def all_hear():
    return redlock.ears.listening == 3

def in_line(key):
    nodes = [redis.Redis.from_url(url, retry=None) for url in urls]
    return all(node.zcard(f"redlock:line:{key}") for node in nodes)

mine = holder.acquire(key)
got = []
thread = threading.Thread(target=lambda: got.append(redlock.acquire(key, wait=60)))
thread.start()
until(all_hear)
channel = redlock.ears.channel
child = os.fork()
if not child:
    lease = holder.acquire(key + ":child")
    taken = []
    waits = threading.Thread(
        target=lambda: taken.append(redlock.acquire(key + ":child", wait=60)))
    waits.start()
    until(all_hear)
    assert redlock.ears.channel != channel
    until(lambda: in_line(key + ":child"))
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


# -- Nodes -------------------------------------------------------------------------


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
