"""Let go wrong what can: nodes that hang, a lock that is lost, somebody else.

::

    with held_elsewhere(import_account, "acme"):
        assert_skipped(import_account.delay("acme"))

    result = import_account.delay("acme")
    redlock_events.wait_for("lock_acquired")
    lose_lock(import_account, "acme")
    with pytest.raises(LockLost):
        result.get(timeout=10)

What is locked is named as in the code: a task and the arguments of the call, or a
`Redlock` and the key.
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.core.redlock import Redlock
from celery_redlock.locking import watchdog_of
from celery_redlock.testing.network import FakeNodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Protocol

    from celery_redlock.core.lease import Lease

    class Server(Protocol):
        """A server of one's own, such as ``devnodes.DevNode``."""

        @property
        def is_running(self) -> bool:
            """Whether the process exists."""

        def pause(self) -> None:
            """Stop it."""

        def resume(self) -> None:
            """Let it go on."""

    class Servers(Protocol):
        """Several of them, such as ``devnodes.DevNodes``."""

        @property
        def nodes(self) -> Sequence[Server]:
            """The servers."""


__all__ = ["freeze", "held_elsewhere", "lose_lock", "partition"]

_SOON = 10.0  # seconds in which a loss is announced
_PAUSE = 0.005


@contextmanager
def freeze(nodes: FakeNodes | Servers, *indexes: int) -> Iterator[None]:
    """Stop nodes while the block runs: they take what is sent and do not answer.

    Args:
        nodes: Fake ones, or servers of one's own (SIGSTOP).
        indexes: Which of them, from 0; all by default. With a majority stopped no
            lock is granted or renewed.

    Once the block has ended they do what was sent to them meanwhile.
    """
    with ExitStack() as stack:
        if isinstance(nodes, FakeNodes):
            stack.callback(nodes.thaw, *indexes)
            nodes.freeze(*indexes)
        else:
            for index in indexes or range(len(nodes.nodes)):
                stack.callback(_resume, nodes.nodes[index])
                nodes.nodes[index].pause()
        yield


def _resume(server: Server) -> None:
    if server.is_running:
        server.resume()


@contextmanager
def partition(nodes: FakeNodes, *indexes: int) -> Iterator[None]:
    """Cut this process off from nodes while the block runs; others reach them.

    Args:
        nodes: Fake ones.
        indexes: Which of them, from 0; all by default.

    Raises:
        TypeError: They are real. ``freeze`` them: to who waits for an answer it
            is the same.

    Once the block has ended, what was held back arrives.
    """
    if not isinstance(nodes, FakeNodes):
        raise TypeError(
            f"{type(nodes).__name__} has real servers, which cannot be cut off from "
            "one client alone. Nothing was changed. Use freeze(), or fake nodes."
        )
    with ExitStack() as stack:
        stack.callback(nodes.heal, *indexes)
        nodes.partition(*indexes)
        yield


@contextmanager
def held_elsewhere(what: Any, *args: Any, **kwargs: Any) -> Iterator[Lease]:
    """Let somebody else hold a lock while the block runs, or for ``max_ttl``.

    To the nodes, and to this process, it is another process that runs the same task.

    Args:
        what: A task, whose app's nodes are asked; or a `Redlock`.
        *args: The arguments of the call; or the key.
        **kwargs: The same by name.

    Raises:
        LockUnavailable: It could not be had, as when somebody holds it already.
    """
    redlock, key, task = _lock_of(what, args, kwargs)
    facts = Holder.here(
        task=task,
        task_id=f"elsewhere-{new_base()[:12]}",
        started=redlock.clock.wall_us() / 1e6,
    )
    facts = replace(facts, host="elsewhere")
    lease = redlock.acquire(key, redlock.timing.max_ttl, facts=facts)
    try:
        yield lease
    finally:
        redlock.release(lease)


def lose_lock(what: Any, *args: Any, **kwargs: Any) -> Lease:
    """Let this process lose a lock that it holds, as one paused past the ttl does.

    When this returns the loss has been announced and the lock is free: the body is
    about to be told, and somebody else may take the lock.

    Args:
        what: A task, which runs in a thread of this process; or a `Redlock`.
        *args: The arguments of the call; or the key.
        **kwargs: The same by name.

    Raises:
        AssertionError: This process does not hold it. (From a worker of its own
            take the lock by freezing a majority of the nodes for a ttl.)

    Returns:
        The lease that was lost.
    """
    redlock, key, _ = _lock_of(what, args, kwargs)
    watchdog = watchdog_of(redlock)
    lease: Lease | None = None
    deadline = SYSTEM_CLOCK.monotonic() + _SOON
    # Again, because a renewal that is just being confirmed has the last word.
    while lease is None or lease.state is LeaseState.HELD:
        lease = watchdog.expire(key) or lease
        if lease is None:
            raise AssertionError(
                f"This process does not hold {key!r}: there is nothing to lose."
            )
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise AssertionError(f"{lease!r} did not end within {_SOON:g} s.")
        SYSTEM_CLOCK.sleep(_PAUSE)
    redlock.release_base(key, lease.token.partition(".")[0])
    return lease


def _lock_of(
    what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Redlock, str, str]:
    """Return the service, the key and the task's name."""
    if isinstance(what, Redlock):
        (key,) = args
        return what, key, ""
    # By name and not before: this package serves those without Celery, too.
    runtime = importlib.import_module("celery_redlock.runtime")
    redlock = runtime.runtime_of(what.app).redlock
    return redlock, what.lock_key(*args, **kwargs), what.name
