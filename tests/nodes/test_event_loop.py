"""Locks of coroutines: ``async with alock(...)`` on real nodes."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import CoroutineType
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockLost
from celery_redlock.locking import alock, lock, watchdog_of
from celery_redlock.locks.redlock import Redlock
from tests.harness.threads import threads_started_here
from tests.nodes.support import BRIEF, client, locks, until

SOON = 30.0  # seconds, on a busy machine
CROWD = 1000


@pytest.fixture
def redlock(three_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service on three nodes, and check that nothing stays locked."""
    with client(three_nodes, ttl=2 * SOON) as redlock:  # no lock ends by itself
        redlock.check()
        yield redlock
        until(lambda: not locks(three_nodes), SOON)
        watchdog_of(redlock).stop()


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new event loop."""
    asyncio.run(asyncio.wait_for(work, 4 * SOON))


def test_coroutines_take_turns(redlock: Redlock, key: str) -> None:
    """Coroutines and a thread increment a counter and lose no increment."""
    amount = 0

    async def work() -> None:
        nonlocal amount
        for _ in range(5):
            async with alock(redlock, key, wait=SOON):
                before = amount
                await asyncio.sleep(0.001)  # the work of the body
                amount = before + 1

    def work_in_a_thread() -> None:
        nonlocal amount
        for _ in range(5):
            with lock(redlock, key, wait=SOON):
                amount += 1

    async def all_of_them() -> None:
        others = [work() for _ in range(5)]
        await asyncio.gather(*others, asyncio.to_thread(work_in_a_thread))

    in_loop(all_of_them())

    assert amount == 30


def test_coroutines_that_wait_take_no_thread_each(redlock: Redlock, key: str) -> None:
    """A thousand wait for one lock; when they are cancelled, the lock is free."""

    async def wait() -> None:
        async with alock(redlock, key, wait=4 * SOON):
            pytest.fail("the lock was held")

    async def work(started: list[Any]) -> None:
        async with alock(redlock, key):
            waiting = [asyncio.create_task(wait()) for _ in range(CROWD)]
            listener: Any = redlock.listener
            while len(listener._waiters) < CROWD:  # noqa: ASYNC110, SLF001
                await asyncio.sleep(0.01)
            assert len(started) < 50
            for task in waiting:
                task.cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ended} == {asyncio.CancelledError}

    with threads_started_here() as started:
        in_loop(work(started))

    redlock.release(redlock.acquire(key, wait=SOON))


def test_cancellation_at_any_await_leaves_nothing_locked(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """The task is cancelled after each number of turns of the loop."""

    async def take() -> None:
        async with alock(redlock, key, wait=0.05):
            await asyncio.sleep(0)

    async def work(turns: int) -> bool:
        task = asyncio.create_task(take())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_running = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return was_running

    turns, step = 0, 1
    while asyncio.run(work(turns)):
        until(lambda: not locks(three_nodes), SOON, what=f"a release after {turns}")
        turns, step = turns + step, step + (turns > 20)

    assert turns > 1


@pytest.mark.parametrize("blocks", [False, True], ids=["waits", "blocks"])
def test_loss_cancels_the_block(redlock: Redlock, key: str, *, blocks: bool) -> None:
    """Its next await raises LockLost, also where the loop was blocked meanwhile."""
    losses: list[object] = []

    async def work() -> None:
        async with alock(redlock, key, on_lost=losses.append):
            watchdog_of(redlock).expire(key)
            if blocks:
                until(lambda: losses, SOON)
            await asyncio.sleep(SOON)
            pytest.fail("the block was not cancelled")

    with pytest.raises(LockLost, match=key):
        in_loop(work())

    until(lambda: losses, SOON)  # the watchdog's thread calls it beside the loop
    assert len(losses) == 1


def test_loss_is_raised_at_the_end_of_a_block_that_never_awaits(
    redlock: Redlock, key: str
) -> None:
    """There is no await that could be interrupted."""

    async def work() -> None:
        async with alock(redlock, key) as lease:
            watchdog_of(redlock).expire(key)
            until(lambda: not lease.is_valid(), SOON)

    with pytest.raises(LockLost, match=key):
        in_loop(work())


@pytest.mark.parametrize("awaits", [True, False], ids=["awaits", "never awaits"])
def test_loss_reaches_the_consumer_of_a_generator_as_lock_lost(
    redlock: Redlock, key: str, *, awaits: bool
) -> None:
    """The consumer's own awaits go on; the generator's next await, or its end, raises.

    A cancellation of the consumer would be taken for one by its caller: a task group
    ends without an error then.
    """
    seen: list[object] = []

    async def rows(lost: asyncio.Event) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()

        def note(_: object) -> None:
            loop.call_soon_threadsafe(lost.set)

        async with alock(redlock, key, on_lost=note):
            yield "under the lock"
            if awaits:
                await asyncio.sleep(SOON)
                pytest.fail("the generator was not interrupted")

    async def consume() -> None:
        lost = asyncio.Event()
        source = rows(lost)
        seen.append(await anext(source))
        watchdog_of(redlock).expire(key)
        await lost.wait()
        await asyncio.sleep(0.05)  # the consumer's own work, which no lock protects
        seen.append("the consumer's own work")
        with pytest.raises(LockLost, match=key):
            await anext(source)
        seen.append("lost")

    async def work() -> None:
        (ended,) = await asyncio.gather(consume(), return_exceptions=True)
        assert ended is None

    in_loop(work())
    assert seen == ["under the lock", "the consumer's own work", "lost"]


def test_loss_cancels_no_task_that_consumes_no_generator(
    redlock: Redlock, key: str
) -> None:
    """The task that began a generator may go on when another one consumes it."""

    async def rows() -> AsyncIterator[int]:
        async with alock(redlock, key):
            yield 1
            await asyncio.sleep(0.3)
            yield 2

    async def work() -> None:
        source = rows()
        await anext(source)
        rest = asyncio.create_task(consume(source))
        await asyncio.sleep(0)
        watchdog_of(redlock).expire(key)
        with pytest.raises(LockLost, match=key):
            await rest

    async def consume(source: AsyncIterator[int]) -> None:
        async for _ in source:
            pass

    in_loop(work())


def test_lease_is_renewed_while_the_loop_is_blocked(redlock: Redlock, key: str) -> None:
    """The watchdog has a thread of its own."""

    async def work() -> None:
        async with alock(redlock, key, ttl=4.5) as lease:
            end = lease.until
            until(lambda: lease.until > end + 4.5, SOON)  # blocks the loop
            await asyncio.sleep(0)
            assert lease.is_valid()

    in_loop(work())


def test_cancellation_by_others_is_none_of_ours(redlock: Redlock, key: str) -> None:
    """A timeout of the caller ends the block as usual, and releases the lock."""

    async def work() -> None:
        async with alock(redlock, key):
            await asyncio.sleep(SOON)

    async def timed() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work(), 0.05)
        lease = await redlock.aacquire(key, wait=SOON)
        assert await redlock.arelease(lease) >= 2

    in_loop(timed())


def test_first_lock_needs_no_thread_of_the_loop(
    three_nodes: DevNodes, key: str
) -> None:
    """All of them may be in use, even for what ends after the block."""
    block_has_ended = threading.Event()

    async def work(newcomer: Redlock) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        in_use = loop.run_in_executor(None, block_has_ended.wait)
        try:
            async with alock(newcomer, key):
                pass
        finally:
            block_has_ended.set()
            await in_use

    with client(three_nodes) as newcomer:  # it does not know yet who the members are
        asyncio.run(asyncio.wait_for(work(newcomer), SOON))
        watchdog_of(newcomer).stop()


# -- loops that are closed in the middle ---------------------------------------------


def close_in_the_middle(work: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Run a task in a loop that is stopped and closed after so many seconds.

    Returns:
        A weak reference to the loop.
    """
    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(work)
    loop.call_later(seconds, loop.stop)
    loop.run_forever()
    loop.close()
    task._log_destroy_pending = False  # noqa: SLF001  (a test of just that)
    if task.done():
        task.result()
    return weakref.ref(loop)


