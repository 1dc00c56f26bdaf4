"""Fixtures for the tests of a project that locks. Nothing is loaded before its use.

====================  ==========================================================
``redlock_fake``      all apps of this process lock in memory; no server is needed
``redlock_nodes``     real redis-servers on loopback, started once per session
``redlock_events``    what was sent of ``celery_redlock.signals`` during the test
====================  ==========================================================

``@pytest.mark.redlock(nodes=5)`` uses ``redlock_fake`` and says how it is made. What
can go wrong is in ``celery_redlock.testing``: ``freeze``, ``lose_lock`` and others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes
    from celery_redlock.settings import Settings
    from celery_redlock.testing import FakeNodes, SignalRecorder

_FAKE = "redlock_fake"


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker means."""
    config.addinivalue_line(
        "markers",
        "redlock(nodes=3, clock=None, node_timeout=0.05): lock in memory, as with the "
        "fixture redlock_fake; the arguments are of celery_redlock.testing.FakeNodes",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put ``redlock_fake`` first, so that a worker finds it when it starts."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if names is None:
        return
    if _FAKE in names or item.get_closest_marker("redlock"):
        names[:] = [_FAKE, *(name for name in names if name != _FAKE)]


@pytest.fixture
def redlock_fake(request: pytest.FixtureRequest) -> Iterator[FakeNodes]:
    """Let all apps of this process lock in memory, and give the nodes: three.

    They answer as real ones do, in real time unless the marker has another clock.
    What the apps say in ``redlock_nodes`` is not looked at; nor are there nodes for
    other processes, such as the children of a prefork worker.
    """
    from celery_redlock.core.clock import SYSTEM_CLOCK
    from celery_redlock.runtime import instead
    from celery_redlock.testing import FakeNodes

    marker = request.node.get_closest_marker("redlock")
    options: dict[str, Any] = {"clock": SYSTEM_CLOCK}
    if marker:
        options |= marker.kwargs
    nodes = FakeNodes(*(marker.args if marker else ()), **options)

    def make(settings: Settings) -> Redlock:
        return nodes.redlock(
            ttl=settings.ttl,
            max_ttl=settings.max_ttl,
            node_timeout=settings.node_timeout,
            prefix=settings.prefix,
            restart_guard=settings.restart_guard,
        )

    with instead(make, nodes=nodes.urls):
        yield nodes


@pytest.fixture(scope="session")
def redlock_nodes_options() -> dict[str, Any]:
    """Give what ``redlock_nodes`` is made with: override it in your conftest.py.

    The options are those of ``celery_redlock.devnodes.DevNodes``: ``count``,
    ``max_ttl`` and others. Three nodes by default, for the default max_ttl of 60 s.
    """
    return {}


@pytest.fixture(scope="session")
def redlock_nodes(redlock_nodes_options: dict[str, Any]) -> Iterator[DevNodes]:
    """Give real redis-servers, started once: ``.urls`` is for the setting.

    Leave them as they are: what a test breaks by ``freeze`` is mended after it.

    Raises:
        RedlockError: There is no redis-server on this machine.
    """
    from celery_redlock.devnodes import DevNodes

    with DevNodes(**{"count": 3, **redlock_nodes_options}) as nodes:
        yield nodes


@pytest.fixture
def redlock_events() -> Iterator[SignalRecorder]:
    """Give the signals of locks that this process sends during the test."""
    from celery_redlock.testing import SignalRecorder

    with SignalRecorder() as events:
        yield events
