"""``with lock(redlock, key) as lease:`` acquire, renew, release, re-entrance.

The lock for code without Celery, and the basis of the task. The body never runs without
the lock. While the body runs, the lock is renewed. If the lock is lost, ``on_lost`` is
called, and a body that then ends without an exception gets ``LockLost`` at the end of
the block.

To take a key inside of its own block is free: it yields the same lease and touches no
network. Only code that runs inside the block, and was called from it, re-enters. It has
all of these in common with the block:

=============  =======================================================================
process        a forked child has a copy of everything else
thread         and greenlet, asyncio task or trio task in it: these run side by side
context        (``contextvars``): a thread of a pool serves one user after another
generator      if the block is in one: its consumer runs between two of its steps
=============  =======================================================================

All other code is another client: it waits or is refused, also where it is part of the
same program. So a caller may refuse itself, but two users are never inside together.
(To wait in ``lock`` blocks the event loop, and with it a holder in the same loop.
Coroutines use ``async with alock(redlock, key)``.)

The body of a context manager that is a generator is inside (``@contextmanager def
mine(): with lock(...): yield``), since its caller entered the block by ``__enter__``.
If a pool of threads is that caller (``executor.submit(block.__enter__)``), no code is
inside: the call has ended before the work begins.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import sys
import threading
import weakref
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

from celery_redlock.basics.secret import SecretUrl, hidden
from celery_redlock.basics.timing import seconds_of, seconds_text
from celery_redlock.errors import (
    ConfigurationError,
    LockHeld,
    LockUnavailable,
    RedlockError,
)
from celery_redlock.locks.lease import Lease, new_base
from celery_redlock.locks.limits import wanted
from celery_redlock.locks.watchdog import Watchdog
from celery_redlock.scripts.keys import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from types import FrameType

    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.wire.steps import Steps

__all__ = [
    "Hold",
    "aheld_by",
    "alock",
    "current_lease",
    "held_by",
    "held_lease",
    "lock",
    "lock_or_exit",
    "watchdog_of",
]

log = logging.getLogger(__name__)

_OWN_PROCESS = (
    "This process itself holds it, in a block that this code was not called from. Use "
    "the lease of that block, or a wait= that outlasts it."
)

# A flow of control: process and thread; weak references to the greenlet and the tasks
# of asyncio and trio.
_Flow: TypeAlias = tuple[int, int, object, object, object]

# What `lock` gets as functions in place of the methods of a `Hold`.
_HOOKS = ("on_acquired", "on_renewed", "on_lost", "on_cancelled", "on_released")

_ENTERING = {"__enter__", "__aenter__", "enter_context", "enter_async_context"}
_IS_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_STEPS = {"async_generator_asend", "async_generator_athrow", "anext_awaitable"}
_POOLS = {  # modules of the functions that call what a thread is to do
    "asgiref.sync",
    "concurrent.futures.thread",
    "eventlet.tpool",
    "gevent.threadpool",
    "multiprocessing.pool",
}


def watchdog_of(redlock: Redlock) -> Watchdog:
    """Return the watchdog of this service in this process, made on first use."""
    watchdog: Watchdog | None = vars(redlock).get("_watchdog")
    if watchdog is None:
        # Of two threads that come here at once, one makes it for both.
        watchdog = vars(redlock).setdefault("_watchdog", Watchdog(redlock))
        redlock.nodes.resender = watchdog.resend_releases
    return watchdog


_services: dict[tuple[SecretUrl, ...], Redlock] = {}  # of this process, by their URLs


def _service(redlock: Redlock | str | Sequence[str]) -> Redlock:
    """Return a lock service; one for each list of URLs.

    Raises:
        TypeError: It is neither a service nor URLs.
    """
    redlock = hidden(redlock)
    urls: Any = [redlock] if isinstance(redlock, SecretUrl) else redlock
    if isinstance(urls, list):
        from celery_redlock.locks.redlock import Redlock  # noqa: PLC0415  (slow import)

        service = _services.get(tuple(urls))
        # Of two threads that come here at once, one makes it for both.
        return service or _services.setdefault(tuple(urls), Redlock(urls))
    if not hasattr(redlock, "acquiring"):
        raise TypeError(
            f"The lock service is of type {type(redlock).__name__}. It must be a "
            "Redlock, or the URLs of its nodes. Nothing was locked. Write "
            'lock("redis://localhost", "the key") or lock(Redlock([...]), "the key").'
        )
    return urls  # type: ignore[no-any-return]  # a service


class _Block:
    """A block of code that has a lease.

    Args:
        redlock: The lock service.
        lease: The lease.
        frame: The code that enters the block.
    """

    __slots__ = (
        "__weakref__",
        "_flow",
        "generator",
        "is_open",
        "lease",
        "redlock",
    )

    def __init__(self, redlock: Redlock, lease: Lease, frame: FrameType | None) -> None:
        self.redlock, self.lease = redlock, lease
        self.is_open = True
        self._flow = _flow()
        frame = _frame_of_block(frame)
        is_generator = frame is not None and frame.f_code.co_flags & _IS_GENERATOR
        # A frame of a generator does not keep its generator alive.
        self.generator = frame if is_generator else None
        if frame is None or frame.f_globals.get("__name__") not in _POOLS:
            _blocks.set((*_open_blocks(), weakref.ref(self)))

    def end(self) -> None:
        """Note that the block has ended. Twice is harmless."""
        self.is_open, self.generator = False, None
        _blocks.set(_open_blocks())  # in this context; others forget it later

    def is_around(self, flow: _Flow, *, event_loop: bool) -> bool:
        """Tell whether the code that runs now is inside of the block.

        Args:
            flow: The flow of control of this code.
            event_loop: Whether it is also inside if the block is around its event loop.
        """
        theirs = self._flow
        if theirs != flow:
            is_around_loop = theirs[:2] == flow[:2] and theirs[3:] == (None, None)
            if not (event_loop and is_around_loop and flow[3:] != (None, None)):
                return False
        is_running = self.generator is None or _is_running(self.generator)
        return self.is_open and is_running


_blocks: ContextVar[tuple[weakref.ref[_Block], ...]] = ContextVar(
    "celery_redlock_blocks", default=()
)


def _open_blocks() -> tuple[weakref.ref[_Block], ...]:
    """Return the blocks of this context that have not ended, innermost last."""
    references = _blocks.get()
    return references and tuple(
        reference
        for reference in references
        if (block := reference()) is not None and block.is_open
    )


def _blocks_around(*, event_loop: bool = False) -> Iterator[_Block]:
    """Yield the blocks that the code that runs now is inside of, innermost first.

    Args:
        event_loop: Also yield blocks around the event loop of this task.
    """
    references = _blocks.get()
    if not references:
        return
    here = _flow()
    for reference in reversed(references):
        block = reference()
        if block is not None and block.is_around(here, event_loop=event_loop):
            yield block


def _frame_of_block(frame: FrameType | None) -> FrameType | None:
    """Return the code whose block it is: the caller of all context managers."""
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if code.co_flags & _IS_GENERATOR:
            is_manager = caller is not None and caller.f_code.co_name in _ENTERING
        else:
            is_manager = code.co_name in _ENTERING
        if not is_manager:
            return frame
        frame = caller
    return None


def _is_running(wanted: FrameType) -> bool:
    """Tell whether this frame is among the callers of the code that runs now."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (documented)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is wanted


