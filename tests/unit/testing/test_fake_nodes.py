"""``FakeNodes`` and ``MemoryNode``: lock nodes that fail as real ones do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import INSPECT, Script
from celery_redlock.core.transport.resp import ErrorReply
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locking import lock
from celery_redlock.testing import FakeClock, FakeNodes, MemoryNode
from tests.unit.core.support import asked, holders

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock

# -- one node ----------------------------------------------------------------------


def test_memory_node_accepts_text_numbers_and_bytes() -> None:
    """KEYS and ARGV are encoded as a connection encodes them."""
    node = MemoryNode(FakeClock())
    node.redis.set(b"7", b"theirs")

    assert node.execute(INSPECT, ["7"], []) == [2, b"theirs", -1]
    assert node.execute(INSPECT, [7], []) == [2, b"theirs", -1]
    assert node.execute(INSPECT, [b"7"], []) == [2, b"theirs", -1]


def test_memory_node_refuses_unknown_scripts() -> None:
    """A script without an operation in Python is an error."""
    with pytest.raises(KeyError, match="another"):
        MemoryNode().execute(Script("another", "return 1"), [], [])


def test_memory_node_returns_errors_as_values() -> None:
    """An error is a reply, as it is on a connection."""
    node = MemoryNode()
    node.redis.hset(b"k", {b"f": b"v"})

    assert isinstance(node.execute(INSPECT, ["k"], []), ErrorReply)


def test_memory_node_takes_its_run_ids_from_a_function() -> None:
    """So the simulator can repeat a run."""
    names = iter(["first", "second"])
    node = MemoryNode(new_run_id=lambda: next(names))
    assert node.run_id == "first"

    node.restart()

    assert node.run_id == "second"


def test_memory_nodes_have_different_run_ids() -> None:
    """A server chooses a random run id at each start."""
    nodes = [MemoryNode() for _ in range(3)]

    assert len({node.run_id for node in nodes}) == 3
    assert {len(node.run_id) for node in nodes} == {40}


# -- all nodes ---------------------------------------------------------------------


def test_fake_nodes_need_no_configuration() -> None:
    """Their service grants a lock at once."""
    with lock(FakeNodes().redlock(), "k", renew=False) as lease:
        assert lease.votes == 3


def test_fake_nodes_have_the_names_of_their_service(nodes: FakeNodes) -> None:
    """Labels, URLs, transport and clock agree."""
    redlock = nodes.redlock()

    assert redlock.labels == nodes.labels
    assert [address.url for address in redlock.addresses] == nodes.urls
    assert redlock.transport is nodes
    assert redlock.clock is nodes.clock


def test_fake_nodes_take_the_options_of_a_service(nodes: FakeNodes) -> None:
    """They vote at once under any configuration."""
    redlock = nodes.redlock(ttl=100.0, max_ttl=200.0, prefix="mine")

    assert redlock.acquire("k").ttl == 100.0
    assert nodes.nodes[0].memory.redis.get(b"mine:lock:k")


@pytest.mark.parametrize("how", ["freeze", "partition", "mute"])
def test_fault_of_a_majority_takes_one_node_timeout(
    nodes: FakeNodes, redlock: Redlock, how: str
) -> None:
    """Of two nodes or of all; after thaw and heal all nodes grant again."""
    before = nodes.clock.monotonic()
    getattr(nodes, how)(0, 1)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")
    assert nodes.clock.monotonic() == pytest.approx(before + 0.05)

    nodes.thaw()
    nodes.heal()

    assert redlock.acquire("k").votes == 3
    getattr(nodes, how)()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("l")


def test_frozen_node_runs_requests_after_thaw(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """In their order; the replies arrive then."""
    nodes.freeze(0)
    lease = redlock.acquire("k")
    assert holders(nodes) == ["", lease.token, lease.token]

    nodes.thaw(0)

    assert holders(nodes) == [lease.token] * 3


def test_frozen_node_hangs_for_all_clients(nodes: FakeNodes, redlock: Redlock) -> None:
    """The server is stopped, not a connection."""
    other = nodes.another_client().redlock()
    nodes.freeze(0, 1)

    with pytest.raises(QuorumUnreachable):
        other.acquire("k")


def test_partition_is_of_one_client(nodes: FakeNodes, redlock: Redlock) -> None:
    """Its requests arrive after heal; other clients have gone on meanwhile."""
    other = nodes.another_client().redlock()
    lease = redlock.acquire("k")
    nodes.partition()
    redlock.release(lease)
    nodes.clock.sleep(10.001)
    theirs = other.acquire("k")

    nodes.heal()

    assert holders(nodes) == [theirs.token] * 3
    assert redlock.inspect("k").votes == 3


def test_muted_node_runs_requests_without_a_reply(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A grant that its client does not know of."""
    nodes.mute(0)
    request = redlock.acquire_request("k", ttl=10.0, token="t.1", holder_info="")
    nodes.ask(request)

    assert holders(nodes) == ["t.1"] * 3
    assert request.ballot.votes[0] is None


