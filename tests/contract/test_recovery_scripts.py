"""INITIALIZE, COUNTERS and SYNC, reply by reply: how a node comes to vote again."""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import GRANTED, MISCONFIGURED, QUARANTINED, UNSYNCED
from tests.contract.subjects import CONFIG, NO_KEY, OTHER, SHORT, STRIPE, WHOLE, Subject


def test_initialize_lets_a_node_vote_at_once(subject: Subject) -> None:
    """Its counters start at its TIME and its quarantine is over."""
    subject.acquire(config="an earlier one")
    before = subject.now_us

    assert subject.initialize() == [GRANTED, 0]

    marker = subject.hgetall(subject.meta)
    assert marker[b"config"] == CONFIG.encode()
    assert marker[b"run_id"] == marker[b"synced"] == subject.run_id
    assert subject.pttl(subject.quarantine) == NO_KEY
    floor = int(subject.counter("floor") or b"0")
    assert before <= floor <= subject.now_us
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


def test_initialize_never_lowers_the_floor(subject: Subject) -> None:
    """A clock that was set back does not bring old fences again."""
    ahead = subject.now_us + 3_600_000_000
    subject.hset(subject.fence, "floor", ahead)

    subject.initialize()

    assert subject.counter("floor") == str(ahead).encode()


def test_counters_of_a_voting_node_are_told(subject: Subject) -> None:
    """All fields with their counters, after the status."""
    subject.initialize()
    subject.hset(subject.fence, "floor", 5)
    subject.hset(subject.fence, STRIPE, WHOLE)

    status, *pairs = subject.counters()

    assert status == GRANTED
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == {
        b"floor": b"5",
        STRIPE.encode(): str(WHOLE).encode(),
    }


def test_counters_of_a_node_without_any_are_none(subject: Subject) -> None:
    """A node that voted on nothing has nothing to tell."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.meta, "synced", subject.run_id)

    assert subject.counters() == [GRANTED]


def test_counters_of_a_node_that_may_not_vote_are_not_told(subject: Subject) -> None:
    """They would be too low: no marker, quarantine, not synced, other configuration."""
    assert subject.counters() == [UNSYNCED, subject.run_id]

    subject.acquire(config=CONFIG, quarantine_ms=20_000)
    status, left = subject.counters()
    assert status == QUARANTINED
    assert 18_000 < left <= 20_000

    subject.delete(subject.quarantine)
    assert subject.counters() == [UNSYNCED, subject.life]

    subject.hset(subject.meta, "synced", "an earlier life")
    assert subject.counters() == [UNSYNCED, subject.life]

    subject.initialize()
    assert subject.counters("another") == [MISCONFIGURED, CONFIG.encode()]

    subject.hset(subject.meta, "run_id", "an earlier life")
    assert subject.counters() == [UNSYNCED, subject.run_id]


def test_sync_takes_the_greater_counters(subject: Subject) -> None:
    """Field by field; then the node votes."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.fence, "1", 10)
    subject.hset(subject.fence, "2", 20)

    pairs = ["1", 15, "2", 15, "3", WHOLE, b"floor", 7]
    assert subject.sync(subject.run_id, *pairs) == [GRANTED, 0]

    assert subject.hgetall(subject.fence) == {
        b"1": b"15",
        b"2": b"20",
        b"3": str(WHOLE).encode(),
        b"floor": b"7",
    }
    assert subject.hgetall(subject.meta)[b"synced"] == subject.run_id


def test_sync_with_floor_lifts_all_counters_to_its_time(subject: Subject) -> None:
    """Where too few could tell: the floor is TIME, and no counter goes back."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    before = subject.now_us

    assert subject.sync(subject.run_id, STRIPE, 3, floor=1) == [GRANTED, 0]

    floor = int(subject.counter("floor") or b"0")
    assert before <= floor <= subject.now_us
    assert subject.counter() == b"3"
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


def test_sync_read_for_an_earlier_life_is_refused(subject: Subject) -> None:
    """What was read before the last restart says nothing about what came after."""
    subject.hset(subject.meta, "run_id", "an earlier life")

    reply = subject.sync(b"an earlier life", STRIPE, 3, floor=1)

    assert reply == [UNSYNCED, subject.run_id]
    assert subject.hgetall(subject.fence) == {}


def test_sync_read_before_the_memory_was_lost_again_is_refused(
    subject: Subject,
) -> None:
    """FLUSHALL keeps the process: it is the life that tells two losses apart."""
    subject.acquire(config=CONFIG, quarantine_ms=SHORT)
    before = subject.life
    subject.delete(subject.meta)
    subject.acquire(config=CONFIG, token=OTHER, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)

    assert subject.sync(before, STRIPE, 3) == [UNSYNCED, subject.life]
    assert subject.hgetall(subject.fence) == {}


@pytest.mark.parametrize("marker", [None, "an earlier life"])
def test_sync_without_a_marker_of_this_life_is_refused(
    subject: Subject, marker: str | None
) -> None:
    """A node that was not quarantined in this life has not waited."""
    if marker:
        subject.hset(subject.meta, "run_id", marker)

    assert subject.sync(subject.run_id, STRIPE, 3) == [UNSYNCED, subject.run_id]
    assert subject.hgetall(subject.fence) == {}


def test_sync_in_quarantine_is_refused(subject: Subject) -> None:
    """Fences are recovered at the end of the quarantine, never at its start."""
    subject.acquire(config=CONFIG, quarantine_ms=20_000)

    status, left = subject.sync(subject.life, STRIPE, 3)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000
    assert subject.hgetall(subject.fence) == {}
