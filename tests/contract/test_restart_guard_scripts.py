"""The restart guard, reply by reply.

A node that may have forgotten locks grants none. How it votes again: INITIALIZE,
COUNTERS, SYNC. How it moves to another configuration: CLOSE, OPEN.
"""

from __future__ import annotations

import pytest

from celery_redlock.core.scripts import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    UNSYNCED,
)
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    EXACT,
    NEW,
    NO_KEY,
    NO_TTL,
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    Subject,
)


def wait_out_quarantine(subject: Subject, token: str = TOKEN) -> None:
    """Let a node start a short quarantine, and wait for its end."""
    subject.acquire(token, config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)


# -- ACQUIRE -------------------------------------------------------------------


def test_acquire_on_an_unknown_node_starts_its_quarantine(subject: Subject) -> None:
    """A node without meta may have forgotten locks. It writes meta and refuses."""
    assert subject.acquire(config=CONFIG, quarantine_ms=61_200) == [QUARANTINED, 61_200]

    assert subject.hgetall(subject.meta) == {
        b"config": CONFIG.encode(),
        b"run_id": subject.run_id,
        b"incarnation": TOKEN.encode(),
    }
    assert 59_000 < subject.pttl(subject.quarantine) <= 61_200
    assert subject.get(subject.quarantine) == b""
    assert subject.get(subject.lock) is None
    assert subject.counter() is None


def test_acquire_in_quarantine_returns_the_time_left(subject: Subject) -> None:
    """A request does not start the quarantine anew, and it does not name a holder."""
    subject.set(subject.lock, "another holder")
    subject.acquire(config=CONFIG, quarantine_ms=30_000)

    status, left = subject.acquire(config=CONFIG, quarantine_ms=61_000)

    assert status == QUARANTINED
    assert 28_000 < left <= 30_000


def test_acquire_after_quarantine_asks_for_the_fences(subject: Subject) -> None:
    """The counters of this incarnation have not been recovered yet."""
    wait_out_quarantine(subject)

    assert subject.acquire(config=CONFIG) == [UNSYNCED, subject.incarnation]
    assert subject.get(subject.lock) is None


def test_acquire_on_a_synced_node_is_granted(subject: Subject) -> None:
    """A node votes after its quarantine once its counters are recovered."""
    wait_out_quarantine(subject)
    subject.sync(subject.incarnation, STRIPE, 70)

    assert subject.acquire(config=CONFIG) == [GRANTED, 71]


def test_acquire_with_another_config_is_refused(subject: Subject) -> None:
    """The reply has the node's configuration, and nothing is written."""
    subject.initialize()
    before = subject.hgetall(subject.meta)

    assert subject.acquire(config="another") == [MISCONFIGURED, CONFIG.encode()]
    assert subject.hgetall(subject.meta) == before
    assert subject.get(subject.lock) is None


def test_acquire_after_a_restart_is_quarantined_anew(subject: Subject) -> None:
    """Another run id means an earlier process, and its "synced" does not count."""
    subject.initialize()
    subject.hset(subject.meta, "run_id", "an earlier process")
    subject.hset(subject.meta, "synced", "an earlier process")

    assert subject.acquire(config=CONFIG, quarantine_ms=500) == [QUARANTINED, 500]
    meta = subject.hgetall(subject.meta)
    assert meta[b"run_id"] == subject.run_id
    assert meta[b"synced"] == b"an earlier process"


def test_acquire_accepts_a_meta_without_config(subject: Subject) -> None:
    """A configuration that is not known differs from none."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.meta, "synced", subject.run_id)

    assert subject.acquire(config=CONFIG) == [GRANTED, 1]


def test_acquire_respects_a_quarantine_without_ttl(subject: Subject) -> None:
    """An operator's quarantine that never expires refuses, too."""
    subject.initialize()
    subject.set(subject.quarantine, "by hand")

    assert subject.acquire(config=CONFIG) == [QUARANTINED, NO_TTL]


def test_acquire_without_guard_ignores_the_meta(subject: Subject) -> None:
    """Neither quarantine nor configuration stops the vote, and no meta is written."""
    subject.set(subject.quarantine, "")

    assert subject.acquire(config="") == [GRANTED, 1]
    assert subject.hgetall(subject.meta) == {}


