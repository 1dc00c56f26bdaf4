"""Keys that somebody else uses for something else: an answer, and they stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.wire import ErrorReply
from tests.contract.subjects import CONFIG, STRIPE, Subject, value

if TYPE_CHECKING:
    from typing import Any


def is_wrong_type(reply: Any) -> bool:
    """Tell whether a server complains of the type; the versions word it unlike."""
    return isinstance(reply, ErrorReply) and "WRONGTYPE" in str(reply)


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


def test_release_works_whatever_is_in_the_place_of_the_line(subject: Subject) -> None:
    """No lock hangs on a line."""
    subject.acquire()
    subject.set(subject.line, "theirs")

    assert subject.release() == 1
    assert subject.get(subject.lock) is None
