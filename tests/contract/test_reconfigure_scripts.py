"""CLOSE and OPEN, reply by reply: a node moves from one configuration to the next."""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import FREE, GRANTED, MISCONFIGURED, QUARANTINED
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    NEW,
    NO_KEY,
    OTHER,
    STRIPE,
    WHOLE,
    Subject,
)


def test_close_ends_grants_and_renewals_but_no_locks(subject: Subject) -> None:
    """The old clients are refused from now on; they may still let go."""
    subject.initialize()
    subject.acquire(config=CONFIG)

    assert subject.close(20_000) == [QUARANTINED, 20_000]

    assert subject.hgetall(subject.meta)[b"config"] == CLOSED.encode()
    assert subject.get(subject.quarantine) == b""
    assert subject.acquire(OTHER, config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.extend(config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.restore(config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.release() == 1


def test_close_again_tells_what_is_left(subject: Subject) -> None:
    """Asking does not begin the wait anew; when it is over, so it says."""
    subject.initialize()
    subject.close(20_000)

    status, left = subject.close(60_000)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000

    subject.delete(subject.quarantine)
    assert subject.close(60_000) == [FREE]


def test_close_of_a_node_in_quarantine_waits_for_the_longer(subject: Subject) -> None:
    """Neither what it may have forgotten nor what it has granted is cut short."""
    subject.initialize()
    subject.set(subject.quarantine, "", px=40_000)

    status, left = subject.close(20_000)

    assert status == QUARANTINED
    assert 38_000 < left <= 40_000
    assert 38_000 < subject.pttl(subject.quarantine) <= 40_000

    subject.hset(subject.meta, "config", CONFIG)
    assert subject.close(60_000) == [QUARANTINED, 60_000]


def test_close_of_an_unknown_node_begins_its_quarantine(subject: Subject) -> None:
    """A node without a configuration is taken for one that lost its memory."""
    assert subject.close(20_000) == [QUARANTINED, 20_000]
    assert subject.hgetall(subject.meta) == {b"config": CLOSED.encode()}


def test_close_of_a_node_that_has_moved_on_changes_nothing(subject: Subject) -> None:
    """Twice is harmless; it votes under the new configuration already."""
    subject.initialize(NEW)
    before = subject.hgetall(subject.meta)

    assert subject.close() == [GRANTED, 0]
    assert subject.hgetall(subject.meta) == before
    assert subject.pttl(subject.quarantine) == NO_KEY


@pytest.mark.parametrize("call", ["close", "open"])
def test_node_of_a_third_configuration_is_not_moved(
    subject: Subject, call: str
) -> None:
    """Somebody else's node is told and left alone."""
    subject.initialize("a third")

    assert getattr(subject, call)() == [MISCONFIGURED, b"a third"]
    assert subject.hgetall(subject.meta)[b"config"] == b"a third"


@pytest.mark.parametrize("config", [None, CONFIG, CLOSED, NEW])
def test_open_lets_a_node_vote_above_these_fences(
    subject: Subject, config: str | None
) -> None:
    """The wait is over, the counters are the greatest of all, the node votes."""
    if config:
        subject.hset(subject.meta, "config", config)
    subject.set(subject.quarantine, "")
    subject.hset(subject.fence, STRIPE, 10)
    subject.hset(subject.fence, "8", 99)

    assert subject.open(STRIPE, 70, "8", 70, b"floor", WHOLE) == [GRANTED, 0]

    assert subject.hgetall(subject.fence) == {
        STRIPE.encode(): b"70",
        b"8": b"99",
        b"floor": str(WHOLE).encode(),
    }
    marker = subject.hgetall(subject.meta)
    assert marker[b"config"] == NEW.encode()
    assert marker[b"run_id"] == marker[b"synced"] == subject.run_id
    assert subject.pttl(subject.quarantine) == NO_KEY
    assert subject.acquire(config=NEW) == [GRANTED, WHOLE]
