"""A node on a real socket that is as slow or as wrong as a test asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import ALL_SCRIPTS
from celery_redlock.core.transport.resp import ErrorReply
from celery_redlock.testing import MemoryNode
from tests.harness.tcp import ScriptedServer
from tests.unit.core.sockets import encoded

if TYPE_CHECKING:
    import socket

__all__ = ["SOON", "TinyServer", "stored"]

BY_SHA = {script.sha.encode(): script for script in ALL_SCRIPTS}
BY_SOURCE = {script.source.encode(): script for script in ALL_SCRIPTS}
SOON = 10.0  # seconds


class TinyServer(ScriptedServer):
    """A server around a `MemoryNode`.

    Attributes:
        node: The memory of the server.
    """

    def __init__(self) -> None:
        self.node = MemoryNode()
        super().__init__(self._reply)

    def _reply(self, command: list[bytes], _: socket.socket) -> bytes:
        return encoded(self._execute(command))

    def _execute(self, words: list[bytes]) -> Any:
        name = words[0].upper()
        if name == b"INFO":
            return (
                f"redis_mode:standalone\r\nrole:master\r\nrun_id:{self.node.run_id}\r\n"
            ).encode()
        if name == b"SCRIPT":
            return b"sha"
        if name in (b"EVAL", b"EVALSHA"):
            script = BY_SHA.get(words[1]) or BY_SOURCE.get(words[1])
            assert script is not None
            keys = 3 + int(words[2])
            return self.node.execute(script, words[3:keys], words[keys:])
        if name in (b"CLIENT", b"SELECT"):
            return ("OK",)
        return ErrorReply(f"ERR {name!r}")


def stored(servers: list[TinyServer], key: str = "k") -> list[bool]:
    """Return for each server whether it has a lock."""
    name = f"redlock:lock:{key}".encode()
    return [server.node.redis.get(name) is not None for server in servers]
