"""A program of trio: many tasks that want one lock, in every way that they know.

It prints how many of them were inside, and fails if two were there at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from celery_redlock import LockHeld, Redlock, lock

TASKS = 200

key, folder, *nodes = sys.argv[1:]
redlock = Redlock(nodes, node_timeout=1.0)  # a busy machine
inside = 0


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Be the only holder of the key on this machine, or fail."""
    path = Path(folder) / key
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    try:
        yield
    finally:
        path.unlink()


async def work() -> None:
    """Do the work of a holder."""
    global inside  # noqa: PLW0603
    with alone():
        await trio.sleep(0.001)
    inside += 1


async def with_a_block() -> None:
    """Hold the lock around checkpoints, and let a child of the block try it, too."""
    with lock(redlock, key):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
        await work()


async def refused() -> None:
    """Find the lock held by the parent."""
    with contextlib.suppress(LockHeld), lock(redlock, key):
        await work()


async def with_a_thread() -> None:
    """Enter and leave the block in threads of trio."""
    block = lock(redlock, key)
    await trio.to_thread.run_sync(block.__enter__)
    try:
        await work()
    finally:
        await trio.to_thread.run_sync(block.__exit__, None, None, None)


async def one(number: int) -> None:
    """Try once."""
    with contextlib.suppress(LockHeld):
        await (with_a_thread() if number % 2 else with_a_block())


async def main() -> None:
    """Start a few tasks at a time."""
    limit = trio.CapacityLimiter(10)

    async def limited(number: int) -> None:
        async with limit:
            await one(number)

    async with trio.open_nursery() as nursery:
        for number in range(TASKS):
            nursery.start_soon(limited, number)


trio.run(main)
print(inside)  # noqa: T201  (the test reads it)
