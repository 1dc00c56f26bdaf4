"""A node in memory: the scripts' semantics restated in Python.

It is what the simulations and the fakes run on. It answers each script as a real
server does over RESP2, and is held to that by ``tests/contract``, which runs the
same calls on both.

Lua counts in doubles, so this does too: above 2**53 it rounds as a server rounds.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import (
    FREE,
    GRANTED,
    MISCONFIGURED,
    QUARANTINED,
    TAKEN,
    UNSYNCED,
)
from celery_redlock.core.wire import ErrorReply
from celery_redlock.testing.claims import ClaimScripts
from celery_redlock.testing.keyspace import Keyspace, WrongType
from celery_redlock.testing.line import LineScripts, nobody_hears
from celery_redlock.testing.next import NextScripts, cancelled_by
from celery_redlock.testing.slots import SlotScripts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redlock.core.scripts import Script
    from celery_redlock.testing.keyspace import NodeClock

__all__ = ["MemoryNode"]

_NUMBER = re.compile(rb"\n(\d+)")
_NO_KEY = -2  # what PTTL says


def _new_run_id() -> str:
    return secrets.token_hex(20)


def _words(values: Sequence[Any]) -> list[bytes]:
    return [v if isinstance(v, bytes) else str(v).encode() for v in values]


def _number(text: bytes | None) -> float:
    """Return Lua's ``tonumber(text) or 0``."""
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def _digits(number: float) -> bytes:
    return b"%.0f" % number


def _owned(value: bytes | None, token: bytes) -> bool:
    return value is not None and value.startswith(token)


