"""Fenced rows and real locks: who is late is refused, who renews is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.redlock import Redlock
from celery_redlock.errors import StaleFence
from celery_redlock.locking import lock, watchdog_of
from tests.contrib.support import SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.devnodes import DevNodes
    from tests.contrib.storages import Storage

TTL = 0.5


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a lock service on real nodes."""
    service = Redlock(shared_nodes.urls)
    yield service
    watchdog_of(service).stop()
    service.close()


def test_holder_who_outlived_its_ttl_is_refused(
    storage: Storage, redlock: Redlock, key: str
) -> None:
    """Who does not renew and writes after the next holder has written is refused."""
    pk = storage.add()
    late = redlock.acquire(key, ttl=TTL)
    draft = storage.load(pk)

    with lock(redlock, key, wait=SOON) as lease:
        storage.load(pk).write("by the next", lease)
        with pytest.raises(StaleFence) as refused:
            draft.write("by the late", late)
        storage.load(pk).write("by the next again", lease)

    assert (refused.value.fence, refused.value.latest) == (late.fence, lease.fence)
    assert storage.read(pk) == ("by the next again", lease.fence)


@pytest.fixture
def start_writer(
    orm: str, database: str, shared_nodes: DevNodes, key: str
) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Give a function that starts a holder in a process of its own."""
    writers: list[subprocess.Popen[str]] = []

    def start(pk: int) -> subprocess.Popen[str]:
        args = [orm, database, str(pk), key, str(TTL), *shared_nodes.urls]
        writer = subprocess.Popen(  # noqa: S603  (a program of these tests)
            [sys.executable, "-m", "tests.contrib.late_writer", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        writers.append(writer)
        return writer

    yield start
    for writer in writers:
        writer.kill()
        writer.communicate()


def ask(writer: subprocess.Popen[str], line: str = "") -> dict[str, Any]:
    """Send a line, if any, and return what the writer says next."""
    assert writer.stdin
    assert writer.stdout
    if line:
        writer.stdin.write(f"{line}\n")
        writer.stdin.flush()
    said: dict[str, Any] = json.loads(writer.stdout.readline())
    return said


def test_paused_writer_is_refused(
    storage: Storage,
    redlock: Redlock,
    key: str,
    start_writer: Callable[[int], subprocess.Popen[str]],
) -> None:
    """A process stopped past its ttl writes nothing when it goes on."""
    pk = storage.add()
    writer = start_writer(pk)
    fence = ask(writer)["fence"]
    assert ask(writer, "before the pause")["written"]

    writer.send_signal(signal.SIGSTOP)
    with lock(redlock, key, wait=SOON) as lease:
        storage.load(pk).write("by the next", lease)
        writer.send_signal(signal.SIGCONT)
        said = ask(writer, "after the pause")

    assert (said["fence"], said["latest"]) == (fence, lease.fence)
    assert f"fence {fence}" in said["error"]
    assert storage.read(pk) == ("by the next", lease.fence)


def test_renewed_holder_writes_long_after_its_ttl(
    storage: Storage,
    redlock: Redlock,
    key: str,
    start_writer: Callable[[int], subprocess.Popen[str]],
) -> None:
    """Renewal keeps the fence: a holder that is alive is never late."""
    pk = storage.add()
    writer = start_writer(pk)
    fence = ask(writer)["fence"]

    with pytest.raises(Exception, match="is held"):
        redlock.acquire(key, wait=2 * TTL)

    assert ask(writer, "much later") == {"written": "much later", "valid": True}
    assert storage.read(pk) == ("much later", fence)
