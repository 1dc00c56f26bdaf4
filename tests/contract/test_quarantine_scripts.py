"""The restart guard of ACQUIRE: a node that may have forgotten locks gives none."""

from __future__ import annotations

from celery_redlock.core.scripts import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    UNSYNCED,
)
from tests.contract.subjects import (
    CONFIG,
    FOR_EVER,
    NO_KEY,
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    Subject,
)


def test_acquire_on_an_unknown_node_begins_its_quarantine(subject: Subject) -> None:
    """A node without marker may have forgotten locks: it takes one down and refuses."""
    assert subject.acquire(config=CONFIG, quarantine_ms=61_200) == [QUARANTINED, 61_200]

    marker = subject.hgetall(subject.meta)
    assert marker.pop(b"life") == TOKEN.encode()
    assert marker == {b"config": CONFIG.encode(), b"run_id": subject.run_id}
    assert 59_000 < subject.pttl(subject.quarantine) <= 61_200
    assert subject.get(subject.quarantine) == b""
    assert subject.get(subject.lock) is None
    assert subject.counter() is None


def test_acquire_in_quarantine_tells_what_is_left(subject: Subject) -> None:
    """The quarantine is not begun anew by asking, and holders are not told."""
    subject.set(subject.lock, "somebody else's")
    subject.acquire(config=CONFIG, quarantine_ms=30_000)

    status, left = subject.acquire(config=CONFIG, quarantine_ms=61_000)

    assert status == QUARANTINED
    assert 28_000 < left <= 30_000


def test_acquire_after_quarantine_asks_for_the_fences(subject: Subject) -> None:
    """It is over but the counters are gone: not synced, in this life."""
    subject.acquire(config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)

    assert subject.acquire(config=CONFIG) == [UNSYNCED, subject.life]
    assert subject.get(subject.lock) is None


def test_acquire_on_a_synced_node_is_granted(subject: Subject) -> None:
    """Marker, no quarantine, synced in this process: it votes."""
    subject.acquire(config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)
    subject.sync(subject.life, STRIPE, 70)

    assert subject.acquire(config=CONFIG) == [GRANTED, 71]


def test_acquire_with_another_config_is_refused(subject: Subject) -> None:
    """The difference is told, and nothing is written."""
    subject.initialize()
    before = subject.hgetall(subject.meta)

    assert subject.acquire(config="another") == [MISCONFIGURED, CONFIG.encode()]
    assert subject.hgetall(subject.meta) == before
    assert subject.get(subject.lock) is None


def test_acquire_after_a_restart_is_quarantined_anew(subject: Subject) -> None:
    """A marker with another run id is that of an earlier life, and so is "synced"."""
    subject.initialize()
    subject.hset(subject.meta, "run_id", "of-an-earlier-life")
    subject.hset(subject.meta, "synced", "of-an-earlier-life")

    assert subject.acquire(config=CONFIG, quarantine_ms=500) == [QUARANTINED, 500]
    marker = subject.hgetall(subject.meta)
    assert marker[b"run_id"] == subject.run_id
    assert marker[b"synced"] == b"of-an-earlier-life"


def test_acquire_takes_a_marker_without_config_for_its_own(subject: Subject) -> None:
    """Nothing is known of the configuration, so nothing differs from it."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.meta, "synced", subject.run_id)

    assert subject.acquire(config=CONFIG) == [GRANTED, 1]


def test_acquire_respects_a_quarantine_for_ever(subject: Subject) -> None:
    """A quarantine without a ttl is one all the same."""
    subject.initialize()
    subject.set(subject.quarantine, "by hand")

    assert subject.acquire(config=CONFIG) == [QUARANTINED, FOR_EVER]


def test_acquire_without_guard_looks_at_no_marker(subject: Subject) -> None:
    """Neither quarantine nor configuration keep it from voting, and it writes none."""
    subject.set(subject.quarantine, "")

    assert subject.acquire(config="") == [GRANTED, 1]
    assert subject.hgetall(subject.meta) == {}


# -- what makes a node forget -----------------------------------------------------


def test_restart_without_memory_begins_a_quarantine(subject: Subject) -> None:
    """Another run id and nothing else."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    before = subject.run_id

    subject.restart(keep_memory=False)

    assert subject.run_id != before
    assert subject.get(subject.lock) is None
    assert subject.acquire(OTHER, config=CONFIG)[0] == QUARANTINED


def test_restart_with_memory_begins_a_quarantine_too(subject: Subject) -> None:
    """It remembers, but not what came after it wrote that down."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    stored = subject.get(subject.lock)

    subject.restart(keep_memory=True)

    assert subject.get(subject.lock) == stored
    assert subject.acquire(OTHER, config=CONFIG)[0] == QUARANTINED
    assert subject.extend(config=CONFIG) == [GRANTED, 0]
    assert subject.release() == 1


def test_flush_begins_a_quarantine(subject: Subject) -> None:
    """The process is the same, the marker is gone with all that it voted for."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    before = subject.run_id

    subject.flush()

    assert subject.run_id == before
    assert subject.extend(config=CONFIG) == [FREE]
    assert subject.acquire(OTHER, config=CONFIG, quarantine_ms=9) == [QUARANTINED, 9]
