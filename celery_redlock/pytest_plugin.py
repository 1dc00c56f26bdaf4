"""Pytest fixtures for projects that use locks. Each loads its modules on first use.

====================  ==========================================================
``redlock_fake``      lets all apps of this process lock in memory, without a server
``redlock_nodes``     real redis-servers on loopback, or a PostgreSQL, etcd or
                      ZooKeeper in place of them, started once per session
``redlock_events``    records the signals of ``celery_redlock.signals`` in the test
====================  ==========================================================

``@pytest.mark.redlock(nodes=5)`` uses ``redlock_fake`` with these options. Faults are
in ``celery_redlock.testing``: ``freeze``, ``lose_lock`` and others.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.devnodes import DevNodes, DevStore
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.settings import Settings
    from celery_redlock.testing import FakeNodes, SignalRecorder

_FAKE, _REAL = "redlock_fake", "redlock_nodes"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "redlock(nodes=3, clock=None, node_timeout=0.05): lock in memory, as with the "
        "fixture redlock_fake; the arguments are of celery_redlock.testing.FakeNodes",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put ``redlock_fake`` before the fixtures that start a worker.

    The last, because a ``conftest.py`` may add the marker to its tests.
    """
    for item in items:
        names = getattr(item, "fixturenames", None)
        if names is None:
            continue
        if _FAKE in names or item.get_closest_marker("redlock"):
            # A new list: the items of a test with parameters share the old one.
            others = (name for name in names if name != _FAKE)
            item.fixturenames = [_FAKE, *others]  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let apps that earlier tests have used find the nodes of ``redlock_nodes``."""
    _forget_runtimes(item)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Let later tests use other settings than those of ``redlock_nodes``."""
    _forget_runtimes(item)


def _forget_runtimes(item: pytest.Item) -> None:
    """Have all apps read their settings again, if the test uses ``redlock_nodes``.

    An app reads its settings once. And it does not ask a node that hung in an earlier
    test before a pause is over.
    """
    runtimes = sys.modules.get("celery_redlock.app.runtime")
    if runtimes and _REAL in getattr(item, "fixturenames", ()):
        runtimes.forget_runtimes()


@pytest.fixture
def redlock_fake(request: pytest.FixtureRequest) -> Iterator[FakeNodes]:
    """Let all apps of this process lock in memory, and give the fake nodes: three.

    They answer as real nodes do, in real time unless the marker has another clock. The
    setting ``redlock_nodes`` of the apps is ignored. Other processes, such as the
    children of a prefork worker, do not see the fake nodes.
    """
    from celery_redlock.app.runtime import instead
    from celery_redlock.basics.clock import SYSTEM_CLOCK
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
    """Give the options of ``redlock_nodes``. Override this in your conftest.py.

    They are those of ``celery_redlock.devnodes.DevNodes``: ``count``, ``max_ttl`` and
    others. By default there are three nodes, for the default max_ttl of 60 s. With
    ``{"store": "postgresql"}`` there is one PostgreSQL in place of them. With
    ``"etcd"`` or ``"zookeeper"`` there are three members. The other options are then
    those of ``celery_redlock.devnodes.DevStore``.
    """
    return {}


@pytest.fixture(scope="session")
def redlock_nodes(
    redlock_nodes_options: dict[str, Any],
) -> Iterator[DevNodes | DevStore]:
    """Give real servers; ``.urls`` is the value for ``redlock_nodes``.

    All tests of the session share them, so leave them running. ``freeze`` is safe: the
    nodes continue after its block. Before and after each test that uses the fixture,
    all apps forget their settings and connections, so the order of tests is free.

    Raises:
        RedlockError: There is no such server on this machine, or its driver is not
            installed.
    """
    from celery_redlock.devnodes import DevNodes, DevStore

    options = dict(redlock_nodes_options)
    servers: DevNodes | DevStore
    if store := options.pop("store", None):
        servers = DevStore(store, **options)
    else:
        servers = DevNodes(**{"count": 3, **options})
    with servers as nodes:
        yield nodes


@pytest.fixture
def redlock_events() -> Iterator[SignalRecorder]:
    """Give a recorder of the signals that this process sends during the test."""
    from celery_redlock.testing import SignalRecorder

    with SignalRecorder() as events:
        yield events
