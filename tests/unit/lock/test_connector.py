"""Forks while a node is being connected to."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from celery_redlock import Redlock
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.operations.doctor import Case
from celery_redlock.operations.doctor.placement import hosts
from celery_redlock.wire import connector as connector_module
from celery_redlock.wire.connector import Connector
from celery_redlock.wire.url import parse_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has none")

FAR = 60.0  # seconds: longer than any thread takes
at_fork: list[Callable[[], object]] = []  # hooks cannot be removed again


def _call_hooks() -> None:
    for hook in at_fork:
        hook()


@pytest.fixture(scope="module", autouse=True)
def _has_hooks() -> None:
    """Have Python call what is in `at_fork` before the hooks of the package."""
    os.register_at_fork(before=_call_hooks)


@pytest.fixture
def may_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let attempts to connect last until this event."""
    event = threading.Event()

    def opened(*_: object) -> str:
        event.wait(FAR)
        time.sleep(0.05)  # so that a fork that does not wait is earlier
        return "refused the connection"

    monkeypatch.setattr(connector_module, "open_connection", opened)
    monkeypatch.setattr(connector_module, "_connecting", set())  # of other tests
    yield event
    event.set()
    at_fork.clear()


@pytest.fixture
def connector(may_end: threading.Event) -> Connector:
    """Give a connector that is connecting."""
    made = Connector(parse_node("redis://a"), clock=SYSTEM_CLOCK, timeout=1.0)
    made.begin()
    return made


def fork(tell: Callable[[], int]) -> int:
    """Fork a child that tells something at once, and return that."""
    pid = os.fork()
    if pid == 0:
        os._exit(tell())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_fork_waits_for_threads_that_connect(
    connector: Connector, may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold the lock of the resolver, and the child could not release it."""
    monkeypatch.setattr(connector_module, "_FORK_WAITS", FAR)
    at_fork.append(may_end.set)

    assert fork(lambda: connector.is_busy) == 0


def test_fork_does_not_wait_for_long(
    connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may not answer. The child waits for no thread of its parent."""
    monkeypatch.setattr(connector_module, "_FORK_WAITS", 0.01)

    assert fork(lambda: connector.is_busy) == 1
    assert fork(lambda: len(connector_module._connecting)) == 0  # noqa: SLF001


def test_fork_waits_while_the_doctor_looks_names_up(
    may_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker runs the doctor in a thread when it starts."""
    begun, ended = threading.Event(), threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        begun.set()
        may_end.wait(FAR)
        time.sleep(0.05)  # so that a fork that does not wait is earlier
        ended.set()
        return []

    monkeypatch.setattr(connector_module, "_FORK_WAITS", FAR)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    redlock = Redlock(["redis://a", "redis://b", "redis://c"])
    look = threading.Thread(target=lambda: list(hosts(Case(redlock, []))))
    look.start()
    begun.wait(FAR)
    at_fork.append(may_end.set)

    assert fork(lambda: not ended.is_set()) == 0

    look.join(FAR)
