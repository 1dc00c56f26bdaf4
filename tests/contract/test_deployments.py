"""The same histories on three fake nodes and three real servers, with one outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import LockHeld, LockLost, QuorumUnreachable
from celery_redlock.locks.lease import Holder
from celery_redlock.locks.redlock import Redlock
from celery_redlock.testing import FakeClock, FakeNodes
from tests.harness.waiting import until

NODE_TIMEOUT = 1.0  # seconds for a node to reply, also on a busy machine
SHORT = 3.5 * NODE_TIMEOUT  # seconds, for what has to expire
A_MOMENT = 0.01  # seconds; servers tell milliseconds, by clocks of their own
FREE_EVERYWHERE = ["", "", ""]


class Deployment(ABC):
    """Three nodes that a test can break."""

    def __init__(self) -> None:
        self.services: list[Redlock] = []

    def redlock(self, **options: Any) -> Redlock:
        """Return the service of another process on these nodes."""
        self.services.append(self._service(node_timeout=NODE_TIMEOUT, **options))
        return self.services[-1]

    @abstractmethod
    def _service(self, **options: Any) -> Redlock: ...

    @abstractmethod
    def freeze(self, *indexes: int) -> None:
        """Stop servers."""

    @abstractmethod
    def thaw(self, *indexes: int) -> None:
        """Continue servers."""

    @abstractmethod
    def kill(self, index: int) -> None:
        """End a server."""

    @abstractmethod
    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        """End a server and start it again."""

    @abstractmethod
    def get(self, index: int, key: str) -> str:
        """Return a value; "" for none, or from a dead node."""

    @abstractmethod
    def delete(self, index: int, key: str) -> None:
        """Delete a key on a server, as an operator does."""

    @abstractmethod
    def wait_until(self, event: Callable[[], Any]) -> None:
        """Let time pass until this is true."""

    def holders(self, key: str) -> list[str]:
        """Return the token that each node names; "" for none, or from a dead node."""
        for service in self.services:  # they resend to a node that was away
            service.transport.drain()
        values = [self.get(index, f"redlock:lock:{key}") for index in range(3)]
        return [value.partition("\n")[0] for value in values]


class _Fakes(Deployment):
    def __init__(self) -> None:
        super().__init__()
        self._nodes = FakeNodes(3)
        self._nodes.redlock()

    def _service(self, **options: Any) -> Redlock:
        return self._nodes.another_client().redlock(**options)

    def freeze(self, *indexes: int) -> None:
        self._nodes.freeze(*indexes)

    def thaw(self, *indexes: int) -> None:
        self._nodes.thaw(*indexes)

    def kill(self, index: int) -> None:
        self._nodes.nodes[index].kill()

    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        self._nodes.nodes[index].restart(keep_memory=keep_memory)

    def get(self, index: int, key: str) -> str:
        keys = self._nodes.nodes[index].memory.redis
        keys.look_at_clock()
        return (keys.get(key.encode()) or b"").decode()

    def delete(self, index: int, key: str) -> None:
        self._nodes.nodes[index].memory.redis.delete(key.encode())

    def wait_until(self, event: Callable[[], Any]) -> None:
        clock = self._nodes.clock
        assert isinstance(clock, FakeClock)
        deadline = clock.monotonic() + 10.0
        while not event():
            assert clock.monotonic() < deadline
            clock.sleep(0.01)


class _Servers(Deployment):
    def __init__(self, nodes: DevNodes) -> None:
        super().__init__()
        self._nodes = nodes

    def _service(self, **options: Any) -> Redlock:
        return Redlock(self._nodes.urls, **options)

    def freeze(self, *indexes: int) -> None:
        for index in indexes:
            self._nodes.nodes[index].pause()

    def thaw(self, *indexes: int) -> None:
        for index in indexes:
            self._nodes.nodes[index].resume()

    def kill(self, index: int) -> None:
        self._nodes.nodes[index].kill()

    def restart(self, index: int, *, keep_memory: bool = False) -> None:
        self._nodes.nodes[index].restart(keep_memory=keep_memory)

    def get(self, index: int, key: str) -> str:
        node = self._nodes.nodes[index]
        return (node.command("GET", key) or "") if node.is_running else ""

    def delete(self, index: int, key: str) -> None:
        self._nodes.nodes[index].command("DEL", key)

    def wait_until(self, event: Callable[[], Any]) -> None:
        until(event)


@pytest.fixture(params=["fakes", "servers"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Return three nodes that vote, fake or real."""
    is_fake = request.param == "fakes"
    nodes = _Fakes() if is_fake else _Servers(request.getfixturevalue("three_nodes"))
    yield nodes
    for service in nodes.services:
        service.close()


