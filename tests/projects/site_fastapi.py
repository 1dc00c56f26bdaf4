"""An application of FastAPI, whose users enter one lock in every way that they know.

Each view that holds the lock says so in a file that only one holder can create, on all
processes of the site. A view that finds the file there answers 500.
"""

# ruff: noqa: B008, FAST002  (FastAPI reads the annotations)

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import anyio
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse

from celery_redlock import Lease, LockHeld, Redlock, alock, current_lease, lock

NODES, FOLDER = os.environ["SITE_NODES"].split(), Path(os.environ["SITE_FOLDER"])
WORK = 0.002  # seconds

app = FastAPI()
redlock = Redlock(NODES, node_timeout=1.0)  # a busy machine
leaked: list[Generator[int]] = []


@app.exception_handler(LockHeld)
def say_held(_: Request, error: LockHeld) -> JSONResponse:
    """Answer 409 where the lock is held."""
    return JSONResponse({"held": str(error)}, status_code=409)


@contextlib.contextmanager
def alone(key: str) -> Iterator[None]:
    """Be the only holder of the key on this machine, or fail."""
    path = FOLDER / key
    os.close(
        os.open(path, os.O_CREAT | os.O_EXCL)
    )  # FileExistsError: another is inside
    try:
        yield
    finally:
        path.unlink()


def locked(key: str) -> Iterator[Lease]:
    """Hold the lock during the request: a dependency that runs in a pool's thread."""
    try:
        with lock(redlock, key) as lease:
            yield lease
    except LockHeld as error:
        raise HTTPException(409) from error


async def alocked(key: str) -> AsyncIterator[Lease]:
    """Hold the lock during the request: a dependency of the event loop."""
    try:
        async with alock(redlock, key) as lease:
            yield lease
    except LockHeld as error:
        raise HTTPException(409) from error


def work(key: str, lease: Lease) -> int:
    """Use the lock for a while, and return the fence."""
    with alone(key):
        assert lease.is_valid()
        assert current_lease(key) in {None, lease}, "the lease of another user"
        time.sleep(WORK)
    return lease.fence


async def awork(key: str, lease: Lease) -> int:
    """Use the lock for a while in the event loop, and return the fence."""
    with alone(key):
        assert lease.is_valid()
        assert current_lease(key) in {None, lease}, "the lease of another user"
        await asyncio.sleep(WORK)
    return lease.fence


@app.get("/dependency/{key}")
def view_with_dependency(key: str, lease: Lease = Depends(locked)) -> int:
    """Work in a thread, under the lock of a dependency."""
    return work(key, lease)


@app.get("/dependency-async-view/{key}")
async def async_view_with_dependency(key: str, lease: Lease = Depends(locked)) -> int:
    """Work in the loop, under the lock of a dependency that a thread entered."""
    return await awork(key, lease)


@app.get("/async-dependency/{key}")
async def view_with_async_dependency(key: str, lease: Lease = Depends(alocked)) -> int:
    """Work in the loop, under the lock of a dependency of the loop."""
    return await awork(key, lease)


@app.get("/to-thread/{key}")
async def view_with_to_thread(key: str) -> int:
    """Enter the block in a thread, work in the loop, and leave it in a thread."""
    block = lock(redlock, key)
    lease = await asyncio.to_thread(block.__enter__)
    try:
        return await awork(key, lease)
    finally:
        await asyncio.to_thread(block.__exit__, None, None, None)


@app.get("/executor/{key}")
async def view_with_executor(key: str) -> int:
    """Do the same with ``run_in_executor``, which copies no context."""
    block, loop = lock(redlock, key), asyncio.get_running_loop()
    lease = await loop.run_in_executor(None, block.__enter__)
    try:
        return await awork(key, lease)
    finally:
        await loop.run_in_executor(None, block.__exit__, None, None, None)


@app.get("/anyio/{key}")
async def view_with_anyio(key: str) -> int:
    """Do the same with the threads of anyio."""
    block = lock(redlock, key)
    lease = await anyio.to_thread.run_sync(block.__enter__)
    try:
        return await awork(key, lease)
    finally:
        await anyio.to_thread.run_sync(block.__exit__, None, None, None)


@app.get("/block/{key}")
def view_with_block(key: str) -> int:
    """Work under a plain block."""
    with lock(redlock, key) as lease:
        return work(key, lease)


@app.get("/leak/{key}")
def leak(key: str) -> int:
    """Begin a generator that holds the lock, and forget to end it."""

    def rows() -> Generator[int]:
        with lock(redlock, key) as lease, alone(key):
            yield lease.fence

    leaked.append(rows())
    return next(leaked[-1])


@app.get("/drop")
async def drop() -> None:
    """End all leaked generators."""
    while leaked:
        leaked.pop().close()
