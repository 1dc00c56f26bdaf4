"""The surroundings of a script, on servers and in memory: replies, errors, commands."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import Script
from tests.contract.subjects import StoreSubject, Subject

ERROR = object()


def run(subject: Subject, source: str, *args: Any) -> Any:
    """Run any Lua on one key; return `ERROR` for an error reply."""
    if isinstance(subject, StoreSubject):
        pytest.skip("a store runs the scripts of celery-redlock only")
    reply = subject.execute(Script("any", source), [subject.lock], args)
    return ERROR if isinstance(reply, ErrorReply) else reply


@pytest.mark.parametrize(
    ("source", "reply"),
    [
        ("return 1", 1),
        ("return 1.9", 1),
        ("return -1.9", -1),
        ("return 2^53", 2**53),
        ("return 2^62", 2**62),
        ("return 'a'", b"a"),
        ("return ''", b""),
        (r"return '\0\255\r\n'", b"\x00\xff\r\n"),
        ("return true", 1),
        ("return false", None),
        ("return nil", None),
        ("return", None),
        ("return {}", []),
        ("return {1, 'a', {2, {}}, false, true}", [1, b"a", [2, []], None, 1]),
        ("return {1, nil, 3}", [1]),
        ("return {1, x = 2}", [1]),
        ("local t = {} for i = 1, 9000 do t[i] = i end return t", [*range(1, 9001)]),
        ("return redis.error_reply('ERR one')", ERROR),
        ("return {err = 'ERR one'}", ERROR),
        ("return {1, #ARGV, ARGV[2]}", [1, 2, b"7"]),
        ("return 'a' .. 2^53", b"a9.007199254741e+15"),
        ("return tostring(tonumber('1.5') + 1)", b"2.5"),
        ("return tonumber('x') == nil", 1),
        ("return tonumber('1e3')", 1000),
        ("return '10' + 1", 11),
        ("return #table.concat({1, 'b'}, '-')", 3),
        ("local f = function(...) return select('#', ...) end return f(nil, nil)", 2),
    ],
)
def test_replies_are_those_of_a_server(
    subject: Subject, source: str, reply: Any
) -> None:
    """Numbers are cut, nil and false are no text, and a list ends at its first nil."""
    assert run(subject, source, "x", 7) == reply


@pytest.mark.parametrize(
    "status", ["return redis.status_reply('DONE')", "return {ok = 'DONE'}"]
)
def test_status_is_text(subject: Subject, status: str) -> None:
    """A client sees the text of a status."""
    reply = run(subject, status)

    assert reply in ("DONE", b"DONE")


@pytest.mark.parametrize(
    "source",
    [
        "return nothing",
        "nothing = 1",
        "return nil < 1",
        "return redis.call('NOTHING', KEYS[1])",
        "return redis.call('PEXPIRE', KEYS[1], '1.5')",
        "return redis.call('SET', KEYS[1], 'a', 'PX', 'x')",
        "return redis.call('HGET', KEYS[1], 'field')",
        "return (",
        "error('stop')",
    ],
)
def test_mistake_in_a_script_is_an_error_reply(subject: Subject, source: str) -> None:
    """The script ends there, and what it did before stays."""
    before = "redis.call('SET', KEYS[1], 'before', 'PX', 60000)\n"

    assert run(subject, before + source) is ERROR
    assert subject.get(subject.lock) == (None if source == "return (" else b"before")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("'text'", b"text"),
        ("12", b"12"),
        ("-3", b"-3"),
        ("1.5", b"1.5"),
        ("2^53", b"9007199254740992"),
        ("0.1 + 0.2", b"0.30000000000000004"),
    ],
)
def test_numbers_in_commands_are_written_as_by_a_server(
    subject: Subject, written: str, read: bytes
) -> None:
    """With all of their digits."""
    run(subject, f"redis.call('SET', KEYS[1], {written}, 'PX', 60000)")

    assert subject.get(subject.lock) == read


@pytest.mark.parametrize(
    ("source", "reply"),
    [
        ("return type(redis.call('GET', KEYS[1]))", b"boolean"),
        ("return redis.call('HMGET', KEYS[1], 'a', 'b')[2] == false", 1),
        ("return #redis.call('HGETALL', KEYS[1])", 0),
        ("return redis.call('SET', KEYS[1], 'a', 'PX', 60000).ok", b"OK"),
        ("return redis.call('HSET', KEYS[1], 'a', 1, 'b', 2)", 2),
        ("return redis.call('PTTL', KEYS[1])", -2),
        ("return redis.call('PEXPIRE', KEYS[1], 1000)", 0),
        ("return redis.call('DEL', KEYS[1])", 0),
        ("return redis.call('ZADD', KEYS[1], 1.5, 'a')", 1),
        ("return redis.call('ZSCORE', KEYS[1], 'a') == false", 1),
        ("return redis.call('ZRANK', KEYS[1], 'a') == false", 1),
        ("return #redis.call('ZPOPMIN', KEYS[1])", 0),
        ("return #redis.call('TIME')", 2),
        ("return type(redis.call('TIME')[1])", b"string"),
        ("return redis.pcall('GET', KEYS[1]) == false", 1),
    ],
)
def test_replies_of_commands_are_those_of_a_server(
    subject: Subject, source: str, reply: Any
) -> None:
    """In Lua, no text is false, and a status is a table."""
    assert run(subject, source) == reply


def test_error_of_pcall_is_a_table(subject: Subject) -> None:
    """So a script can go on, and can return it."""
    subject.hset(subject.lock, "field", "theirs")

    caught = "return string.match(redis.pcall('GET', KEYS[1]).err, 'WRONGTYPE')"
    assert run(subject, caught) == b"WRONGTYPE"
    assert run(subject, "return redis.pcall('GET', KEYS[1])") is ERROR
    assert run(subject, "redis.pcall('GET', KEYS[1]) return 5") == 5
    assert run(subject, "redis.call('GET', KEYS[1]) return 5") is ERROR
