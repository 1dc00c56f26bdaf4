"""Changes that another client makes to what a connection remembers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.scripts import FREE, GRANTED, MISCONFIGURED, TAKEN, UNSYNCED
from tests.stores.commands import extend, release, script

if TYPE_CHECKING:
    from celery_redlock.stores.connection import Store

FAR = 9 * 10**15  # a fence above all times until 2255

# A field of the state of a node: the change, and the reply to the grant after it.
WITHOUT_VOTE = [UNSYNCED, b"me"]
CHANGED: dict[str, tuple[list[bytes], list[Any]]] = {
    "config": ([b"HSET", b"?", b"config", b"another"], [MISCONFIGURED, b"another"]),
    "replid": ([b"HSET", b"?", b"replid", b"another"], [UNSYNCED, b""]),
    "votes": ([b"HDEL", b"?", b"votes"], WITHOUT_VOTE),
    "identity": ([b"HDEL", b"?", b"identity"], [UNSYNCED, b""]),
    "floor": ([b"HSET", b"?", b"floor", b"%d" % (FAR - 1)], [GRANTED, FAR]),
    "all": ([b"DEL", b"?"], [UNSYNCED, b""]),
}

# A change since a holder took its lock, and the replies to its renewal and release.
THEIRS = [TAKEN, b"theirs\n1\nx", 60000]
MEANWHILE: dict[str, tuple[list[bytes], list[Any], int]] = {
    "closed": (
        [b"HSET", b"meta", b"config", b"another"],
        [MISCONFIGURED, b"another"],
        1,
    ),
    "quarantined": ([b"HDEL", b"meta", b"votes"], WITHOUT_VOTE, 1),
    "reset": ([b"DEL", b"meta"], [UNSYNCED, b""], 1),
    "released": ([b"DEL", b"lock"], [FREE], 0),
    "ended": ([b"SET", b"lock", b"ours\n8\nme", b"PX", b"1"], [FREE], 0),
    "taken": ([b"SET", b"lock", b"theirs\n1\nx", b"PX", b"60000"], THEIRS, 0),
    "cancelled": (
        script("request_cancel", [b"lock"], b"ours", b"x"),
        [GRANTED, 0, b"x"],
        1,
    ),
    "waited": ([b"ZADD", b"queue", b"1", b"gone/1"], [GRANTED, 0], 1),
}


def change_meanwhile(others: Store, change: str, lock: bytes) -> None:
    """Have another client make one of the changes of ``MEANWHILE``."""
    command, _, _ = MEANWHILE[change]
    others.run([[_names(lock).get(word, word) for word in command]])


def assert_noticed(
    holder: Store, others: Store, change: str, lock: bytes, ours: str
) -> None:
    """Assert that a holder that renews or releases meets the change.

    Args:
        holder: The connection that has the lock, with the token ``ours``.
        others: The connection that has made the change.
        change: Which one of ``MEANWHILE``.
        lock: The lock.
        ours: What the holder does: ``extend`` or ``release``.
    """
    names = _names(lock)
    _, extended, released = MEANWHILE[change]
    one, reply = {
        "extend": (extend(lock, names[b"meta"], b"ours"), extended),
        "release": (release(lock, b"ours"), released),
    }[ours]
    assert holder.run([one]) == [reply]
    left = others.run([[b"GET", lock], [b"ZCARD", names[b"queue"]]])
    if change == "taken":
        assert left[0] == b"theirs\n1\nx"
    elif ours == "release":
        assert left == [None, 0]


def _names(lock: bytes) -> dict[bytes, bytes]:
    return {b"lock": lock, b"meta": lock + b":meta", b"queue": lock + b":queue"}
