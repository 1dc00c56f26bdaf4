"""Keys of any text; and text that no node can be sent, which is refused alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import ConfigurationError, LockHeld
from celery_redlock.line.claims import Claims
from celery_redlock.locking import alock, lock
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.limits import wanted
from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.watchdog import Watchdog
from tests.nodes.support import client, until_nothing_is_left, use

UNSENDABLE = "-\udcff.txt"  # as `os.fsdecode` returns the rest of a name
UNPRINTABLE = "-nul\0tab\t"
LONG = "m" * 5_000_000


def a_lock(redlock: Redlock, key: Any, **options: Any) -> None:
    """Enter a block."""
    with lock(redlock, key, **options):
        pass


def a_coroutine(redlock: Redlock, key: str) -> None:
    """Enter a block of a coroutine."""

    async def main() -> None:
        async with alock(redlock, key):
            pass

    asyncio.run(main())


def a_claim(redlock: Redlock, task_id: str) -> None:
    """Claim a key for a call."""
    job = Holder.here(task="task", task_id=task_id, started=1.0)
    Claims(redlock).take("k", job, at_lock=True, at_cooldown=False)


CALLS: dict[str, Callable[[Redlock, str], object]] = {
    "lock": a_lock,
    "coroutine": a_coroutine,
    "limit": lambda redlock, text: a_lock(redlock, text, limit=3),
    "rate": lambda redlock, text: a_lock(redlock, text, rate="3/m"),
    "keys": lambda redlock, text: a_lock(redlock, ["a", text]),
    "base": lambda redlock, text: redlock.acquire("k", base=text),
    "inspect": lambda redlock, text: redlock.inspect(text),
    "release": lambda redlock, text: redlock.release_base("k", text),
    "permits": lambda redlock, text: redlock.permits_in_use(wanted(text, 3)[1]),
    "claim": a_claim,
}


@pytest.mark.parametrize("end", [UNSENDABLE, LONG], ids=["unsendable", "long"])
@pytest.mark.parametrize("name", CALLS)
def test_call_with_such_a_text_fails_alone(
    redlock: Redlock, shared_nodes: DevNodes, key: str, name: str, end: str
) -> None:
    """The error is ours, nothing is sent, and each other call and renewal goes on."""
    watchdog = Watchdog(redlock)
    lease = redlock.acquire(f"{key}-held")
    watchdog.watch(lease)

    with pytest.raises(ConfigurationError):
        CALLS[name](redlock, key + end)

    assert redlock.extend(lease)
    use(redlock, f"{key}-other")
    assert watchdog.forget(lease)
    redlock.release(lease)
    watchdog.stop()
    until_nothing_is_left(shared_nodes, key)


def test_service_can_be_used_after_a_thread_met_such_a_text(
    shared_nodes: DevNodes,
) -> None:
    """Also where the text is the very first request of the process."""
    with client(shared_nodes) as redlock:
        with pytest.raises(ConfigurationError, match="has no UTF-8"):
            redlock.acquire(UNSENDABLE)

        use(redlock, "first")


@pytest.mark.parametrize("name", ["lock", "coroutine", "limit", "rate", "keys"])
def test_lock_of_unprintable_text_is_refused(
    redlock: Redlock, key: str, name: str
) -> None:
    """As it is refused from a template of a task."""
    with pytest.raises(ConfigurationError, match="is not printable"):
        CALLS[name](redlock, key + UNPRINTABLE)


def test_operator_can_look_for_any_name(redlock: Redlock, key: str) -> None:
    """Another version of the package, or another program, may have taken it."""
    assert redlock.inspect(key + UNPRINTABLE).holder is None


@pytest.mark.every_server
@pytest.mark.parametrize(
    "text",
    [
        *("with space", "ünïcode ☃", "{hash}tag", "quote'\"\\", "*?[a]"),
        "x" * 5000,
    ],
    ids=["space", "unicode", "braces", "quotes", "glob", "long"],
)
def test_key_is_taken_literally(redlock: Redlock, text: str, key: str) -> None:
    """A key may be any printable text, and locks nothing else."""
    name = f"{key}{text}"
    lease = redlock.acquire(name)

    with pytest.raises(LockHeld):
        redlock.acquire(name)

    found = redlock.inspect(name)
    assert found.holder
    assert found.holder.token == lease.token
    assert redlock.release(lease) >= 3