def _flow() -> _Flow:
    """Return the flow of control that runs now. No copy of a context has it."""
    task, trio_task = _asyncio_task(), _trio_task()
    # SQLAlchemy runs blocking code of a coroutine in a greenlet, and awaits it.
    green = _greenlet() if task is None else None
    return os.getpid(), threading.get_ident(), green, task, trio_task


# Most processes import none of these three, and their import takes a while.


def _asyncio_task() -> object | None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        loop = asyncio._get_running_loop()  # noqa: SLF001  (documented; no exception)
        task = loop and asyncio.current_task(loop)
    except AttributeError:  # half imported
        return None
    return task and weakref.ref(task)


def _trio_task() -> object | None:
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        return weakref.ref(trio.lowlevel.current_task())
    except (AttributeError, RuntimeError):  # half imported, or no loop runs here
        return None


def _greenlet() -> object | None:
    greenlet = sys.modules.get("greenlet")
    if greenlet is None:
        return None
    try:
        current = greenlet.getcurrent()
    except AttributeError:  # half imported
        return None
    return current.parent and weakref.ref(current)  # None: that of the thread itself


def current_lease(key: str | None = None) -> Lease | None:
    """Return the lease of the innermost block that this code is inside of, or None.

    The lease may be lost: then ``ensure`` raises `LockLost`, and storage refuses its
    fence. None means that no block is around: the body of a task runs so if it is
    called as a function, eagerly, or without its lock (``"allow"``, ``"run"``).

    It is the lease of a block that called this code, or of a block around the event
    loop that runs this task. Threads, greenlets and tasks that a block starts have
    none: give them the lease.

    Args:
        key: Return the lease that has this key instead.
    """
    for block in _blocks_around(event_loop=True):
        if key is None or block.lease.covers(key):
            return block.lease
    return None


