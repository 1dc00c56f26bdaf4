"""Lock services: URLs in place of one, copies, and event loops that have none."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import trio
from celery.local import Proxy
from django.utils.functional import SimpleLazyObject

from celery_redlock import locking
from celery_redlock.basics.secret import SecretUrl
from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import ConfigurationError, LockHeld
from celery_redlock.locking import alock, lock, lock_or_exit
from celery_redlock.locks.redlock import Redlock
from tests.nodes.support import client


def test_lock_takes_urls_in_place_of_a_service(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """One URL, or a list; equal lists are one service, so a block is re-entered."""
    urls = shared_nodes.urls
    with lock(urls, key) as lease, lock(tuple(urls), key) as inner:
        assert inner is lease
        with pytest.raises(LockHeld), lock(redlock, key):
            pytest.fail("two users are inside")

    async def work() -> None:
        async with alock(urls, key, wait=5) as lease:
            assert lease.is_valid()

    asyncio.run(work())
    locking._services.pop(tuple(map(SecretUrl, urls))).close()  # noqa: SLF001


@pytest.mark.parametrize("wrong", [None, 1, object()])
def test_lock_refuses_what_is_no_service(wrong: Any) -> None:
    """The error says what to write, and is raised before anything is asked."""
    with pytest.raises(TypeError, match=r"must be a Redlock.*Write lock\("):
        lock(wrong, "k").__enter__()


@pytest.mark.parametrize("wrong", [b"redis://localhost"])
def test_lock_refuses_a_url_in_bytes(wrong: Any) -> None:
    """The error shows that they are bytes, and how a URL is written."""
    with pytest.raises(ConfigurationError, match=r"b'redis://localhost' is not.*write"):
        lock(wrong, "k").__enter__()


@pytest.mark.parametrize("lazy", [Proxy, SimpleLazyObject])
def test_lock_takes_what_stands_for_a_service(
    redlock: Redlock, key: str, lazy: Callable[[Callable[[], Redlock]], Redlock]
) -> None:
    """Projects make their service at its first use; such an object can be iterated."""
    with lock(lazy(lambda: redlock), key) as lease:
        assert lease.is_valid()
    with lock_or_exit(lazy(lambda: redlock), key) as lease:
        assert lease.is_valid()


def pickled(service: Redlock) -> Redlock:
    """Return the service as another process gets it."""
    copied: Redlock = pickle.loads(pickle.dumps(service))  # noqa: S301  (our own)
    return copied


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_service_can_be_pickled(
    shared_nodes: DevNodes, key: str, copied: Callable[[Redlock], Redlock]
) -> None:
    """The copy has the nodes and the settings, and connections of its own."""
    settings = {"ttl": 20, "max_ttl": 60, "node_timeout": 1.5, "connect_timeout": 2}
    with (
        client(shared_nodes, **settings) as redlock,
        contextlib.closing(copied(redlock)) as other,
        lock(redlock, key),
    ):
        assert other.timing == redlock.timing
        assert other.keys.prefix == redlock.keys.prefix
        assert other.guard.enabled
        with pytest.raises(LockHeld), lock(other, key):
            pytest.fail("two users are inside")


def test_coroutine_without_asyncio_is_refused(redlock: Redlock, key: str) -> None:
    """In trio, the error says what to do; nothing is locked."""

    async def work() -> None:
        with pytest.raises(ConfigurationError, match=r"In trio, enter a block"):
            async with alock(redlock, key):
                pytest.fail("it was locked")
        with pytest.raises(ConfigurationError, match=r"In trio, enter a block"):
            await redlock.aacquire(key)
        block = lock(redlock, key)
        lease = await trio.to_thread.run_sync(block.__enter__)
        assert lease.is_valid()
        await trio.to_thread.run_sync(block.__exit__, None, None, None)

    trio.run(work)
