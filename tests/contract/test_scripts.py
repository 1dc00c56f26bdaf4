"""Each script, reply by reply: the same of the node in memory and of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.scripts import (
    ALL_SCRIPTS,
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
    Script,
)
from celery_redlock.core.wire import ErrorReply
from tests.contract.subjects import (
    CLOSED,
    CONFIG,
    FACTS,
    NEW,
    OTHER,
    STRIPE,
    TOKEN,
    TTL,
)

if TYPE_CHECKING:
    from typing import Any

    from tests.contract.subjects import ServerSubject, Subject

SHORT = 30  # ms, for what is to end
NO_KEY, FOR_EVER = -2, -1  # what PTTL says
WHOLE = 2**53  # above it a double cannot tell n from n + 1
NEVER_WRITTEN = b"somebody else's"


def value(number: int, token: str = TOKEN, facts: str = FACTS) -> bytes:
    """Return what a lock's value must be."""
    return f"{token}\n{number}\n{facts}".encode()


def is_wrong_type(reply: Any) -> bool:
    """Tell whether a server complains of the type; the versions word it unlike."""
    return isinstance(reply, ErrorReply) and "WRONGTYPE" in str(reply)


# -- ACQUIRE: the lock -----------------------------------------------------------


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


def test_acquire_after_expiry_is_granted_a_greater_number(subject: Subject) -> None:
    """A lock ends with its ttl; the next one counts on."""
    subject.acquire(ttl_ms=SHORT)
    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.acquire(OTHER) == [GRANTED, 2]
    assert subject.get(subject.lock) == value(2, OTHER)


def test_acquire_names_a_holder_without_a_ttl(subject: Subject) -> None:
    """A lock that never ends is told as such: -1."""
    subject.set(subject.lock, NEVER_WRITTEN)

    assert subject.acquire() == [TAKEN, NEVER_WRITTEN, FOR_EVER]


@pytest.mark.parametrize("foreign", ["", "\n", f"{TOKEN[:-1]}", f" {TOKEN}", "\xff"])
def test_acquire_leaves_foreign_values_alone(subject: Subject, foreign: str) -> None:
    """Whatever does not begin with the token is somebody else's."""
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
        (f"{TOKEN}\n99999999999999999999", None),
    ],
)
def test_acquire_reads_its_own_number_from_the_value(
    subject: Subject, stored: str, reply: list[int] | None
) -> None:
    """The number is the first line of digits; without one there is none in the reply.

    A number beyond 64 bits is nobody's business; only that it is an answer.
    """
    subject.set(subject.lock, stored, px=TTL)

    said = subject.acquire()

    assert said == reply if reply else said[0] == GRANTED


def test_acquire_keeps_any_bytes_of_the_facts(subject: Subject) -> None:
    """Facts are text for people: whatever they hold comes back as it was."""
    subject.acquire(facts="naïve\r\n\x00$5\r\n☃")

    assert subject.get(subject.lock) == f"{TOKEN}\n1\nnaïve\r\n\x00$5\r\n☃".encode()


# -- ACQUIRE: the number -----------------------------------------------------------


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


# -- ACQUIRE: the restart guard ------------------------------------------------------


def life(subject: Subject) -> bytes:
    """Return the name of the present life of the node."""
    return subject.hgetall(subject.meta)[b"life"]


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
    subject.set(subject.lock, NEVER_WRITTEN)
    subject.acquire(config=CONFIG, quarantine_ms=30_000)

    status, left = subject.acquire(config=CONFIG, quarantine_ms=61_000)

    assert status == QUARANTINED
    assert 28_000 < left <= 30_000


def test_acquire_after_quarantine_asks_for_the_fences(subject: Subject) -> None:
    """It is over but the counters are gone: not synced, in this life."""
    subject.acquire(config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)

    assert subject.acquire(config=CONFIG) == [UNSYNCED, life(subject)]
    assert subject.get(subject.lock) is None


