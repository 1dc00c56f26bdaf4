"""The public test tools: a clock, lock nodes and a recorder of signals."""

from __future__ import annotations

import functools
import math
import re
import threading
from typing import Any

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.errors import ConfigurationError, LockHeld, QuorumUnreachable
from celery_redlock.locking import lock
from celery_redlock.locks.redlock import Redlock
from celery_redlock.scripts import INSPECT, Script
from celery_redlock.signals import lock_acquired, lock_lost, lock_released
from celery_redlock.testing import FakeClock, FakeNodes, MemoryNode, SignalRecorder
from tests.nodes.support import run_threads
from tests.unit.lock.support import holders

# -- the clock moves only when a test moves it ---------------------------------------


def test_clock_moves_with_a_sleep() -> None:
    """A sleep returns at once, and moves both readings."""
    clock = FakeClock(wall=1000.0)
    before = clock.monotonic()

    clock.sleep(2.5)

    assert clock.monotonic() == before + 2.5
    assert clock.wall() == 1_002.5
    assert clock.slept == [2.5]


def test_clock_counts_without_rounding_errors() -> None:
    """Ten times a tenth of a second is a second."""
    clock = FakeClock()
    before = clock.monotonic()
    for _ in range(10):
        clock.advance(0.1)

    assert clock.monotonic() == before + 1.0


def test_clock_reaches_any_instant() -> None:
    """After a sleep until an instant it is there, however near the instant was."""
    clock = FakeClock()
    instant = clock.monotonic() + 1e-9

    clock.sleep(instant - clock.monotonic())

    assert clock.monotonic() >= instant


def test_clock_runs_planned_events_in_order() -> None:
    """Each at its instant, also in the middle of a sleep."""
    clock = FakeClock()
    start = clock.monotonic()
    done: list[tuple[str, float]] = []

    def note(name: str) -> None:
        done.append((name, clock.monotonic() - start))

    clock.at(3.0, lambda: note("late"))
    clock.at(1.0, lambda: note("early"))
    clock.at(1.0, lambda: note("early too"))
    assert clock.next_event() == start + 1.0

    clock.advance(2.0)
    assert done == [("early", 1.0), ("early too", 1.0)]
    clock.advance(2.0)

    assert done[2:] == [("late", 3.0)]
    assert clock.monotonic() == start + 4.0
    assert clock.next_event() == float("inf")


def test_clock_can_be_moved_by_an_event() -> None:
    """A sleep within a sleep: time does not go back afterwards."""
    clock = FakeClock()
    start = clock.monotonic()
    clock.at(1.0, lambda: clock.advance(60.0))

    clock.sleep(2.0)

    assert clock.monotonic() == start + 61.0


def test_wall_clock_can_be_stepped() -> None:
    """The monotonic reading, and so every lease, stays the same."""
    clock = FakeClock()
    monotonic, wall = clock.monotonic(), clock.wall()

    clock.step_wall(-3600.0)

    assert clock.monotonic() == monotonic
    assert clock.wall() == wall - 3600


# -- one node ----------------------------------------------------------------------


def test_memory_node_accepts_text_numbers_and_bytes() -> None:
    """KEYS and ARGV are encoded as a connection encodes them."""
    node = MemoryNode(FakeClock())
    node.redis.set(b"7", b"theirs")

    for key in ("7", 7, b"7"):
        assert node.execute(INSPECT, [key], []) == [2, b"theirs", -1]


def test_memory_node_runs_other_scripts_too() -> None:
    """It runs Lua, and not a list of scripts that it knows."""
    another = Script("another", "return {redis.call('GET', KEYS[1]), ARGV[1]}")

    assert MemoryNode().execute(another, ["name"], [5]) == [None, b"5"]


def test_memory_node_takes_its_replids_from_a_function() -> None:
    """So the simulator can repeat a run."""
    names = iter(["first", "second"])
    node = MemoryNode(new_replid=lambda: next(names))
    assert node.replid == "first"

    node.restart()

    assert node.replid == "second"


# -- all nodes ---------------------------------------------------------------------


def test_fake_nodes_need_no_configuration() -> None:
    """Their service grants a lock at once."""
    with lock(FakeNodes().redlock(), "k", renew=False) as lease:
        assert lease.votes == 3


def test_fake_nodes_have_the_names_of_their_service(nodes: FakeNodes) -> None:
    """Labels, URLs, transport and clock agree."""
    redlock = nodes.redlock()

    assert redlock.labels == nodes.labels
    assert [node.url.reveal() for node in redlock.addresses] == nodes.urls
    assert redlock.transport is nodes
    assert redlock.clock is nodes.clock


@pytest.mark.parametrize("wrong", ["x", 0, ["redis://a"], None])
def test_wrong_nodes_of_a_fake_are_refused(wrong: Any) -> None:
    """A marker of pytest may have anything in the place of their number."""
    said = f"FakeNodes was given {wrong!r}; it takes the number of nodes"
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        FakeNodes(wrong)


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


@pytest.mark.parametrize("fault", ["freeze", "partition", "mute"])
def test_nodes_with_a_fault_from_the_start_vote_afterwards(
    nodes: FakeNodes, fault: str
) -> None:
    """A test may begin with an outage: its service is made at its first use."""
    getattr(nodes, fault)(0, 1, 2)
    redlock = nodes.redlock()
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("k")

    nodes.thaw()
    nodes.heal()

    redlock.release(redlock.acquire("k"))


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