def held_lease(redlock: Redlock, key: str, limits: Limits = ()) -> Lease | None:
    """Return the valid lease of these keys whose block this code is inside, or None."""
    for block in _blocks_around():
        lease = block.lease
        is_enough = block.redlock is redlock and lease.is_enough_for(key, limits)
        if is_enough and lease.is_valid():
            return lease
    return None


class Hold:
    """One lock of one execution: acquired, renewed, released.

    `held_by` holds it for a block, and `lock` makes one for a block. Subclasses, or
    functions that `lock` is given, take the place of the hooks. After
    ``acquire``, also one that raised, ``release`` must be called.

    Args:
        redlock: The lock service.
        key: The name of the lock.
        ttl, renew, renew_every, hold_at_least, watchdog, base: See `lock`.
        limits: How many holders and starts the keys may have; see ``locks.permits``.
            Who has a limit of starts calls ``Lease.begin`` when the work starts.

    Attributes:
        redlock: The lock service.
        key: The name of the lock.
        own: The lease, from the grant to the end of ``release``. It stays None inside
            of another block of the lock.

    Raises:
        ConfigurationError: ``hold_at_least`` is longer than any lock lasts, or a
            duration is no number of seconds.
    """

    own: Lease | None = None
    _block: _Block | None = None
    _process = 0  # that acquires it
    _is_used = False  # since the last release
    _may_be_granted = False  # by nodes, though ``own`` is not yet set
    _loop: Callable[[], Any] | None = None  # returns the loop in which it is acquired

    def __init__(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        redlock: Redlock,
        key: str,
        *,
        ttl: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        hold_at_least: float = 0.0,
        watchdog: Watchdog | None = None,
        base: str | None = None,
        limits: Limits = (),
    ) -> None:
        if hold_at_least != 0.0:
            hold_at_least = seconds_of("hold_at_least", hold_at_least, zero=True)
        if hold_at_least > redlock.timing.max_ttl:
            raise ConfigurationError(
                f"hold_at_least is {hold_at_least:g} s, above max_ttl "
                f"({redlock.timing.max_ttl:g} s): no lock lasts longer. Lower it."
            )
        if renew_every is not None:
            renew_every = seconds_of("renew_every", renew_every)
        self.redlock = redlock
        self.key = key
        self._ttl = ttl
        self._renew = renew
        self._renew_every = renew_every
        self._hold_at_least = hold_at_least
        self._watchdog = watchdog or watchdog_of(redlock)
        self._base = base or new_base()
        self._limits = limits

    def acquire(self, wait: float = 0.0) -> Lease:
        """Acquire the lock and keep it alive; raises as ``Redlock.acquire`` does."""
        lease = self.redlock.carry_out(self._acquiring(wait))
        self._begin(lease, _frame_outside())
        return lease

    async def aacquire(
        self, wait: float = 0.0, cancellation: _Cancellation | None = None
    ) -> Lease:
        """Acquire the lock as ``acquire`` does, in a coroutine.

        Args:
            wait: Seconds to wait for the lock.
            cancellation: What cancels the block when the lock is lost.
        """
        from celery_redlock.wire.event_loop import (  # noqa: PLC0415  (slow import)
            drive,
            running_loop,
        )

        loop = running_loop()
        self._loop = weakref.ref(loop)
        steps = self._acquiring(wait, cancellation)
        lease = await drive(steps, self.redlock.transport, loop)
        # Steps with a frame of the caller would be in a cycle with this coroutine. The
        # collector may close `drive` first, which would drop the frame, and so this.
        self._begin(lease, _frame_outside())
        return lease

    def _begin(self, lease: Lease, frame: FrameType | None) -> None:
        """Note that the block begins, unless its lease is that of a block around it."""
        if lease is self.own:
            self._block = _Block(self.redlock, lease, frame)
            self.on_acquired(lease)

    def _acquiring(
        self, wait: float, cancellation: _Cancellation | None = None
    ) -> Steps[Lease]:
        held = held_lease(self.redlock, self.key, self._limits)
        if held is not None:
            return held
        self._process = os.getpid()
        self._is_used = self._may_be_granted = True
        holder = self.holder()
        try:
            lease = yield from self.redlock.acquiring(
                self.key,
                self._ttl,
                wait,
                base=self._base,
                holder=holder,
                limits=self._limits,
            )
        except RedlockError as error:
            self._may_be_granted = False
            is_block = holder is None  # and not the call of a task
            if (
                is_block
                and isinstance(error, LockHeld)
                and self._watchdog.watches(error.holder)
            ):
                error.args = (f"{error} {_OWN_PROCESS}",)
            raise
        self.own = lease
        told = cancellation or self
        self._watchdog.watch(
            lease,
            on_lost=told.on_lost,
            on_renewed=told.on_renewed,
            on_cancelled=self.on_cancelled,
            renew=self._renew,
            renew_every=self._renew_every,
        )
        return lease

    @property
    def generator(self) -> FrameType | None:
        """The generator that the block of this lock is in; None: in none."""
        return self._block.generator if self._block else None

    def check(self) -> None:
        """Raise unless the lock was held until now. Call it at the end of the block.

        Raises:
            LockLost: The validity of the lease has ended.
        """
        lease = self.own
        if lease is not None and not lease.is_valid() and not lease.is_inherited():
            raise lease.lost_error()

    async def arelease(self) -> None:
        """Release the lock as ``release`` does, in a coroutine.

        The release is handed over before the first await. Nothing is awaited outside of
        the event loop that acquired the lock, and after `await_no_more`.
        """
        from celery_redlock.wire import event_loop  # noqa: PLC0415  (slow import)

        if not self._is_used:
            return
        lease, is_parent = self.own, self._process == os.getpid()
        transport = self.redlock.transport
        try:
            await event_loop.drive_release(self._releasing(), transport, self._loop)
        except BaseException:  # a time limit may have come before it was handed over
            self.await_no_more()
            await event_loop.drive_release(self._releasing(), transport, self._loop)
            raise
        finally:
            self._end(lease if is_parent else None)

    def await_no_more(self) -> None:
        """Let the release await nothing, because the coroutine is being closed."""
        self._loop = _no_loop

    def release(self) -> None:
        """Release the lock, if there is one. Twice is harmless."""
        if not self._is_used:
            return
        lease, is_parent = self.own, self._process == os.getpid()
        try:
            self._release()
        except BaseException:
            _finish(self._release)
            raise
        finally:
            self._end(lease if is_parent else None)

    def _end(self, released: Lease | None) -> None:
        self.own, self._block, self._is_used = None, None, False
        if released is not None:
            self.on_released(released)

    def _release(self) -> None:
        self.redlock.carry_out(self._releasing())

    def _releasing(self) -> Steps[None]:
        if self._block is not None:
            self._block.end()
        if self._process != os.getpid():
            return  # this is a child that was forked in the block: its parent holds it
        if self.own is not None:
            self._watchdog.forget(self.own)
            keep = self._hold_at_least and self._hold_at_least - self.own.age()
            yield from self.redlock.releasing(self.own, keep=keep)
        elif self._may_be_granted:
            # Interrupted between the grant and the assignment: nodes may hold it.
            base = f"{self._base}."
            release = self.redlock.release_request(self.key, base, self._limits)
            yield from self.redlock.sending(release)
            self._base = new_base()  # it may reach a node after the next grant

    def give_up(self, lease: Lease) -> None:
        """Renew the lease no more, because its block cannot end."""
        self._watchdog.forget(lease)
        log.warning(
            "The event loop of the holder of %s was closed in its block. The lock is "
            "not renewed any more, and ends in %s.",
            shown(lease.key),
            seconds_text(lease.remaining()),
        )

    # -- hooks ---------------------------------------------------------------------

    def holder(self) -> Holder | None:
        """Return what other clients see of the holder; None: this process."""

    def on_acquired(self, lease: Lease) -> None:
        """Note that the lock was acquired."""

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Note a renewal, in the watchdog's thread; it was so many seconds late."""

    def on_lost(self, lease: Lease) -> None:
        """Note, in the watchdog's thread, that the validity has ended."""

    def on_cancelled(self, lease: Lease) -> None:
        """Note, in the watchdog's thread, that a newcomer asked the holder to end."""

    def on_released(self, lease: Lease) -> None:
        """Note that the lock was released."""


