"""Keys that another program uses with another type: an error reply, and they stay."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import scripts
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts.keyspace import WrongType
from tests.contract.subjects import CONFIG, TTL, Subject, value


def is_wrong_type(reply: Any) -> bool:
    """Tell whether this is a server's error about a type; versions word it unlike."""
    return isinstance(reply, ErrorReply) and "WRONGTYPE" in str(reply)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("acquire", "lock"),
        ("acquire", "meta"),
        ("extend", "lock"),
        ("extend", "meta"),
        ("restore", "lock"),
        ("restore", "meta"),
        ("raise_fence", "lock"),
        ("release", "lock"),
        ("inspect", "lock"),
        ("request_cancel", "lock"),
        ("join", "meta"),
        ("note", "meta"),
        ("counters", "meta"),
        ("sync", "meta"),
        ("initialize", "meta"),
        ("close", "meta"),
        ("open", "meta"),
        ("abort", "meta"),
        ("reopen", "meta"),
    ],
)
def test_key_of_another_type_is_an_error_reply(
    subject: Subject, call: str, name: str
) -> None:
    """The script ends with that error, and the key stays."""
    guarded = ("acquire", "extend", "restore")
    options = {"config": CONFIG} if name == "meta" and call in guarded else {}
    key = getattr(subject, name)
    if name == "lock":
        subject.hset(key, "field", "theirs")
    else:
        subject.set(key, "theirs")
    before = subject.read(key)

    assert is_wrong_type(getattr(subject, call)(**options))
    assert subject.read(key) == before


def test_memory_words_the_error_as_redis_does() -> None:
    """Other programs look for its first word; users read the rest."""
    assert str(WrongType()) == (
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    )


def test_raise_fence_on_counters_of_another_type_is_an_error(subject: Subject) -> None:
    """The lock is ours and the counters are not."""
    subject.acquire()
    subject.delete(subject.meta)
    subject.set(subject.meta, "theirs")

    assert is_wrong_type(subject.raise_fence())
    assert subject.get(subject.lock) == value(1)


def test_release_works_with_a_wait_queue_of_another_type(subject: Subject) -> None:
    """The lock does not depend on the wait queue."""
    subject.acquire()
    subject.set(subject.wait_queue, "theirs")

    assert subject.release() == 1
    assert subject.get(subject.lock) is None


RECORDS: dict[str, tuple[int, list[Any]]] = {  # number of record KEYS, ARGV
    "CLAIM": (3, [CONFIG, "job-1", "", TTL, 1, 1, ""]),
    "KEEP_CLAIM": (1, [CONFIG, "job-1", TTL]),
    "RELEASE_CLAIM": (1, ["job-1"]),
    "ENTER_SUCCESSOR": (2, ["a", 1, "latest", "0", TTL, "", ""]),
    "START_SUCCESSOR": (2, ["a", 1, "latest", "0", TTL, ""]),
    "WITHDRAW_SUCCESSOR": (2, ["a"]),
    "NOTE_PUBLISHED": (3, ["a", "0", TTL, "b"]),
    "MARK_SLOT": (1, ["task-1", TTL]),
    "JOIN_BACKLOG": (3, ["a", 1, 30_000_000, ""]),
    "NUMBER_IN_BACKLOG": (3, ["a", 1, 30_000_000, ""]),
    "FIRST_IN_BACKLOG": (2, ["a"]),
    "LEAVE_BACKLOG": (2, ["a", 5]),
    "READ_BACKLOG": (2, []),
    "NOTE_RUN": (2, [5, 20, TTL]),
    "RECORD_SLOTS": (1, [TTL, "a", 5]),
    "READ_SLOTS": (1, [CONFIG]),
    "RECORD_STANDBY": (1, ["a", TTL]),
    "LIST_STANDBYS": (1, []),
}
IN_A_VIEW = ("CLAIM", "KEEP_CLAIM", "READ_SLOTS")  # one more key: meta
HASHES = ("RECORD_SLOTS", "READ_SLOTS", "RECORD_STANDBY", "LIST_STANDBYS")
EACH_KEY = [
    (name, index)
    for name, (count, _) in RECORDS.items()
    for index in range(1 if name in HASHES else count)
]


@pytest.mark.parametrize(("name", "index"), EACH_KEY)
def test_record_of_another_type_is_an_error_reply(
    subject: Subject, name: str, index: int
) -> None:
    """The same holds for the records of jobs and schedulers, at each of their keys."""
    count, args = RECORDS[name]
    keys = [subject.key(f"record:{number}") for number in range(count)]
    if name in IN_A_VIEW:
        subject.admit()
        keys.append(subject.meta)
    if name in HASHES:
        subject.set(keys[index], "theirs")
    else:
        subject.hset(keys[index], "field", "theirs")
    before = subject.read(keys[index])

    assert is_wrong_type(subject.run(getattr(scripts, name), keys, args))
    assert subject.read(keys[index]) == before
