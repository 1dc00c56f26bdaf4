"""The scripts of a lock, reply by reply: take, renew, restore, release, cancel."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.scripts import (
    FREE,
    GRANTED,
    TAKEN,
)
from tests.contract.subjects import (
    EXACT,
    MAX_TTL,
    NO_KEY,
    NO_TTL,
    OTHER,
    PATIENCE,
    SHORT,
    STRIPE,
    TOKEN,
    TTL,
    Subject,
    value,
)

WHO = "send_invoice[0c9d]"


def is_taken(reply: Any, expected: bytes, *, at_least: int = 1, at_most: int) -> bool:
    """Tell whether a reply names this value, with a ttl between these."""
    status, found, left = reply
    return (status, found) == (TAKEN, expected) and at_least <= left <= at_most


# -- ACQUIRE -------------------------------------------------------------------


def test_acquire_takes_a_free_lock(subject: Subject) -> None:
    """It replies with the counter. The value is token, counter and holder_info."""
    subject.hset(subject.meta, STRIPE, 41)

    assert subject.acquire() == [GRANTED, 42]
    assert subject.get(subject.lock) == value(42)
    assert subject.counter() == b"42"
    assert TTL - PATIENCE < subject.pttl(subject.lock) <= subject.longest(TTL)


def test_acquire_by_another_token_returns_the_holder(subject: Subject) -> None:
    """It replies with the value and the ttl that is left, and changes nothing."""
    subject.acquire()

    assert is_taken(
        subject.acquire(OTHER),
        value(1),
        at_least=TTL - PATIENCE,
        at_most=subject.longest(TTL),
    )
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"


def test_acquire_by_the_same_token_is_granted_again(subject: Subject) -> None:
    """The number and the holder_info stay; the ttl starts anew."""
    subject.acquire(ttl_ms=TTL)

    assert subject.acquire(holder_info="another", ttl_ms=2 * TTL) == [GRANTED, 1]
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"
    assert subject.pttl(subject.lock) > TTL


def test_lock_lives_to_the_end_of_its_ttl(subject: Subject) -> None:
    """It does not expire before its ttl, by the node's TIME."""
    before = subject.now_us
    subject.acquire(ttl_ms=SHORT)

    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.now_us - before >= SHORT * 1000


def test_acquire_after_expiry_is_granted_a_greater_number(subject: Subject) -> None:
    """The lock ends with its ttl; the counter stays."""
    subject.acquire(ttl_ms=SHORT)
    subject.wait_until(lambda: subject.inspect() == [FREE])

    assert subject.acquire(OTHER) == [GRANTED, 2]
    assert subject.get(subject.lock) == value(2, OTHER)


@pytest.mark.parametrize("beyond_ms", [10_000, 3_600_000])
def test_lock_that_a_clock_stored_that_was_ahead_ends_after_max_ttl(
    subject: Subject, beyond_ms: int
) -> None:
    """Its holder may be dead. One that lives has a lease of max_ttl at most."""
    subject.admit()
    subject.set(subject.lock, value(5), px=MAX_TTL + beyond_ms)

    reply = subject.acquire(OTHER)

    longest = subject.longest(MAX_TTL)
    assert is_taken(reply, value(5), at_least=MAX_TTL, at_most=longest)
    assert MAX_TTL - PATIENCE < subject.pttl(subject.lock) <= longest


def test_start_that_a_clock_stored_that_was_ahead_ends_after_its_period(
    subject: Subject,
) -> None:
    """Its run has begun after max_ttl and ten seconds, and the period begins then."""
    subject.admit()
    start = value(5) + b"\nlimit 3 60.0 imports\nlimit 9 30.0 all\nkept"
    longest = round(1.02 * (MAX_TTL + 10_000 + 60_000))
    subject.set(subject.lock, start, px=longest)
    subject.acquire(OTHER)
    assert subject.pttl(subject.lock) > longest - PATIENCE  # such a one may be granted

    subject.set(subject.lock, start, px=longest + 3_600_000)
    reply = subject.acquire(OTHER)

    most = subject.longest(longest)
    assert is_taken(reply, start, at_least=longest, at_most=most)
    assert longest - PATIENCE < subject.pttl(subject.lock) <= most


