"""The scripts of permits: locks on several names of a key."""

from __future__ import annotations

import pytest

from celery_redlock.scripts import GRANTED, TAKEN
from tests.contract.listener import Listener
from tests.contract.subjects import NO_KEY, OTHER, PATIENCE, TOKEN, TTL, Subject, value

KEPT = 3 * TTL
THREE = [("imports##", 3, TTL)]
STARTS = [("imports##", 3, TTL), ("imports@@", 2, KEPT)]
FIRST, SECOND = "a" * 32 + "." + "a" * 16, "b" * 32 + "." + "b" * 16


A, B, FREE = b"aaaaaaaa", b"bbbbbbbb", b"--------"
NO_START = FREE + b"000000000000"


def test_permit_is_an_ordinary_lock(subject: Subject) -> None:
    """With the value and the ttl of one; the first has the name of the key."""
    assert subject.acquire_permits(["imports##2"], THREE) == [GRANTED, 1]

    lock = subject.key("lock:imports##2")
    assert subject.get(lock) == value(1)
    assert TTL - PATIENCE < subject.pttl(lock) <= subject.longest(TTL)


def test_same_token_is_granted_again(subject: Subject) -> None:
    """With the same number, and each lock with its own ttl."""
    for _ in range(2):
        reply = subject.acquire_permits(["imports##2", "imports@@1"], STARTS)
        assert reply == [GRANTED, 1]

    assert subject.pttl(subject.key("lock:imports##2")) <= subject.longest(TTL)
    assert subject.pttl(subject.key("lock:imports@@1")) > KEPT - PATIENCE


def test_refusal_tells_which_permits_have_a_holder(subject: Subject) -> None:
    """Of each limit: the number and the end of the holder's token."""
    subject.acquire_permits(["imports"], THREE, FIRST)
    subject.acquire_permits(["imports##3"], THREE, SECOND)

    status, holder, left, told = subject.acquire_permits(["imports"], THREE, TOKEN)

    assert (status, holder) == (TAKEN, value(1, FIRST))
    assert TTL - PATIENCE < left <= subject.longest(TTL)
    assert told == A + FREE + B


def test_refusal_by_one_limit_takes_no_permit_of_the_other(subject: Subject) -> None:
    """All or none, as for several keys; the lock that is free has no holder."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.acquire_permits(["imports", "tenant"], limits, FIRST)

    reply = subject.acquire_permits(["imports##2", "tenant"], limits, SECOND)

    assert reply[:3] == [TAKEN, b"", NO_KEY]
    assert reply[3] == value(1, FIRST)
    assert reply[-1] == A + FREE + FREE + A
    assert subject.get(subject.key("lock:imports##2")) is None


def test_permit_for_a_start_has_a_ttl_of_its_own(subject: Subject) -> None:
    """Its value says so; a refusal tells when it ends."""
    subject.acquire_permits(["imports", "imports@@2"], STARTS, FIRST)

    assert subject.get(subject.key("lock:imports@@2")) == value(1, FIRST) + b"\nkept"
    reply = subject.acquire_permits(["imports##2", "imports@@2"], STARTS, SECOND)
    told = reply[-1]
    assert told.startswith(A + FREE + FREE + NO_START + A)
    assert KEPT - PATIENCE < int(told[-12:]) <= subject.longest(KEPT)


def test_permit_for_a_start_may_be_kept_for_longer_than_the_reply_can_tell(
    subject: Subject,
) -> None:
    """Of a start a century, each permit has its place in the reply nevertheless."""
    century = 100 * 365 * 86_400_000
    limits = [("imports@@", 3, century)]
    subject.acquire_permits(["imports@@1"], limits, FIRST)

    reply = subject.inspect_permits(limits)

    assert reply == [GRANTED, 0, A + b"9" * 12 + 2 * NO_START]
    assert subject.pttl(subject.key("lock:imports@@1")) > century - PATIENCE


def test_release_by_token_ends_permits(subject: Subject) -> None:
    """At once, or for a start when the period has passed."""
    subject.acquire_permits(["imports", "imports@@2"], STARTS)
    subject.take_several("imports")
    assert subject.release() == 1
    subject.take_several("imports@@2")
    assert subject.release(keep_ms=TTL) == 1

    assert subject.get(subject.key("lock:imports")) is None
    assert (
        TTL - PATIENCE
        < subject.pttl(subject.key("lock:imports@@2"))
        <= subject.longest(TTL)
    )


def test_inspect_changes_nothing(subject: Subject) -> None:
    """It tells the same as a refusal."""
    nothing = [GRANTED, 0, 3 * FREE + 2 * NO_START]
    assert subject.inspect_permits(STARTS) == nothing
    subject.acquire_permits(["imports##2"], THREE, FIRST)

    for _ in range(2):
        assert subject.inspect_permits(THREE) == [GRANTED, 0, FREE + A + FREE]


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ("", b"????????"),
        ("x" * 48, b"????????"),
        ("t" * 41 + "a b:c\nd,", b"a b:c\nd,"),
        ("f" * 60, b"ffffffff"),
    ],
)
def test_value_of_another_program_is_a_holder(
    subject: Subject, theirs: str, told: bytes
) -> None:
    """Each permit has its place in the reply, also beside odd values."""
    subject.set(subject.key("lock:imports##2"), theirs, TTL)

    assert subject.inspect_permits(THREE) == [GRANTED, 0, FREE + told + FREE]


def test_key_of_another_type_has_no_holder_but_is_not_granted(
    subject: Subject,
) -> None:
    """The refusal is an error that names the key's type."""
    subject.hset(subject.key("lock:imports##2"), "field", "theirs")

    assert subject.inspect_permits(THREE) == [GRANTED, 0, 3 * FREE]
    assert "WRONGTYPE" in str(subject.acquire_permits(["imports##2"], THREE))


