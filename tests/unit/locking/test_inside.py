"""The inside of a block: code that runs in it and was called from it.

Each test enters a block in a way in which frameworks do, and then asks for the lock in
the same thread, from code that the block did not call.
"""

# ruff: noqa: SIM117  (the tests are about blocks that raise, in each other)

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import trio
import trio.testing

from celery_redlock.errors import LockHeld
from celery_redlock.locking import Hold, alock, current_lease, held_lease
from celery_redlock.locks.lease import Holder, Lease
from tests.unit.lock.support import Site, holders

greenlet: Any = pytest.importorskip("greenlet")
sync_to_async: Any = pytest.importorskip("asgiref.sync").sync_to_async


def seen_by(site: Site) -> str:
    """Return what this code is to the lock: inside its block, or refused."""
    lease = current_lease()
    assert held_lease(site.redlock, "k") is lease
    try:
        with site.lock() as taken:
            assert taken is lease, "two users are inside"
            return "inside"
    except LockHeld:
        assert lease is None
        return "refused"


# -- A block that is entered in a thread of a pool, and goes on elsewhere ----------


def test_thread_that_only_entered_the_block_is_not_in_it(site: Site) -> None:
    """``asyncio.to_thread(cm.__enter__)``, as FastAPI enters a dependency."""

    async def story() -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            block = site.lock()
            lease = await asyncio.to_thread(block.__enter__)
            seen = [await asyncio.to_thread(seen_by, site), seen_by(site)]
            assert holders(site.nodes) == [lease.token] * 3
            await asyncio.to_thread(block.__exit__, None, None, None)
            return [*seen, await asyncio.to_thread(again, site)]

    assert asyncio.run(story()) == ["refused", "refused", "ran"]


def again(site: Site) -> str:
    """Take a lock that is free."""
    assert current_lease() is None
    with site.lock():
        return "ran"


@contextlib.contextmanager
def wrapped(site: Site) -> Iterator[Lease]:
    """Hold the lock, as a user's own context manager does."""
    with site.lock() as lease:
        yield lease


@pytest.mark.parametrize("how", [Site.lock, wrapped])
def test_job_of_a_pool_that_entered_the_block_was_not_it(
    site: Site, how: Callable[[Site], contextlib.AbstractContextManager[Lease]]
) -> None:
    """``executor.submit(cm.__enter__)`` copies no context: the thread is the same."""
    with ThreadPoolExecutor(1) as pool:
        block = how(site)
        pool.submit(block.__enter__).result()
        assert pool.submit(seen_by, site).result() == "refused"
        pool.submit(block.__exit__, None, None, None).result()
        assert pool.submit(again, site).result() == "ran"


def test_task_is_not_in_the_block_that_a_thread_of_asgiref_has_entered(
    site: Site,
) -> None:
    """``sync_to_async(cm.__enter__)`` gives the context of its thread to the caller.

    So the tasks that the caller starts have it, too. All use one thread.
    """

    async def story() -> str:
        block = site.lock()
        await sync_to_async(block.__enter__)()
        seen = await asyncio.create_task(sync_to_async(seen_by)(site))
        await sync_to_async(block.__exit__)(None, None, None)
        return str(seen)

    assert asyncio.run(story()) == "refused"
    assert again(site) == "ran"


def test_job_of_a_pool_of_multiprocessing_was_not_it(site: Site) -> None:
    """Its pool of threads has one function for all jobs of a thread."""
    with ThreadPool(1) as pool:
        block = site.lock()
        pool.apply(block.__enter__)
        assert pool.apply(seen_by, (site,)) == "refused"
        pool.apply(block.__exit__, (None, None, None))


def test_block_that_a_job_runs_is_its_own(site: Site) -> None:
    """A function that a pool runs is in the blocks that it enters."""

    def job() -> str:
        with site.lock():
            return seen_by(site)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(job).result() == "inside"


# -- Contexts ----------------------------------------------------------------------


def test_code_without_the_context_of_the_block_is_not_in_it(site: Site) -> None:
    """A callback with a context of its own may run for another user."""
    assert contextvars.copy_context().run(again, site) == "ran"
    with site.lock():
        assert contextvars.copy_context().run(seen_by, site) == "inside"
        assert contextvars.Context().run(seen_by, site) == "refused"
        assert seen_by(site) == "inside"