@contextlib.contextmanager
def lock(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
    redlock: Redlock | str | Sequence[str],
    key: str | Sequence[str] | Mapping[str, int],
    *,
    limit: int | None = None,
    rate: str | tuple[int, float | timedelta] | None = None,
    ttl: float | None = None,
    wait: float = 0.0,
    renew: bool = True,
    renew_every: float | None = None,
    hold_at_least: float = 0.0,
    watchdog: Watchdog | None = None,
    base: str | None = None,
    holder: Holder | None = None,
    on_acquired: Callable[[Lease], None] | None = None,
    on_renewed: Callable[[Lease, float], None] | None = None,
    on_lost: Callable[[Lease], None] | None = None,
    on_cancelled: Callable[[Lease], None] | None = None,
    on_released: Callable[[Lease], None] | None = None,
) -> Iterator[Lease]:
    """Hold the lock while the block runs.

    Args:
        redlock: The lock service, or the URLs of its nodes: one, or a list. For equal
            URLs this process has one service, with the usual settings.
        key: The name of the lock, or a list of several: then the block has all of
            them, by one lease with one fence. Or several with the number of holders
            that each may have at once: ``{"tenant:1": 1, "imports": 10}``.
        limit: How many holders the key may have at once; 1 by default, or with a rate
            as many as starts. The key of the lease is then that of a permit.
        rate: How many blocks may start in any period, for each key: ``"10/m"`` (or
            ``s``, ``h``, ``d``), or ``(10, timedelta(minutes=5))``.
        ttl: Seconds that nodes keep an unrenewed lock; the service's by default.
        wait: Seconds to wait for the lock before giving up; 0 tries once.
        renew: Renew the lock while the block runs. Otherwise the block must end
            within the ttl.
        renew_every: Seconds between renewals, at most a third of the ttl. It limits
            the delay of ``on_cancelled``.
        hold_at_least: Seconds after the start for which the lock is kept, even if the
            block ends sooner. At most the service's max_ttl.
        watchdog: Renews the lease; one for this service and process by default.
        base: First part of the token; see ``Redlock.acquire``.
        holder: What other clients see of the holder; this process by default.
        on_acquired: Called with the lease before the block runs.
        on_renewed: Called in the watchdog's thread after each renewal, with the lease
            and the seconds by which the renewal was late.
        on_lost: Called in the watchdog's thread when the validity has ended.
        on_cancelled: Called in the watchdog's thread when a newcomer asked the holder
            to end. The lock is kept; nothing else happens.
        on_released: Called with the lease after the release.

    Raises:
        LockUnavailable: The lock was not granted. The block did not run.
        ConfigurationError: A duration or the key cannot be used. The block did not
            run.
        LockLost: At the end of a block that did not raise, if the lock was lost while
            it ran.
    """
    redlock = hidden(redlock)
    hold = _hold(
        redlock,
        key,
        limit=limit,
        rate=rate,
        ttl=ttl,
        renew=renew,
        renew_every=renew_every,
        hold_at_least=hold_at_least,
        watchdog=watchdog,
        base=base,
        holder=holder,
        on_acquired=on_acquired,
        on_renewed=on_renewed,
        on_lost=on_lost,
        on_cancelled=on_cancelled,
        on_released=on_released,
    )
    yield from _block(hold, wait)


