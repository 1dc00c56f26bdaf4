"""What a node in memory knows of jobs that wait, and of those that succeeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import FREE, GRANTED, TAKEN

if TYPE_CHECKING:
    from celery_redlock.testing.keyspace import Keyspace

__all__ = ["ClaimScripts"]

_JOB = 3  # the line of a value in which it is


class ClaimScripts:
    """The scripts of ``core.scripts.claims``, restated in Python.

    There is a method for each script, of the same name, with its KEYS and ARGV.

    Args:
        redis: The keys of the node.
    """

    def __init__(self, redis: Keyspace) -> None:
        self._redis = redis

    def claim(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Claim a call for a job, unless another job of the call is here already."""
        claim, lock, cooldown = keys
        job, facts, ttl_ms, at_lock, at_cooldown = args
        looked_at = [claim]
        looked_at += [lock] if at_lock == b"1" else []
        looked_at += [cooldown] if at_cooldown == b"1" else []
        for name in looked_at:
            value = self._redis.get(name)
            lines = value.split(b"\n") if value is not None else []
            if len(lines) > _JOB and lines[_JOB] not in (b"", job):
                other = b"\n".join((lines[_JOB], *lines[1:]))
                return [TAKEN, other, self._redis.pttl(name)]
        self._write(claim, job, facts, ttl_ms)
        return [GRANTED, 0]

    def keep_claim(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Let the claim of a job last so long from now. Never makes one."""
        (claim,) = keys
        job, ttl_ms = args
        if not self._is_claimed_by(claim, job):
            return [FREE]
        self._redis.pexpire(claim, int(ttl_ms))
        return [GRANTED, 0]

    def free_claim(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Give the claim of a job back."""
        (claim,), (job,) = keys, args
        if not self._is_claimed_by(claim, job):
            return [FREE]
        self._redis.delete(claim)
        return [GRANTED, 0]

    def cool_down(self, keys: list[bytes], args: list[bytes]) -> Any:
        """Note that a job of the call has succeeded, whoever has before."""
        self._write(keys[0], *args)
        return [GRANTED, 0]

    def _is_claimed_by(self, claim: bytes, job: bytes) -> bool:
        value = self._redis.get(claim)
        return value is not None and value.partition(b"\n")[0] == job

    def _write(self, name: bytes, job: bytes, facts: bytes, ttl_ms: bytes) -> None:
        self._redis.set(name, b"\n".join((job, b"0", facts)), px=int(ttl_ms))