def test_block_that_ends_in_another_context_leaves_nothing(site: Site) -> None:
    """The context in which it began does not keep it."""
    context = contextvars.copy_context()
    block = site.lock()
    context.run(block.__enter__)
    block.__exit__(None, None, None)

    assert context.run(current_lease) is None
    assert context.run(again, site) == "ran"
    assert context.run(current_lease) is None


def test_blocks_may_end_in_any_order(site: Site) -> None:
    """The end of an outer block takes nothing from an inner one."""
    outer, inner = site.lock(), site.lock("l")
    outer.__enter__()
    lease = inner.__enter__()
    outer.__exit__(None, None, None)

    assert current_lease() is lease
    assert current_lease("k") is None
    inner.__exit__(None, None, None)
    assert current_lease() is None


# -- Generators --------------------------------------------------------------------


def rows(site: Site) -> Iterator[str]:
    """Yield rows under a lock; each is what the generator itself sees."""
    with site.lock():
        yield seen_by(site)
        yield seen_by(site)


def test_consumer_of_a_generator_is_not_in_its_block(site: Site) -> None:
    """Only the generator is: its consumer runs between two of its steps."""
    source = rows(site)

    assert next(source) == "inside"
    assert seen_by(site) == "refused"
    assert next(source) == "inside"
    assert list(source) == []
    assert again(site) == "ran"


def delegating(site: Site) -> Iterator[str]:
    """Yield the rows of another generator, in the block of this one."""
    with site.lock():
        yield from (seen_by(site) for _ in range(2))


def entering_more(site: Site) -> Iterator[str]:
    """Enter the lock through a stack of context managers."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(site.lock())
        yield seen_by(site)


class Wrapper:
    """A context manager of a user that enters the lock in ``__enter__``."""

    def __init__(self, site: Site) -> None:
        self._block = site.lock()

    def __enter__(self) -> Lease:
        return self._block.__enter__()

    def __exit__(self, *error: object) -> None:
        self._block.__exit__(None, None, None)


def with_a_wrapper(site: Site) -> Iterator[str]:
    """Enter the lock through a context manager of the user's own."""
    with Wrapper(site):
        yield seen_by(site)


def with_a_manager(site: Site) -> Iterator[str]:
    """Enter the lock through a context manager that is a generator."""
    with wrapped(site):
        yield seen_by(site)


@pytest.mark.parametrize(
    "source", [rows, delegating, entering_more, with_a_wrapper, with_a_manager]
)
def test_generator_may_enter_its_block_in_any_way(
    site: Site, source: Callable[[Site], Iterator[str]]
) -> None:
    """Its calls are inside; its consumer is not; it releases when it is dropped."""
    source = source(site)  # type: ignore[assignment]

    assert next(source) == "inside"  # type: ignore[call-overload]
    assert seen_by(site) == "refused"
    del source
    gc.collect()

    assert again(site) == "ran"


def test_generator_that_is_dropped_releases_at_once(site: Site) -> None:
    """Nothing here keeps it alive: the release does not wait for the collector."""
    source = rows(site)
    next(source)
    gc.disable()
    try:
        del source
        assert not any(holders(site.nodes))
    finally:
        gc.enable()


@pytest.mark.parametrize("manager", [wrapped, Wrapper])
def test_body_of_a_context_manager_is_in_its_block(
    site: Site, manager: Callable[[Site], contextlib.AbstractContextManager[Lease]]
) -> None:
    """Its generator waits meanwhile, but the body is what the block is for."""
    with manager(site):
        assert seen_by(site) == "inside"

    with contextlib.ExitStack() as stack:
        stack.enter_context(manager(site))
        assert seen_by(site) == "inside"

    with contextlib.ExitStack() as stack:
        into = stack.enter_context
        into(manager(site))
        assert seen_by(site) == "inside"

    assert again(site) == "ran"


