"""Turn a command into bytes and bytes into replies (RESP2).

hiredis does both where it is installed. The two small stand-ins below do the
same in Python; unlike redis-py's parsers they never wait for the socket, which
is what lets one thread listen to all nodes at once.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["ErrorReply", "PythonReader", "ReplyReader", "new_reader", "pack"]


class ErrorReply(Exception):  # noqa: N818  (Redis calls it an error reply)
    """A node answered with an error: a value. Raised where it speaks no Redis."""


class ReplyReader(Protocol):
    """Bytes in, replies out, in order."""

    def feed(self, data: bytes, /) -> None:
        """Take what came from the socket."""

    def gets(self) -> Any:
        """Return the next whole reply, or False when there is none yet."""


class PythonReader:
    """Reads replies without hiredis."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes, /) -> None:
        """Take what came from the socket."""
        self._buffer += data

    def gets(self) -> Any:
        """Return the next whole reply, or False when there is none yet."""
        try:
            reply, end = self._read(0)
        except IndexError:
            return False
        del self._buffer[:end]
        return reply

    def _read(self, start: int) -> tuple[Any, int]:
        stop = self._buffer.find(b"\r\n", start)
        if stop < 0:
            raise IndexError
        kind = bytes(self._buffer[start : start + 1])
        line = self._buffer[start + 1 : stop]
        stop += 2
        if kind == b"+":
            return bytes(line), stop
        if kind == b"-":
            return ErrorReply(line.decode(errors="replace")), stop
        if kind not in (b":", b"$", b"*"):
            raise ErrorReply(f"unknown type {kind!r}")
        size = int(line)
        if kind == b":":
            return size, stop
        if size < 0:
            return None, stop
        if kind == b"$":
            end = stop + size
            if len(self._buffer) < end + 2:
                raise IndexError
            return bytes(self._buffer[stop:end]), end + 2
        items = []
        for _ in range(size):
            item, stop = self._read(stop)
            items.append(item)
        return items, stop


def _python_pack(*parts: Any) -> bytes:
    chunks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)


try:
    import hiredis
except ImportError:
    pack = _python_pack

    def new_reader() -> ReplyReader:
        """Return a reader for one connection."""
        return PythonReader()

else:

    def pack(*parts: Any) -> bytes:
        """Return the bytes of one command."""
        packed: bytes = hiredis.pack_command(parts)
        return packed

    def new_reader() -> ReplyReader:
        """Return a reader for one connection."""
        reader: ReplyReader = hiredis.Reader(
            protocolError=ErrorReply, replyError=ErrorReply
        )
        return reader
