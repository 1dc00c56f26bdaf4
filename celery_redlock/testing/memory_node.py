"""One node in memory: keys, a run id, and the scripts over them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import ALL_SCRIPTS, operations
from celery_redlock.core.scripts.operations import WrongType
from celery_redlock.core.transport.resp import ErrorReply
from celery_redlock.testing.keyspace import MemoryKeyspace, no_subscribers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.scripts import Script
    from celery_redlock.testing.keyspace import NodeClock

__all__ = ["MemoryNode"]


def _new_run_id() -> str:
    return secrets.token_hex(20)


def _words(values: Sequence[Any]) -> list[bytes]:
    return [v if isinstance(v, bytes) else str(v).encode() for v in values]


class MemoryNode:
    """A Redis master in memory, as far as the scripts can tell. Not thread-safe.

    It runs ``core.scripts.operations`` and replies as a real server does over RESP2.

    Args:
        clock: Its ``monotonic`` counts ttls, its ``wall`` is the node's TIME.
        new_run_id: Returns the name of a new server process.
        publish: Sends a message to the subscribers of a channel and returns how many
            there are; by default there is none.

    Attributes:
        redis: Its keys, for tests to read and to change. They are as they were at
            the last script: see ``MemoryKeyspace.look_at_clock``.
    """

    def __init__(
        self,
        clock: NodeClock = SYSTEM_CLOCK,
        *,
        new_run_id: Callable[[], str] = _new_run_id,
        publish: Callable[[bytes, bytes], int] = no_subscribers,
    ) -> None:
        self._new_run_id = new_run_id
        self.redis = MemoryKeyspace(clock, run_id=new_run_id(), publish=publish)
        self._operations = {
            script.name: getattr(operations, script.name) for script in ALL_SCRIPTS
        }

    @property
    def run_id(self) -> str:
        """The name of the present server process; a restart changes it."""
        return self.redis.run_id.decode()

    def execute(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run one script and return the raw reply: ints, bytes, lists.

        An error of the server is returned as an ``ErrorReply`` and not raised. The
        changes that the script made before the error remain.

        Args:
            script: One of ``core.scripts``.
            keys: Its KEYS, as text, numbers or bytes.
            args: Its ARGV, the same.

        Raises:
            KeyError: The script is not one of ``core.scripts``.
        """
        operation = self._operations[script.name]
        self.redis.look_at_clock()
        try:
            return operation(self.redis, _words(keys), _words(args))
        except WrongType as error:
            return ErrorReply(str(error))

    def restart(self, *, keep_memory: bool = False) -> None:
        """Become a new process: another run id and, by default, no keys."""
        self.redis.run_id = self._new_run_id().encode()
        if not keep_memory:
            self.redis.clear()

    def flush(self) -> None:
        """Delete all keys and stay the same process (FLUSHALL)."""
        self.redis.clear()