def test_consumer_of_an_async_generator_is_not_in_its_block(site: Site) -> None:
    """Only the generator is, as for other generators."""

    async def source() -> AsyncIterator[str]:
        async with alock(site.redlock, "k", watchdog=site.watchdog):
            yield seen_by(site)
            yield seen_by(site)

    async def story() -> list[str]:
        seen = []
        async for row in source():
            seen += [row, seen_by(site)]
        return seen

    assert asyncio.run(story()) == ["inside", "refused"] * 2


def test_body_of_an_async_context_manager_is_in_its_block(site: Site) -> None:
    """Also where a stack has entered it."""

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        async with alock(site.redlock, "k", watchdog=site.watchdog):
            yield

    async def story() -> list[str]:
        async with manager():
            seen = [seen_by(site)]
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(manager())
            return [*seen, seen_by(site)]

    assert asyncio.run(story()) == ["inside", "inside"]


# -- Tasks and greenlets -----------------------------------------------------------


def test_trio_tasks_are_executions_of_their_own(site: Site) -> None:
    """A task that the block started, and one from before, are refused."""

    async def story() -> list[str]:
        seen: list[str] = []
        entered = trio.Event()

        async def other() -> None:
            await entered.wait()
            seen.append(seen_by(site))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            with site.lock():
                entered.set()
                async with trio.open_nursery() as inner:
                    inner.start_soon(other)
                await trio.lowlevel.checkpoint()
                seen.append(seen_by(site))
                await trio.testing.wait_all_tasks_blocked()
        return seen

    assert trio.run(story) == ["refused", "refused", "inside"]


def test_greenlets_are_executions_of_their_own(site: Site) -> None:
    """Also where they share the context of the block, as those of gevent do."""

    def story() -> str:
        return seen_by(site)

    with site.lock():
        strange, copying = greenlet.greenlet(story), greenlet.greenlet(story)
        copying.gr_context = contextvars.copy_context()
        assert [strange.switch(), copying.switch()] == ["refused", "refused"]
        assert seen_by(site) == "inside"


def test_greenlet_of_a_coroutine_is_the_coroutine(site: Site) -> None:
    """SQLAlchemy runs blocking code of a coroutine in one; the coroutine waits."""

    async def story() -> str:
        here = greenlet.greenlet(seen_by)
        async with alock(site.redlock, "k", watchdog=site.watchdog):
            here.gr_context = greenlet.getcurrent().gr_context
            return str(here.switch(site))

    assert asyncio.run(story()) == "inside"


def test_eager_task_of_asyncio_is_an_execution_of_its_own(site: Site) -> None:
    """Its first step runs in the call that starts it."""

    async def other() -> str:
        return seen_by(site)

    async def story() -> str:
        loop: Any = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))
        async with alock(site.redlock, "k", watchdog=site.watchdog):
            return str(await loop.create_task(other()))

    assert asyncio.run(story()) == "refused"


# -- The error ---------------------------------------------------------------------


def test_refusal_by_a_block_of_this_process_says_so(site: Site) -> None:
    """A caller that deadlocks itself learns that its own process has the lock."""
    source = rows(site)
    next(source)
    with pytest.raises(LockHeld, match=r"This process itself holds it, .* block"):
        with site.lock():
            pytest.fail("two users are inside")

    with pytest.raises(LockHeld, match=r"a wait= that outlasts it\.$"):
        with site.lock(wait=0.01):
            pytest.fail("two users are inside")

    theirs = site.rival.acquire("l")
    with pytest.raises(LockHeld) as refused:
        with site.lock("l"):
            pytest.fail("two users are inside")
    assert "This process itself" not in str(refused.value)
    site.rival.release(theirs)


def test_refusal_of_a_task_by_a_run_in_another_greenlet_says_nothing_of_a_block(
    site: Site,
) -> None:
    """Pools of threads and greenlets run the calls of a task in one process."""

    class Call(Hold):
        def holder(self) -> Holder:
            return Holder.here(task="job")

    first, second = (Call(site.redlock, "k", watchdog=site.watchdog) for _ in "12")
    first.acquire()

    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(second.acquire).exception()

    assert isinstance(error, LockHeld)
    assert "is held by job" in str(error)
    assert "This process itself" not in str(error)
    first.release()