def take(redlock: Redlock) -> Any:
    """Return a request for a lock, which the test sends."""
    return redlock.acquire_request("k", ttl=10.0, token="t.1", holder_info="")


def test_muted_node_runs_requests_without_a_reply(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A grant that its client does not know of."""
    nodes.mute(0)
    request = take(redlock)
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
    nodes.freeze(0)
    request = take(redlock)
    nodes.send(request)

    nodes.nodes[0].kill()
    nodes.nodes[0].restart(keep_memory=True)

    assert request.ballot.reasons().startswith("node-1:6379/0 closed the connection")
    assert holders(nodes)[0] == ""


def test_killed_node_is_noticed_after_a_partition(
    nodes: FakeNodes, redlock: Redlock
) -> None:
    """A client that is cut off gets no packet; its requests fail after heal."""
    nodes.partition(0)
    request = take(redlock)
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
    replid = node.memory.replid
    node.kill()
    assert repr(node) == "<FakeNode node-1:6379/0 dead>"
    assert "refused the connection" in redlock.inspect("k").ballot.reasons()

    node.restart()

    assert node.memory.replid != replid
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
    request = take(redlock)
    nodes.send(request)
    nodes.close()
    nodes.thaw()

    assert holders(nodes) == ["t.1"] * 3
    assert request.ballot.reasons().count("was closed") == 3
    assert redlock.inspect("k").votes == 3


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
    run_threads(*[contend] * 4)

    assert sorted(outcomes) == ["held"] * 3 + ["ran"]
    nodes.freeze(0, 1)
    with pytest.raises(QuorumUnreachable):
        redlock.acquire("l")


# -- signals of a block --------------------------------------------------------------


def test_recorder_records_signals_of_its_block() -> None:
    """In their order, with sender and arguments; not those before or after."""
    lock_acquired.send(sender="before", lease=0, task_id="")

    with SignalRecorder() as events:
        lock_acquired.send(sender="task", lease=1, task_id="a")
        lock_released.send(sender="task", lease=1, task_id="a")
    lock_lost.send(sender="after", lease=2, task_id="", decision=None)

    assert events.names == ["lock_acquired", "lock_released"]
    (acquired,) = events.of("lock_acquired")
    assert (acquired.sender, acquired.lease, acquired.task_id) == ("task", 1, "a")
    assert events.seen == [acquired, *events.of("lock_released")]
    with pytest.raises(AttributeError, match="lock_acquired has no argument 'fence'"):
        _ = acquired.fence


def test_recorder_can_be_limited_to_names() -> None:
    """Other signals are not recorded."""
    with SignalRecorder("lock_lost", "lock_released") as events:
        lock_acquired.send(sender=None, lease=1, task_id="")
        lock_lost.send(sender=None, lease=1, task_id="", decision=None)

    assert events.names == ["lock_lost"]


def test_recorder_of_an_unknown_signal_records_none() -> None:
    """A name that is misspelt is an error before any signal is connected."""
    events = SignalRecorder("lock_lost", "lock_lots")

    with pytest.raises(AttributeError, match="lock_lots"), events:
        pass
    lock_lost.send(sender=None, lease=1, task_id="", decision=None)

    assert events.names == []


def test_recorder_refuses_a_name_that_it_does_not_record() -> None:
    """An assertion about a misspelt name would pass, or wait until its end."""
    with SignalRecorder() as events, SignalRecorder("lock_lost") as losses:
        with pytest.raises(ValueError, match="Did you mean 'lock_acquired'"):
            events.wait_for("lock_aquired", timeout=math.inf)
        with pytest.raises(
            ValueError, match=r"'lock_lots' .* Did you mean 'lock_lost'"
        ):
            events.of("lock_lots")
        with pytest.raises(ValueError, match=r"'lock_acquired' .*There is 'lock_lost'"):
            losses.of("lock_acquired")


def test_recorder_waits_for_signals_of_threads() -> None:
    """It returns once the signal was sent the given number of times."""
    with SignalRecorder() as events:
        for lease in range(2):
            send = functools.partial(lock_lost.send, sender=None, lease=lease)
            threading.Thread(target=send).start()

        second = events.wait_for("lock_lost", count=2)

    assert second == events.of("lock_lost")[1]


def test_recorder_reports_the_signals_instead() -> None:
    """The error of a wait names the signals that were sent."""
    with SignalRecorder() as events:
        lock_acquired.send(sender=None, lease=1, task_id="")

        with pytest.raises(AssertionError) as caught:
            events.wait_for("lock_lost", timeout=0.001)

    assert str(caught.value) == (
        "lock_lost was sent 0 times within 0.001 s and not 1. "
        "These signals were sent: lock_acquired."
    )


def test_recorders_are_independent() -> None:
    """Each has its own receivers, and disconnects them."""
    with SignalRecorder() as outer:
        with SignalRecorder() as inner:
            lock_acquired.send(sender=None, lease=1, task_id="")
        lock_acquired.send(sender=None, lease=2, task_id="")
    lock_acquired.send(sender=None, lease=3, task_id="")

    assert [signalled.lease for signalled in outer.seen] == [1, 2]
    assert [signalled.lease for signalled in inner.seen] == [1]
