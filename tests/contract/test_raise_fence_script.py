"""RAISE_FENCE, reply by reply: a counter goes up, only where the lock is ours."""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import FREE, GRANTED
from tests.contract.subjects import (
    FOR_EVER,
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    WHOLE,
    Subject,
    value,
)


def test_raise_fence_lifts_counter_and_value(subject: Subject) -> None:
    """Ours: both say the fence from now on, and the ttl runs on."""
    subject.acquire(ttl_ms=SHORT * 100)

    assert subject.raise_fence(fence=100) == [GRANTED, 100]
    assert subject.counter() == b"100"
    assert subject.get(subject.lock) == value(100)
    assert 0 < subject.pttl(subject.lock) <= SHORT * 100


def test_raise_fence_keeps_a_lock_without_ttl_without(subject: Subject) -> None:
    """KEEPTTL keeps also that there is none."""
    subject.set(subject.lock, value(1))

    subject.raise_fence()

    assert subject.pttl(subject.lock) == FOR_EVER


def test_raise_fence_then_the_same_token_is_told_the_fence(subject: Subject) -> None:
    """A repeat of the attempt gets the number that was raised to."""
    subject.acquire()
    subject.raise_fence(fence=100)

    assert subject.acquire() == [GRANTED, 100]


@pytest.mark.parametrize("counter", [100, 250])
def test_raise_fence_never_lowers(subject: Subject, counter: int) -> None:
    """A counter that is there already stays, and the value with it."""
    subject.acquire()
    subject.hset(subject.fence, STRIPE, counter)

    assert subject.raise_fence(fence=100) == [GRANTED, 100]
    assert subject.counter() == str(counter).encode()
    assert subject.get(subject.lock) == value(1)


@pytest.mark.parametrize("holder", [None, OTHER])
def test_raise_fence_without_the_lock_does_nothing(
    subject: Subject, holder: str | None
) -> None:
    """Raising while not holding breaks the order of fences: it is refused."""
    if holder:
        subject.acquire(holder)
    before = subject.counter()

    assert subject.raise_fence(TOKEN, fence=100) == [FREE]
    assert subject.counter() == before
    assert (subject.get(subject.lock) is None) == (holder is None)


@pytest.mark.parametrize("fence", [WHOLE, 1_790_000_000_000_000])
def test_raise_fence_writes_big_numbers_in_full(subject: Subject, fence: int) -> None:
    """No exponent, no lost digit."""
    subject.acquire()

    assert subject.raise_fence(fence=fence) == [GRANTED, fence]
    assert subject.counter() == str(fence).encode()