def test_restart_without_memory_starts_a_quarantine(subject: Subject) -> None:
    """The new process has another run id and no keys."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    before = subject.run_id

    subject.restart(keep_memory=False)

    assert subject.run_id != before
    assert subject.get(subject.lock) is None
    assert subject.acquire(OTHER, config=CONFIG)[0] == QUARANTINED


def test_restart_with_memory_starts_a_quarantine_too(subject: Subject) -> None:
    """The node may lack its last writes. Holders may renew and release."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    stored = subject.get(subject.lock)

    subject.restart(keep_memory=True)

    assert subject.get(subject.lock) == stored
    assert subject.acquire(OTHER, config=CONFIG)[0] == QUARANTINED
    assert subject.extend(config=CONFIG) == [GRANTED, 0]
    assert subject.release() == 1


def test_flush_starts_a_quarantine(subject: Subject) -> None:
    """The process is the same; the meta is gone with all locks."""
    subject.initialize()
    subject.acquire(config=CONFIG)
    before = subject.run_id

    subject.flush()

    assert subject.run_id == before
    assert subject.extend(config=CONFIG) == [FREE]
    assert subject.acquire(OTHER, config=CONFIG, quarantine_ms=9) == [QUARANTINED, 9]


# -- INITIALIZE ----------------------------------------------------------------


def test_initialize_lets_a_node_vote_at_once(subject: Subject) -> None:
    """Its counters start at its TIME and its quarantine is over."""
    subject.acquire(config="an earlier one")
    before = subject.now_us

    assert subject.initialize() == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == CONFIG.encode()
    assert meta[b"run_id"] == meta[b"synced"] == subject.run_id
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


# -- COUNTERS ------------------------------------------------------------------


def test_counters_returns_those_of_a_voting_node(subject: Subject) -> None:
    """All fields with their counters, after the status."""
    subject.initialize()
    subject.hset(subject.fence, "floor", 5)
    subject.hset(subject.fence, STRIPE, EXACT)

    status, *pairs = subject.counters()

    assert status == GRANTED
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == {
        b"floor": b"5",
        STRIPE.encode(): str(EXACT).encode(),
    }


def test_counters_of_a_node_without_grants_are_none(subject: Subject) -> None:
    """The reply is the status alone."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.meta, "synced", subject.run_id)

    assert subject.counters() == [GRANTED]


def test_counters_refuses_on_a_node_that_may_not_vote(subject: Subject) -> None:
    """The counters may be too low: no meta, quarantine, not synced, other config."""
    assert subject.counters() == [UNSYNCED, subject.run_id]

    subject.acquire(config=CONFIG, quarantine_ms=20_000)
    status, left = subject.counters()
    assert status == QUARANTINED
    assert 18_000 < left <= 20_000

    subject.delete(subject.quarantine)
    assert subject.counters() == [UNSYNCED, subject.incarnation]

    subject.hset(subject.meta, "synced", "an earlier incarnation")
    assert subject.counters() == [UNSYNCED, subject.incarnation]

    subject.initialize()
    assert subject.counters("another") == [MISCONFIGURED, CONFIG.encode()]

    subject.hset(subject.meta, "run_id", "an earlier process")
    assert subject.counters() == [UNSYNCED, subject.run_id]


# -- SYNC ----------------------------------------------------------------------


def test_sync_takes_the_greater_counters(subject: Subject) -> None:
    """Field by field; then the node votes."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    subject.hset(subject.fence, "1", 10)
    subject.hset(subject.fence, "2", 20)

    pairs = ["1", 15, "2", 15, "3", EXACT, b"floor", 7]
    assert subject.sync(subject.run_id, *pairs) == [GRANTED, 0]

    assert subject.hgetall(subject.fence) == {
        b"1": b"15",
        b"2": b"20",
        b"3": str(EXACT).encode(),
        b"floor": b"7",
    }
    assert subject.hgetall(subject.meta)[b"synced"] == subject.run_id


def test_sync_with_floor_raises_all_counters_to_its_time(subject: Subject) -> None:
    """If too few nodes know their counters, the floor is TIME. No counter goes back."""
    subject.hset(subject.meta, "run_id", subject.run_id)
    before = subject.now_us

    assert subject.sync(subject.run_id, STRIPE, 3, set_floor=1) == [GRANTED, 0]

    floor = int(subject.counter("floor") or b"0")
    assert before <= floor <= subject.now_us
    assert subject.counter() == b"3"
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