@contextlib.contextmanager
def lock_or_exit(
    redlock: Redlock | str | Sequence[str],
    key: str | Sequence[str] | Mapping[str, int],
    *,
    exit_code: int = 75,
    **options: Any,
) -> Iterator[Lease]:
    """Hold the lock while the block runs, or end this script with one line.

    For scripts and cron: if the lock is not granted, the error's text goes to stderr,
    without a traceback, and the process exits. An error of the block itself goes on.

    Args:
        redlock: The lock service, or URLs, as for `lock`.
        key: The name of the lock, or several, as for `lock`.
        exit_code: The code with which the script then ends; 75 by default, as
            ``celery redlock run``.
        options: The other options of `lock`.

    Raises:
        SystemExit: The lock was not granted. The block did not run.
        ConfigurationError: A duration or the key cannot be used. The block did not
            run.
        LockLost: The lock was lost while the block ran.
    """
    redlock = hidden(redlock)
    with contextlib.ExitStack() as stack:
        try:
            lease = stack.enter_context(lock(redlock, key, **options))
        except LockUnavailable as error:
            print(error, file=sys.stderr)  # noqa: T201  (it is for the script's user)
            raise SystemExit(exit_code) from None
        yield lease


@contextlib.asynccontextmanager
async def alock(
    redlock: Redlock | str | Sequence[str],
    key: str | Sequence[str] | Mapping[str, int],
    *,
    wait: float = 0.0,
    **options: Any,
) -> AsyncIterator[Lease]:
    """Hold the lock while the block of a coroutine runs.

    It is `lock` for asyncio: the same keys, renewed by the same watchdog. It takes no
    thread for each coroutine that waits, and does not block the event loop. The loss
    of the lock cancels the block: its next ``await`` is interrupted, and the block ends
    with `LockLost`. A block that never awaits gets it at its end. In an async generator
    it is the generator that is interrupted, and not its consumer. After a cancellation,
    at any ``await``, nothing stays locked.

    Args:
        redlock: The lock service, or URLs, as for `lock`.
        key: The name of the lock, or several, as for `lock`.
        wait: Seconds to wait for the lock before giving up; 0 tries once.
        options: The other options of `lock`.

    Raises:
        LockUnavailable: The lock was not granted. The block did not run.
        ConfigurationError: A duration or the key cannot be used, or no event loop of
            asyncio runs here. The block did not run.
        LockLost: The lock was lost while the block ran.
    """
    redlock = hidden(redlock)
    async with aheld_by(_hold(redlock, key, **options), wait) as lease:
        yield lease