def test_acquire_on_a_synced_node_is_granted(subject: Subject) -> None:
    """Marker, no quarantine, synced in this process: it votes."""
    subject.acquire(config=CONFIG, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)
    subject.sync(life(subject), STRIPE, 70)

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


# -- EXTEND --------------------------------------------------------------------------


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


# -- RESTORE -------------------------------------------------------------------------


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


# -- RAISE_FENCE ---------------------------------------------------------------------


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


# -- RELEASE, INSPECT ----------------------------------------------------------------


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


# -- LINE_UP, STEP_OUT ---------------------------------------------------------------
# Nobody listens on these channels; tests/nodes/test_wait.py has people who do.


def test_line_up_tells_who_holds_the_lock(subject: Subject) -> None:
    """As INSPECT does, and one is in line, whether it is held or free."""
    assert subject.line_up() == [FREE]

    subject.acquire()
    status, said, left = subject.line_up()

    assert (status, said) == (TAKEN, value(1))
    assert TTL - 2000 < left <= TTL
    assert subject.in_line() == [b"w/1"]


def test_line_is_in_the_order_of_ranks(subject: Subject) -> None:
    """Whoever comes again keeps its place; of equals the names decide."""
    subject.line_up("b/1", rank=2)
    subject.line_up("c/1", rank=1_790_000_000_000_000)
    subject.line_up("a/2", rank=2)
    subject.line_up("d/1", rank=1)
    subject.line_up("b/1", rank=2)

    assert subject.in_line() == [b"d/1", b"a/2", b"b/1", b"c/1"]


def test_line_ends_when_nobody_comes_again(subject: Subject) -> None:
    """People who are gone without a word are not kept for ever."""
    subject.line_up(ttl_ms=TTL)
    assert TTL - 2000 < subject.pttl(subject.line) <= TTL

    subject.line_up("w/2", ttl_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.line) == NO_KEY)


def test_step_out_leaves_the_others_in_line(subject: Subject) -> None:
    """While somebody holds the lock nothing is passed on."""
    subject.acquire()
    subject.line_up("w/1")
    subject.line_up("w/2")

    assert subject.step_out("w/1") == [GRANTED, 0]
    assert subject.in_line() == [b"w/2"]
    assert subject.step_out("w/2") == subject.step_out("w/2") == [GRANTED, 0]
    assert subject.pttl(subject.line) == NO_KEY


def test_step_out_of_one_who_got_the_lock_passes_nothing_on(subject: Subject) -> None:
    """Also on a node that did not grant it."""
    subject.line_up("w/1")
    subject.line_up("w/2")

    assert subject.step_out("w/1", "") == [GRANTED, 0]
    assert subject.in_line() == [b"w/2"]


@pytest.mark.parametrize("how", ["release", "keep", "step_out"])
def test_waiters_who_do_not_listen_are_passed_over(subject: Subject, how: str) -> None:
    """A release, or who goes without, looks for one who hears it; here nobody does."""
    subject.acquire()
    subject.line_up("w/1")
    subject.line_up("w/2")

    if how == "step_out":
        subject.delete(subject.lock)
        subject.step_out("w/9")
    else:
        assert subject.release(keep_ms=TTL if how == "keep" else 0) == 1

    assert subject.in_line() == []


def test_release_of_what_is_not_ours_wakes_nobody(subject: Subject) -> None:
    """The lock is held as before."""
    subject.acquire(OTHER)
    subject.line_up()

    assert subject.release() == 0
    assert subject.in_line() == [b"w/1"]


def test_release_works_whatever_is_in_the_place_of_the_line(subject: Subject) -> None:
    """No lock hangs on a line."""
    subject.acquire()
    subject.set(subject.line, "theirs")

    assert subject.release() == 1
    assert subject.get(subject.lock) is None


