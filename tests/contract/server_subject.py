"""A real server, behind the methods of a `Subject`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from celery_redlock.core.address import parse_node
from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.wire import new_reader, pack
from tests.contract.subjects import SOON, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from celery_redlock.core.scripts import Script
    from celery_redlock.devnodes import DevNode


class ServerSubject(Subject):
    """A real server, over a plain RESP2 connection."""

    def __init__(self, node: DevNode) -> None:
        super().__init__()
        self.node = node
        self.node.start()
        self._connect()

    def anew(self) -> Self:
        """Return itself with keys that were never used."""
        self.prefix = secrets.token_hex(8)
        return self

    def stop(self) -> None:
        """End the server."""
        self._connection.disconnect()
        self.node.stop()

    def _connect(self) -> None:
        self._connection = parse_node(self.node.url).connection(SOON)
        self._connection.connect()
        self._reader = new_reader()
        info: bytes = self.command("INFO", "server")
        self._run_id = info.partition(b"run_id:")[2].split()[0]

    def command(self, *words: Any) -> Any:
        """Send one command and return the raw reply, errors too."""
        sock: Any = self._connection._sock  # noqa: SLF001  (the bytes are the point)
        sock.sendall(pack(*words))
        while (reply := self._reader.gets()) is False:
            data = sock.recv(65536)
            assert data, "the server has closed the connection"
            self._reader.feed(data)
        return reply

    @property
    def run_id(self) -> bytes:
        """The name that the server process gives itself."""
        return self._run_id

    @property
    def now_us(self) -> int:
        """The node's TIME."""
        seconds, microseconds = self.command("TIME")
        return int(seconds) * 1_000_000 + int(microseconds)

    def run(self, script: Script, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        """Run a script and return the raw reply."""
        return self.command("EVAL", script.source, len(keys), *keys, *args)

    def restart(self, *, keep_memory: bool) -> None:
        """Become another process."""
        self._connection.disconnect()
        self.node.restart(keep_memory=keep_memory)
        self._connect()

    def flush(self) -> None:
        """Forget everything."""
        self.command("FLUSHALL")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until this is so."""
        deadline = SYSTEM_CLOCK.monotonic() + SOON
        while not condition():
            assert SYSTEM_CLOCK.monotonic() < deadline
            SYSTEM_CLOCK.sleep(0.001)

    def get(self, key: str) -> bytes | None:
        """Read a string."""
        value: bytes | None = self.command("GET", key)
        return value

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        """Read a hash."""
        pairs = self.command("HGETALL", key)
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def read(self, key: str) -> bytes | dict[bytes, bytes] | None:
        """Read a key of any type."""
        is_hash = self.command("TYPE", key) == b"hash"
        return self.hgetall(key) if is_hash else self.get(key)

    def in_line(self) -> list[bytes]:
        """Read who waits, in their order."""
        waiters: list[bytes] = self.command("ZRANGE", self.line, 0, -1)
        return waiters

    def pttl(self, key: str) -> int:
        """Read a ttl: -1 for ever, -2 for no key."""
        left: int = self.command("PTTL", key)
        return left

    def set(self, key: str, value: str | bytes, px: int | None = None) -> None:
        """Write a string."""
        self.command("SET", key, value, *(("PX", px) if px else ()))

    def hset(self, key: str, field: str, value: Any) -> None:
        """Write a field of a hash."""
        self.command("HSET", key, field, value)

    def delete(self, key: str) -> None:
        """Forget a key."""
        self.command("DEL", key)