class MemoryNode:
    """One master, as far as the scripts can tell. Not thread-safe.

    There is a method for each script, of the same name, with its KEYS and ARGV;
    those about slots and claims are in ``testing.slots`` and ``testing.claims``.

    Args:
        clock: Its ``monotonic`` counts ttls, its ``wall_us`` is the node's TIME.
        new_run_id: Makes the name that the server process gives itself.
        publish: Tells who listens to a channel, and how many do: nobody by default.

    Attributes:
        run_id: The name of the present process; another one after a restart.
        redis: Its keys, to be looked at and meddled with. They are as they were
            at the last script: see ``Keyspace.look_at_clock``.
    """

    def __init__(
        self,
        clock: NodeClock = SYSTEM_CLOCK,
        *,
        new_run_id: Callable[[], str] = _new_run_id,
        publish: Callable[[bytes, bytes], int] = nobody_hears,
    ) -> None:
        self._clock = clock
        self._new_run_id = new_run_id
        self.run_id = new_run_id()
        self.redis = Keyspace(clock)
        self._line = LineScripts(self.redis, publish)
        parts = (
            self,
            self._line,
            ClaimScripts(self.redis),
            NextScripts(self.redis),
            SlotScripts(self.redis, clock, lambda: self.run_id),
        )
        self._methods: dict[str, Callable[[list[bytes], list[bytes]], Any]] = {
            script.name: getattr(part, script.name)
            for part in parts
            for script in scripts.ALL_SCRIPTS
            if hasattr(part, script.name)
        }

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run one script and return the raw reply: ints, bytes, lists.

        An error of the server is returned as an ``ErrorReply`` and not raised;
        what the script wrote before it stays written.

        Raises:
            KeyError: The script is not one of ``core.scripts``.
        """
        return self.run(script, _words(keys), _words(args))

    def run(self, script: Script, keys: list[bytes], args: list[bytes]) -> Any:
        """Run one script as ``execute`` does, with words as they come by wire."""
        method = self._methods[script.name]
        self.redis.look_at_clock()
        try:
            return method(keys, args)
        except WrongType as error:
            return ErrorReply(str(error))

    def restart(self, *, keep_memory: bool = False) -> None:
        """Be a new process: with another run id and, by default, no memory."""
        self.run_id = self._new_run_id()
        if not keep_memory:
            self.redis.clear()

    def flush(self) -> None:
        """Forget everything and stay the same process (FLUSHALL)."""
        self.redis.clear()

    # -- the scripts -----------------------------------------------------------

    def acquire(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Take the lock, if this node may vote and nobody else has it."""
        lock, fence, meta, quarantine = keys
        token, facts, ttl_ms, stripe, hint_us, far_us, config, quarantine_ms = args
        if config:
            about = self.redis.hgetall(meta)
            if about.get(b"config", config) != config:
                return [MISCONFIGURED, about[b"config"]]
            if about.get(b"run_id") != self._run_id:
                names = {b"config": config, b"run_id": self._run_id, b"life": token}
                self.redis.hset(meta, names)
                self.redis.set(quarantine, b"", px=int(quarantine_ms))
                return [QUARANTINED, int(quarantine_ms)]
            refusal = self._not_voting(quarantine, about)
            if refusal:
                return refusal
        value = self.redis.get(lock)
        if value is not None and _owned(value, token):
            self.redis.pexpire(lock, int(ttl_ms))
            found = _NUMBER.search(value)
            return [GRANTED, int(_number(found[1]))] if found else [GRANTED]
        if value is not None:
            return [TAKEN, value, self.redis.pttl(lock)]
        counter = self.redis.hget(fence, stripe)
        number = max(_number(counter), _number(self.redis.hget(fence, b"floor"))) + 1
        if abs(_number(hint_us) - self._clock.wall_us()) <= _number(far_us):
            number = max(number, _number(hint_us))
        self.redis.hset(fence, {stripe: _digits(number)})
        value = b"\n".join((token, _digits(number), facts))
        self.redis.set(lock, value, px=int(ttl_ms))
        return [GRANTED, int(number)]

    def extend(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Keep the lock, if it is still ours. Never creates it."""
        lock, _fence, meta = keys
        config, token, ttl_ms = args
        refusal = self._other_config(meta, config)
        if refusal:
            return refusal
        value = self.redis.get(lock)
        if _owned(value, token):
            self.redis.pexpire(lock, int(ttl_ms))
            return [GRANTED, 0, *cancelled_by(value or b"")]
        return self._taken_or_free(lock)

    def restore(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Give the lock to a node that is without it, unless somebody else has it."""
        lock, fence, meta = keys
        config, token, facts, ttl_ms, stripe, number = args
        refusal = self._other_config(meta, config)
        if refusal:
            return refusal
        value = self.redis.get(lock)
        if value is not None and not _owned(value, token):
            return self._taken_or_free(lock)
        if _number(self.redis.hget(fence, stripe)) < _number(number):
            self.redis.hset(fence, {stripe: number})
        self.redis.set(lock, b"\n".join((token, number, facts)), px=int(ttl_ms))
        return [GRANTED, 0]

    def raise_fence(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Lift the counter to the fence of a grant, but only while it is ours."""
        lock, fence = keys
        token, facts, stripe, number = args
        if not _owned(self.redis.get(lock), token):
            return [FREE]
        if _number(self.redis.hget(fence, stripe)) < _number(number):
            self.redis.hset(fence, {stripe: number})
            self.redis.replace(lock, b"\n".join((token, number, facts)))
        return [GRANTED, int(_number(number))]

    def release(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Let go of the lock, if it is ours."""
        (lock, line), (token, keep_ms) = keys, args
        if not _owned(self.redis.get(lock), token):
            return 0
        self.redis.pexpire(lock, int(keep_ms))  # 0 is now
        self._line.wake_first(line, keep_ms)
        return 1

    def inspect(self, keys: list[bytes], args: list[bytes]) -> Any:  # noqa: ARG002
        """Tell who holds the lock."""
        return self._taken_or_free(keys[0])

    def counters(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Read all fence counters of a node that may vote."""
        fence, meta, quarantine = keys
        (config,) = args
        about = self.redis.hgetall(meta)
        if about.get(b"config", config) != config:
            return [MISCONFIGURED, about[b"config"]]
        if about.get(b"run_id") != self._run_id:
            return [UNSYNCED, self._run_id]
        refusal = self._not_voting(quarantine, about)
        if refusal:
            return refusal
        pairs = self.redis.hgetall(fence).items()
        return [GRANTED, *(item for pair in pairs for item in pair)]

    def sync(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Take over counters read from others, and vote again from now on."""
        fence, meta, quarantine = keys
        named, set_floor, *pairs = args
        life = self.redis.hget(meta, b"life") or self._run_id
        if self.redis.hget(meta, b"run_id") != self._run_id or life != named:
            return [UNSYNCED, life]
        left = self.redis.pttl(quarantine)
        if left != _NO_KEY:
            return [QUARANTINED, left]
        for field, number in zip(pairs[::2], pairs[1::2], strict=True):
            self._lift(fence, field, _number(number))
        if set_floor == b"1":
            self._lift(fence, b"floor", self._clock.wall_us())
        self.redis.hset(meta, {b"synced": life})
        return [GRANTED, 0]

    def initialize(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Let a node of a new deployment vote at once."""
        fence, meta, quarantine = keys
        (config,) = args
        self._lift(fence, b"floor", self._clock.wall_us())
        self._admit(meta, quarantine, config)
        return [GRANTED, 0]

    def close(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Take the node out of its configuration: it grants and renews no more."""
        _fence, meta, quarantine = keys
        old, closed, new, quarantine_ms = args
        config = self.redis.hget(meta, b"config")
        if config == new:
            return [GRANTED, 0]
        if config not in (None, old, closed):
            return [MISCONFIGURED, config]
        left = self.redis.pttl(quarantine)
        if config != closed:
            self.redis.hset(meta, {b"config": closed})
            left = max(left, int(quarantine_ms))
            self.redis.set(quarantine, b"", px=left)
        return [FREE] if left == _NO_KEY else [QUARANTINED, left]

    def open(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Let the node vote at once under a new configuration."""
        fence, meta, quarantine = keys
        old, closed, new, *pairs = args
        config = self.redis.hget(meta, b"config")
        if config not in (None, old, closed, new):
            return [MISCONFIGURED, config]
        for field, number in zip(pairs[::2], pairs[1::2], strict=True):
            self._lift(fence, field, _number(number))
        self._admit(meta, quarantine, new)
        return [GRANTED, 0]

    # -- what they share -------------------------------------------------------

    @property
    def _run_id(self) -> bytes:
        return self.run_id.encode()

    def _not_voting(self, quarantine: bytes, about: Mapping[bytes, bytes]) -> list[Any]:
        left = self.redis.pttl(quarantine)
        if left != _NO_KEY:
            return [QUARANTINED, left]
        life = about.get(b"life", self._run_id)
        return [] if about.get(b"synced") == life else [UNSYNCED, life]

    def _other_config(self, meta: bytes, config: bytes) -> list[Any]:
        found = self.redis.hget(meta, b"config")
        if config and found is not None and found != config:
            return [MISCONFIGURED, found]
        return []

    def _taken_or_free(self, lock: bytes) -> list[Any]:
        value = self.redis.get(lock)
        return [FREE] if value is None else [TAKEN, value, self.redis.pttl(lock)]

    def _admit(self, meta: bytes, quarantine: bytes, config: bytes) -> None:
        names = dict.fromkeys((b"run_id", b"life", b"synced"), self._run_id)
        self.redis.hset(meta, {b"config": config, **names})
        self.redis.delete(quarantine)

    def _lift(self, fence: bytes, field: bytes, number: float) -> None:
        if _number(self.redis.hget(fence, field)) < number:
            self.redis.hset(fence, {field: _digits(number)})
