"""Tell what a node was asked and what it said, in a line of the history."""

from __future__ import annotations

from typing import Any

from celery_redlock.core import scripts

__all__ = ["account_of", "said_by", "short"]

_STATUS = {
    scripts.GRANTED: "granted",
    scripts.TAKEN: "taken",
    scripts.FREE: "free",
    scripts.QUARANTINED: "quarantined",
    scripts.UNSYNCED: "unsynced",
    scripts.MISCONFIGURED: "misconfigured",
}
_TOKEN_AT = {"acquire": 0, "extend": 1, "restore": 1, "raise_fence": 0, "release": 0}


def said_by(reply: Any) -> str:
    """Return a script's status in words, or the number that is its whole reply."""
    return _STATUS[reply[0]] if isinstance(reply, list) else str(reply)


def account_of(name: str, keys: list[bytes], args: list[bytes], reply: Any) -> str:
    """Return what a script was called with and said, as far as people want to know."""
    said = said_by(reply)
    what = keys[0].decode().rpartition(":")[2]
    token = _TOKEN_AT.get(name)
    whose = "" if token is None else f" as {short(args[token].decode())}"
    number = ""
    if name == "acquire" and said == "granted":
        number = f" {reply[1]}"
    elif name == "raise_fence":
        number = f" to {args[3].decode()}"
    elif said == "taken":
        number = f" by {short(reply[1].decode().partition(chr(10))[0])}"
    elif said == "quarantined":
        number = f" for {reply[1]} ms"
    elif name == "sync" and args[1] == b"1":
        number = " with a floor"
    return f"{name} {what}{whose}: {said}{number}"


def short(token: str) -> str:
    """Return a token as people can read it: who minted it, and which one it is."""
    base, dot, attempt = token.partition(".")
    return f"{base.lstrip('0')}{dot}{attempt.lstrip('0')}"
