"""What a node in memory knows of schedules and of who stands by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import (
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.testing.keyspace import Keyspace, NodeClock

__all__ = ["SlotScripts"]

_NO_KEY = -2  # what PTTL says


class SlotScripts:
    """The scripts of ``core.scripts.slots``, restated in Python.

    There is a method for each script, of the same name, with its KEYS and ARGV.

    Args:
        redis: The keys of the node.
        clock: Its ``wall_us`` is the node's TIME.
        run_id: Tells the name of the node's present process.
    """

    def __init__(
        self, redis: Keyspace, clock: NodeClock, run_id: Callable[[], str]
    ) -> None:
        self._redis = redis
        self._clock = clock
        self._run_id = run_id

    def record_slots(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Note up to which instant the slots of entries were seen to."""
        (slots,) = keys
        ttl_ms, *pairs = args
        for name, instant in zip(pairs[::2], pairs[1::2], strict=True):
            known = self._redis.hget(slots, name) or b"0"
            if not instant:
                self._redis.hdel(slots, name)
            elif int(instant) > int(known):
                self._redis.hset(slots, {name: instant})
        self._redis.pexpire(slots, int(ttl_ms))
        return [GRANTED, 0]

    def read_slots(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Read what was noted, unless this node may have forgotten some of it."""
        slots, meta, quarantine = keys
        (config,) = args
        if config:
            about = self._redis.hgetall(meta)
            run_id = self._run_id().encode()
            if about.get(b"config", config) != config:
                return [MISCONFIGURED, about[b"config"]]
            if about.get(b"run_id") != run_id:
                return [UNSYNCED, run_id]
            left = self._redis.pttl(quarantine)
            if left != _NO_KEY:
                return [QUARANTINED, left]
        pairs = self._redis.hgetall(slots).items()
        return [GRANTED, *(item for pair in pairs for item in pair)]

    def mark_slot(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Let this task id stand for a slot, unless another one does."""
        (mark,) = keys
        task_id, ttl_ms = args
        known = self._redis.get(mark)
        if known is not None and known != task_id:
            return [TAKEN, known, self._redis.pttl(mark)]
        self._redis.set(mark, task_id, px=int(ttl_ms))
        return [GRANTED, 0]

    def stand_by(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Be listed among those who stand by; strike out whose time has ended."""
        (standbys,) = keys
        who, ttl_ms = args
        for name, until_ms in list(self._redis.hgetall(standbys).items()):
            if int(until_ms) <= self._now_ms or name == who:
                self._redis.hdel(standbys, name)
        if ttl_ms != b"0":
            until = self._now_ms + int(ttl_ms)
            self._redis.hset(standbys, {who: b"%d" % until})
            longest = max(self._redis.pttl(standbys), int(ttl_ms))
            self._redis.pexpire(standbys, longest)
        return [GRANTED, 0]

    def standbys(self, keys: list[bytes], args: list[bytes]) -> Any:  # noqa: ARG002
        """Tell who stands by."""
        listed = self._redis.hgetall(keys[0]).items()
        return [GRANTED, *(who for who, until in listed if int(until) > self._now_ms)]

    @property
    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000
