"""ACQUIRE, reply by reply: to whom it gives the lock, and with which number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.scripts import FREE, GRANTED, TAKEN
from tests.contract.subjects import (
    FOR_EVER,
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    TTL,
    WHOLE,
    Subject,
    value,
)

if TYPE_CHECKING:
    from typing import Any


def test_acquire_takes_a_free_lock(subject: Subject) -> None:
    """It replies with the counter, and stores token, counter and facts for a ttl."""
    subject.hset(subject.fence, STRIPE, 41)

    assert subject.acquire() == [GRANTED, 42]
    assert subject.get(subject.lock) == value(42)
    assert subject.counter() == b"42"
    assert TTL - 2000 < subject.pttl(subject.lock) <= TTL


def test_acquire_by_another_token_tells_the_holder(subject: Subject) -> None:
    """It replies with the value as it is and the ttl that is left."""
    subject.acquire()

    status, said, left = subject.acquire(OTHER)

    assert (status, said) == (TAKEN, value(1))
    assert TTL - 2000 < left <= TTL
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"


def test_acquire_by_the_same_token_is_granted_again(subject: Subject) -> None:
    """The number stays and the ttl begins anew; facts are not replaced."""
    subject.acquire(ttl_ms=TTL)

    assert subject.acquire(facts="other facts", ttl_ms=2 * TTL) == [GRANTED, 1]
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"
    assert subject.pttl(subject.lock) > TTL


def test_lock_lives_to_the_end_of_its_ttl(subject: Subject) -> None:
    """No sooner than its ttl after it was taken is it gone, by the node's TIME."""
    before = subject.now_us
    subject.acquire(ttl_ms=SHORT)

    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.now_us - before >= SHORT * 1000


def test_acquire_after_expiry_is_granted_a_greater_number(subject: Subject) -> None:
    """A lock ends with its ttl; the next one counts on."""
    subject.acquire(ttl_ms=SHORT)
    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.acquire(OTHER) == [GRANTED, 2]
    assert subject.get(subject.lock) == value(2, OTHER)


@pytest.mark.parametrize("foreign", ["", "\n", f"{TOKEN[:-1]}", f" {TOKEN}", "\xff"])
def test_acquire_leaves_foreign_values_alone(subject: Subject, foreign: str) -> None:
    """Whatever does not begin with the token is somebody else's; -1: it never ends."""
    subject.set(subject.lock, foreign)

    assert subject.acquire() == [TAKEN, foreign.encode(), FOR_EVER]
    assert subject.get(subject.lock) == foreign.encode()


@pytest.mark.parametrize(
    ("stored", "reply"),
    [
        (TOKEN, [GRANTED]),
        (f"{TOKEN}\n", [GRANTED]),
        (f"{TOKEN}\nfacts", [GRANTED]),
        (f"{TOKEN}\n12", [GRANTED, 12]),
        (f"{TOKEN}\n12x\n13", [GRANTED, 12]),
        (f"{TOKEN}\n-5\n13", [GRANTED, 13]),
        (f"{TOKEN}\n007\n", [GRANTED, 7]),
    ],
)
def test_acquire_reads_its_own_number_from_the_value(
    subject: Subject, stored: str, reply: list[int]
) -> None:
    """The number is the first line of digits; without one the reply has none."""
    subject.set(subject.lock, stored, px=TTL)

    assert subject.acquire() == reply


def test_acquire_answers_whatever_its_own_number(subject: Subject) -> None:
    """Which number comes of one beyond 64 bits is nobody's business."""
    subject.set(subject.lock, f"{TOKEN}\n99999999999999999999", px=TTL)

    assert subject.acquire()[0] == GRANTED


def test_acquire_keeps_any_bytes_of_the_facts(subject: Subject) -> None:
    """Facts are text for people: whatever they hold comes back as it was."""
    subject.acquire(facts="naïve\r\n\x00$5\r\n☃")

    assert subject.get(subject.lock) == f"{TOKEN}\n1\nnaïve\r\n\x00$5\r\n☃".encode()


# -- the number -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "floor", "number"),
    [
        (None, None, 1),
        (5, None, 6),
        (None, 9, 10),
        (5, 9, 10),
        (9, 5, 10),
        (1_790_000_000_000_000, None, 1_790_000_000_000_001),
        (WHOLE - 1, None, WHOLE),
        (WHOLE, None, WHOLE),
        ("not a number", None, 1),
        ("", 3, 4),
    ],
)
def test_acquire_counts_on(
    subject: Subject, counter: Any, floor: Any, number: int
) -> None:
    """One more than the counter and the floor, in full, as doubles count."""
    if counter is not None:
        subject.hset(subject.fence, STRIPE, counter)
    if floor is not None:
        subject.hset(subject.fence, "floor", floor)

    assert subject.acquire() == [GRANTED, number]
    assert subject.counter() == str(number).encode()
    assert subject.get(subject.lock) == value(number)


def test_acquire_counts_each_stripe_by_itself(subject: Subject) -> None:
    """A counter is that of the stripe; the others stay."""
    subject.hset(subject.fence, "8", 50)

    assert subject.acquire(stripe="7") == [GRANTED, 1]
    assert subject.hgetall(subject.fence) == {b"8": b"50", b"7": b"1"}


@pytest.mark.parametrize("off", [-10_000_000, -1_000, 10_000_000])
def test_acquire_jumps_to_a_hint_near_its_time(subject: Subject, off: int) -> None:
    """A clock that agrees with the node's within the tolerance makes fences alike."""
    subject.hset(subject.fence, STRIPE, 5)
    hint = subject.now_us + off

    assert subject.acquire(hint_us=hint) == [GRANTED, hint]
    assert subject.counter() == str(hint).encode()


@pytest.mark.parametrize("off", [-20_000_000, 20_000_000])
def test_acquire_ignores_a_hint_far_from_its_time(subject: Subject, off: int) -> None:
    """A clock that is wrong is no reason to refuse, and moves no counter."""
    subject.hset(subject.fence, STRIPE, 5)

    assert subject.acquire(hint_us=subject.now_us + off) == [GRANTED, 6]


def test_acquire_never_counts_back_to_a_hint(subject: Subject) -> None:
    """A hint below the counter is of no use."""
    ahead = subject.now_us + 3_600_000_000
    subject.hset(subject.fence, STRIPE, ahead)

    assert subject.acquire(hint_us=subject.now_us) == [GRANTED, ahead + 1]