def test_lock_of_a_holder_whose_name_is_that_of_a_mark_ends_after_max_ttl(
    subject: Subject,
) -> None:
    """The last line alone makes a permit for a start, and no task id 'kept'."""
    subject.admit()
    held = value(5, holder_info="job\nkept\nkept\n7\n2.500")
    subject.set(subject.lock, held, px=3_600_000)

    assert subject.acquire(OTHER)[:2] == [TAKEN, held]

    assert subject.pttl(subject.lock) <= subject.longest(MAX_TTL)


@pytest.mark.parametrize("held", [b"foreign", value(5) + b"\nkept", b"a\nb\nc"])
def test_only_locks_end_after_max_ttl(subject: Subject, held: bytes) -> None:
    """A permit for a start may be kept for a day, and a value of others is theirs."""
    subject.admit()
    subject.set(subject.lock, held, px=3_600_000)

    assert subject.acquire(OTHER)[:2] == [TAKEN, held]

    assert subject.pttl(subject.lock) > MAX_TTL


@pytest.mark.parametrize("foreign", ["", "\n", TOKEN[:-1], f" {TOKEN}", "\xff"])
def test_acquire_leaves_foreign_values_alone(subject: Subject, foreign: str) -> None:
    """A value that does not begin with the token belongs to another holder."""
    subject.set(subject.lock, foreign)

    assert subject.acquire() == [TAKEN, foreign.encode(), NO_TTL]
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


def test_acquire_accepts_a_number_beyond_64_bits(subject: Subject) -> None:
    """The reply is a grant; its number is not specified."""
    subject.set(subject.lock, f"{TOKEN}\n99999999999999999999", px=TTL)

    assert subject.acquire()[0] == GRANTED


def test_acquire_keeps_any_bytes_of_the_holder_info(subject: Subject) -> None:
    """The holder_info is text for operators; the node does not interpret it."""
    subject.acquire(holder_info="naïve\r\n\x00$5\r\n☃")

    assert subject.get(subject.lock) == f"{TOKEN}\n1\nnaïve\r\n\x00$5\r\n☃".encode()


@pytest.mark.parametrize(
    ("counter", "floor", "number"),
    [
        (None, None, 1),
        (5, None, 6),
        (None, 9, 10),
        (5, 9, 10),
        (9, 5, 10),
        (1_790_000_000_000_000, None, 1_790_000_000_000_001),
        (EXACT - 1, None, EXACT),
        (EXACT, None, EXACT),
        ("not a number", None, 1),
        ("", 3, 4),
    ],
)
def test_acquire_counts_on(
    subject: Subject, counter: Any, floor: Any, number: int
) -> None:
    """The number is one more than counter and floor, in full, as doubles count."""
    if counter is not None:
        subject.hset(subject.meta, STRIPE, counter)
    if floor is not None:
        subject.hset(subject.meta, "floor", floor)

    assert subject.acquire() == [GRANTED, number]
    assert subject.counter() == str(number).encode()
    assert subject.get(subject.lock) == value(number)


def test_acquire_counts_each_stripe_by_itself(subject: Subject) -> None:
    """The counters of other stripes stay."""
    subject.hset(subject.meta, "8", 50)

    assert subject.acquire(stripe="7") == [GRANTED, 1]
    assert subject.counters_of_all() == {b"8": b"50", b"7": b"1"}


@pytest.mark.parametrize("off_us", [-10_000_000, -1_000, 10_000_000])
def test_acquire_jumps_to_a_hint_near_its_time(subject: Subject, off_us: int) -> None:
    """A client clock within the tolerance of TIME makes the nodes' numbers alike."""
    subject.hset(subject.meta, STRIPE, 5)
    hint = subject.now_us + off_us

    assert subject.acquire(hint_us=hint) == [GRANTED, hint]
    assert subject.counter() == str(hint).encode()


