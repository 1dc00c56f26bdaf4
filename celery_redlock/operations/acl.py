"""The permissions that our user needs on a node, and a test of them.

The list is derived from the scripts: the commands that they call, and those that run
scripts, inspect a node, list its locks and wait for a release.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.glob import escaped
from celery_redlock.basics.resp import ErrorReply, unknown_command
from celery_redlock.scripts import ALL_SCRIPTS, INSPECT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.wire.client import NodeClient

_CALLED_BY_SCRIPTS = {
    verb.lower()
    for script in ALL_SCRIPTS
    for verb in re.findall(r"redis\.p?call\('(\w+)'", script.source)
}
COMMANDS = tuple(
    sorted(
        _CALLED_BY_SCRIPTS
        | {"eval", "evalsha", "info", "scan", "script|load", "subscribe"}
    )
)
"""Named as in ACL rules."""

OUR_KEYS = "~"
"""Listed among denied commands: the keys under our prefix."""

OUR_CHANNELS = "&"
"""The same: the channels by which a release wakes calls that wait."""

NOT_NEEDED = frozenset({"publish", "subscribe", "script|load", OUR_CHANNELS})
"""A node votes without these."""

_MS = 1000
# Commands about a key that has a text, and their further words. Most of them expect
# another type, and change nothing.
_ON_A_TEXT: dict[str, tuple[object, ...]] = {
    "hdel": ("field",),
    "hget": ("field",),
    "hgetall": (),
    "hmget": ("field",),
    "hstrlen": ("field",),
    "hset": ("field", "value"),
    "zadd": (0, "member"),
    "zcard": (),
    "zrangebyscore": (0, 0),
    "zpopmin": (),
    "zrank": ("member",),
    "zrem": ("member",),
    "zremrangebyscore": (0, 0),
    "zrevrange": (0, 0),
    "zscore": ("member",),
    "get": (),
    "mget": (),
    "pttl": (),
    "pexpire": (_MS,),
    "del": (),  # last: it ends the text
}
# Until Redis 7.0, and since 7.2.
_NO_KEYS = re.compile(r"o permissions to access (one of the keys|a key)")


def acl_rules(prefix: str, *, select: bool = False) -> str:
    """Return the ACL rules of a user with the needed permissions and no others.

    With ``select``: also to use a database other than 0. The prefix may have the signs
    of a pattern.
    """
    prefix = escaped(prefix)
    commands = (*COMMANDS, "select") if select else COMMANDS
    allowed = " ".join(f"+{command}" for command in sorted(commands))
    channels = f"resetchannels &{prefix}:wake:*"
    return f"resetkeys ~{prefix}:* {channels} -@all {allowed}"


def denied_command(error: str) -> str:
    """Return the command that this error reports as denied, or ``""``."""
    found = re.search(r"no permissions to run the '([\w|]+)' command", error)
    return found[1] if found else ""


def try_commands(
    client: NodeClient, prefix: str, *, is_new: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Try each of ``COMMANDS`` and ``OUR_KEYS``.

    The trials use one key of their own, which expires after a second. The last trial
    subscribes to a channel: do not use the connection afterwards. HSTRLEN is the mark
    that a node has voted (``scripts/shared/proof.lua``), and is not tried on one that
    is new, as far as is known.

    Returns:
        Those that the node denies, also `OUR_CHANNELS`, and the commands that it does
        not know.
    """
    unique = secrets.token_hex(8)
    key, channel = f"{prefix}:doctor:{unique}", f"{prefix}:wake:doctor:{unique}"
    trials: dict[str, Sequence[Any]] = {
        **{name: (name.upper(), key, *words) for name, words in _ON_A_TEXT.items()},
        "eval": ("EVAL", "return 1", 0),
        "evalsha": ("EVALSHA", INSPECT.sha, 1, key),
        "script|load": ("SCRIPT", "LOAD", "return 1"),
        "info": ("INFO", "server"),
        "scan": ("SCAN", 0, "COUNT", 1),
        "time": ("TIME",),
        "publish": ("PUBLISH", channel, ""),
        # Last: a connection that has subscribed accepts no other commands.
        "subscribe": ("SUBSCRIBE", channel),
    }
    if is_new:
        del trials["hstrlen"]
    (stored,) = client.ask(("SET", key, "", "PX", _MS))
    if isinstance(stored, ErrorReply):
        del trials["hset"], trials["zadd"]  # would create a key without ttl
    answers = [str(reply) for reply in (stored, *client.ask(*trials.values()))]
    foreign = any(_NO_KEYS.search(answer) for answer in answers)
    tried = list(zip(("set", *trials), answers, strict=True))
    denied = sorted(name for name, answer in tried if _names(answer, name))
    if foreign:
        denied.append(OUR_KEYS)
    elif any("NOPERM" in answer and "channel" in answer for answer in answers):
        denied.append(OUR_CHANNELS)
    unknown = sorted(name for name, answer in tried if unknown_command(answer))
    return tuple(denied), tuple(unknown)


def _names(error: str, command: str) -> bool:
    """Tell whether an error denies this command itself, and not one in its script."""
    return denied_command(error).partition("|")[0] == command.partition("|")[0]
