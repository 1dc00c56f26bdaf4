"""Three fake nodes, a service on them, and nothing of other tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.lock.support import Site


@pytest.fixture(autouse=True)
def _own_connections(apps_are_closed: None) -> None:
    """Close the connections of the apps of each test."""


@pytest.fixture(autouse=True)
def _no_shared_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide shared tasks of other tests: Celery adds them to every later app."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())


class _Failing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError(f"the server of the log is away: {record.getMessage()}")


@pytest.fixture
def failing_log(
    request: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[logging.Handler]:
    """Give a handler of our lines that raises, as one of a project may.

    Its parameter is the name of the logger; that of the package by default.
    """
    monkeypatch.setattr(logging, "raiseExceptions", False)  # else it is printed
    logger = logging.getLogger(getattr(request, "param", "celery_redlock"))
    handler = _Failing()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def clock() -> FakeClock:
    """Give a clock that stands still."""
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give three nodes."""
    return FakeNodes(3, clock=clock)


@pytest.fixture
def redlock(nodes: FakeNodes) -> Redlock:
    """Give a service with a ttl of 10 s; its nodes vote."""
    return nodes.redlock(ttl=10.0)


@pytest.fixture
def rival(nodes: FakeNodes, redlock: Redlock) -> Redlock:
    """Give the service of another process on the same nodes."""
    return nodes.another_client().redlock(ttl=10.0)


@pytest.fixture
def site(nodes: FakeNodes, clock: FakeClock, redlock: Redlock, rival: Redlock) -> Site:
    """Give the nodes, their clock, and both services."""
    return Site(nodes, clock, redlock, rival)