@pytest.mark.parametrize("off_us", [-20_000_000, 20_000_000])
def test_acquire_ignores_a_hint_far_from_its_time(
    subject: Subject, off_us: int
) -> None:
    """A wrong client clock neither refuses the lock nor moves the counter."""
    subject.hset(subject.meta, STRIPE, 5)

    assert subject.acquire(hint_us=subject.now_us + off_us) == [GRANTED, 6]


def test_acquire_numbers_by_the_time_of_a_node_that_decides_alone(
    subject: Subject,
) -> None:
    """Its counter may be one that has come back from a backup."""
    subject.hset(subject.meta, STRIPE, 5)
    before = subject.now_us

    status, number = subject.acquire(hint_us=-1)

    assert status == GRANTED
    assert before <= number <= subject.now_us
    assert subject.counter() == str(number).encode()


def test_acquire_never_counts_back_to_its_own_time(subject: Subject) -> None:
    """A counter above it grows by one."""
    ahead = subject.now_us + 3_600_000_000
    subject.hset(subject.meta, STRIPE, ahead)

    assert subject.acquire(hint_us=-1) == [GRANTED, ahead + 1]


def test_acquire_never_counts_back_to_a_hint(subject: Subject) -> None:
    """A hint below the counter is ignored."""
    ahead = subject.now_us + 3_600_000_000
    subject.hset(subject.meta, STRIPE, ahead)

    assert subject.acquire(hint_us=subject.now_us) == [GRANTED, ahead + 1]


# -- EXTEND --------------------------------------------------------------------


def test_extend_starts_the_ttl_anew(subject: Subject) -> None:
    """The value and the counter stay."""
    subject.acquire(ttl_ms=TTL)

    assert subject.extend(ttl_ms=2 * TTL) == [GRANTED, 0]
    assert subject.pttl(subject.lock) > TTL
    assert subject.get(subject.lock) == value(1)
    assert subject.counter() == b"1"


def test_extend_never_creates(subject: Subject) -> None:
    """A lock that has expired stays free."""
    subject.acquire(ttl_ms=SHORT)
    subject.wait_until(lambda: subject.get(subject.lock) is None)

    assert subject.extend() == [FREE]
    assert subject.get(subject.lock) is None


def test_extend_leaves_a_successor_alone(subject: Subject) -> None:
    """It returns the other holder and does not change that holder's ttl."""
    subject.acquire(OTHER, ttl_ms=TTL)

    reply = subject.extend(TOKEN, ttl_ms=2 * TTL)

    assert is_taken(reply, value(1, OTHER), at_most=subject.longest(TTL))
    assert subject.pttl(subject.lock) <= subject.longest(TTL)


def test_extend_gives_a_ttl_to_a_lock_without_one(subject: Subject) -> None:
    """A lock that would never expire does so after the ttl."""
    subject.set(subject.lock, value(3))

    assert subject.extend() == [GRANTED, 0]
    assert 0 < subject.pttl(subject.lock) <= subject.longest(TTL)


def test_extend_can_shorten(subject: Subject) -> None:
    """The ttl is that of the last renewal, longer or not."""
    subject.acquire(ttl_ms=TTL)

    subject.extend(ttl_ms=SHORT)

    assert subject.pttl(subject.lock) <= subject.longest(SHORT)


# -- FORCE_RELEASE -------------------------------------------------------------


def recorded(subject: Subject) -> dict[str, tuple[bytes, bytes]]:
    """Return whether the lock was there, and the text, of each record by its name."""
    _, *records = subject.list_releases()
    texts = {name.decode(): text.split(b"\n", 2)[1:] for name, text in records}
    return {name: (there, text) for name, (there, text) in texts.items()}


