"""The wait queue of a lock, reply by reply: its order, and which waiter is woken."""

from __future__ import annotations

import pytest
import redis

from celery_redlock.scripts import FREE, GRANTED, TAKEN
from tests.contract.listener import Listener
from tests.contract.subjects import (
    NO_KEY,
    OTHER,
    PATIENCE,
    SHORT,
    SOON,
    TTL,
    ServerSubject,
    Subject,
    value,
)

WAKING = pytest.mark.parametrize("how", ["release", "leave_wait_queue"])


def wake(subject: Subject, how: str) -> None:
    """Release the lock; or let a waiter leave the queue of a lock that is free."""
    if how == "release":
        assert subject.release() == 1
    else:
        subject.delete(subject.lock)
        assert subject.leave_wait_queue("another/1") == [GRANTED, 0]


# -- the order -----------------------------------------------------------------


def test_join_returns_the_holder(subject: Subject) -> None:
    """The caller is in the queue, whether the lock is held or free."""
    assert subject.join_wait_queue() == [FREE]

    subject.acquire()
    status, found, left = subject.join_wait_queue()

    assert (status, found) == (TAKEN, value(1))
    assert TTL - PATIENCE < left <= subject.longest(TTL)
    assert subject.waiters() == [b"w/1"]


def test_queue_is_in_the_order_of_ranks(subject: Subject) -> None:
    """A waiter that joins again keeps its place. Equal ranks are ordered by name."""
    subject.join_wait_queue("b/1", rank=2)
    subject.join_wait_queue("c/1", rank=1_790_000_000_000_000)
    subject.join_wait_queue("a/2", rank=2)
    subject.join_wait_queue("d/1", rank=1)
    subject.join_wait_queue("b/1", rank=2)

    assert subject.waiters() == [b"d/1", b"a/2", b"b/1", b"c/1"]


def test_queue_expires_when_no_waiter_joins_again(subject: Subject) -> None:
    """Waiters that were killed do not stay for ever."""
    subject.join_wait_queue(ttl_ms=TTL)
    assert TTL - PATIENCE < subject.pttl(subject.wait_queue) <= subject.longest(TTL)

    subject.join_wait_queue("w/2", ttl_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.wait_queue) == NO_KEY)


def test_leave_keeps_the_others_in_the_queue(subject: Subject) -> None:
    """While the lock is held no waiter is woken."""
    subject.acquire()
    subject.join_wait_queue("w/1")
    subject.join_wait_queue("w/2")

    assert subject.leave_wait_queue("w/1") == [GRANTED, 0]
    assert subject.waiters() == [b"w/2"]
    for _ in range(2):
        assert subject.leave_wait_queue("w/2") == [GRANTED, 0]
    assert subject.pttl(subject.wait_queue) == NO_KEY


# -- waking --------------------------------------------------------------------


def test_release_wakes_the_first_alone(subject: Subject, listener: Listener) -> None:
    """The message is the waiter's name and 0: the lock is free now."""
    subject.acquire()
    subject.join_wait_queue(f"{listener.channel}/2", rank=2)
    subject.join_wait_queue(f"{listener.channel}/1", rank=1)

    assert subject.release() == 1

    assert listener.messages() == [b"1 0"]
    assert subject.waiters() == [f"{listener.channel}/2".encode()]


def test_release_with_keep_tells_when_the_lock_is_free(
    subject: Subject, listener: Listener
) -> None:
    """In milliseconds."""
    subject.acquire()
    subject.join_wait_queue(f"{listener.channel}/1")

    assert subject.release(keep_ms=TTL) == 1

    assert listener.messages() == [f"1 {TTL}".encode()]


def test_release_with_keep_wakes_whatever_the_names_of_the_holder_are(
    subject: Subject, listener: Listener
) -> None:
    """The last line alone makes a permit for a start, and no task id 'kept'."""
    subject.acquire(holder_info="job\nkept\nkept\n7\n2.500")
    subject.join_wait_queue(f"{listener.channel}/1")

    assert subject.release(keep_ms=TTL) == 1

    assert listener.messages() == [f"1 {TTL}".encode()]


def test_subscriber_to_a_pattern_takes_the_wake_up_of_a_waiter_that_is_gone(
    server: ServerSubject,
) -> None:
    """The node counts it as one that hears the waiter, and wakes no other."""
    server.acquire()
    channel = server.key("w")
    for rank in (1, 2):
        server.join_wait_queue(f"{channel}/{rank}", rank)
    with redis.Redis.from_url(server.node.url, retry=None) as monitor:
        subscription = monitor.pubsub()
        subscription.psubscribe(f"{channel}*")
        assert subscription.get_message(timeout=SOON)

        assert server.release() == 1
        subscription.close()

    assert server.waiters() == [f"{channel}/2".encode()]


@WAKING
def test_waiters_that_do_not_listen_are_passed_over(
    subject: Subject, listener: Listener, how: str
) -> None:
    """The first that listens is woken; the waiters after it keep their places."""
    subject.acquire()
    for rank, waiter in enumerate(["gone/1", "gone/2", "w/7", "w/8"]):
        subject.join_wait_queue(subject.key(waiter), rank=rank)

    wake(subject, how)

    assert listener.messages() == [b"7 0"]
    assert subject.waiters() == [subject.key("w/8").encode()]


def test_forced_release_wakes_the_first(subject: Subject, listener: Listener) -> None:
    """A waiter need not ask again to learn that an operator released the lock."""
    subject.acquire()
    subject.join_wait_queue(f"{listener.channel}/1")

    assert subject.force_release() == [GRANTED, 0]

    assert listener.messages() == [b"1 0"]
    assert subject.waiters() == []


