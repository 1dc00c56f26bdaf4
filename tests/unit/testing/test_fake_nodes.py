"""``FakeNodes`` and ``MemoryNode``: lock nodes that break as real ones do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.clock import SYSTEM_CLOCK
from celery_redlock.core.scripts import INSPECT, Script
from celery_redlock.core.wire import ErrorReply
from celery_redlock.errors import LockHeld, QuorumUnreachable
from celery_redlock.locking import lock
from celery_redlock.testing import FakeClock, FakeNodes, MemoryNode
from tests.unit.core.support import asked, holders

if TYPE_CHECKING:
    from celery_redlock.core.redlock import Redlock

# -- one node ----------------------------------------------------------------------


def test_node_in_memory_takes_text_numbers_and_bytes() -> None:
    """As a connection packs them."""
    node = MemoryNode(FakeClock())
    node.redis.set(b"7", b"theirs")

    assert node.execute(INSPECT, ["7"], []) == [2, b"theirs", -1]
    assert node.execute(INSPECT, [7], []) == [2, b"theirs", -1]
    assert node.execute(INSPECT, [b"7"], []) == [2, b"theirs", -1]


def test_node_in_memory_knows_the_scripts_of_the_core_only() -> None:
    """A script that was not restated is an error, not a guess."""
    with pytest.raises(KeyError, match="another"):
        MemoryNode().execute(Script("another", "return 1"), [], [])


def test_node_in_memory_returns_errors_as_values() -> None:
    """As they come over the wire."""
    node = MemoryNode()
    node.redis.hset(b"k", {b"f": b"v"})

    assert isinstance(node.execute(INSPECT, ["k"], []), ErrorReply)


def test_node_in_memory_can_be_given_its_names() -> None:
    """For those who must be able to repeat a run."""
    names = iter(["first", "second"])
    node = MemoryNode(new_run_id=lambda: next(names))
    assert node.run_id == "first"

    node.restart()

    assert node.run_id == "second"


def test_nodes_in_memory_have_names_of_their_own() -> None:
    """A server makes a random name for itself at each start."""
    nodes = [MemoryNode() for _ in range(3)]

    assert len({node.run_id for node in nodes}) == 3
    assert {len(node.run_id) for node in nodes} == {40}


# -- all nodes ---------------------------------------------------------------------


def test_fake_nodes_work_out_of_the_box() -> None:
    """One line, and a service that grants."""
    with lock(FakeNodes().redlock(), "k", renew=False) as lease:
        assert lease.votes == 3


def test_fake_nodes_are_what_a_service_is_given(nodes: FakeNodes) -> None:
    """Names, URLs and addresses agree."""
    redlock = nodes.redlock()

    assert redlock.labels == nodes.labels
    assert [address.url for address in redlock.addresses] == nodes.urls
    assert redlock.transport is nodes
    assert redlock.clock is nodes.clock


def test_fake_nodes_take_the_services_options(nodes: FakeNodes) -> None:
    """And vote at once, whatever the configuration."""
    redlock = nodes.redlock(ttl=100.0, max_ttl=200.0, prefix="mine")

    assert redlock.acquire("k").ttl == 100.0
    assert nodes.nodes[0].memory.redis.get(b"mine:lock:k")


@pytest.mark.parametrize("how", ["freeze", "partition", "mute"])
def test_fake_nodes_keep_a_client_waiting(
    nodes: FakeNodes, redlock: Redlock, how: str
) -> None:
    """By one node time-out, all or some; undone, all is well again."""
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


def test_frozen_node_does_later_what_was_sent(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """In its order; the answer arrives then."""
    nodes.freeze(0)
    lease = redlock.acquire("k")
    assert holders(nodes) == ["", lease.token, lease.token]

    nodes.thaw(0)

    assert holders(nodes) == [lease.token] * 3


def test_frozen_node_hangs_for_everybody(nodes: FakeNodes, redlock: Redlock) -> None:
    """It is the server that does nothing."""
    other = nodes.another_client().redlock()
    nodes.freeze(0, 1)

    with pytest.raises(QuorumUnreachable):
        other.acquire("k")


def test_partition_is_one_clients_own(nodes: FakeNodes, redlock: Redlock) -> None:
    """What it sent gets through when it is healed; others have gone on."""
    other = nodes.another_client().redlock()
    lease = redlock.acquire("k")
    nodes.partition()
    redlock.release(lease)
    nodes.clock.sleep(10.001)
    theirs = other.acquire("k")

    nodes.heal()

    assert holders(nodes) == [theirs.token] * 3
    assert redlock.inspect("k").votes == 3


def test_muted_node_has_done_what_it_does_not_say(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The worst kind of failure: a grant that nobody heard of."""
    nodes.mute(0)
    question = redlock.commands.acquire("k", ttl=10.0, token="t.1", facts="")
    nodes.ask(question)

    assert holders(nodes) == ["t.1"] * 3
    assert question.ballot.votes[0] is None


def test_latency_is_time_that_passes(nodes: FakeNodes, redlock: Redlock) -> None:
    """A verdict takes as long as the quorum's answers."""
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


def test_killed_node_fails_what_it_had_not_answered(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """The connection breaks: at once an error, and nothing of it is done."""
    question = redlock.commands.acquire("k", ttl=10.0, token="t.1", facts="")
    nodes.freeze(0)
    nodes.send(question)

    nodes.nodes[0].kill()
    nodes.nodes[0].restart(keep_memory=True)

    assert question.ballot.reasons().startswith("node-1:6379/0 closed the connection")
    assert holders(nodes)[0] == ""


def test_killed_node_is_noticed_late_by_who_is_cut_off(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """No packet tells that it is gone; what was under way fails when healed."""
    question = redlock.commands.acquire("k", ttl=10.0, token="t.1", facts="")
    nodes.partition(0)
    nodes.send(question)
    nodes.nodes[0].restart()
    assert question.ballot.votes[0] is None

    nodes.heal()

    assert question.ballot.reasons().startswith("node-1:6379/0 closed the connection")
    assert holders(nodes)[0] == ""


def test_killed_node_refuses_until_it_is_restarted(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """And then it has another name and, by default, no memory."""
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


def test_restarted_node_can_keep_its_memory(nodes: FakeNodes, redlock: Redlock) -> None:
    """As one with an append-only file; it is quarantined all the same."""
    lease = redlock.acquire("k")
    nodes.nodes[0].restart(keep_memory=True)

    assert holders(nodes)[0] == lease.token
    assert redlock.check().problems == ["node-1:6379/0 is in quarantine for 62.2 s"]


def test_closed_conversation_is_begun_anew(nodes: FakeNodes, redlock: Redlock) -> None:
    """What was sent is done all the same; nobody hears of it."""
    nodes.freeze()
    question = redlock.commands.acquire("k", ttl=10.0, token="t.1", facts="")
    nodes.send(question)
    nodes.close()
    nodes.thaw()

    assert holders(nodes) == ["t.1"] * 3
    assert question.ballot.reasons().count("was closed") == 3
    assert redlock.inspect("k").votes == 3


def test_asked_is_what_was_put_to_the_nodes(nodes: FakeNodes, redlock: Redlock) -> None:
    """So that a test can count round trips."""
    redlock.release(redlock.acquire("k"))

    assert asked(nodes) == ["acquire", "release"]


def test_fake_nodes_serve_threads_in_real_time() -> None:
    """With the system's clock; a node time-out is waited for."""
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
