"""Five fake nodes, nodes on scripted sockets, and clients of them."""

from __future__ import annotations

import pytest

from celery_redlock.locks.lease import Lease
from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing import FakeClock, FakeNodes
from tests.unit.lock.sockets import Connection, Net, Sock, Stage


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    """Give five nodes."""
    return FakeNodes(5, clock=clock)


@pytest.fixture
def lease(redlock: Redlock) -> Lease:
    """Give the lease of ``k``."""
    return redlock.acquire("k")


@pytest.fixture
def connection() -> Connection:
    """Give the connection of the node."""
    return Connection()


@pytest.fixture
def sock(connection: Connection) -> Sock:
    """Give the socket of the node's connection."""
    return connection.sock


@pytest.fixture
def stage(clock: FakeClock, connection: Connection) -> Stage:
    """Give a node that is connected."""
    stage = Stage(clock, connection)
    stage.arrive()
    assert stage.node.facts
    return stage


@pytest.fixture
def net(clock: FakeClock) -> Net:
    """Give three nodes that are connected."""
    net = Net(clock, "a", "b", "c")
    net.connect()
    return net
