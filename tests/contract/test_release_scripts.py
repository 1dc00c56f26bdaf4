"""RELEASE and INSPECT, reply by reply: whose lock goes, and who is told to have it."""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import FREE, TAKEN
from tests.contract.subjects import NO_KEY, OTHER, SHORT, TTL, Subject, value


def test_release_deletes_its_own_lock(subject: Subject) -> None:
    """Ours: it is gone, and the counter stays."""
    subject.acquire()

    assert subject.release() == 1
    assert subject.pttl(subject.lock) == NO_KEY
    assert subject.counter() == b"1"


def test_release_twice_is_harmless(subject: Subject) -> None:
    """The second time there is nothing of ours."""
    subject.acquire()
    subject.release()

    assert subject.release() == 0


@pytest.mark.parametrize("keep_ms", [0, 1000])
def test_release_leaves_a_successor_alone(subject: Subject, keep_ms: int) -> None:
    """Compare and delete: also another attempt of the same execution stays."""
    subject.acquire("base-a.try-2")

    assert subject.release("base-a.try-1", keep_ms=keep_ms) == 0
    assert subject.get(subject.lock) == value(1, "base-a.try-2")
    assert subject.pttl(subject.lock) > 1000


@pytest.mark.parametrize(
    ("base", "was_ours"), [("base-a.", 1), ("base-b.", 0), ("base.", 0)]
)
def test_release_by_base_takes_any_attempt(
    subject: Subject, base: str, was_ours: int
) -> None:
    """A base with its dot stands for all attempts of that execution alone."""
    subject.acquire("base-a.try-2")

    assert subject.release(base) == was_ours
    assert (subject.get(subject.lock) is None) == bool(was_ours)


def test_release_with_keep_leaves_it_for_so_long(subject: Subject) -> None:
    """``hold_at_least``: the lock ends by itself, and until then it is taken."""
    subject.acquire()

    assert subject.release(keep_ms=SHORT * 100) == 1
    assert 0 < subject.pttl(subject.lock) <= SHORT * 100
    assert subject.acquire(OTHER)[0] == TAKEN

    subject.release(keep_ms=SHORT)
    subject.wait_until(lambda: subject.inspect() == [FREE])


def test_inspect_tells_the_holder(subject: Subject) -> None:
    """Value and ttl, or that there is none; nothing changes."""
    assert subject.inspect() == [FREE]

    subject.acquire()
    status, said, left = subject.inspect()

    assert (status, said) == (TAKEN, value(1))
    assert TTL - 2000 < left <= TTL