def test_force_release_deletes_the_lock_and_records_it(subject: Subject) -> None:
    """The record names whether the lock was on this node, and expires."""
    subject.acquire()

    assert subject.force_release(record="alice\nweb-1") == [GRANTED, 0]
    assert subject.get(subject.lock) is None
    assert recorded(subject) == {TOKEN: (b"1", b"alice\nweb-1")}
    assert 0 < subject.pttl(subject.releases) <= subject.longest(TTL)


def test_force_release_leaves_a_successor_alone(subject: Subject) -> None:
    """It deletes only the lock that was shown; the node records it all the same."""
    subject.acquire(OTHER)

    assert subject.force_release(TOKEN) == [FREE]
    assert subject.get(subject.lock) == value(1, OTHER)
    assert recorded(subject) == {TOKEN: (b"0", b"by an operator")}


def test_force_release_deletes_the_value_of_another_program(subject: Subject) -> None:
    """The whole value proves what was shown. The record has another name."""
    subject.set(subject.lock, "by hand")

    assert subject.force_release("by hand", name="foreign") == [GRANTED, 0]
    assert list(recorded(subject)) == ["foreign"]


@pytest.mark.parametrize("shown", ["", TOKEN[0], TOKEN[:-1]])
def test_force_release_leaves_a_holder_alone_that_has_come_since(
    subject: Subject, shown: str
) -> None:
    """The value of another program may be the beginning of any token."""
    subject.acquire()

    assert subject.force_release(shown, name="foreign") == [FREE]
    assert subject.get(subject.lock) == value(1)


@pytest.mark.parametrize(("shown", "now"), [("worker-1", "worker-12"), ("", "1")])
def test_force_release_leaves_another_value_of_another_program_alone(
    subject: Subject, shown: str, now: str
) -> None:
    """It deletes the whole value that the operator was shown, and no longer one."""
    subject.set(subject.lock, now, TTL)
    assert subject.force_release(shown, name="foreign") == [FREE]
    assert subject.get(subject.lock) == now.encode()

    subject.set(subject.lock, shown, TTL)
    assert subject.force_release(shown, name="foreign") == [GRANTED, 0]


def test_force_release_keeps_the_latest_records(subject: Subject) -> None:
    """There are never more than the operator's client asks for."""
    for number in range(5):
        subject.force_release(name=f"t{number}", ttl_ms=TTL + number)

    assert list(recorded(subject)) == ["t2", "t3", "t4"]


def test_record_of_a_release_ends_after_its_ttl(subject: Subject) -> None:
    """A record that has ended is neither listed nor kept."""
    subject.force_release(name="old", ttl_ms=SHORT)
    subject.force_release(name="new", ttl_ms=TTL)
    subject.wait_until(lambda: list(recorded(subject)) == ["new"])

    subject.force_release(name="newest", ttl_ms=TTL)

    assert set(subject.hgetall(subject.releases)) == {b"new", b"newest"}


def test_force_release_does_not_depend_on_its_record(subject: Subject) -> None:
    """A key of another type in the place of the records fails neither it nor EXTEND."""
    subject.acquire()
    subject.set(subject.releases, "a text")

    assert subject.force_release() == [GRANTED, 0]
    assert subject.get(subject.lock) is None
    assert subject.extend() == [FREE]


def test_extend_names_the_release_by_an_operator(subject: Subject) -> None:
    """The holder learns it on a free node and beside another holder."""
    subject.acquire()
    subject.force_release(record="alice")

    free = subject.extend()
    subject.acquire(OTHER)
    taken = subject.extend()

    assert [free[0], free[1].split(b"\n")[1:]] == [FREE, [b"1", b"alice"]]
    assert [taken[0], taken[3:]] == [TAKEN, free[1:]]
    assert subject.extend(OTHER) == [GRANTED, 0]


def test_restore_writes_the_lock_after_a_forced_release(subject: Subject) -> None:
    """A holder with a majority brings its lock back to a node that lost its lock."""
    subject.acquire()
    subject.force_release()

    assert subject.restore() == [GRANTED, 0]
    assert subject.extend() == [GRANTED, 0]


