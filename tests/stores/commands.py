"""Commands on a store: the scripts with their keys, and a client that comes between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from celery_redlock.scripts import ALL_SCRIPTS

NOW_US = 1_700_000_000_000_000  # with as many digits as the fences of a real time
TIMEOUT = 8.0  # seconds
SLOW_MS = 24_000  # three requests, of 8 s each at most
VIEW = b"format 4, max_ttl 120 s, restart guard on"
# Begins a program in Django: it can be configured once in a process.
IN_DJANGO = """
import sys

import django
from django.conf import settings


def database(**more):
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "redlock",
        "HOST": "127.0.0.1",
        "PORT": sys.argv[1],
        **more,
    }

"""
SHA = {script.name: script.sha.encode() for script in ALL_SCRIPTS}


def script(name: str, keys: list[bytes], *args: bytes) -> list[bytes]:
    """Return the command that runs a script."""
    return [b"EVALSHA", SHA[name], b"%d" % len(keys), *keys, *args]


def once_before(
    monkeypatch: pytest.MonkeyPatch,
    store: Any,
    method: str,
    act: Callable[[], Any],
) -> None:
    """Let another client act once, just before a method of this store runs."""
    real = getattr(store, method)

    def later(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(store, method, real)
        act()
        return real(*args, **options)

    monkeypatch.setattr(store, method, later)


@contextmanager
def clients(kind: Any, url: str) -> Iterator[Callable[[], Any]]:
    """Give a function that connects to a store, and close the connections."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(kind(url, TIMEOUT)))


def vote(store: Any, meta: bytes, view: bytes = VIEW) -> None:
    """Have the store vote in this view, with a counter in the stripes 3 and 4."""
    (info,) = store.run([[b"INFO"]])
    replid = info.partition(b"master_replid:")[2].split()[0]
    fields = [b"config", view, b"replid", replid, b"votes", b"1"]
    fields += [b"identity", b"me", b"evicted", b""]
    fields += [b"floor", b"5", b"3", b"7", b"4", b"7"]
    store.run([[b"HSET", meta, *fields]])


def acquire(lock: bytes, meta: bytes, token: bytes, stripe: bytes) -> list[bytes]:
    """Return the command that takes a lock for a minute."""
    args = [token, b"me", b"60000", b"0", b"0", VIEW, stripe]
    return script("acquire", [lock, meta], *args)


def acquire_now(lock: bytes, meta: bytes, token: bytes, stripe: bytes) -> list[bytes]:
    """Return the command that takes a lock, with the time of the store as its fence."""
    command = acquire(lock, meta, token, stripe)
    command[command.index(b"60000") + 1] = b"-1"
    return command


def extend(lock: bytes, meta: bytes, token: bytes) -> list[bytes]:
    """Return the command that extends a lock by a minute."""
    keys = [lock, meta, meta + b":releases"]
    return script("extend", keys, VIEW, token, b"60000")


def release(lock: bytes, token: bytes) -> list[bytes]:
    """Return the command that releases a lock."""
    return script("release", [lock, lock + b":queue"], token, b"0")
