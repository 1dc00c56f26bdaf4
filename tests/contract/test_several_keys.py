"""The scripts of several locks that are taken together: all of them or none."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.scripts import FREE, GRANTED, TAKEN
from tests.contract.subjects import (
    NO_KEY,
    OTHER,
    PATIENCE,
    SHORT,
    TOKEN,
    TTL,
    Subject,
    value,
)


@pytest.fixture
def pair(subject: Subject) -> Subject:
    """Give a node whose scripts are about the locks of ``a`` and ``b``."""
    subject.take_several("a", "b")
    return subject


def values(subject: Subject) -> list[bytes | None]:
    """Return what the node has for each of the locks."""
    return [subject.get(lock) for lock in subject.locks]


def hold_b(subject: Subject) -> None:
    """Let a client have the lock of ``b`` alone."""
    subject.take_several("b")
    assert subject.acquire(OTHER)[0] == GRANTED
    subject.take_several("a", "b")


def named(reply: Any) -> list[Any]:
    """Return the values in a reply that names other holders."""
    assert reply[0] == TAKEN
    found: list[Any] = reply[1::2]
    return found


def test_acquire_takes_all_locks_with_one_number(pair: Subject) -> None:
    """The number is above the counters of all of them, and is written to each."""
    assert pair.acquire() == [GRANTED, 1]
    assert values(pair) == [value(1), value(1)]
    assert all(
        TTL - PATIENCE < pair.pttl(lock) <= pair.longest(TTL) for lock in pair.locks
    )


def test_number_is_above_the_counters_of_all_keys(pair: Subject) -> None:
    """Keys of different stripes get the greater of their numbers."""
    pair.hset(pair.meta, "7", 5)
    pair.hset(pair.meta, "8", 41)

    assert pair.acquire(stripes=["7", "8"]) == [GRANTED, 42]
    assert (pair.counter("7"), pair.counter("8")) == (b"42", b"42")


def test_acquire_takes_none_if_one_is_held(pair: Subject) -> None:
    """The reply names the holder of that one, at its place."""
    hold_b(pair)

    reply = pair.acquire()

    assert named(reply) == [b"", value(1, OTHER)]
    assert reply[2] == NO_KEY
    assert values(pair) == [None, value(1, OTHER)]
    assert pair.counter() == b"1"


def test_acquire_names_each_holder(pair: Subject) -> None:
    """Two keys may have two holders."""
    hold_b(pair)
    pair.take_several("a")
    assert pair.acquire(TOKEN)[0] == GRANTED
    pair.take_several("a", "b")

    third = "c" * len(TOKEN)
    assert named(pair.acquire(third)) == [value(2), value(1, OTHER)]


def test_acquire_by_the_same_token_is_granted_again(pair: Subject) -> None:
    """The number stays."""
    pair.acquire()

    assert pair.acquire() == [GRANTED, 1]


def test_acquire_of_a_token_that_lost_one_key_has_a_new_number(pair: Subject) -> None:
    """It is a new tenure of that key."""
    pair.acquire()
    pair.delete(pair.locks[1])

    assert pair.acquire() == [GRANTED, 2]
    assert values(pair) == [value(2), value(2)]


def test_extend_needs_every_lock(pair: Subject) -> None:
    """A missing lock is not renewed, and neither are the others."""
    pair.acquire(ttl_ms=SHORT * 100)

    assert pair.extend(ttl_ms=TTL) == [GRANTED, 0]
    pair.delete(pair.locks[1])
    assert pair.extend() == [FREE]
    hold_b(pair)
    assert named(pair.extend()) == [b"", value(2, OTHER)]


@pytest.mark.parametrize("key", ["a", "b"])
def test_cancel_request_for_one_key_reaches_the_holder(pair: Subject, key: str) -> None:
    """A task with this one key cancels the run that holds it with others."""
    pair.acquire()
    pair.take_several(key)
    pair.request_cancel(who="task[id]")
    pair.take_several("a", "b")

    assert pair.extend() == [GRANTED, 0, b"task[id]"]


# -- EXTEND of several leases ------------------------------------------------------


@pytest.fixture
def leases(subject: Subject) -> Subject:
    """Give a node with the locks of ``a`` and ``b``, each of a lease of its own."""
    for key, token in (("a", TOKEN), ("b", OTHER)):
        subject.take_several(key)
        assert subject.acquire(token, ttl_ms=SHORT * 100)[0] == GRANTED
    subject.take_several("a", "b")
    return subject


def test_extend_renews_several_leases(leases: Subject) -> None:
    """Each is renewed for its own ttl, and keeps its value."""
    before = values(leases)

    assert leases.extend_each((TOKEN, TTL), (OTHER, 2 * TTL)) == [GRANTED, 0]

    first, second = [leases.pttl(lock) for lock in leases.locks]
    assert SHORT * 100 < first <= leases.longest(TTL) < second
    assert values(leases) == before


@pytest.mark.parametrize("number", [0, 1])
def test_extend_renews_no_lease_beside_a_lost_one(leases: Subject, number: int) -> None:
    """The other one is left alone. The reply is the same for each kind of loss."""
    there, lost = leases.locks[1 - number], leases.locks[number]

    leases.delete(lost)
    assert leases.extend_each((TOKEN, TTL), (OTHER, TTL)) == [FREE]
    leases.set(lost, value(7, "base-c.try-1"))
    assert leases.extend_each((TOKEN, TTL), (OTHER, TTL)) == [FREE]
    leases.delete(lost)
    leases.hset(lost, "of another program", "1")
    assert leases.extend_each((TOKEN, TTL), (OTHER, TTL)) == [FREE]
    assert leases.pttl(there) <= leases.longest(SHORT * 100)


@pytest.mark.parametrize(("key", "token"), [("a", TOKEN), ("b", OTHER)])
def test_extend_of_several_leases_tells_a_cancel_request(
    leases: Subject, key: str, token: str
) -> None:
    """Of whichever of them it is."""
    leases.take_several(key)
    leases.request_cancel(token, who="task[id]")
    leases.take_several("a", "b")

    reply = leases.extend_each((TOKEN, TTL), (OTHER, TTL))

    assert reply == [GRANTED, 0, b"task[id]"]


# -- RESTORE, RAISE_FENCE and RELEASE ----------------------------------------------


def test_restore_writes_every_lock(pair: Subject) -> None:
    """Those that are missing are written, and all counters are raised."""
    pair.acquire()
    pair.delete(pair.locks[0])

    assert pair.restore(fence=100) == [GRANTED, 0]
    assert values(pair) == [value(100), value(100)]
    assert pair.counter() == b"100"


def test_restore_writes_none_over_another_holder(pair: Subject) -> None:
    """A holder of one of the keys keeps its own, and the other one stays free."""
    hold_b(pair)

    assert named(pair.restore()) == [b"", value(1, OTHER)]
    assert values(pair) == [None, value(1, OTHER)]


def test_raise_names_the_fence_in_every_lock(pair: Subject) -> None:
    """Also where two keys share a counter, or one of the counters is ahead."""
    pair.acquire()

    assert pair.raise_fence(fence=50) == [GRANTED, 50]

    assert values(pair) == [value(50), value(50)]


def test_raise_needs_every_lock(pair: Subject) -> None:
    """It changes nothing while one of the locks is not ours."""
    pair.acquire()
    assert pair.raise_fence(fence=50) == [GRANTED, 50]
    pair.delete(pair.locks[1])

    assert pair.raise_fence(fence=60) == [FREE]
    assert pair.counter() == b"50"


def test_release_ends_every_lock(pair: Subject) -> None:
    """Twice is harmless."""
    pair.acquire()

    assert pair.release() == 1
    assert values(pair) == [None, None]
    assert pair.release() == 0


def test_release_leaves_what_is_not_ours(pair: Subject) -> None:
    """A lock of another holder stays."""
    pair.acquire()
    pair.delete(pair.locks[1])
    hold_b(pair)

    assert pair.release() == 1
    assert values(pair) == [None, value(2, OTHER)]


def test_inspect_names_the_holders(pair: Subject) -> None:
    """It has a place for each key."""
    assert pair.inspect() == [FREE]
    hold_b(pair)

    assert named(pair.inspect()) == [b"", value(1, OTHER)]


def test_force_release_ends_every_lock(pair: Subject) -> None:
    """One record is kept for all of them."""
    pair.acquire()

    assert pair.force_release() == [GRANTED, 0]
    assert values(pair) == [None, None]
    assert len(pair.list_releases()) == 2


# -- Waiting -------------------------------------------------------------------


def test_waiter_joins_the_queue_of_each_key(pair: Subject) -> None:
    """It leaves all of them, too."""
    hold_b(pair)

    assert named(pair.join_wait_queue("w/1")) == [b"", value(1, OTHER)]
    assert [len(pair.waiters(name)) for name in pair.wait_queues] == [1, 1]
    pair.leave_wait_queue("w/1")
    assert [len(pair.waiters(name)) for name in pair.wait_queues] == [0, 0]
