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
    OTHER,
    SHORT,
    STRIPE,
    TOKEN,
    TOLERANCE,
    UNGUARDED,
    Subject,
)


def wait_out_quarantine(subject: Subject, token: str = TOKEN) -> None:
    """Let a node start a short quarantine, and wait for its end."""
    subject.acquire(token, config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: not subject.is_quarantined)


# -- ACQUIRE -------------------------------------------------------------------


def test_acquire_on_an_unknown_node_starts_its_quarantine(subject: Subject) -> None:
    """A node without meta may have forgotten locks. It writes meta and refuses."""
    before = subject.now_us // 1000
    assert subject.acquire(config=CONFIG, quarantine_ms=61_200) == [QUARANTINED, 61_200]

    meta = subject.hgetall(subject.meta)
    until = int(meta.pop(b"quarantine_until"))
    assert before <= until - 61_200 <= subject.now_us // 1000
    assert meta == {
        b"config": CONFIG.encode(),
        b"run_id": subject.run_id,
        b"incarnation": TOKEN.encode(),
    }
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


def test_acquire_takes_a_meta_without_config_for_a_loss(subject: Subject) -> None:
    """All that a node must not forget is one key: a part of it is nothing."""
    subject.initialize()
    fields = subject.hgetall(subject.meta)
    subject.delete(subject.meta)
    for field in (b"run_id", b"incarnation", b"synced"):
        subject.hset(subject.meta, field.decode(), fields[field])

    assert subject.acquire(config=CONFIG)[0] == QUARANTINED


