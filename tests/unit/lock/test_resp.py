"""Commands to bytes and bytes to replies, with and without hiredis."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_redlock.basics.resp import (
    ErrorReply,
    PythonReader,
    ReplyReader,
    new_reader,
    pack,
    python_pack,
    refusal_of,
    unknown_command,
)
from celery_redlock.errors import ConfigurationError
from tests.nodes.support import run_python
from tests.unit.lock.sockets import encoded

lines = st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"), max_size=20)
replies = st.recursive(
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=40)
    | st.builds(ErrorReply, lines)
    | st.tuples(lines),  # a status
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


def plain(reply: Any) -> Any:
    """Return a reply in a form that can be compared."""
    if isinstance(reply, ErrorReply):
        return ("error", str(reply))
    if isinstance(reply, tuple):
        return reply[0].encode()
    return [plain(item) for item in reply] if isinstance(reply, list) else reply


def read_all(reader: ReplyReader) -> list[Any]:
    """Return the complete replies."""
    found = []
    while (reply := reader.gets()) is not False:
        found.append(plain(reply))
    return found


def hiredis_reader() -> ReplyReader:
    """Return the reader that is used where hiredis is installed."""
    reader: ReplyReader = hiredis.Reader(
        protocolError=ErrorReply, replyError=ErrorReply
    )
    return reader


# -- replies -------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(replies, min_size=1, max_size=4))
def test_python_reader_reads_what_hiredis_reads(sent: list[Any]) -> None:
    """For any replies, split anywhere."""
    data = b"".join(map(encoded, sent))
    whole = hiredis_reader()
    whole.feed(data)
    expected = read_all(whole)

    assert expected == [plain(reply) for reply in sent]
    for cut in range(len(data) + 1):
        reader, peer = PythonReader(), hiredis_reader()
        found, found_by_peer = [], []
        for piece in (data[:cut], data[cut:]):
            if piece:
                reader.feed(piece)
                peer.feed(piece)
            found.append(read_all(reader))
            found_by_peer.append(read_all(peer))
        assert found == found_by_peer
        assert found[0] + found[1] == expected


@settings(max_examples=40)
@given(st.lists(replies, min_size=1, max_size=3))
def test_python_reader_reads_byte_by_byte(sent: list[Any]) -> None:
    """A reply is complete with its last byte, and not before."""
    reader = PythonReader()
    found = []
    for reply in sent:
        data = encoded(reply)
        for index in range(len(data)):
            assert reader.gets() is False
            reader.feed(data[index : index + 1])
        found.append(plain(reader.gets()))

    assert found == [plain(reply) for reply in sent]
    assert reader.gets() is False


@pytest.mark.parametrize("data", [b"*-1\r\n", b"*0\r\n", b"$0\r\n\r\n", b":0\r\n"])
def test_readers_agree_on_empty_replies(data: bytes) -> None:
    """Null arrays, empty arrays, empty strings and zeros."""
    found = []
    for reader in (PythonReader(), hiredis_reader()):
        reader.feed(data)
        found.append(reader.gets())

    assert found[0] == found[1]
    assert type(found[0]) is type(found[1])


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"%1\r\n", b"\r\n", b"=3\r\n"]
)
def test_reader_refuses_bytes_that_are_not_redis(data: bytes) -> None:
    """The bytes of a web server are an error and never a reply."""
    reader = PythonReader()
    reader.feed(data)

    with pytest.raises(ErrorReply, match="unknown type"):
        reader.gets()


MALFORMED = (
    *(b"$x\r\n", b"*x\r\n", b":x\r\n", b"$\r\n", b":\r\n", b":-\r\n", b"$-2\r\n"),
    *(b"*-2\r\n", b"$1_0\r\n", b": 1\r\n", b":+1\r\n", b":-0\r\n", b":00012\r\n"),
    *(b"$99999999999999999999\r\n", b"*1\r\n$x\r\n"),
)


@pytest.mark.parametrize("data", MALFORMED)
def test_reader_refuses_malformed_numbers(data: bytes) -> None:
    """A length or a number that no server of Redis sends is an error of ours."""
    for reader in (PythonReader(), hiredis_reader()):
        reader.feed(data)

        with pytest.raises(ErrorReply):
            reader.gets()


def test_reader_refuses_endless_nesting() -> None:
    """A server cannot exhaust the stack."""
    reader = PythonReader()
    reader.feed(b"*1\r\n" * 100_000)

    with pytest.raises(ErrorReply, match="nested"):
        reader.gets()


# -- commands ------------------------------------------------------------------------

words = st.lists(
    st.text(max_size=20) | st.binary(max_size=20) | st.integers(), min_size=1
)


@given(words)
def test_packing_needs_no_hiredis(parts: list[Any]) -> None:
    """Both ways give the same bytes: text as UTF-8, numbers in digits."""
    expected = [p if isinstance(p, bytes) else str(p).encode() for p in parts]

    packed = pack(parts)

    assert python_pack(tuple(expected)) == packed
    assert python_pack(tuple(p if isinstance(p, bytes) else str(p) for p in parts)) == (
        packed
    )
    reader = PythonReader()
    reader.feed(packed)
    assert reader.gets() == expected


class Colour(str, enum.Enum):
    """A text of a class of its own."""

    RED = "red"


def test_text_of_another_class_is_packed_as_it_is() -> None:
    """The characters count, and not what its class makes of them."""
    assert pack(["GET", Colour.RED]) == python_pack(("GET", "red"))


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("file-\udcff.txt", r"the character '\\udcff' has no UTF-8"),
        ("\ud800" * 1000, r"the character '\\ud800' has no UTF-8"),
        (True, "True: it is neither text, bytes nor a number"),
        (None, "None: it is neither text, bytes nor a number"),
        ({"a": 1}, "neither text, bytes nor a number"),
        (10**5000, "a number of too many digits"),
    ],
    ids=["surrogate", "long", "bool", "none", "dict", "digits"],
)
def test_part_that_cannot_be_packed_is_refused(part: Any, fault: str) -> None:
    """The error is one of ours, and names the part in a short text."""
    with pytest.raises(ConfigurationError, match=fault) as refused:
        pack(["SET", "key", part])

    assert len(str(refused.value)) < 400
    str(refused.value).encode()  # it can be printed


STORM = """
import random
import signal
from celery_redlock.basics.resp import pack

