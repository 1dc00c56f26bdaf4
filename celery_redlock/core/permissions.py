"""What clients must be allowed to do on a node, and whether they are.

The list follows from the scripts and is kept nowhere else: whatever a script calls,
and what it takes to run scripts, to look at a node and to list its locks.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from celery_redlock.core.scripts import ALL_SCRIPTS, INSPECT
from celery_redlock.core.wire import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.probe import Probe

__all__ = ["COMMANDS", "OUR_KEYS", "acl_rules", "denied_command", "denied_to"]

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
"""In the words of ACLs."""

OUR_KEYS = "~"
"""Stands among commands for the keys under our prefix."""

_MS = 1000


def acl_rules(prefix: str, *, select: bool = False) -> str:
    """Return the rules of a user who may do what is needed and nothing else.

    Args:
        prefix: Of all keys on the nodes.
        select: Whether a node is another database than 0.
    """
    commands = (*COMMANDS, "select") if select else COMMANDS
    allowed = " ".join(f"+{command}" for command in sorted(commands))
    channels = f"resetchannels &{prefix}:wake:*"
    return f"resetkeys ~{prefix}:* {channels} -@all {allowed}"


def denied_command(error: str) -> str:
    """Return the command that this error says is not allowed, or ``""``."""
    found = re.search(r"no permissions to run the '([\w|]+)' command", error)
    return found[1] if found else ""


def denied_to(probe: Probe, prefix: str) -> tuple[str, ...]:
    """Return what of ``COMMANDS`` and ``OUR_KEYS`` a node refuses, by trying.

    What is tried touches no key but one of its own, which ends after a second. In
    the end the connection listens to a channel, and can be used for nothing else.
    """
    unique = secrets.token_hex(8)
    key, channel = f"{prefix}:doctor:{unique}", f"{prefix}:wake:doctor:{unique}"
    trials: dict[str, Sequence[Any]] = {
        # The key holds a text, so that these can do nothing to it.
        "hdel": ("HDEL", key, "field"),
        "hget": ("HGET", key, "field"),
        "hgetall": ("HGETALL", key),
        "hmget": ("HMGET", key, "field"),
        "hset": ("HSET", key, "field", "value"),
        "get": ("GET", key),
        "pttl": ("PTTL", key),
        "pexpire": ("PEXPIRE", key, _MS),
        "del": ("DEL", key),
        "eval": ("EVAL", "return 1", 0),
        "evalsha": ("EVALSHA", INSPECT.sha, 1, key),
        "script|load": ("SCRIPT", "LOAD", "return 1"),
        "info": ("INFO", "server"),
        "scan": ("SCAN", 0, "COUNT", 1),
        "time": ("TIME",),
        "zadd": ("ZADD", key, 0, "member"),
        "zpopmin": ("ZPOPMIN", key),
        "zrem": ("ZREM", key, "member"),
        "publish": ("PUBLISH", channel, ""),
        # The last one: from then on the connection does nothing but listen.
        "subscribe": ("SUBSCRIBE", channel),
    }
    (stored,) = probe.ask(("SET", key, "", "PX", _MS))
    if isinstance(stored, ErrorReply):
        del trials["hset"], trials["zadd"]  # they would make a key that stays
    answers = [str(reply) for reply in (stored, *probe.ask(*trials.values()))]
    foreign = any("no permissions to access one of the keys" in a for a in answers)
    denied = [
        name
        for name, answer in zip(("set", *trials), answers, strict=True)
        if denied_command(answer) or (_denies_channel(answer) and not foreign)
    ]
    return (*sorted(denied), *((OUR_KEYS,) if foreign else ()))


def _denies_channel(error: str) -> bool:
    return "NOPERM" in error and "channel" in error
