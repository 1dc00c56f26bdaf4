"""EXTEND and RESTORE, reply by reply: a lock goes on, or comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.scripts import FREE, GRANTED, MISCONFIGURED, TAKEN
from tests.contract.subjects import (
    CONFIG,
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    TTL,
    Subject,
    value,
)

if TYPE_CHECKING:
    from typing import Any


def test_extend_begins_the_ttl_anew(subject: Subject) -> None:
    """Ours: the ttl is set, the value and the counter stay."""
    subject.acquire(ttl_ms=TTL)

    assert subject.extend(ttl_ms=2 * TTL) == [GRANTED, 0]
    assert subject.pttl(subject.lock) > TTL
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"


def test_extend_never_creates(subject: Subject) -> None:
    """A lock that has ended is not there again because somebody asked."""
    subject.acquire(ttl_ms=SHORT)
    subject.wait_until(lambda: subject.get(subject.lock) is None)

    assert subject.extend() == [FREE]
    assert subject.get(subject.lock) is None


def test_extend_leaves_a_successor_alone(subject: Subject) -> None:
    """Somebody else's lock is told and not touched."""
    subject.acquire(OTHER, ttl_ms=TTL)

    status, said, left = subject.extend(TOKEN, ttl_ms=2 * TTL)

    assert (status, said) == (TAKEN, value(1, OTHER))
    assert 0 < left <= TTL
    assert subject.pttl(subject.lock) <= TTL


def test_extend_gives_a_ttl_to_a_lock_without(subject: Subject) -> None:
    """What would have stayed for ever ends with the ttl."""
    subject.set(subject.lock, value(3))

    assert subject.extend() == [GRANTED, 0]
    assert 0 < subject.pttl(subject.lock) <= TTL


def test_extend_can_shorten(subject: Subject) -> None:
    """The ttl is that of the last renewal, whether longer or not."""
    subject.acquire(ttl_ms=TTL)

    subject.extend(ttl_ms=SHORT)

    assert subject.pttl(subject.lock) <= SHORT


# -- RESTORE --------------------------------------------------------------------


def test_restore_gives_the_lock_and_raises_the_counter(subject: Subject) -> None:
    """The node is as if it had granted this fence."""
    assert subject.restore(fence=100) == [GRANTED, 0]
    assert subject.get(subject.lock) == value(100)
    assert subject.counter() == b"100"
    assert 0 < subject.pttl(subject.lock) <= TTL


@pytest.mark.parametrize(
    ("counter", "after"), [(99, b"100"), (100, b"100"), (101, b"101"), ("x", b"100")]
)
def test_restore_never_lowers_the_counter(
    subject: Subject, counter: Any, after: bytes
) -> None:
    """What was granted by others since stays granted."""
    subject.hset(subject.fence, STRIPE, counter)

    subject.restore(fence=100)

    assert subject.counter() == after
    assert subject.get(subject.lock) == value(100)


def test_restore_over_its_own_lock_writes_the_fence(subject: Subject) -> None:
    """A node that granted a lesser number has the lease's fence from now on."""
    subject.acquire(ttl_ms=SHORT * 100)

    assert subject.restore(fence=100) == [GRANTED, 0]
    assert subject.get(subject.lock) == value(100)
    assert subject.pttl(subject.lock) > SHORT * 100


def test_restore_leaves_a_successor_alone(subject: Subject) -> None:
    """Neither the lock nor the counter of somebody else is touched."""
    subject.acquire(OTHER)

    status, said, left = subject.restore(TOKEN, fence=100)

    assert (status, said) == (TAKEN, value(1, OTHER))
    assert 0 < left <= TTL
    assert subject.get(subject.lock) == value(1, OTHER)
    assert subject.counter() == b"1"


# -- both -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["extend", "restore"])
def test_renewal_with_another_config_is_refused(subject: Subject, call: str) -> None:
    """Nodes that were moved to another configuration keep nothing of the old one."""
    subject.initialize()
    subject.acquire(config=CONFIG, ttl_ms=SHORT * 100)

    assert getattr(subject, call)(config="another") == [MISCONFIGURED, CONFIG.encode()]
    assert subject.pttl(subject.lock) <= SHORT * 100
    assert getattr(subject, call)(config=CONFIG) == [GRANTED, 0]


@pytest.mark.parametrize("call", ["extend", "restore"])
def test_renewal_without_guard_or_marker_is_not_refused(
    subject: Subject, call: str
) -> None:
    """Where one of both says nothing, there is no difference."""
    subject.acquire()
    assert getattr(subject, call)(config=CONFIG) == [GRANTED, 0]
    subject.initialize()
    assert getattr(subject, call)(config="") == [GRANTED, 0]
