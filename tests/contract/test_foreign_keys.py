"""Keys that another program uses with another type: an error reply, and they stay."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.core import scripts
from celery_redlock.core.transport.resp import ErrorReply
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
        ("counters", "meta"),
        ("sync", "meta"),
        ("initialize", "meta"),
        ("close", "meta"),
        ("open", "meta"),
    ],
)
def test_key_of_another_type_is_an_error_reply(
    subject: Subject, call: str, name: str
) -> None:
    """The script ends with that error, and the key stays."""
    guarded = ("acquire", "extend", "restore")
    options = {"config": CONFIG} if name == "meta" and call in guarded else {}
    args = [subject.run_id] if call == "sync" else []
    key = getattr(subject, name)
    if name == "lock":
        subject.hset(key, "field", "theirs")
    else:
        subject.set(key, "theirs")
    before = subject.read(key)

    assert is_wrong_type(getattr(subject, call)(*args, **options))
    assert subject.read(key) == before


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


RECORDS: dict[str, tuple[int, list[Any]]] = {  # number of KEYS, ARGV
    "CLAIM": (3, ["job-1", "", TTL, 1, 1]),
    "KEEP_CLAIM": (1, ["job-1", TTL]),
    "RELEASE_CLAIM": (1, ["job-1"]),
    "ENTER_SUCCESSOR": (1, ["a", 1, "latest", "0", TTL, "", ""]),
    "START_SUCCESSOR": (1, ["a", 1, "latest", "0", TTL, ""]),
    "WITHDRAW_SUCCESSOR": (1, ["a"]),
    "MARK_SLOT": (1, ["task-1", TTL]),
    "RECORD_SLOTS": (1, [TTL, "a", 5]),
    "READ_SLOTS": (2, [CONFIG]),
    "RECORD_STANDBY": (1, ["a", TTL]),
    "LIST_STANDBYS": (1, []),
}
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
    if name == "READ_SLOTS":
        subject.admit()
        keys[1] = subject.meta
    if name in HASHES:
        subject.set(keys[index], "theirs")
    else:
        subject.hset(keys[index], "field", "theirs")
    before = subject.read(keys[index])

    assert is_wrong_type(subject.run(getattr(scripts, name), keys, args))
    assert subject.read(keys[index]) == before
