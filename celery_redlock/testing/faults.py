"""Faults for tests: nodes that hang, a lock that is lost, another holder.

::

    with held_elsewhere(import_account, "acme"):
        assert_skipped(import_account.delay("acme"))

    result = import_account.delay("acme")
    redlock_events.wait_for("lock_acquired")
    lose_lock(import_account, "acme")
    with pytest.raises(LockLost):
        result.get(timeout=10)

The functions name a lock as the code does: by a task and the arguments of a call, or by
a `Redlock` and a key.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import LockHeld
from celery_redlock.locking import watchdog_of
from celery_redlock.locks.forced_release import ForcedRelease
from celery_redlock.locks.lease import Holder, LeaseState, new_base
from celery_redlock.locks.redlock import Redlock
from celery_redlock.records.forced_releases import force_release_words
from celery_redlock.scripts import FORCE_RELEASE
from celery_redlock.scripts.keys import key_of
from celery_redlock.testing.network import FakeNodes
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNodes, DevStore
    from celery_redlock.locks.lease import Lease
    from celery_redlock.locks.limits import Limits

_SOON = 10.0  # seconds within which a loss is signalled
_PAUSE = 0.005


@contextmanager
def freeze(nodes: FakeNodes | DevNodes | DevStore, *indexes: int) -> Iterator[None]:
    """Stop nodes while the block runs: they accept requests and do not answer.

    After the block they execute the requests that they got in the meantime. With a
    majority stopped, no lock is granted or renewed.

    Args:
        nodes: Fake nodes, or the servers of ``devnodes`` (SIGSTOP).
        indexes: Which nodes, from 0; all by default.
    """
    if isinstance(nodes, FakeNodes):
        nodes.freeze(*indexes)
        try:
            yield
        finally:
            nodes.thaw(*indexes)
        return
    servers = [nodes.nodes[index] for index in indexes or range(len(nodes.nodes))]
    try:
        for server in servers:
            server.pause()
        yield
    finally:
        for server in servers:
            if server.is_running:
                server.resume()


@contextmanager
def partition(nodes: FakeNodes, *indexes: int) -> Iterator[None]:
    """Cut this process off from nodes while the block runs; other clients reach them.

    After the block the requests that were held back arrive.

    Args:
        nodes: Fake nodes.
        indexes: Which nodes, from 0; all by default.

    Raises:
        TypeError: The nodes are real servers. Use ``freeze``: a client that waits for
            an answer sees no difference.
    """
    if not isinstance(nodes, FakeNodes):
        raise TypeError(
            f"{type(nodes).__name__} has real servers, which cannot be cut off from "
            "one client alone. No node was changed. Use freeze(), or fake nodes."
        )
    nodes.partition(*indexes)
    try:
        yield
    finally:
        nodes.heal(*indexes)


@contextmanager
def held_elsewhere(what: Any, *args: Any, **kwargs: Any) -> Iterator[Lease]:
    """Hold a lock as another process while the block runs, for ``max_ttl`` at most.

    To the nodes, and to this process, the holder is a process on another host. If the
    task has a limit, all permits that are free are held, so that no call gets one. To
    hold a single one, name it: ``held_elsewhere(redlock, "imports##2")``.

    Args:
        what: A task, or a `Redlock`.
        *args: The arguments of the call, or the key.
        **kwargs: The keyword arguments of the call.

    Raises:
        LockUnavailable: The lock was not granted, for example because it is held.

    Yields:
        The lease; of several permits, the first one.
    """
    redlock, key, task, limits = _lock_of(what, args, kwargs)
    task_id, started = f"elsewhere-{new_base()[:12]}", redlock.clock.wall()
    holder = Holder.here(task=task, task_id=task_id, started=started)
    holder = replace(holder, host="elsewhere")

    def acquire() -> Lease:
        lease = redlock.carry_out(
            redlock.acquiring(key, redlock.timing.max_ttl, holder=holder, limits=limits)
        )
        lease.begin()
        return lease

    leases = [acquire()]
    try:
        with suppress(LockHeld):
            while limits:
                leases.append(acquire())
        yield leases[0]
    finally:
        for lease in leases:
            redlock.release(lease)


def lose_lock(what: Any, *args: Any, **kwargs: Any) -> Lease:
    """Let this process lose a lock, as a process does that is paused past the ttl.

    When this function returns, the loss is signalled and the lock is free: the body is
    about to be interrupted, and another client can take the lock. If the task has a
    limit, that is one of the permits that this process has.

    Args:
        what: A task, which runs in a thread of this process; or a `Redlock`.
        *args: The arguments of the call, or the key.
        **kwargs: The keyword arguments of the call.

    Raises:
        AssertionError: This process does not hold the lock. (A worker in a process of
            its own loses it when a majority of the nodes is frozen for a ttl.)

    Returns:
        The lost lease.
    """
    redlock, key, *_ = _lock_of(what, args, kwargs)
    watchdog = watchdog_of(redlock)
    lease = watchdog.expire(key)
    if lease is None:
        raise AssertionError(
            f"This process does not hold {key!r}, so it cannot lose it."
        )
    deadline = SYSTEM_CLOCK.monotonic() + _SOON
    # Repeated, because a renewal that is just being confirmed extends the lease.
    while lease.state is LeaseState.HELD or watchdog.announced is lease:
        watchdog.expire(lease)
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise AssertionError(f"{lease!r} did not end within {_SOON:g} s.")
        SYSTEM_CLOCK.sleep(_PAUSE)
    limits = lease.choice.limits if lease.choice else ()
    redlock.release_base(key, lease.token.partition(".")[0], limits)
    return lease


def force_release(what: Any, *args: Any, **kwargs: Any) -> None:
    """Release a lock as an operator does, and let its holder learn of it.

    When this function returns, the lock is free. If this process held it, the loss is
    signalled, and the body is about to be interrupted. If the task has a limit, one
    permit is released: the first that is held.

    Args:
        what: A task, which runs in a thread of this process; or a `Redlock`.
        *args: The arguments of the call, or the key.
        **kwargs: The keyword arguments of the call.

    Raises:
        AssertionError: No process holds the lock, or it is not renewed.
    """
    redlock, key, _, limits = _lock_of(what, args, kwargs)
    names = [name for limit in limits for name in limit.names()] or [key]
    found = ((name, redlock.inspect(name).holder) for name in names)
    name, holder = next((pair for pair in found if pair[1]), (key, None))
    if holder is None:
        raise AssertionError(
            f"No majority of the nodes names a holder of {key!r}. Nothing was released."
        )
    whole = holder.whole_key(name)
    record = ForcedRelease(
        whole, str(holder), "tester", tool="force_release", at=redlock.clock.wall()
    )
    words = force_release_words(redlock.keys, whole, holder, holder.token, record)
    redlock.nodes.ask(FORCE_RELEASE, *words, done_when=all_answered)
    deadline = SYSTEM_CLOCK.monotonic() + _SOON
    while watchdog_of(redlock).renew_key(whole):
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise AssertionError(f"{whole!r} was not renewed within {_SOON:g} s.")
        SYSTEM_CLOCK.sleep(_PAUSE)


def _lock_of(
    what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Redlock, str, str, Limits]:
    """Return the lock service, the key, the name of the task, and limits of holders."""
    if isinstance(what, Redlock):
        if len(args) != 1 or kwargs:
            raise TypeError(f"{what!r} needs one key, such as 'invoice:42'.")
        return what, key_of(args[0], are_names=True), "", ()
    if not hasattr(what, "lock_wanted"):
        raise TypeError(
            f"{what!r} is neither a task that takes a lock nor a Redlock. Name a task "
            "and the arguments of a call, or a Redlock, such as "
            "redlock_fake.redlock(), and a key."
        )
    # Imported on use: the rest of this package works without Celery.
    runtime = importlib.import_module("celery_redlock.app.runtime")
    redlock = runtime.runtime_of(what.app).redlock
    key, limits = what.lock_wanted(*args, **kwargs)
    at_once = tuple(limit for limit in limits if not limit.period)
    return redlock, key, what.name, at_once