# -- RESTORE -------------------------------------------------------------------


def test_restore_writes_the_lock_and_raises_the_counter(subject: Subject) -> None:
    """The node is as if it had granted this fence."""
    assert subject.restore(fence=100) == [GRANTED, 0]
    assert subject.get(subject.lock) == value(100)
    assert subject.counter() == b"100"
    assert 0 < subject.pttl(subject.lock) <= subject.longest(TTL)


@pytest.mark.parametrize(
    ("counter", "after"), [(99, b"100"), (100, b"100"), (101, b"101"), ("x", b"100")]
)
def test_restore_never_lowers_the_counter(
    subject: Subject, counter: Any, after: bytes
) -> None:
    """A later grant to another holder keeps its number."""
    subject.hset(subject.meta, STRIPE, counter)

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
    """It changes neither the lock nor the counter of another holder."""
    subject.acquire(OTHER)

    reply = subject.restore(TOKEN, fence=100)

    assert is_taken(reply, value(1, OTHER), at_most=subject.longest(TTL))
    assert subject.get(subject.lock) == value(1, OTHER)
    assert subject.counter() == b"1"


# EXTEND and RESTORE on nodes that do not vote: test_membership_scripts.py.


# -- RAISE_FENCE ---------------------------------------------------------------


def test_raise_fence_raises_counter_and_value(subject: Subject) -> None:
    """Both have the fence from now on, and the ttl of the lock runs on."""
    subject.acquire(ttl_ms=SHORT * 100)

    assert subject.raise_fence(fence=100) == [GRANTED, 100]
    assert subject.counter() == b"100"
    assert subject.get(subject.lock) == value(100)
    assert 0 < subject.pttl(subject.lock) <= subject.longest(SHORT * 100)


def test_raise_fence_adds_no_ttl(subject: Subject) -> None:
    """A lock without a ttl stays without one."""
    subject.set(subject.lock, value(1))

    subject.raise_fence()

    assert subject.pttl(subject.lock) == NO_TTL


def test_acquire_after_raise_fence_returns_the_fence(subject: Subject) -> None:
    """A repetition of the same attempt gets the raised number."""
    subject.acquire()
    subject.raise_fence(fence=100)

    assert subject.acquire() == [GRANTED, 100]


@pytest.mark.parametrize("counter", [100, 250])
def test_raise_fence_never_lowers(subject: Subject, counter: int) -> None:
    """A counter that is there already stays, and the value with it."""
    subject.acquire()
    subject.hset(subject.meta, STRIPE, counter)

    assert subject.raise_fence(fence=100) == [GRANTED, 100]
    assert subject.counter() == str(counter).encode()
    assert subject.get(subject.lock) == value(1)


@pytest.mark.parametrize("holder", [None, OTHER])
def test_raise_fence_without_the_lock_changes_nothing(
    subject: Subject, holder: str | None
) -> None:
    """A client that does not hold the lock would break the order of fences."""
    if holder:
        subject.acquire(holder)
    before = subject.counter()

    assert subject.raise_fence(TOKEN, fence=100) == [FREE]
    assert subject.counter() == before
    assert (subject.get(subject.lock) is None) == (holder is None)


@pytest.mark.parametrize("fence", [EXACT, 1_790_000_000_000_000])
def test_raise_fence_writes_big_numbers_in_full(subject: Subject, fence: int) -> None:
    """No exponent, no lost digit."""
    subject.acquire()

    assert subject.raise_fence(fence=fence) == [GRANTED, fence]
    assert subject.counter() == str(fence).encode()


# -- RELEASE and INSPECT -------------------------------------------------------


def test_release_deletes_its_own_lock(subject: Subject) -> None:
    """The counter stays. A second release finds no lock of ours."""
    subject.acquire()

    assert subject.release() == 1
    assert subject.pttl(subject.lock) == NO_KEY
    assert subject.counter() == b"1"
    assert subject.release() == 0