def test_acquire_respects_a_quarantine_by_hand(subject: Subject) -> None:
    """An operator may keep a node out of the vote until any instant."""
    subject.initialize()
    subject.hset(subject.meta, "quarantine_until", subject.now_us // 1000 + 86_400_000)

    status, left = subject.acquire(config=CONFIG)

    assert (status, left > 86_000_000) == (QUARANTINED, True)


def test_node_without_the_guard_asks_for_the_fences(subject: Subject) -> None:
    """It has no quarantine. It votes when its counters are recovered."""
    assert subject.acquire(config=UNGUARDED, quarantine_ms=0) == [UNSYNCED, b""]
    assert subject.hgetall(subject.meta) == {}

    assert subject.sync(b"", STRIPE, 70, config=UNGUARDED) == [GRANTED, 0]
    assert subject.acquire(config=UNGUARDED, quarantine_ms=0) == [GRANTED, 71]


def test_renewal_without_the_guard_gives_a_node_no_configuration(
    subject: Subject,
) -> None:
    """The node may belong to a deployment that guards: only SYNC gives it one."""
    assert subject.extend(config=UNGUARDED) == [FREE]
    assert subject.restore(config=UNGUARDED) == [MISCONFIGURED, b""]


def test_node_without_the_guard_votes_after_a_restart(subject: Subject) -> None:
    """If its keys are still there: the choice costs exclusion and fences."""
    subject.initialize(UNGUARDED)
    stored = subject.counter("floor")
    subject.restart(keep_memory=True)

    status, number = subject.acquire(config=UNGUARDED, quarantine_ms=0)

    assert (status, number) == (GRANTED, int(stored or 0) + 1)
    assert subject.counters(UNGUARDED)[0] == GRANTED


@pytest.mark.parametrize("ours", [CONFIG, UNGUARDED])
@pytest.mark.parametrize(
    "call",
    ["acquire", "extend", "restore", "counters", "sync", "initialize", "close", "open"],
)
def test_no_script_skips_the_configuration(
    subject: Subject, call: str, ours: str
) -> None:
    """Whether nodes guard is a property of them, and never of one client."""
    theirs = UNGUARDED if ours == CONFIG else CONFIG
    subject.initialize("a third" if call in ("close", "open") else theirs)
    before = subject.hgetall(subject.meta)

    options = {} if call in ("close", "open") else {"config": ours}
    args = [subject.incarnation] if call == "sync" else []
    reply = getattr(subject, call)(*args, **options)

    assert reply == [MISCONFIGURED, before[b"config"]]
    assert subject.hgetall(subject.meta) == before


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
    assert subject.acquire(OTHER, config=CONFIG)[0] == QUARANTINED


# -- INITIALIZE ----------------------------------------------------------------


def test_initialize_lets_a_node_vote_at_once(subject: Subject) -> None:
    """Its counters start above its TIME and every hint, and its quarantine is over."""
    subject.acquire(config=CONFIG)
    before = subject.now_us

    assert subject.initialize() == [GRANTED, 0]

    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == CONFIG.encode()
    assert meta[b"run_id"] == meta[b"synced"] == subject.run_id
    assert b"quarantine_until" not in meta
    floor = int(subject.counter("floor") or b"0")
    assert before <= floor - TOLERANCE <= subject.now_us
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


def test_initialize_gives_all_nodes_one_floor(subject: Subject) -> None:
    """If their clocks agree with the operator's. It is above every hint as well."""
    hint = subject.now_us - TOLERANCE // 2

    subject.initialize(hint_us=hint)

    assert int(subject.counter("floor") or 0) == hint + 2 * TOLERANCE


def test_initialize_never_lowers_the_floor(subject: Subject) -> None:
    """A clock that was set back does not bring old fences again."""
    ahead = subject.now_us + 3_600_000_000
    subject.hset(subject.meta, "floor", ahead)

    subject.initialize()

    assert subject.counter("floor") == str(ahead).encode()


def test_second_initialize_gives_no_earlier_fence(subject: Subject) -> None:
    """Also if the clock of a client was ahead of the node's, as far as it may be."""
    subject.initialize()
    ahead = subject.now_us + TOLERANCE - 1_000_000
    _, fence = subject.acquire(config=CONFIG, hint_us=ahead)
    subject.flush()
    subject.clock.sleep(0.001)
    subject.initialize()

    assert subject.acquire(config=CONFIG)[1] > fence


def test_initialize_takes_over_a_node_of_format_1(subject: Subject) -> None:
    """The older version kept its fences elsewhere; they were below the new floor."""
    subject.hset(subject.meta, "config", "protocol 1, max_ttl 60 s, nodes a")
    assert subject.acquire(config=CONFIG)[0] == MISCONFIGURED

    assert subject.initialize() == [GRANTED, 0]

    assert subject.acquire(config=CONFIG)[0] == GRANTED


# -- COUNTERS ------------------------------------------------------------------


def test_counters_returns_those_of_a_voting_node(subject: Subject) -> None:
    """All fields with their counters, after the status."""
    subject.admit()
    subject.hset(subject.meta, "floor", 5)
    subject.hset(subject.meta, STRIPE, EXACT)

    status, *pairs = subject.counters()

    assert status == GRANTED
    assert dict(zip(pairs[::2], pairs[1::2], strict=True)) == {
        b"floor": b"5",
        STRIPE.encode(): str(EXACT).encode(),
    }


def test_counters_of_a_node_without_grants_are_none(subject: Subject) -> None:
    """The reply is the status alone."""
    subject.admit()

    assert subject.counters() == [GRANTED]


def test_counters_refuses_on_a_node_that_may_not_vote(subject: Subject) -> None:
    """The counters may be too low: no meta, quarantine, not synced, other config."""
    assert subject.counters() == [UNSYNCED, b""]

    subject.acquire(config=CONFIG, quarantine_ms=20_000)
    status, left = subject.counters()
    assert status == QUARANTINED
    assert 18_000 < left <= 20_000

    subject.hset(subject.meta, "quarantine_until", 0)
    assert subject.counters() == [UNSYNCED, subject.incarnation]

    subject.hset(subject.meta, "synced", "an earlier incarnation")
    assert subject.counters() == [UNSYNCED, subject.incarnation]

    subject.initialize()
    assert subject.counters("another") == [MISCONFIGURED, CONFIG.encode()]

    subject.hset(subject.meta, "run_id", "an earlier process")
    assert subject.counters() == [UNSYNCED, b""]


# -- SYNC ----------------------------------------------------------------------


def test_sync_takes_the_greater_counters(subject: Subject) -> None:
    """Field by field; then the node votes."""
    wait_out_quarantine(subject)
    subject.hset(subject.meta, "1", 10)
    subject.hset(subject.meta, "2", 20)

    pairs = ["1", 15, "2", 15, "3", EXACT, b"floor", 7]
    assert subject.sync(subject.incarnation, *pairs) == [GRANTED, 0]

    assert subject.counters_of_all() == {
        b"1": b"15",
        b"2": b"20",
        b"3": str(EXACT).encode(),
        b"floor": b"7",
    }
    meta = subject.hgetall(subject.meta)
    assert meta[b"synced"] == meta[b"incarnation"]
    assert b"quarantine_until" not in meta


def test_sync_with_floor_raises_all_counters_to_its_time(subject: Subject) -> None:
    """If too few nodes know them: above TIME and every hint. No counter goes back."""
    wait_out_quarantine(subject)
    before = subject.now_us

    assert subject.sync(subject.incarnation, STRIPE, 3, set_floor=1) == [GRANTED, 0]

    floor = int(subject.counter("floor") or b"0")
    assert before <= floor - TOLERANCE <= subject.now_us
    assert subject.counter() == b"3"
    assert subject.acquire(config=CONFIG) == [GRANTED, floor + 1]


@pytest.mark.parametrize("read_for", ["", "an earlier process"])
def test_sync_without_a_quarantine_is_refused(subject: Subject, read_for: str) -> None:
    """The node has not waited since its loss of memory. No counter changes."""
    reply = subject.sync(read_for.encode(), STRIPE, 3, set_floor=1)

    assert reply == [UNSYNCED, b""]
    assert subject.counters_of_all() == {}


def test_sync_after_one_more_restart_is_refused(subject: Subject) -> None:
    """The process that has waited is not the process that would vote."""
    wait_out_quarantine(subject)
    subject.hset(subject.meta, "run_id", "an earlier process")
    incarnation = subject.incarnation

    reply = subject.sync(incarnation, STRIPE, 3, set_floor=1)

    assert reply == [UNSYNCED, incarnation]
    assert subject.counters_of_all() == {}


def test_sync_read_for_an_earlier_incarnation_is_refused(subject: Subject) -> None:
    """FLUSHALL keeps the process; only the incarnation tells two losses apart."""
    wait_out_quarantine(subject)
    before = subject.incarnation
    subject.delete(subject.meta)
    wait_out_quarantine(subject, OTHER)

    assert subject.sync(before, STRIPE, 3) == [UNSYNCED, subject.incarnation]
    assert subject.counters_of_all() == {}


def test_sync_in_quarantine_is_refused(subject: Subject) -> None:
    """Fences are recovered at the end of the quarantine, never at its start."""
    subject.acquire(config=CONFIG, quarantine_ms=20_000)

    status, left = subject.sync(subject.incarnation, STRIPE, 3)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000
    assert subject.counters_of_all() == {}


# -- CLOSE and OPEN ------------------------------------------------------------


def test_close_ends_grants_and_renewals_but_no_locks(subject: Subject) -> None:
    """Clients of the old configuration are refused; they may still release."""
    subject.initialize()
    subject.acquire(config=CONFIG)

    assert subject.close(20_000) == [QUARANTINED, 20_000]

    assert subject.hgetall(subject.meta)[b"config"] == CLOSED.encode()
    assert subject.is_quarantined
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

    subject.hset(subject.meta, "quarantine_until", 0)
    assert subject.close(60_000) == [FREE]


def test_close_of_a_node_in_quarantine_waits_for_the_longer(subject: Subject) -> None:
    """The wait covers both the locks that it forgot and those that it granted."""
    subject.acquire(config=CONFIG, quarantine_ms=40_000)

    status, left = subject.close(20_000)

    assert status == QUARANTINED
    assert 38_000 < left <= 40_000

    subject.hset(subject.meta, "config", CONFIG)
    assert subject.close(60_000) == [QUARANTINED, 60_000]


def test_close_of_an_unknown_node_starts_its_quarantine(subject: Subject) -> None:
    """A node without a configuration may have lost its memory."""
    assert subject.close(20_000) == [QUARANTINED, 20_000]
    assert subject.hgetall(subject.meta)[b"config"] == CLOSED.encode()
    assert subject.is_quarantined


def test_close_of_a_node_that_has_moved_on_changes_nothing(subject: Subject) -> None:
    """The node votes under the new configuration already."""
    subject.initialize(NEW)
    before = subject.hgetall(subject.meta)

    assert subject.close() == [GRANTED, 0]
    assert subject.hgetall(subject.meta) == before
    assert not subject.is_quarantined


@pytest.mark.parametrize("call", ["close", "open"])
def test_node_of_a_third_configuration_is_not_moved(
    subject: Subject, call: str
) -> None:
    """The reply has that configuration, and nothing changes."""
    subject.initialize("a third")

    assert getattr(subject, call)() == [MISCONFIGURED, b"a third"]
    assert subject.hgetall(subject.meta)[b"config"] == b"a third"


def close_for(subject: Subject, milliseconds: int = 1) -> None:
    """Close a node, and wait until its old locks have ended."""
    subject.close(milliseconds)
    subject.wait_until(lambda: not subject.is_quarantined)


def test_open_lets_a_closed_node_vote_above_these_fences(subject: Subject) -> None:
    """The wait is over, the counters are the greatest of all, the node votes."""
    subject.admit()
    close_for(subject)
    subject.hset(subject.meta, STRIPE, 10)
    subject.hset(subject.meta, "8", 99)

    assert subject.open(STRIPE, 70, "8", 70, b"floor", EXACT) == [GRANTED, 0]

    assert subject.counters_of_all() == {
        STRIPE.encode(): b"70",
        b"8": b"99",
        b"floor": str(EXACT).encode(),
    }
    meta = subject.hgetall(subject.meta)
    assert meta[b"config"] == NEW.encode()
    assert meta[b"run_id"] == meta[b"synced"] == subject.run_id
    assert b"quarantine_until" not in meta
    assert subject.acquire(config=NEW) == [GRANTED, EXACT]


def test_open_of_a_node_that_still_waits_is_refused(subject: Subject) -> None:
    """It was closed a moment ago: after a loss of memory, or by another operator."""
    subject.close(20_000)

    status, left = subject.open(STRIPE, 70)

    assert (status, 18_000 < left <= 20_000) == (QUARANTINED, True)
    assert subject.counters_of_all() == {}


@pytest.mark.parametrize("config", [None, CONFIG])
def test_open_of_a_node_that_is_not_closed_is_refused(
    subject: Subject, config: str | None
) -> None:
    """It has lost its memory since, or was never closed. Nothing changes."""
    if config:
        subject.admit(config)
    before = subject.hgetall(subject.meta)

    assert subject.open(STRIPE, 70) == [MISCONFIGURED, (config or "").encode()]
    assert subject.hgetall(subject.meta) == before


def test_open_once_more_leaves_a_quarantine_alone(subject: Subject) -> None:
    """A node that was opened, and has lost its memory since, waits as always."""
    subject.admit()
    close_for(subject)
    subject.open(STRIPE, 70)
    subject.flush()
    subject.acquire(config=NEW)

    assert subject.open(STRIPE, 70) == [GRANTED, 0]

    assert subject.acquire(config=NEW)[0] == QUARANTINED