@pytest.fixture
def redlock(nodes: Deployment) -> Redlock:
    """Return a service that has been used before."""
    redlock = nodes.redlock()
    nodes.wait_until(lambda: not redlock.check().problems)
    return redlock


def kinds(redlock: Redlock, key: str) -> list[str]:
    """Return each node's vote on this key."""
    votes = redlock.inspect(key).ballot.votes
    return [vote.kind.value if vote else "?" for vote in votes]


def test_lock_is_taken_renewed_and_released(
    nodes: Deployment, redlock: Redlock
) -> None:
    """Another process is refused with the holder's name, and takes the lock later."""
    rival, began = nodes.redlock(), redlock.clock.monotonic()
    lease = redlock.acquire("k", holder=Holder("", task="t", task_id="id", pid=5))
    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)

    with pytest.raises(LockHeld) as caught:
        rival.acquire("k")
    assert caught.value.holder is not None
    assert caught.value.holder.token == lease.token
    assert (caught.value.holder.task_id, caught.value.holder.pid) == ("id", 5)
    least = 30.0 - (redlock.clock.monotonic() - began) - A_MOMENT
    assert least <= (caught.value.retry_after or 0.0) <= 30.0
    assert rival.inspect("k").votes == 3
    with pytest.raises(LockHeld):  # the same execution: its base is no permission
        redlock.acquire("k", base=lease.token.partition(".")[0])
    assert redlock.extend(lease)
    lease.ensure(network=True)

    assert redlock.release(lease) >= 2
    nodes.wait_until(lambda: nodes.holders("k") == FREE_EVERYWHERE)
    assert redlock.release(lease) == 0
    assert rival.acquire("k").fence > lease.fence


def test_lock_ends_with_its_ttl(nodes: Deployment, redlock: Redlock) -> None:
    """It expires on all nodes; its lease has ended before."""
    lease = redlock.acquire("k", ttl=SHORT)

    nodes.wait_until(lambda: nodes.holders("k") == FREE_EVERYWHERE)

    assert not lease.is_valid()
    with pytest.raises(LockLost):
        lease.ensure()
    assert not redlock.extend(lease)
    assert nodes.holders("k") == FREE_EVERYWHERE


def test_minority_that_hangs_stops_no_client(
    nodes: Deployment, redlock: Redlock
) -> None:
    """The frozen node grants late, and releases late, in that order."""
    nodes.freeze(0)

    lease = redlock.acquire("k")
    assert lease.votes == 2
    assert redlock.extend(lease)
    assert redlock.release(lease) == 2

    nodes.thaw(0)
    nodes.wait_until(lambda: kinds(redlock, "k") == ["free"] * 3)


def test_majority_that_hangs_grants_nothing(
    nodes: Deployment, redlock: Redlock
) -> None:
    """The error names the nodes. A grant that comes too late is released."""
    nodes.freeze(0, 1)

    with pytest.raises(QuorumUnreachable) as caught:
        redlock.acquire("k")
    assert f"{redlock.labels[0]} had not answered" in str(caught.value)

    nodes.thaw(0, 1)
    nodes.wait_until(lambda: kinds(redlock, "k") == ["free"] * 3)
    nodes.wait_until(lambda: nodes.holders("k") == FREE_EVERYWHERE)