def _hold(
    redlock: Redlock | str | Sequence[str],
    key: str | Sequence[str] | Mapping[str, int],
    *,
    limit: int | None = None,
    rate: Any = None,
    holder: Holder | None = None,
    **options: Any,
) -> Hold:
    """Return a hold with these options of `lock`."""
    redlock = _service(redlock)
    text, limits = wanted(key, limit, rate)
    hooks = {name: options.pop(name, None) for name in _HOOKS}
    hold = Hold(redlock, text, limits=limits, **options)
    for name, hook in {**hooks, "holder": holder and (lambda: holder)}.items():
        if hook is not None:
            setattr(hold, name, hook)
    return hold


def _block(hold: Hold, wait: float = 0.0) -> Iterator[Lease]:
    """Acquire for the time of a block; raise at its end if the lock was lost."""
    try:
        lease = hold.acquire(wait)
        lease.begin()
        yield lease
        hold.check()
    finally:
        # A time limit can interrupt after any call, so no call comes before this `try`.
        try:
            hold.release()
        except BaseException:
            hold.release()
            raise


held_by = contextlib.contextmanager(_block)


@contextlib.asynccontextmanager
async def aheld_by(hold: Hold, wait: float = 0.0) -> AsyncIterator[Lease]:
    """Acquire for the time of a coroutine's block, which the loss of the lock cancels.

    Args:
        hold: The lock.
        wait: Seconds to wait for it.
    """
    import asyncio  # noqa: PLC0415  (slow; most processes need none)

    from celery_redlock.wire.event_loop import running_loop  # noqa: PLC0415

    loss = _Cancellation(hold, running_loop(), asyncio.current_task())
    try:
        lease = await hold.aacquire(wait, loss)
        lease.begin()
        loss.begin(hold.generator)
        try:
            yield lease
        except asyncio.CancelledError:
            if loss.end():
                raise lease.lost_error() from None
            raise
        finally:
            loss.end()
        hold.check()
    except GeneratorExit:
        hold.await_no_more()
        raise
    finally:
        try:
            await hold.arelease()
        except BaseException:
            await hold.arelease()
            raise