def test_loop_that_is_closed_in_the_middle_leaves_no_lock(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """The collector ends the coroutine, which releases what it may have got."""

    async def take() -> None:
        async with alock(redlock, key, wait=0.5):
            await asyncio.sleep(0)

    def are_gone() -> bool:
        gc.collect()
        return not any(loop() for loop in loops)

    loops = [close_in_the_middle(take(), number * 0.0002) for number in range(20)]

    until(are_gone, what="an end of the loops")
    until(lambda: not locks(three_nodes, key), SOON)


def test_steps_of_a_lock_do_not_keep_their_caller(redlock: Redlock, key: str) -> None:
    """Else the collector may close them first, and drop a caller that awaits them."""

    async def take() -> None:
        async with alock(redlock, key):
            pass

    def waiting() -> list[Any]:
        found = [one for one in gc.get_objects() if type(one) is CoroutineType]
        return [one for one in found if one.__qualname__ == "Hold.aacquire"]

    async def step() -> None:
        callers[0].send(None)

    callers = [take()]
    loop = asyncio.new_event_loop()
    loop.run_until_complete(step())
    loop.close()
    gc.disable()
    try:
        assert len(waiting()) == 1
        callers.clear()
        assert waiting() == []
    finally:
        gc.enable()


async def stay(redlock: Redlock, key: str) -> None:
    """Stop the loop in the block of the lock."""
    async with alock(redlock, key):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(600)


def test_loop_that_is_closed_in_a_block_leaves_no_lock(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """The watchdog, which renews the lock, does not keep the block alive."""
    loop = close_in_the_middle(stay(redlock, key), SOON)

    def is_gone() -> bool:  # the I/O thread may just be telling it of a reply
        gc.collect()
        return loop() is None

    until(is_gone, what="an end of the loop")
    until(lambda: not locks(three_nodes, key), SOON)


def test_block_of_a_closed_loop_can_end_while_another_loop_runs(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """The collector runs at any time; a coroutine that it ends can await nothing."""

    async def collect() -> None:
        gc.collect()

    gc.disable()
    try:
        close_in_the_middle(stay(redlock, key), SOON)
        assert locks(three_nodes, key)
        in_loop(collect())
    finally:
        gc.enable()

    until(lambda: not locks(three_nodes, key), SOON)


def test_block_that_is_closed_in_its_loop_awaits_nothing(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """The collector closes a task that nothing keeps, while its loop runs."""
    begun: list[Any] = []
    ended: list[Any] = []

    async def hold() -> None:
        hooks: dict[str, Any] = {"on_acquired": begun.append}
        async with alock(redlock, key, **hooks, on_released=ended.append):
            await asyncio.get_running_loop().create_future()

    async def close() -> None:
        block: Any = hold()
        awaited = block.send(None)
        while not begun:
            awaited._asyncio_future_blocking = False  # noqa: SLF001  (as a task does)
            await asyncio.wait({awaited})
            awaited = block.send(None)
        block.close()

    in_loop(close())

    assert ended == begun
    until(lambda: not locks(three_nodes, key), SOON)


def test_lock_is_not_renewed_when_the_loop_of_its_holder_is_closed(
    three_nodes: DevNodes, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its block ends when the collector finds it, and the lock with its ttl before."""
    held: list[Any] = []

    async def hold(redlock: Redlock) -> None:
        held.append(asyncio.current_task())  # so it is not collected
        await stay(redlock, key)

    with client(three_nodes, ttl=BRIEF) as redlock:
        redlock.check()
        close_in_the_middle(hold(redlock), SOON)

        until(lambda: not locks(three_nodes, key), SOON)
        watchdog_of(redlock).stop()
        held.clear()
        gc.collect()  # ends the block here, and not in the middle of a later test

    assert "was closed in its block" in caplog.text


def test_release_needs_no_further_turn_of_the_loop(
    redlock: Redlock, three_nodes: DevNodes, key: str
) -> None:
    """A loop that stops when a release was handed over leaves nothing locked."""
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(redlock.aacquire(key))
    release = redlock.arelease(lease)

    async def hand_over() -> None:
        release.send(None)
        loop.stop()

    task = loop.create_task(hand_over())
    loop.run_forever()

    until(lambda: not locks(three_nodes), SOON)
    release.close()
    assert task.done()
    loop.close()