@pytest.mark.parametrize("keep_ms", [0, 1000])
def test_release_leaves_a_successor_alone(subject: Subject, keep_ms: int) -> None:
    """Another attempt of the same execution is a successor, too."""
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
    """A base with its dot matches the attempts of that execution alone."""
    subject.acquire("base-a.try-2")

    assert subject.release(base) == was_ours
    assert (subject.get(subject.lock) is None) == bool(was_ours)


def test_release_with_keep_expires_later(subject: Subject) -> None:
    """For ``hold_at_least`` the lock stays taken until it expires by itself."""
    subject.acquire()

    assert subject.release(keep_ms=SHORT * 100) == 1
    assert 0 < subject.pttl(subject.lock) <= subject.longest(SHORT * 100)
    assert subject.acquire(OTHER)[0] == TAKEN

    subject.release(keep_ms=SHORT)
    subject.wait_until(lambda: subject.inspect() == [FREE])


def test_inspect_returns_the_holder(subject: Subject) -> None:
    """Value and ttl, or that the lock is free."""
    assert subject.inspect() == [FREE]

    subject.acquire()

    assert is_taken(
        subject.inspect(),
        value(1),
        at_least=TTL - PATIENCE,
        at_most=subject.longest(TTL),
    )


# -- REQUEST_CANCEL ------------------------------------------------------------


def test_cancel_request_comes_with_each_renewal(subject: Subject) -> None:
    """The holder learns which call asks it to end. It keeps the lock and may renew."""
    subject.acquire()
    assert subject.extend() == [GRANTED, 0]

    assert subject.request_cancel(who=WHO) == [GRANTED, 0]

    for _ in range(2):
        assert subject.extend() == [GRANTED, 0, WHO.encode()]


def test_cancel_request_keeps_the_value_and_the_ttl(subject: Subject) -> None:
    """A later request replaces an earlier one; the rest of the value stays."""
    subject.acquire()
    before, left = subject.get(subject.lock) or b"", subject.pttl(subject.lock)

    subject.request_cancel(who="first[1]")
    subject.request_cancel(who=WHO)

    assert subject.get(subject.lock) == before + b"\ncancelled " + WHO.encode()
    assert 0 < subject.pttl(subject.lock) <= subject.longest(left)


def test_cancel_request_is_for_that_holder_alone(subject: Subject) -> None:
    """A successor is not asked, and a free lock stays free."""
    assert subject.request_cancel() == [FREE]
    subject.acquire()

    assert is_taken(
        subject.request_cancel(OTHER), value(1), at_most=subject.longest(TTL)
    )
    assert subject.extend() == [GRANTED, 0]


def test_cancel_request_needs_the_whole_token(subject: Subject) -> None:
    """Another program may have had the lock, and its value be short or empty."""
    subject.acquire()

    for part in ("", TOKEN[0]):
        assert is_taken(
            subject.request_cancel(part), value(1), at_most=subject.longest(TTL)
        )
    assert subject.extend() == [GRANTED, 0]


def test_cancel_request_ends_with_the_lock(subject: Subject) -> None:
    """The next holder of the same key does not get it."""
    subject.acquire()
    subject.request_cancel()
    subject.delete(subject.lock)

    subject.acquire(token=OTHER)

    assert subject.extend(OTHER) == [GRANTED, 0]


@pytest.mark.parametrize("later", ["raise_fence", "restore"])
def test_cancel_request_outlasts_a_later_fence(subject: Subject, later: str) -> None:
    """It may arrive between the grant and the request that settles the fence."""
    subject.acquire()
    subject.request_cancel(who=WHO)

    assert getattr(subject, later)(fence=9_000)[0] == GRANTED

    assert subject.get(subject.lock) == value(9_000) + b"\ncancelled " + WHO.encode()
    assert subject.extend() == [GRANTED, 0, WHO.encode()]