def test_latency_moves_the_clock(nodes: FakeNodes, redlock: Redlock) -> None:
    """A verdict takes as long as the replies of a quorum."""
    nodes.latency(0.01, 0)
    nodes.latency(0.02, 1)
    nodes.latency(0.03, 2)
    before = nodes.clock.monotonic()

    lease = redlock.acquire("k")

    assert nodes.clock.monotonic() == pytest.approx(before + 0.02)
    assert lease.votes == 2
    nodes.latency(0.0)
    redlock.inspect("k")
    assert nodes.clock.monotonic() == pytest.approx(before + 0.03)


def test_killed_node_fails_unanswered_requests(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The connection breaks at once, and the node runs none of them."""
    request = redlock.acquire_request("k", ttl=10.0, token="t.1", holder_info="")
    nodes.freeze(0)
    nodes.send(request)

    nodes.nodes[0].kill()
    nodes.nodes[0].restart(keep_memory=True)

    assert request.ballot.reasons().startswith("node-1:6379/0 closed the connection")
    assert holders(nodes)[0] == ""


def test_killed_node_is_noticed_after_a_partition(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A client that is cut off gets no packet; its requests fail after heal."""
    request = redlock.acquire_request("k", ttl=10.0, token="t.1", holder_info="")
    nodes.partition(0)
    nodes.send(request)
    nodes.nodes[0].restart()
    assert request.ballot.votes[0] is None

    nodes.heal()

    assert request.ballot.reasons().startswith("node-1:6379/0 closed the connection")
    assert holders(nodes)[0] == ""


def test_killed_node_refuses_until_it_is_restarted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """After the restart it has another run id and, by default, no keys."""
    node = nodes.nodes[0]
    redlock.acquire("k")
    run_id = node.memory.run_id
    node.kill()
    assert repr(node) == "<FakeNode node-1:6379/0 dead>"
    assert "refused the connection" in redlock.inspect("k").ballot.reasons()

    node.restart()

    assert node.memory.run_id != run_id
    assert holders(nodes)[0] == ""
    assert redlock.inspect("k").ballot.reasons() == ""


def test_restarted_node_can_keep_its_keys(nodes: FakeNodes, redlock: Redlock) -> None:
    """As with an append-only file. It is quarantined in any case."""
    lease = redlock.acquire("k")
    nodes.nodes[0].restart(keep_memory=True)

    assert holders(nodes)[0] == lease.token
    assert redlock.check().problems == ["node-1:6379/0 is in quarantine for 62.2 s"]


def test_closed_connection_is_opened_again(nodes: FakeNodes, redlock: Redlock) -> None:
    """The nodes still run what was sent; its replies are dropped."""
    nodes.freeze()
    request = redlock.acquire_request("k", ttl=10.0, token="t.1", holder_info="")
    nodes.send(request)
    nodes.close()
    nodes.thaw()

    assert holders(nodes) == ["t.1"] * 3
    assert request.ballot.reasons().count("was closed") == 3
    assert redlock.inspect("k").votes == 3


def test_asked_lists_the_requests(nodes: FakeNodes, redlock: Redlock) -> None:
    """A test can count round trips."""
    redlock.release(redlock.acquire("k"))

    assert asked(nodes) == ["acquire", "release"]


def test_fake_nodes_serve_threads_in_real_time() -> None:
    """With the system's clock, a node time-out takes real time."""
    nodes = FakeNodes(3, clock=SYSTEM_CLOCK)
    redlock = nodes.redlock()
    outcomes: list[str] = []

    def contend() -> None:
        try:
            with lock(redlock, "k", renew=False):
                outcomes.append("ran")
                barrier.wait(10.0)
        except LockHeld:
            outcomes.append("held")
            barrier.wait(10.0)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["held"] * 3 + ["ran"]
    nodes.freeze(0, 1)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("l")