class _Cancellation:
    """Cancels the task of a block when its lock is lost.

    If the block is in an async generator, its consumer runs between two steps, and the
    consumer is not to be cancelled: it would never see `LockLost`. So this waits until
    the task is in a step of the generator.

    The watchdog refers to this. So it refers to loop and task weakly: when the loop is
    closed in the block, the collector ends the task, which releases the lock.

    Args:
        hold: The lock.
        loop: The event loop.
        task: The task that runs the block.
    """

    def __init__(self, hold: Hold, loop: Any, task: Any) -> None:
        self._hold = hold
        self._loop = weakref.ref(loop)
        self._task: Callable[[], Any] = weakref.ref(task) if task else lambda: None
        self._runs = self._was_made = False
        self._others = 0  # cancellations by others
        self._frame: FrameType | None = None
        self._pause = 0.01  # seconds until the next look at the generator

    def begin(self, generator: FrameType | None) -> None:
        """Note that the block runs, in this generator."""
        self._runs, self._frame, task = True, generator, self._task()
        if hasattr(task, "cancelling"):  # from Python 3.11 on
            self._others = task.cancelling()

    def end(self) -> bool:
        """Allow no more cancellations. Return whether only this one was made."""
        self._runs, self._frame = False, None
        was_made, self._was_made = self._was_made, False
        task = self._task()
        if was_made and hasattr(task, "uncancel"):
            return bool(task.uncancel() <= self._others)
        return was_made

    def on_lost(self, lease: Lease) -> None:
        """Cancel the block, and tell the hold."""
        loop = self._loop()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if loop is not None:
                loop.call_soon_threadsafe(self._cancel)
        self._hold.on_lost(lease)

    def on_renewed(self, lease: Lease, lateness: float) -> None:
        """Tell the hold; end the renewals of a block that cannot end any more."""
        loop = self._loop()
        if loop is None or loop.is_closed():  # in the block, which cannot end any more
            self._hold.give_up(lease)
        self._hold.on_renewed(lease, lateness)

    def _cancel(self) -> None:
        loop, task = self._loop(), self._task()
        if not self._runs or loop is None or task is None:
            return
        if self._frame is None or self._is_in_step(self._frame, task):
            self._was_made = True
            task.cancel()
            return
        loop.call_later(self._pause, self._cancel)
        self._pause = min(2 * self._pause, 0.25)

    def _is_in_step(self, frame: FrameType, task: Any) -> bool:
        """Tell whether the task awaits a step of the generator with this frame."""
        awaited = task.get_coro()
        while inspect.iscoroutine(awaited):
            awaited = awaited.cr_await
        if type(awaited).__name__ not in _STEPS:
            return False
        # Neither a frame nor a step leads to its generator. Losses are rare.
        return any(
            one.ag_frame is frame and one.ag_running
            for one in gc.get_objects()
            if type(one) is AsyncGeneratorType  # isinstance would ask lazy objects
        )


def _frame_outside() -> FrameType | None:
    """Return the innermost caller that is not in this module."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (documented)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame


def _no_loop() -> None:
    """Return the loop of a coroutine that is being closed."""


def _finish(call: Callable[[], None]) -> None:
    """Make a call that was interrupted once more, and again if that is interrupted."""
    try:
        call()
    except BaseException:
        call()
        raise
