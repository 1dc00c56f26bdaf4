"""Turn a command into bytes, and bytes into replies (RESP2).

hiredis does both where it is installed. The two small stand-ins below do the same in
Python. Unlike redis-py's parsers they never wait for the socket, so that one thread can
listen to all nodes at once.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.basics.text import MOST_TOLD, printable_line
from celery_redlock.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_LENGTH = re.compile(rb"-1|0|[1-9][0-9]{0,18}")
_NUMBERS = {b":": re.compile(rb"0|-?[1-9][0-9]{0,18}"), b"$": _LENGTH, b"*": _LENGTH}


BUSY = (
    "is busy with a script of a client; wait for its end, or end it with SCRIPT KILL. "
    "Do not restart it: that loses its locks"
)
"""In place of what a busy server says, which advises SHUTDOWN. After its name."""

DOES_NOT_KNOW = "does not know the command "
"""Before the name of a command; after the name of a node."""

# How servers repeat the words of a command that they do not know. Ours hold the token
# of a lock, which must not be logged.
_OUR_WORDS = ", with args beginning with"

# Where in a script an error came: Redis 6.2 says it before the error, others after it.
_PLACE = re.compile(
    r"^ERR Error running script \(call to f_\w+\): (@user_script: ?\d+: )+-?"
    r"| script: [0-9a-f]{40}, on @user_script:\d+\.?$"
)


class ErrorReply(Exception):  # noqa: N818  (Redis calls it an error reply)
    """An error that a node replied: a value. Raised for bytes that are no reply."""

    def __init__(self, text: str) -> None:
        # A server can say anything, and we log it.
        super().__init__(printable_line(text.partition(_OUR_WORDS)[0], MOST_TOLD))


def unknown_command(error: str, script: str = "") -> str:
    """Return the command that the node does not know, as this error says, or ``""``.

    It may be renamed or disabled (``rename-command``), or the server is no Redis.

    Args:
        error: The text of the error.
        script: The source of the script that caused it. An error in a script gives
            the number of the line, and not the command.
    """
    if found := re.search(r"unknown command ['`]([^'`]*)", error):
        return found[1].upper()
    if re.search(r"Unknown (Redis )?command called", error):
        return _called_at(error, script)
    return ""


def _called_at(error: str, script: str) -> str:
    """Return the command in the line of the script that an error names, or ``""``."""
    line = re.search(r"user_script: ?(\d+)", error)
    text = script.splitlines()[int(line[1]) - 1 : int(line[1])] if line else ()
    found = re.search(r"redis\.p?call\('(\w+)'", "".join(text))
    return found[1].upper() if found else ""


def without_place(error: str) -> str:
    """Return an error without the script and the line at which it came, and its dot."""
    return _PLACE.sub("", error).rstrip(".")


def refusal_of(error: str, script: str = "") -> str:
    """Return a clause about a node that answered with this error, of this script."""
    if "busy running a script" in error:
        return BUSY
    if command := unknown_command(error, script):
        return DOES_NOT_KNOW + command
    denies = "can't run this command" in error  # until Redis 7.0, without its name
    if denies and (command := _called_at(error, script)):
        return f"denies our user the command {command}"
    return f"answered {without_place(error)}"


def may_evict(policy: str) -> str:
    """Return a clause about a node that may evict locks by this policy."""
    return f"may evict locks (maxmemory-policy {policy}); set it to noeviction"


class ReplyReader(Protocol):
    """A parser of replies: bytes in, replies out, in order."""

    def feed(self, data: bytes, /) -> None:
        """Take bytes from the socket."""

    def gets(self) -> Any:
        """Return the next whole reply, or False when there is none yet."""


class PythonReader:
    """Reads replies without hiredis."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes, /) -> None:
        """Take bytes from the socket."""
        self._buffer += data

    def gets(self) -> Any:
        """Return the next whole reply, or False when there is none yet."""
        try:
            reply, end = self._read(0)
        except IndexError:
            return False
        except RecursionError:
            raise ErrorReply("nested too deeply") from None
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
        if kind not in _NUMBERS or not _NUMBERS[kind].fullmatch(line):
            raise ErrorReply(f"unknown type or malformed number {kind + line[:20]!r}")
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


def pack(parts: Iterable[Any]) -> bytes:
    """Return the bytes of one command.

    hiredis gets text and bytes only: it calls ``repr`` of a number unchecked, so a
    signal handler that raises there would end the process.

    Raises:
        ConfigurationError: A part is neither text, bytes nor a number, or it is text
            that has no UTF-8. Nothing was sent.
    """
    try:
        return pack_words(tuple([word_of(part) for part in parts]))
    except ValueError as error:
        raise unsendable(error) from None


def word_of(part: Any) -> str | bytes:
    """Return one part of a command as text or bytes.

    Raises:
        ConfigurationError: It is neither text, bytes nor a number.
        ValueError: It is a number of too many digits.
    """
    if type(part) is int or type(part) is float:
        return str(part)
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return str.__str__(part)
    raise ConfigurationError(
        f"A node cannot be sent {part!r:.200}: it is neither text, bytes nor a number. "
        "Nothing was sent."
    )


def unsendable(error: ValueError) -> ConfigurationError:
    """Return the error for a command that could not be packed, for this reason."""
    if not isinstance(error, UnicodeEncodeError):
        return ConfigurationError(
            "A node cannot be sent a number of too many digits. Nothing was sent."
        )
    return ConfigurationError(
        f"The text {error.object!r:.200} cannot be sent to a node: the character "
        f"{error.object[error.start]!r} has no UTF-8. Nothing was sent; use text that "
        "can be encoded."
    )


def python_pack(words: tuple[str | bytes, ...]) -> bytes:
    """Return the bytes of one command, as hiredis does."""
    chunks = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else word.encode()
        chunks.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(chunks)


pack_words: Callable[[Any], bytes] = python_pack
new_reader: Callable[[], ReplyReader] = PythonReader

with suppress(ImportError):
    import hiredis

    pack_words = hiredis.pack_command
    new_reader = partial(
        hiredis.Reader, protocolError=ErrorReply, replyError=ErrorReply
    )