class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

signal.signal(signal.SIGALRM, interrupt)
interrupts = 0
while interrupts < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, 10 ** random.uniform(-5.3, -4))
        for _ in range(200):
            pack(("EVALSHA", "a" * 40, *[1234567] * 20))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupt:
        interrupts += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGALRM")
def test_signal_handler_that_raises_while_numbers_are_packed_does_not_crash() -> None:
    """Only text and bytes reach hiredis, which calls ``repr`` of numbers unchecked."""
    run_python(STORM)  # it fails if the program does


def test_hiredis_is_used_where_it_is_installed() -> None:
    """It is several times as fast."""
    assert isinstance(new_reader(), hiredis.Reader)


# -- errors --------------------------------------------------------------------------

SCRIPT = "local now\nnow = redis.call('TIME')\n"


@pytest.mark.parametrize(
    "error",
    [
        "ERR unknown command 'TIME'",  # Redis 7 and 8, Valkey
        "ERR unknown command `TIME`",  # Redis 6.2
        "unknown command 'time'",  # as redis-py tells it
        "ERR Unknown Redis command called from script script: 83c1, on @user_script:2.",
        "ERR Unknown command called from script script: on @user_script:2.",  # Valkey
        # Redis 6.2
        "ERR Error @user_script:2: @user_script: 2: Unknown Redis command called from",
    ],
)
def test_command_that_a_node_does_not_know_is_named(error: str) -> None:
    """By the error, or by the line of the script that it names."""
    assert unknown_command(error, SCRIPT) == "TIME"
    assert refusal_of(error, SCRIPT) == "does not know the command TIME"


@pytest.mark.parametrize(
    "error",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "ERR Unknown Redis command called from script script: 83c1, on @user_script:1.",
        "ERR Unknown Redis command called from script script: 83c1, on @user_script:9.",
        "ERR Wrong number of args calling command from script, on @user_script:2.",
    ],
)
def test_other_errors_are_told_as_they_are(error: str) -> None:
    """Without a dot, and also one whose line of the script calls no command."""
    assert unknown_command(error, SCRIPT) == ""
    assert refusal_of(error, SCRIPT) == f"answered {error.removesuffix('.')}"


SHA = "a1cf9a3a911c982ace48ea1a3b127fe1427d7df7"
BEFORE = f"ERR Error running script (call to f_{SHA}): @user_script:2: "  # Redis 6.2
BEHIND = f" script: {SHA}, on @user_script:2."  # Redis 7 and 8, Valkey
FULL = "OOM command not allowed when used memory > 'maxmemory'"
NO_SPACE = "MISCONF Errors writing to the AOF file: No space left on device"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
DENIED = "The user executing the script can't run this command or subcommand"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (f"{NO_SPACE}{BEHIND}", NO_SPACE),
        (f"{FULL}.{BEHIND}", FULL),
        (f"{BEFORE}@user_script: 2: -{FULL}.", FULL),
        (f"{BEFORE}{WRONG_TYPE}", WRONG_TYPE),
    ],
)
def test_error_is_told_without_its_place_in_a_script(error: str, told: str) -> None:
    """The digest and the line of a script of ours are no news to an operator."""
    assert refusal_of(error, SCRIPT) == f"answered {told}"


@pytest.mark.parametrize(
    "error", [f"ERR {DENIED}{BEHIND}", f"{BEFORE}@user_script: 2: {DENIED}"]
)
def test_command_that_a_node_denies_our_user_is_named(error: str) -> None:
    """By the line of the script; later servers name it themselves."""
    assert refusal_of(error, SCRIPT) == "denies our user the command TIME"


@pytest.mark.parametrize("new", [PythonReader, hiredis_reader])
def test_error_does_not_repeat_our_words(new: Callable[[], ReplyReader]) -> None:
    """A server quotes a command that it does not know: with the token of a lock."""
    reader = new()
    reader.feed(
        b"-ERR unknown command 'EVALSHA', with args beginning with: 'secret' \r\n"
    )

    assert str(reader.gets()) == "ERR unknown command 'EVALSHA'"
