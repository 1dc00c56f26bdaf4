"""Tasks and locks in web applications and scripts: waits, coroutines, exits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import LockHeld, runtime_of, singleton_task
from celery_redlock.devnodes import DevNodes
from celery_redlock.locking import lock_or_exit
from celery_redlock.locks.redlock import Redlock
from tests.nodes.support import PATIENT, client, failing

WAITED = 0.3  # seconds until a lock is released
SOON = 30.0  # seconds, on a busy machine


@contextlib.contextmanager
def app_on(nodes: DevNodes) -> Iterator[Celery]:
    """Give an application that locks on these nodes."""
    app = Celery("applications", broker="memory://", set_as_current=False)
    app.conf.update(redlock_nodes=nodes.urls, redlock_node_timeout=PATIENT)
    yield app
    runtime_of(app).stop()
    runtime_of(app).redlock.close()
    app.close()


@pytest.fixture
def app(shared_nodes: DevNodes) -> Iterator[Celery]:
    """Give an application on the shared nodes."""
    with app_on(shared_nodes) as app:
        yield app


def test_lock_of_a_task_can_wait(app: Celery, redlock: Redlock, key: str) -> None:
    """``wait`` is none of the task's arguments; without it a held lock is refused."""

    @singleton_task(app=app, shared=False, key="{name}")
    def job(name: str) -> None: ...

    async def work() -> None:
        held = redlock.acquire(key)
        asyncio.get_running_loop().call_later(WAITED, redlock.release, held)
        async with job.alock(key, wait=SOON) as lease:
            assert lease.key == key

    held = redlock.acquire(key)
    with pytest.raises(LockHeld), job.lock(key):
        pytest.fail("two users are inside")
    threading.Timer(WAITED, redlock.release, [held]).start()
    with job.lock(name=key, wait=SOON) as lease:
        assert lease.key == key
    asyncio.run(work())


def test_argument_of_a_task_may_be_called_wait(app: Celery, key: str) -> None:
    """It belongs to the call then, as before."""

    @singleton_task(app=app, shared=False, key="{name}:{wait}")
    def job(name: str, wait: int) -> None: ...

    with job.lock(key, wait=5) as lease:
        assert lease.key == f"{key}:5"


def test_adelay_does_not_block_the_loop(three_nodes: DevNodes, key: str) -> None:
    """Other coroutines run while two of three nodes hang and the claim waits."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    async def work(job: Any) -> None:
        first = await job.adelay(key)
        assert first.conflict is None
        assert (await job.aapply_async((key,))).conflict is not None
        ticking = asyncio.create_task(tick())
        with failing(three_nodes.nodes[:2]):
            before = ticks
            result = await job.adelay("another")
            assert ticks - before > 20
        ticking.cancel()
        assert result.id

    with app_on(three_nodes) as app:

        @singleton_task(
            app=app, shared=False, key="{name}", unique_while="queued_or_running"
        )
        def job(name: str) -> None: ...

        asyncio.run(work(job))


def test_script_that_is_refused_exits_with_one_line(
    redlock: Redlock,
    shared_nodes: DevNodes,
    key: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither a traceback nor a word on stdout; the code is that of ``redlock run``."""
    lease = redlock.acquire(key)
    with client(shared_nodes) as rival:
        with pytest.raises(SystemExit) as ended, lock_or_exit(rival, key):
            pytest.fail("two users are inside")
        with pytest.raises(SystemExit) as quiet, lock_or_exit(rival, key, exit_code=0):
            pytest.fail("two users are inside")
        redlock.release(lease)
        with pytest.raises(LockHeld, match="mine"), lock_or_exit(rival, key, wait=SOON):
            raise LockHeld("mine")

    assert (ended.value.code, quiet.value.code) == (75, 0)
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 2
    assert said.err.startswith(f"The lock '{key}' is held by ")
