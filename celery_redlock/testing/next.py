"""What a node in memory knows of who runs next, and of who is to end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import FREE, GRANTED, TAKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.testing.keyspace import Keyspace

__all__ = ["NextScripts", "cancelled_by"]

_ENTRY = re.compile(rb"([^\n]*)\n(\d+)\n[^\n]*\n([a-z]+)\Z")
_CANCELLED = re.compile(rb"\ncancelled ([^\n]*)\Z")


def cancelled_by(value: bytes) -> list[bytes]:
    """Return what EXTEND tells the holder besides: who wants it to end, if anybody."""
    found = _CANCELLED.search(value)
    return [found[1]] if found else []


class NextScripts:
    """The scripts of ``core.scripts.next``, restated in Python.

    There is a method for each script, of the same name, with its KEYS and ARGV.

    Args:
        redis: The keys of the node.
    """

    def __init__(self, redis: Keyspace) -> None:
        self._redis = redis

    def offer_next(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Be the next to run, unless one that stands before us is."""
        *us, holder = args
        found = self._entry(keys[0])
        if found and _stands_before(found, us, holder):
            return self._taken(keys[0])
        return self._enter(keys[0], us, b"waits")

    def take_next(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Run, unless one that stands before us is the next, or has run already."""
        found = self._entry(keys[0])
        if found and _stands_before(found, args):
            return self._taken(keys[0])
        return self._enter(keys[0], args, b"runs")

    def leave_next(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Neither wait nor run."""
        value = self._redis.get(keys[0])
        if value is None or value.partition(b"\n")[0] != args[0]:
            return [FREE]
        self._redis.delete(keys[0])
        return [GRANTED, 0]

    def cancel(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Ask the holder of the lock to end, if it is still this one."""
        (lock,) = keys
        token, who = args
        value = self._redis.get(lock)
        if value is None:
            return [FREE]
        if not value.startswith(token):
            return self._taken(lock)
        value = _CANCELLED.sub(b"", value)
        self._redis.replace(lock, value + b"\ncancelled " + who)
        return [GRANTED, 0]

    def _taken(self, key: bytes) -> list[Any]:
        return [TAKEN, self._redis.get(key), self._redis.pttl(key)]

    def _entry(self, key: bytes) -> Sequence[bytes]:
        found = _ENTRY.match(self._redis.get(key) or b"")
        return found.groups() if found else ()

    def _enter(self, key: bytes, us: Sequence[bytes], state: bytes) -> list[Any]:
        task_id, published, _order, expires, ttl_ms, _entered = us
        value = b"\n".join((task_id, published, expires, state))
        self._redis.set(key, value, px=int(ttl_ms))
        return [GRANTED, 0]


def _stands_before(
    entry: Sequence[bytes], us: Sequence[bytes], holder: bytes | None = None
) -> bool:
    task_id, published, order, _expires, _ttl_ms, entered = us
    other, its, state = entry
    runs = state == b"runs" or other == holder
    if other == task_id or (runs and entered != b"1"):
        return False
    is_greater = (float(its), other) > (float(published), task_id)
    return is_greater == (order == b"latest")