# -- COUNTERS, SYNC, INITIALIZE --------------------------------------------------------


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
    assert subject.counters() == [UNSYNCED, life(subject)]

    subject.hset(subject.meta, "synced", "an earlier life")
    assert subject.counters() == [UNSYNCED, life(subject)]

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
    before = life(subject)
    subject.delete(subject.meta)
    subject.acquire(config=CONFIG, token=OTHER, quarantine_ms=SHORT)
    subject.wait_until(lambda: subject.pttl(subject.quarantine) == NO_KEY)

    assert subject.sync(before, STRIPE, 3) == [UNSYNCED, life(subject)]
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

    status, left = subject.sync(life(subject), STRIPE, 3)

    assert status == QUARANTINED
    assert 18_000 < left <= 20_000
    assert subject.hgetall(subject.fence) == {}


# -- CLOSE, OPEN -----------------------------------------------------------------


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


# -- what can happen to a node -----------------------------------------------------


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


WRONG_KEYS = [
    ("acquire", "lock"),
    ("acquire", "fence"),
    ("acquire", "meta"),
    ("extend", "lock"),
    ("extend", "meta"),
    ("restore", "lock"),
    ("restore", "fence"),
    ("raise_fence", "lock"),
    ("release", "lock"),
    ("inspect", "lock"),
    ("counters", "meta"),
    ("sync", "meta"),
    ("initialize", "fence"),
    ("close", "meta"),
    ("open", "meta"),
]


@pytest.mark.parametrize(("call", "name"), WRONG_KEYS)
def test_key_of_another_type_is_an_error_reply(
    subject: Subject, call: str, name: str
) -> None:
    """A key that somebody else uses for something else is an answer, and stays."""
    guarded = ("acquire", "extend", "counters")
    options = {"config": CONFIG} if name == "meta" and call in guarded else {}
    args = [subject.run_id] if call == "sync" else []
    key = getattr(subject, name)
    if name == "lock":
        subject.hset(key, "field", "theirs")
    else:
        subject.set(key, "theirs")

    assert is_wrong_type(getattr(subject, call)(*args, **options))
    if name == "lock":
        assert subject.hgetall(key) == {b"field": b"theirs"}
    else:
        assert subject.get(key) == b"theirs"


def test_raise_fence_on_counters_of_another_type_is_an_error(subject: Subject) -> None:
    """The lock is ours and the counters are not."""
    subject.acquire()
    subject.delete(subject.fence)
    subject.set(subject.fence, "theirs")

    assert is_wrong_type(subject.raise_fence())
    assert subject.get(subject.lock) == value(1)


def test_counters_of_another_type_are_an_error(subject: Subject) -> None:
    """The marker is in order and the counters are not."""
    subject.initialize()
    subject.delete(subject.fence)
    subject.set(subject.fence, "theirs")

    assert is_wrong_type(subject.counters())
    assert is_wrong_type(subject.sync(subject.run_id, STRIPE, 3))


def test_lock_lives_to_the_end_of_its_ttl(subject: Subject) -> None:
    """No sooner than its ttl after it was taken is it gone, by the node's TIME."""
    before = subject.now_us
    subject.acquire(ttl_ms=SHORT)

    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.now_us - before >= SHORT * 1000


# -- the SHAs ----------------------------------------------------------------------


@pytest.mark.parametrize("script", ALL_SCRIPTS, ids=lambda script: script.name)
def test_sha_is_what_a_server_calls_the_script(
    server: ServerSubject, script: Script
) -> None:
    """A server that has seen the source knows it by this name, and not before."""
    server.command("SCRIPT", "FLUSH")
    assert str(server.command("EVALSHA", script.sha, 0)).startswith("NOSCRIPT")

    assert server.command("SCRIPT", "LOAD", script.source) == script.sha.encode()
    assert server.command("SCRIPT", "EXISTS", script.sha) == [1]


def test_script_is_known_once_its_source_was_run(server: ServerSubject) -> None:
    """EVAL is enough: whoever comes after may say the SHA."""
    server.command("SCRIPT", "FLUSH")
    server.inspect()

    (inspect,) = (script for script in ALL_SCRIPTS if script.name == "inspect")
    assert server.command("EVALSHA", inspect.sha, 1, server.lock) == [FREE]