def test_majority_that_is_gone_is_reported_at_once(
    nodes: Deployment, redlock: Redlock
) -> None:
    """A refused connection fails the request before the node time-out."""
    nodes.kill(0)
    nodes.kill(1)

    def refused() -> bool:
        with pytest.raises(QuorumUnreachable) as caught:
            redlock.acquire("k")
        assert caught.value.ballot is not None
        assert caught.value.ballot.answered <= 1
        return str(caught.value).count("refused the connection") == 2

    nodes.wait_until(refused)


def test_node_that_comes_back_empty_is_quarantined(
    nodes: Deployment, redlock: Redlock
) -> None:
    """It takes part in nothing. The others renew without it."""
    lease = redlock.acquire("k")
    nodes.restart(0)
    quarantined = f"{redlock.labels[0]} is in quarantine for 6"
    nodes.wait_until(lambda: redlock.check().problems[0].startswith(quarantined))

    assert kinds(redlock, "k") == ["free", "taken", "taken"]

    assert redlock.extend(lease)
    assert lease.votes == 2
    assert nodes.holders("k") == ["", lease.token, lease.token]
    assert redlock.release(lease)
    nodes.wait_until(lambda: nodes.holders("k") == ["", "", ""])


def test_majority_that_comes_back_empty_admits_no_second_holder(
    nodes: Deployment, redlock: Redlock
) -> None:
    """All nodes found an epoch, and wait. The error has the time left."""
    lease = redlock.acquire("k")
    nodes.restart(0)
    nodes.restart(1)
    rival = nodes.redlock()
    nodes.wait_until(lambda: len(rival.check().problems) == 3)

    with pytest.raises(QuorumUnreachable) as caught:
        rival.acquire("k")

    assert 50.0 < (caught.value.retry_after or 0.0) <= 62.2
    assert lease.is_valid()


def test_release_reaches_a_node_that_was_away(
    nodes: Deployment, redlock: Redlock
) -> None:
    """The release is sent again when the node is back with its keys."""
    lease = redlock.acquire("k")
    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)
    nodes.restart(0, keep_memory=True)
    nodes.kill(0)
    assert redlock.release(lease) == 2
    nodes.restart(0, keep_memory=True)
    nodes.wait_until(lambda: nodes.holders("k") == FREE_EVERYWHERE)


def test_majority_that_forgot_a_lock_gets_it_again(
    nodes: Deployment, redlock: Redlock
) -> None:
    """A renewal restores the lock while the lease is valid."""
    lease = redlock.acquire("k")
    nodes.delete(0, "redlock:lock:k")
    nodes.delete(1, "redlock:lock:k")
    with pytest.raises(LockLost):
        lease.ensure(network=True)

    assert redlock.extend(lease)

    nodes.wait_until(lambda: nodes.holders("k") == [lease.token] * 3)
    lease.ensure(network=True)


def test_client_with_other_settings_is_refused(
    nodes: Deployment, redlock: Redlock
) -> None:
    """The error has the difference."""
    other = nodes.redlock(max_ttl=90.0)

    with pytest.raises(QuorumUnreachable) as caught:
        other.acquire("k")

    difference = "at epoch 1 with max_ttl 60 s; this client has max_ttl 90 s"
    assert difference in str(caught.value)
    assert redlock.acquire("k").is_valid()


def test_fences_grow_over_clients(nodes: Deployment, redlock: Redlock) -> None:
    """One lock after the other, each by another client."""
    clients = [redlock, nodes.redlock(), nodes.redlock(prefix="redlock")]
    fences = []
    for round_ in range(9):
        lease = clients[round_ % 3].acquire("k")
        fences.append(lease.fence)
        clients[round_ % 3].release(lease)

    assert fences == sorted(set(fences))