def test_waiter_joins_the_queue_of_the_key(subject: Subject) -> None:
    """Once, also where a key has two limits; it learns which permits are in use."""
    subject.acquire_permits(["imports"], THREE, FIRST)

    reply = subject.join_permit_queue(STARTS)

    assert reply == [GRANTED, 0, -1, -1, A + FREE + FREE + 2 * NO_START]
    assert subject.waiters(subject.key("line:imports")) == [b"w/1"]


def test_waiter_learns_when_the_first_permit_ends(subject: Subject) -> None:
    """Such a permit may be kept after its run: no release of it wakes a waiter."""
    two = [("imports##", 2, TTL)]
    subject.acquire_permits(["imports"], two, FIRST)
    subject.acquire_permits(["imports##2"], two, SECOND)
    subject.take_several("imports##2")
    subject.release(SECOND, keep_ms=5_000)

    status, _, ends_ms, told = subject.join_permit_queue(two)

    assert (status, told) == (GRANTED, A + B)
    assert 0 < ends_ms <= subject.longest(5_000)


def test_release_of_any_permit_wakes_the_first_alone(
    subject: Subject, listener: Listener
) -> None:
    """One waiter for each permit that comes free."""
    subject.acquire_permits(["imports##2"], THREE)
    for rank in (1, 2):
        subject.join_permit_queue(THREE, f"{listener.channel}/{rank}", rank)

    subject.take_several("imports##2")
    subject.wait_queues = [subject.key("line:imports")]
    assert subject.release() == 1

    assert listener.messages() == [b"1 0"]


def test_release_of_a_kept_start_wakes_none(
    subject: Subject, listener: Listener
) -> None:
    """The permit of the run, which is released with it, wakes the waiter now."""
    subject.acquire_permits(["imports", "imports@@2"], STARTS)
    subject.join_permit_queue(STARTS, f"{listener.channel}/1")

    subject.take_several("imports@@2")
    subject.wait_queues = [subject.key("line:imports")]
    assert subject.release(keep_ms=TTL) == 1
    subject.take_several("imports")
    assert subject.release() == 1

    assert listener.messages() == [b"1 0"]


def test_waiter_for_a_full_limit_passes_the_wake_up_of_a_free_one_on(
    subject: Subject, listener: Listener
) -> None:
    """To a waiter behind it, which may need the free one alone."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.acquire_permits(["tenant"], [("tenant##", 1, TTL)], OTHER)
    subject.join_permit_queue(THREE, f"{listener.channel}/behind", rank=9)

    subject.join_permit_queue(limits, "w/both", rank=5)

    assert listener.messages() == [b"behind 0"]


def test_waiter_that_joins_again_passes_no_wake_up_on(
    subject: Subject, listener: Listener
) -> None:
    """It was not woken since, and is not first: those behind it are not woken twice."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.acquire_permits(["tenant"], [("tenant##", 1, TTL)], OTHER)
    subject.join_permit_queue(THREE, "w/before", rank=1)
    subject.join_permit_queue(limits, "w/both", rank=5)
    subject.join_permit_queue(THREE, f"{listener.channel}/behind", rank=9)

    subject.join_permit_queue(limits, "w/both", rank=5)

    assert listener.messages() == []


def test_first_waiter_passes_a_permit_on_at_each_look(
    subject: Subject, listener: Listener
) -> None:
    """A permit that ended by itself woke no waiter, so the first one does."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.acquire_permits(["tenant"], [("tenant##", 1, TTL)], OTHER)
    subject.join_permit_queue(limits, "w/both", rank=5)
    subject.join_permit_queue(THREE, f"{listener.channel}/behind", rank=9)

    subject.join_permit_queue(limits, "w/both", rank=5)

    assert listener.messages() == [b"behind 0"]


def test_waiter_before_another_is_not_woken_by_it(
    subject: Subject, listener: Listener
) -> None:
    """It was there first, so it has had the wake-up that is passed on."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.acquire_permits(["tenant"], [("tenant##", 1, TTL)], OTHER)
    subject.join_permit_queue(THREE, f"{listener.channel}/before", rank=1)

    subject.join_permit_queue(limits, "w/both", rank=5)

    assert listener.messages() == []
    before = f"{listener.channel}/before".encode()
    assert subject.waiters(subject.key("line:imports")) == [before, b"w/both"]


def test_waiter_for_free_permits_wakes_no_other(
    subject: Subject, listener: Listener
) -> None:
    """It takes them itself; and of a limit that is full there is nothing to pass on."""
    limits = [("imports##", 3, TTL), ("tenant##", 1, TTL)]
    subject.join_permit_queue(THREE, f"{listener.channel}/behind", rank=9)
    subject.join_permit_queue(limits, "w/both", rank=5)
    assert listener.messages() == []

    one = [("tenant##", 1, TTL)]
    subject.acquire_permits(["tenant"], one, OTHER)
    subject.join_permit_queue(one, f"{listener.channel}/next", rank=9)
    subject.join_permit_queue(one, "w/first", rank=4)

    assert listener.messages() == []


def test_queue_of_permits_expires_when_no_waiter_joins_again(subject: Subject) -> None:
    """Waiters that were killed do not stay for ever."""
    subject.join_permit_queue(THREE)

    assert (
        TTL - PATIENCE
        < subject.pttl(subject.key("line:imports"))
        <= subject.longest(TTL)
    )


def test_permits_without_an_end_are_not_waited_for(subject: Subject) -> None:
    """The values of another program may have no ttl; then there is no time to tell."""
    for name in ("imports", "imports##2"):
        subject.set(subject.key(f"lock:{name}"), "theirs")

    assert subject.join_permit_queue([("imports##", 2, TTL)])[2] == -1
