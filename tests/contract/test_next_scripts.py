"""Who runs next, and who is to end: the same in memory and of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import (
    CANCEL,
    EXTEND,
    FREE,
    GRANTED,
    LEAVE_NEXT,
    OFFER_NEXT,
    RESTORE,
    TAKE_NEXT,
    TAKEN,
)
from celery_redlock.core.wire import ErrorReply
from tests.contract.subjects import FACTS, OTHER, STRIPE, TOKEN, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

SHORT = 30  # ms, for what is to end
NO_KEY = -2  # what PTTL says
NOW = 1_795_246_614_184_112  # µs since 1970
WHO = "send_invoice[0c9d]"


def register(subject: Subject) -> str:
    """Return the name of the register."""
    return f"{subject.prefix}:next:a:task"


def offer(  # noqa: PLR0913  (by name)
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    ttl_ms: int = TTL,
    entered: bool = False,
    holder: str = "",
) -> Any:
    """Run OFFER_NEXT; return None, or who stands before."""
    args = [task_id, published, keep, "0.000", ttl_ms, "1" if entered else "", holder]
    return _before(subject.run(OFFER_NEXT, [register(subject)], args))


def take(
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    entered: bool = True,
) -> Any:
    """Run TAKE_NEXT; return None, or who stands before."""
    args = [task_id, published, keep, "0.000", TTL, "1" if entered else ""]
    return _before(subject.run(TAKE_NEXT, [register(subject)], args))


def leave(subject: Subject, task_id: str) -> Any:
    """Run LEAVE_NEXT."""
    return subject.run(LEAVE_NEXT, [register(subject)], [task_id])


def _before(reply: Any) -> str | None:
    if reply == [GRANTED, 0]:
        return None
    status, value, left = reply
    assert (status, 0 <= left <= TTL) == (TAKEN, True)
    return str(value.split(b"\n")[0].decode())


# -- OFFER_NEXT ------------------------------------------------------------------------


def test_first_offer_is_entered_in_full(subject: Subject) -> None:
    """A register tells who it is, when it was published, and when it expires."""
    args = ["one", NOW, "latest", "1795246615.500", TTL, "", ""]

    assert subject.run(OFFER_NEXT, [register(subject)], args) == [GRANTED, 0]

    entry = b"one\n%d\n1795246615.500\nwaits" % NOW
    assert subject.get(register(subject)) == entry
    assert 0 < subject.pttl(register(subject)) <= TTL


@pytest.mark.parametrize(
    ("keep", "stays"), [("latest", ["c", "c", "c"]), ("first", ["b", "a", "a"])]
)
def test_register_only_moves_on(subject: Subject, keep: str, stays: list[str]) -> None:
    """To the later one, or to the earlier one: to the microsecond."""
    offers = [("b", NOW), ("c", NOW + 1), ("a", NOW - 1), ("b", NOW)]
    offer(subject, *offers[0], keep)

    said = [offer(subject, *each, keep) for each in offers[1:]]

    who = (subject.get(register(subject)) or b"").split(b"\n")[0].decode()
    assert who == stays[-1]
    expected = {"latest": [None, "c", "c"], "first": ["b", None, "a"]}
    assert said == expected[keep]


@pytest.mark.parametrize("keep", ["latest", "first"])
def test_tie_is_settled_by_the_id(subject: Subject, keep: str) -> None:
    """Of two that were published at once the same one stands before on all nodes."""
    last = "b" if keep == "latest" else "a"
    other = "a" if keep == "latest" else "b"
    offer(subject, other, NOW, keep)

    assert offer(subject, last, NOW, keep) is None
    assert offer(subject, other, NOW, keep) == last


def test_same_call_is_entered_again(subject: Subject) -> None:
    """Who comes back is remembered for longer."""
    offer(subject, "a", NOW, ttl_ms=SHORT)

    assert offer(subject, "a", NOW) is None
    assert subject.pttl(register(subject)) > SHORT


def test_entry_ends_with_its_ttl(subject: Subject) -> None:
    """One that never comes back stands before nobody for ever."""
    offer(subject, "b", NOW, ttl_ms=SHORT)

    subject.wait_until(lambda: offer(subject, "a", NOW - 1) is None)


def test_holder_waits_no_more(subject: Subject) -> None:
    """One that runs is none of those that wait, also where a node does not know it."""
    offer(subject, "b", NOW)

    assert offer(subject, "a", NOW - 1, holder="b") is None


def test_holder_runs_in_the_stead_of_those_before_it(subject: Subject) -> None:
    """Who was in the register when it came has been told that it runs for both."""
    offer(subject, "a", NOW - 1)
    offer(subject, "b", NOW)

    assert offer(subject, "a", NOW - 1, entered=True, holder="b") == "b"


# -- TAKE_NEXT -------------------------------------------------------------------------


def test_turn_is_for_the_next(subject: Subject) -> None:
    """The other one has run in vain for the lock: it is told who runs."""
    offer(subject, "a", NOW - 1)
    offer(subject, "b", NOW)

    assert take(subject, "a", NOW - 1) == "b"
    assert take(subject, "b", NOW) is None


@pytest.mark.parametrize("keep", ["latest", "first"])
def test_one_that_has_run_counts_for_those_before_it_only(
    subject: Subject, keep: str
) -> None:
    """Who was entered before ends; who came after is the next to run."""
    late, early = (NOW + 1, NOW - 1) if keep == "first" else (NOW - 1, NOW + 1)
    offer(subject, "before", late, keep)
    offer(subject, "runs", NOW, keep)
    assert take(subject, "runs", NOW, keep) is None

    assert offer(subject, "before", late, keep, entered=True) == "runs"
    assert take(subject, "before", late, keep) == "runs"
    assert offer(subject, "after", late, keep) is None
    assert offer(subject, "better", early, keep) is None


def test_turn_without_a_register_is_taken(subject: Subject) -> None:
    """A node that has forgotten, or never knew, keeps nobody from running."""
    assert take(subject, "a", NOW) is None

    assert subject.get(register(subject)) == b"a\n%d\n0.000\nruns" % NOW


def test_turn_is_not_taken_back(subject: Subject) -> None:
    """A newer one that waits by then stays the next."""
    offer(subject, "b", NOW + 1)

    assert take(subject, "a", NOW, entered=False) == "b"
    assert offer(subject, "c", NOW) == "b"


# -- LEAVE_NEXT ------------------------------------------------------------------------


def test_leaving_is_for_oneself(subject: Subject) -> None:
    """Nobody strikes off another one; twice is harmless."""
    offer(subject, "b", NOW)

    assert leave(subject, "a") == [FREE]
    assert leave(subject, "b") == [GRANTED, 0]
    assert leave(subject, "b") == [FREE]
    assert subject.pttl(register(subject)) == NO_KEY


def test_leaving_tells_ids_apart_by_all_of_them(subject: Subject) -> None:
    """One id may begin like another one, and may have any letters."""
    offer(subject, "a.b+c%", NOW)

    assert leave(subject, "a.b") == [FREE]
    assert leave(subject, "a.b+c%") == [GRANTED, 0]


@pytest.mark.parametrize("value", ["", "a", "a\nb\nc\nwaits", "a\n1\n0\n"])
def test_register_with_something_else_in_it_is_none(
    subject: Subject, value: str
) -> None:
    """What does not read as an entry keeps nobody from being entered."""
    subject.set(register(subject), value)

    assert offer(subject, "b", NOW) is None


# -- CANCEL ----------------------------------------------------------------------------


def cancel(subject: Subject, token: str = TOKEN, who: str = WHO) -> Any:
    """Run CANCEL."""
    return subject.run(CANCEL, [subject.lock], [token, who])


def extend(subject: Subject, token: str = TOKEN) -> Any:
    """Run EXTEND, without a config."""
    keys = [subject.lock, subject.fence, subject.meta]
    return subject.run(EXTEND, keys, ["", token, TTL])


def test_cancel_is_told_with_each_renewal(subject: Subject) -> None:
    """The holder learns who wants it to end, keeps the lock, and may renew it."""
    subject.acquire()
    assert extend(subject) == [GRANTED, 0]

    assert cancel(subject) == [GRANTED, 0]

    for _ in range(2):
        assert extend(subject) == [GRANTED, 0, WHO.encode()]


def test_cancel_keeps_the_value_and_the_ttl(subject: Subject) -> None:
    """Facts and ttl are those of the holder, however often it is asked."""
    subject.acquire()
    before, left = subject.get(subject.lock) or b"", subject.pttl(subject.lock)

    cancel(subject, who="first[1]")
    cancel(subject)

    assert subject.get(subject.lock) == before + b"\ncancelled " + WHO.encode()
    assert 0 < subject.pttl(subject.lock) <= left


def test_cancel_is_for_that_holder_alone(subject: Subject) -> None:
    """A successor is not meant, and a free lock stays free."""
    assert cancel(subject) == [FREE]
    subject.acquire()

    status, value, left = cancel(subject, OTHER)

    assert (status, value) == (TAKEN, subject.get(subject.lock))
    assert 0 < left <= TTL
    assert extend(subject) == [GRANTED, 0]


def test_cancel_ends_with_the_lock(subject: Subject) -> None:
    """The next holder has nothing to do with it, also under the same key."""
    subject.acquire()
    cancel(subject)
    subject.delete(subject.lock)

    subject.acquire(token=OTHER)

    assert extend(subject, OTHER) == [GRANTED, 0]


def test_restored_lock_is_asked_again(subject: Subject) -> None:
    """A node that has forgotten the lock has forgotten who wants it."""
    keys = [subject.lock, subject.fence, subject.meta]
    subject.run(RESTORE, keys, ["", TOKEN, FACTS, TTL, STRIPE, 7])
    assert extend(subject) == [GRANTED, 0]

    cancel(subject)

    assert extend(subject) == [GRANTED, 0, WHO.encode()]


# -- all of them -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["offer", "take", "leave", "cancel"])
def test_key_of_another_type_is_an_error_reply(subject: Subject, call: str) -> None:
    """Somebody else's key of that name is an error of that node, and no crash."""
    for key in (register(subject), subject.lock):
        subject.hset(key, "field", "theirs")
    keys, order = [register(subject)], ["a", NOW, "latest", "0", TTL, ""]
    calls = {
        "offer": lambda: subject.run(OFFER_NEXT, keys, [*order, ""]),
        "take": lambda: subject.run(TAKE_NEXT, keys, order),
        "leave": lambda: leave(subject, "a"),
        "cancel": lambda: cancel(subject),
    }

    reply = calls[call]()

    assert isinstance(reply, ErrorReply)
    assert "WRONGTYPE" in str(reply)
