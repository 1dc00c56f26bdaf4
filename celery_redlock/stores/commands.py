"""The commands of a Redis node, carried out on the keys of a store.

Scripts are what tasks send. The other commands are what operators' commands ask: which
keys there are, what they hold, and what the server is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock.basics.glob import head_of, matcher
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import ALL_SCRIPTS, RELEASE
from celery_redlock.scripts.host import OK, Status
from celery_redlock.scripts.host import run as run_script
from celery_redlock.scripts.keyspace import WrongType
from celery_redlock.stores.connection import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.scripts import Script
    from celery_redlock.stores.keyspace import StoreKeyspace
    from celery_redlock.stores.needs import Needs

__all__ = [
    "Command",
    "StoreFacts",
    "add_needs",
    "run",
    "split_release",
]

_BY_SHA = {script.sha.encode(): script for script in ALL_SCRIPTS}
_BY_SOURCE = {script.source.encode(): script for script in ALL_SCRIPTS}


class StoreFacts(Protocol):
    """The part of a store that commands about no single key ask.

    Attributes:
        info: What INFO replies.
    """

    info: dict[str, str]

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""

    def clear(self) -> None:
        """Delete all keys."""


def add_needs(needs: Needs, command: Command) -> bool:
    """Add what a command reads and changes. Return False if it needs no keys."""
    verb, *words = command
    verb = verb.upper()
    if script := _script_of(verb, words):
        count = int(words[1])
        needs.add(script.name, words[2 : 2 + count], words[2 + count :])
    elif verb in _READS:
        needs.names.update(words[:1] if verb != b"MGET" else words)
    elif verb in _WRITES:
        needs.names.update(words[:1])
        needs.exclusive.update(words[:1])
        needs.is_read = needs.may_be_late = False
    elif verb == b"PUBLISH":
        needs.is_read = False
    else:
        return False
    return True


def split_release(command: Command, most: int) -> list[Command]:
    """Return releases of at most so many locks each; any other command as it is.

    A release of several locks need not be one transaction: one that is done in part is
    a lock that is free a little earlier than the others.
    """
    verb, *words = command
    if _script_of(verb.upper(), words) is not RELEASE:
        return [command]
    count = int(words[1])
    names, args = words[2 : 2 + count], words[2 + count :]
    locks, queues = names[: count // 2], names[count // 2 :]
    parts = []
    for at in range(0, len(locks), most):
        part = [*locks[at : at + most], *queues[at : at + most]]
        parts.append([verb, words[0], b"%d" % len(part), *part, *args])
    return parts


def run(command: Command, store: StoreFacts, keys: StoreKeyspace) -> Any:
    """Carry a command out, and return its reply. An error is a reply, too."""
    verb, *words = command
    verb = verb.upper()
    try:
        if verb in (b"EVALSHA", b"EVAL"):
            return _run_script(_script_of(verb, words), words, keys)
        if verb in _READS:
            return _READS[verb](keys, *words)
        if verb in _WRITES:
            return _WRITES[verb](keys, *words)
        if verb in _ON_THE_STORE:
            return _ON_THE_STORE[verb](store, keys, words)
    except WrongType as error:
        return ErrorReply(str(error))
    return ErrorReply(f"ERR unknown command '{verb.decode(errors='replace')}'")


def _script_of(verb: bytes, words: Sequence[bytes]) -> Script | None:
    if verb == b"EVALSHA":
        return _BY_SHA.get(words[0])
    return _BY_SOURCE.get(words[0]) if verb == b"EVAL" else None


def _run_script(
    script: Script | None, words: Sequence[bytes], keys: StoreKeyspace
) -> Any:
    if script is None:
        return ErrorReply("NOSCRIPT No matching script.")
    count = int(words[1])
    return run_script(script, words[2 : 2 + count], words[2 + count :], keys)


def _flat(pairs: Any) -> list[Any]:
    return [word for pair in pairs for word in pair]


def _zscore(keys: StoreKeyspace, name: bytes, member: bytes) -> bytes | None:
    score = keys.zscore(name, member)
    return None if score is None else b"%.17g" % score


_READS: dict[bytes, Callable[..., Any]] = {
    b"ZSCORE": _zscore,
    b"GET": lambda keys, name: keys.get(name),
    b"MGET": lambda keys, *names: keys.mget(names),
    b"PTTL": lambda keys, name: keys.pttl(name),
    b"HGET": lambda keys, name, field: keys.hget(name, field),
    b"HMGET": lambda keys, name, *fields: [keys.hget(name, one) for one in fields],
    b"HGETALL": lambda keys, name: _flat(keys.hgetall(name).items()),
    b"ZRANGE": lambda keys, name, *_: list(keys.zset(name)),
    b"ZCARD": lambda keys, name: keys.zcard(name),
    b"ZCOUNT": lambda keys, name, least, most: sum(
        float(least) <= score <= float(most) for score in keys.zset(name).values()
    ),
    b"EXISTS": lambda keys, name: int(keys.pttl(name) != _NO_KEY),
}
_NO_KEY = -2


def _set(
    keys: StoreKeyspace, name: bytes, value: bytes, px: bytes = b"", ms: bytes = b""
) -> Status:
    if px.upper() == b"KEEPTTL":
        keys.replace(name, value)
    else:
        keys.set(name, value, px=int(ms) if px else None)
    return OK


def _delete(keys: StoreKeyspace, name: bytes) -> int:
    return int(keys.delete(name))


def _hset(keys: StoreKeyspace, name: bytes, *words: bytes) -> int:
    fields = dict(zip(words[::2], words[1::2], strict=True))
    new = len(fields.keys() - keys.hgetall(name).keys())
    keys.hset(name, fields)
    return new


def _hdel(keys: StoreKeyspace, name: bytes, field: bytes) -> int:
    was_there = field in keys.hgetall(name)
    keys.hdel(name, field)
    return int(was_there)


def _zadd(keys: StoreKeyspace, name: bytes, score: bytes, member: bytes) -> int:
    is_new = member not in keys.zset(name)
    keys.zadd(name, member, float(score))
    return int(is_new)


_WRITES: dict[bytes, Callable[..., Any]] = {
    b"SET": _set,
    b"DEL": _delete,
    b"HSET": _hset,
    b"HDEL": _hdel,
    b"ZADD": _zadd,
}


def _info(store: StoreFacts, keys: StoreKeyspace, _words: Sequence[bytes]) -> bytes:
    fields = {"run_id": keys.run_id.decode(), **store.info}
    return "".join(f"{name}:{text}\r\n" for name, text in fields.items()).encode()


def _time(_store: StoreFacts, keys: StoreKeyspace, _words: Sequence[bytes]) -> Any:
    seconds, microseconds = divmod(keys.now_us(), 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


def _scan(store: StoreFacts, keys: StoreKeyspace, words: Sequence[bytes]) -> Any:
    """Reply with all keys at once: a store reads them in one go."""
    options = dict(zip(words[1::2], words[2::2], strict=False))
    pattern = options.get(b"MATCH", b"*")
    matches = matcher(pattern)
    names = store.scan(head_of(pattern), keys.now_us() // 1000)
    return [b"0", [name for name in names if matches(name)]]


def _publish(_store: StoreFacts, keys: StoreKeyspace, words: Sequence[bytes]) -> int:
    return keys.publish(words[0], words[1])


def _flush(store: StoreFacts, _keys: StoreKeyspace, _words: Sequence[bytes]) -> Status:
    store.clear()
    return OK


_ON_THE_STORE: dict[bytes, Callable[..., Any]] = {
    b"INFO": _info,
    b"TIME": _time,
    b"SCAN": _scan,
    b"PUBLISH": _publish,
    b"FLUSHALL": _flush,
    b"CONFIG": lambda *_: [],
}
