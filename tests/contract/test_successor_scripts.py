"""The scripts of the successor register, reply by reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.scripts import (
    ENTER_SUCCESSOR,
    FREE,
    GRANTED,
    START_SUCCESSOR,
    TAKEN,
    WITHDRAW_SUCCESSOR,
)
from tests.contract.subjects import NO_KEY, SHORT, TTL

if TYPE_CHECKING:
    from tests.contract.subjects import Subject

NOW = 1_795_246_614_184_112  # µs since 1970
BOTH_ORDERS = pytest.mark.parametrize("keep", ["latest", "first"])


def register(subject: Subject) -> str:
    """Return the key of the register."""
    return subject.key("next:a:task")


def enter(  # noqa: PLR0913  (by name)
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    ttl_ms: int = TTL,
    entered: bool = False,
    holder: str = "",
) -> str | None:
    """Run ENTER_SUCCESSOR; return None, or the call that comes before."""
    args = [task_id, published, keep, "0.000", ttl_ms, "1" if entered else "", holder]
    return _preceding(subject.run(ENTER_SUCCESSOR, [register(subject)], args))


def start(
    subject: Subject,
    task_id: str,
    published: int,
    keep: str = "latest",
    *,
    entered: bool = True,
) -> str | None:
    """Run START_SUCCESSOR; return None, or the call that comes before."""
    args = [task_id, published, keep, "0.000", TTL, "1" if entered else ""]
    return _preceding(subject.run(START_SUCCESSOR, [register(subject)], args))


def withdraw(subject: Subject, task_id: str) -> Any:
    """Run WITHDRAW_SUCCESSOR."""
    return subject.run(WITHDRAW_SUCCESSOR, [register(subject)], [task_id])


def _preceding(reply: Any) -> str | None:
    if reply == [GRANTED, 0]:
        return None
    status, value, left = reply
    assert (status, 0 <= left <= TTL) == (TAKEN, True)
    return str(value.split(b"\n")[0].decode())


# -- ENTER_SUCCESSOR -----------------------------------------------------------


def test_enter_writes_the_whole_entry(subject: Subject) -> None:
    """The entry is the id, when it was published, when it expires, and "waits"."""
    args = ["one", NOW, "latest", "1795246615.500", TTL, "", ""]

    assert subject.run(ENTER_SUCCESSOR, [register(subject)], args) == [GRANTED, 0]

    entry = b"one\n%d\n1795246615.500\nwaits" % NOW
    assert subject.get(register(subject)) == entry
    assert 0 < subject.pttl(register(subject)) <= TTL


@pytest.mark.parametrize(
    ("keep", "replies", "last"),
    [("latest", [None, None, "c", "c"], "c"), ("first", [None, "b", None, "a"], "a")],
)
def test_register_only_moves_on(
    subject: Subject, keep: str, replies: list[str | None], last: str
) -> None:
    """To the call that was published later, or earlier, by one microsecond."""
    calls = [("b", NOW), ("c", NOW + 1), ("a", NOW - 1), ("b", NOW)]

    assert [enter(subject, *call, keep) for call in calls] == replies
    entry = subject.get(register(subject)) or b""
    assert entry.startswith(f"{last}\n".encode())


@BOTH_ORDERS
def test_calls_of_one_instant_are_ordered_by_id(subject: Subject, keep: str) -> None:
    """All nodes put the same one of them first."""
    first, second = ("b", "a") if keep == "latest" else ("a", "b")
    enter(subject, second, NOW, keep)

    assert enter(subject, first, NOW, keep) is None
    assert enter(subject, second, NOW, keep) == first


def test_same_call_is_entered_again(subject: Subject) -> None:
    """A repetition starts the ttl anew."""
    enter(subject, "a", NOW, ttl_ms=SHORT)

    assert enter(subject, "a", NOW) is None
    assert subject.pttl(register(subject)) > SHORT


def test_entry_expires(subject: Subject) -> None:
    """A call that never comes back does not precede others for ever."""
    enter(subject, "b", NOW, ttl_ms=SHORT)

    subject.wait_until(lambda: enter(subject, "a", NOW - 1) is None)


def test_running_call_does_not_precede_a_new_one(subject: Subject) -> None:
    """The holder counts as running, even if the register has it as waiting."""
    enter(subject, "b", NOW)

    assert enter(subject, "a", NOW - 1, holder="b") is None


def test_running_call_precedes_those_entered_before(subject: Subject) -> None:
    """They have been superseded: the holder runs for them as well."""
    enter(subject, "a", NOW - 1)
    enter(subject, "b", NOW)

    assert enter(subject, "a", NOW - 1, entered=True, holder="b") == "b"


@pytest.mark.parametrize("value", ["", "a", "a\nb\nc\nwaits", "a\n1\n0\n"])
def test_register_with_another_text_is_empty(subject: Subject, value: str) -> None:
    """A value that is no entry precedes no call."""
    subject.set(register(subject), value)

    assert enter(subject, "b", NOW) is None


# -- START_SUCCESSOR -----------------------------------------------------------


def test_start_is_for_the_registered_call(subject: Subject) -> None:
    """Another call that got the lock first learns which call comes before it."""
    enter(subject, "a", NOW - 1)
    enter(subject, "b", NOW)

    assert start(subject, "a", NOW - 1) == "b"
    assert start(subject, "b", NOW) is None


@BOTH_ORDERS
def test_started_call_precedes_earlier_entries_only(
    subject: Subject, keep: str
) -> None:
    """A call that was entered before ends; a call that comes later is entered."""
    late, early = (NOW + 1, NOW - 1) if keep == "first" else (NOW - 1, NOW + 1)
    enter(subject, "before", late, keep)
    enter(subject, "runs", NOW, keep)
    assert start(subject, "runs", NOW, keep) is None

    assert enter(subject, "before", late, keep, entered=True) == "runs"
    assert start(subject, "before", late, keep) == "runs"
    assert enter(subject, "after", late, keep) is None
    assert enter(subject, "better", early, keep) is None


def test_start_without_an_entry_is_granted(subject: Subject) -> None:
    """A node that has no register, or has forgotten it, stops no call."""
    assert start(subject, "a", NOW) is None

    assert subject.get(register(subject)) == b"a\n%d\n0.000\nruns" % NOW


def test_start_does_not_replace_a_later_call(subject: Subject) -> None:
    """A call that waits and comes before stays registered."""
    enter(subject, "b", NOW + 1)

    assert start(subject, "a", NOW, entered=False) == "b"
    assert enter(subject, "c", NOW) == "b"


# -- WITHDRAW_SUCCESSOR --------------------------------------------------------


def test_withdraw_is_for_its_own_call(subject: Subject) -> None:
    """The entry of another call stays, and twice is harmless."""
    enter(subject, "b", NOW)

    assert withdraw(subject, "a") == [FREE]
    assert withdraw(subject, "b") == [GRANTED, 0]
    assert withdraw(subject, "b") == [FREE]
    assert subject.pttl(register(subject)) == NO_KEY


def test_withdraw_compares_whole_ids(subject: Subject) -> None:
    """One id may be the start of another one, and may have any characters."""
    enter(subject, "a.b+c%", NOW)

    assert withdraw(subject, "a.b") == [FREE]
    assert withdraw(subject, "a.b+c%") == [GRANTED, 0]