@pytest.mark.parametrize(
    ("run_id", "read_for"),
    [
        ("an earlier process", "an earlier process"),
        ("an earlier process", "this process"),
        (None, "this process"),
    ],
)
def test_sync_without_a_quarantine_of_this_process_is_refused(
    subject: Subject, run_id: str | None, read_for: str
) -> None:
    """The node has not waited since its last start. No counter changes."""
    if run_id:
        subject.hset(subject.meta, "run_id", run_id)
    incarnation = subject.run_id if read_for == "this process" else read_for.encode()

    reply = subject.sync(incarnation, STRIPE, 3, set_floor=1)

    assert reply == [UNSYNCED, subject.run_id]
    assert subject.hgetall(subject.fence) == {}


def test_sync_read_for_an_earlier_incarnation_is_refused(subject: Subject) -> None:
    """FLUSHALL keeps the process; only the incarnation tells two losses apart."""
    wait_out_quarantine(subject)
    before = subject.incarnation
    subject.delete(subject.meta)
    wait_out_quarantine(subject, OTHER)

    assert subject.sync(before, STRIPE, 3) == [UNSYNCED, subject.incarnation]
    assert subject.hgetall(subject.fence) == {}


def test_sync_in_quarantine_is_refused(subject: Subject) -> None:
    """Fences are recovered at the end of the quarantine, never at its start."""
    subject.acquire(config=CONFIG, quarantine_ms=20_000)

    status, left = subject.sync(subject.incarnation, STRIPE, 3)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000
    assert subject.hgetall(subject.fence) == {}


# -- CLOSE and OPEN ------------------------------------------------------------


def test_close_ends_grants_and_renewals_but_no_locks(subject: Subject) -> None:
    """Clients of the old configuration are refused; they may still release."""
    subject.initialize()
    subject.acquire(config=CONFIG)

    assert subject.close(20_000) == [QUARANTINED, 20_000]

    assert subject.hgetall(subject.meta)[b"config"] == CLOSED.encode()
    assert subject.get(subject.quarantine) == b""
    assert subject.acquire(OTHER, config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.extend(config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.restore(config=CONFIG) == [MISCONFIGURED, CLOSED.encode()]
    assert subject.release() == 1


def test_close_again_returns_the_time_left(subject: Subject) -> None:
    """A repetition does not start the wait anew, and reports its end."""
    subject.initialize()
    subject.close(20_000)

    status, left = subject.close(60_000)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000

    subject.delete(subject.quarantine)
    assert subject.close(60_000) == [FREE]


def test_close_of_a_node_in_quarantine_waits_for_the_longer(subject: Subject) -> None:
    """The wait covers both the locks that it forgot and those that it granted."""
    subject.initialize()
    subject.set(subject.quarantine, "", px=40_000)

    status, left = subject.close(20_000)

    assert status == QUARANTINED
    assert 38_000 < left <= 40_000
    assert 38_000 < subject.pttl(subject.quarantine) <= 40_000

    subject.hset(subject.meta, "config", CONFIG)
    assert subject.close(60_000) == [QUARANTINED, 60_000]


def test_close_of_an_unknown_node_starts_its_quarantine(subject: Subject) -> None:
    """A node without a configuration may have lost its memory."""
    assert subject.close(20_000) == [QUARANTINED, 20_000]
    assert subject.hgetall(subject.meta) == {b"config": CLOSED.encode()}


def test_close_of_a_node_that_has_moved_on_changes_nothing(subject: Subject) -> None:
    """The node votes under the new configuration already."""
    subject.initialize(NEW)
    before = subject.hgetall(subject.meta)

    assert subject.close() == [GRANTED, 0]
    assert subject.hgetall(subject.meta) == before
    assert subject.pttl(subject.quarantine) == NO_KEY


@pytest.mark.parametrize("call", ["close", "open"])
def test_node_of_a_third_configuration_is_not_moved(
    subject: Subject, call: str
) -> None:
    """The reply has that configuration, and nothing changes."""
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

    assert subject.open(STRIPE, 70, "8", 70, b"floor", EXACT) == [GRANTED, 0]

    assert subject.hgetall(subject.fence) == {
        STRIPE.encode(): b"70",
        b"8": b"99",
        b"floor": str(EXACT).encode(),
    }
    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == NEW.encode()
    assert meta[b"run_id"] == meta[b"synced"] == subject.run_id
    assert subject.pttl(subject.quarantine) == NO_KEY
    assert subject.acquire(config=NEW) == [GRANTED, EXACT]
