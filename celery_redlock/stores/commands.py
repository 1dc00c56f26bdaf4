"""The commands of a Redis node, carried out on the keys of a store.

Scripts are what tasks send. The other commands are what operators' commands ask: which
keys there are, what they hold, and what the server is. Those about keys run as scripts
do, by `_CALL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.basics.glob import head_of
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts import ALL_SCRIPTS, RELEASE, Script
from celery_redlock.scripts.host import run as run_script
from celery_redlock.stores.needs import Needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Loader, StoreKeyspace

_EVAL = b"EVALSHA", b"EVAL"
_SCRIPTS = {text.encode(): it for it in ALL_SCRIPTS for text in (it.sha, it.source)}
_CALL = Script("call", "return redis.call(unpack(ARGV))")
_READS = (
    *(b"GET", b"MGET", b"PTTL", b"HGET", b"HMGET", b"HGETALL"),
    *(b"ZCARD", b"ZSCORE", b"ZRANGEBYSCORE"),
)
_WRITES = b"SET", b"DEL", b"HSET", b"HDEL", b"ZADD"


def needs_of(commands: Iterable[Command]) -> Needs:
    """Return what commands read and change."""
    needs = Needs()
    for command in commands:
        _add_needs(needs, command)
    return needs


def _add_needs(needs: Needs, command: Command) -> None:
    verb, *words = command
    if script := _script_of(command):
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


def split_release(command: Command, most: int) -> list[Command]:
    """Return releases of at most so many locks each; any other command as it is.

    A release of several locks need not be one transaction: one that is done in part is
    a lock that is free a little earlier than the others.
    """
    if _script_of(command) is not RELEASE:
        return [command]
    verb, *words = command
    count = int(words[1])
    names, args = words[2 : 2 + count], words[2 + count :]
    locks, queues = names[: count // 2], names[count // 2 :]
    parts = []
    for at in range(0, len(locks), most):
        part = [*locks[at : at + most], *queues[at : at + most]]
        parts.append([verb, words[0], b"%d" % len(part), *part, *args])
    return parts


def run(command: Command, keys: StoreKeyspace) -> Any:
    """Carry a command out, and return its reply. An error is a reply, too."""
    verb, *words = command
    if script := _script_of(command):
        count = int(words[1])
        return run_script(script, words[2 : 2 + count], words[2 + count :], keys)
    if verb in _EVAL:
        return ErrorReply("NOSCRIPT No matching script.")
    if verb in (*_READS, *_WRITES, b"PUBLISH"):
        return run_script(_CALL, [], command, keys)
    return _of_the_store(verb, words, keys, keys.loader)


def _of_the_store(
    verb: bytes, words: Sequence[bytes], keys: StoreKeyspace, loader: Loader
) -> Any:
    if verb == b"INFO":
        name = keys.replid.decode()
        fields = {"run_id": name, "master_replid": name, **loader.info}
        return "".join(f"{name}:{text}\r\n" for name, text in fields.items()).encode()
    if verb == b"SCAN":  # all keys in one go; a pattern only says how they begin
        options = dict(zip(words[1::2], words[2::2], strict=False))
        head = head_of(options.get(b"MATCH", b""))
        return [b"0", loader.scan(head, keys.now_us() // 1000)]
    if verb == b"TIME":  # as Redis replies, and by how much later it may be
        now = divmod(keys.time.earliest_us, 1_000_000)
        late = keys.time.latest_us - keys.time.earliest_us
        return [b"%d" % number for number in (*now, late)]
    if verb == b"CONFIG":
        return []
    return ErrorReply(f"ERR unknown command '{verb.decode(errors='replace')}'")


def _script_of(command: Command) -> Script | None:
    return _SCRIPTS.get(command[1]) if command[0] in _EVAL else None