@pytest.mark.parametrize("keep_ms", [0, TTL])
def test_queue_is_emptied_when_no_waiter_listens(
    subject: Subject, keep_ms: int
) -> None:
    """Also by a release that keeps the lock for a while."""
    subject.acquire()
    subject.join_wait_queue("w/1")
    subject.join_wait_queue("w/2")

    assert subject.release(keep_ms=keep_ms) == 1

    assert subject.waiters() == []


@WAKING
def test_member_that_is_no_waiter_is_passed_over(subject: Subject, how: str) -> None:
    """A member without a channel does not fail the script that finds it."""
    subject.acquire()
    subject.join_wait_queue("no channel")
    subject.join_wait_queue("w/1", rank=2)

    wake(subject, how)

    assert subject.waiters() == []


@pytest.mark.parametrize("listener", ["a/b:w"], indirect=True)
def test_channel_ends_at_the_last_slash(subject: Subject, listener: Listener) -> None:
    """A prefix may contain slashes as well."""
    subject.acquire()
    subject.join_wait_queue(f"{listener.channel}/12")

    subject.release()

    assert listener.messages() == [b"12 0"]


def test_no_waiter_is_woken_while_the_lock_is_held(
    subject: Subject, listener: Listener
) -> None:
    """Neither by a waiter that leaves nor by a release of another token."""
    subject.acquire(OTHER)
    subject.join_wait_queue(f"{listener.channel}/1")

    subject.leave_wait_queue("another/1")
    assert subject.release() == 0

    assert listener.messages() == []
    assert subject.waiters() == [f"{listener.channel}/1".encode()]


def test_waiter_that_got_the_lock_wakes_no_other(
    subject: Subject, listener: Listener
) -> None:
    """Also on a node that did not grant it and is free."""
    subject.join_wait_queue(f"{listener.channel}/1")
    subject.join_wait_queue(f"{listener.channel}/2")

    assert subject.leave_wait_queue(f"{listener.channel}/1", free_in_ms="") == [
        GRANTED,
        0,
    ]

    assert listener.messages() == []
    assert subject.waiters() == [f"{listener.channel}/2".encode()]


@pytest.mark.parametrize("is_queued", [True, False])
def test_waiter_that_got_a_permit_unwoken_passes_on_what_woke_it_since(
    subject: Subject,
    listener: Listener,
    is_queued: bool,
) -> None:
    """A release that woke it, and so removed it from the queue, was for another one."""
    if is_queued:
        subject.join_wait_queue("w/1", rank=1)
    subject.join_wait_queue(f"{listener.channel}/2", rank=2)

    subject.leave_wait_queue("w/1", has_permit=True)

    assert listener.messages() == ([] if is_queued else [b"2 0"])


# -- several keys ----------------------------------------------------------------


def hold(subject: Subject, *keys: str) -> None:
    """Let another client have the locks of these keys."""
    subject.take_several(*keys)
    assert subject.acquire(OTHER)[0] == GRANTED


def test_waiter_that_cannot_use_a_free_key_passes_it_on(
    subject: Subject, listener: Listener
) -> None:
    """A waiter behind it is woken, and leaves the queue of that key."""
    hold(subject, "b")
    subject.take_several("a")
    subject.join_wait_queue(f"{listener.channel}/before", rank=1)
    subject.join_wait_queue(f"{listener.channel}/behind", rank=9)
    subject.take_several("a", "b")

    subject.join_wait_queue("w/both", rank=5)

    assert listener.messages() == [b"behind 0"]
    assert subject.waiters() == [f"{listener.channel}/before".encode(), b"w/both"]


def test_waiter_passes_a_free_key_on_once(subject: Subject, listener: Listener) -> None:
    """A waiter that was not woken since its last look, and is not first, wakes none."""
    hold(subject, "b")
    subject.take_several("a", "b")
    subject.join_wait_queue("w/before", rank=1)
    subject.join_wait_queue("w/both", rank=5)
    subject.take_several("a")
    subject.join_wait_queue(f"{listener.channel}/behind", rank=9)
    subject.take_several("a", "b")

    subject.join_wait_queue("w/both", rank=5)

    assert listener.messages() == []


def test_first_waiter_passes_on_a_key_that_ended_by_itself(
    subject: Subject, listener: Listener
) -> None:
    """The end of a ttl wakes no waiter, so the first one does at its next look."""
    hold(subject, "b")
    subject.take_several("a")
    assert subject.acquire(OTHER, ttl_ms=SHORT)[0] == GRANTED
    subject.take_several("a", "b")
    subject.join_wait_queue("w/both", rank=5)
    subject.take_several("a")
    subject.join_wait_queue(f"{listener.channel}/behind", rank=9)
    subject.wait_until(lambda: subject.pttl(subject.lock) == NO_KEY)
    subject.take_several("a", "b")

    subject.join_wait_queue("w/both", rank=5)

    assert listener.messages() == [b"behind 0"]


def test_waiter_keeps_its_places_while_all_keys_are_held(
    subject: Subject, listener: Listener
) -> None:
    """There is nothing to pass on."""
    hold(subject, "a", "b")
    subject.take_several("a")
    subject.join_wait_queue(f"{listener.channel}/behind", rank=9)
    subject.take_several("a", "b")

    subject.join_wait_queue("w/both", rank=5)

    assert listener.messages() == []
