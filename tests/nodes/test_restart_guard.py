"""A node that lost its memory does not vote until what it forgot has ended."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.devnodes import redis_servers
from celery_redlock.errors import LockUnavailable, QuorumUnreachable
from tests.nodes.support import (
    PATIENT,
    client,
    counters,
    kinds,
    until,
    until_nothing_is_left,
    values,
    wires,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNode, DevNodes
    from tests.nodes.support import Wire

SHORT: dict[str, Any] = {"ttl": 0.5, "max_ttl": 0.5, "node_timeout": 0.15}
MAX_TTL = 0.5
QUARANTINE = 1.02 * MAX_TTL + 1
FLOOR = "its own TIME is the floor of its counters now"

pytestmark = pytest.mark.usefixtures("_logged")


@pytest.fixture
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def until_all_vote(redlock: Redlock, seconds: float = 10.0) -> None:
    """Wait until every node gives this service its vote."""
    until(lambda: redlock.check().problems == [], seconds, what="all nodes to vote")


def first_vote_of(redlock: Redlock, index: int) -> float:
    """Wait until this node votes; return the instant at which it was seen to."""

    def votes() -> bool:
        return kinds(redlock.check().ballot)[index] is VoteKind.GRANTED

    until(votes, what=f"{redlock.labels[index]} to vote")
    return time.monotonic()


# -- Every way to forget ---------------------------------------------------------------


class Loss:
    """A way to forget: crash, and come back empty."""

    def __init__(self, line: Wire, start: Callable[[], DevNode]) -> None:
        self.line = line
        self.start = start

    def prepare(self) -> None:
        """Do what has to be done before there is something to forget."""

    def happen(self) -> None:
        """Forget."""
        self.line.target.restart()


class Flush(Loss):
    """Be emptied while running."""

    def happen(self) -> None:
        """Forget."""
        self.line.target.command("FLUSHALL")


class Swap(Loss):
    """Show another database under the same number."""

    def happen(self) -> None:
        """Forget."""
        self.line.target.command("SWAPDB", "0", "1")


class Rollback(Loss):
    """Crash, and come back with an old snapshot."""

    def prepare(self) -> None:
        """Take the snapshot."""
        self.line.target.command("SAVE")

    def happen(self) -> None:
        """Forget."""
        self.line.target.kill()
        self.line.target.restart(keep_memory=True)


class Twice(Loss):
    """Crash, and crash again."""

    def happen(self) -> None:
        """Forget."""
        self.line.target.restart()
        self.line.target.restart()


class Replacement(Loss):
    """Have another, empty server behind the same address."""

    def happen(self) -> None:
        """Forget."""
        self.line.target = self.start()
        self.line.cut()
        self.line.mend()


class Promotion(Loss):
    """Have a replica in its place that had not got everything."""

    def prepare(self) -> None:
        """Start the replica; let it get what there is."""
        self.replica = self.start()
        self.line.target.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        self.replica.command("REPLICAOF", "127.0.0.1", self.line.target.port)

        def is_synced() -> bool:
            info = self.replica.command("INFO", "replication")
            return bool(info["master_link_status"] == "up")

        until(is_synced)
        self.replica.command("REPLICAOF", "NO", "ONE")
        assert self.replica.command("EXISTS", "redlock:meta")

    def happen(self) -> None:
        """Forget."""
        self.line.target.kill()
        self.line.target = self.replica
        self.line.cut()
        self.line.mend()


LOSSES = [Loss, Flush, Swap, Rollback, Twice, Replacement, Promotion]
FIRST, LAST = 0, -1  # of the versions of Redis that there are


@pytest.fixture
def start_one(start_nodes: Callable[..., DevNodes]) -> Callable[[], DevNode]:
    """Give a function that starts a server that nobody has declared a node."""
    return lambda: start_nodes(1, initialize=False).nodes[0]


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        *((kind, (FIRST, LAST)[number % 2]) for number, kind in enumerate(LOSSES)),
        (Loss, LAST),
        (Flush, FIRST),
    ],
)
def test_node_that_forgot_lets_no_second_holder_in(
    start_nodes: Callable[..., DevNodes], key: str, kind: type[Loss], version: int
) -> None:
    """The lock is on X and Y, X forgets it: X and Z are no majority for another.

    X votes again by itself after its quarantine, with counters from the others.
    """
    binary = redis_servers()[version]
    nodes = start_nodes(3, binary=binary)

    def start_one() -> DevNode:
        return start_nodes(1, initialize=False, binary=binary).nodes[0]

    with (
        wires(nodes) as lines,
        client([line.url for line in lines], **SHORT) as redlock,
        client([line.url for line in lines], **SHORT) as rival,
    ):
        redlock.initialize()
        until_all_vote(redlock)
        rival.release(rival.acquire(f"{key}:before"))
        loss = kind(lines[0], start_one)
        loss.prepare()
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))
        nodes.nodes[2].command("DEL", f"redlock:lock:{key}")  # Z was away

        before = time.monotonic()
        loss.happen()
        forgot_at = time.monotonic()
        ballots, successor = refusals(rival, key)

        assert not lease.is_valid()
        assert successor.fence > lease.fence
        rival.release(successor)
        for first, *_ in ballots:
            assert first in (VoteKind.QUARANTINED, VoteKind.SILENT)
        voted_at = first_vote_of(rival, 0)
        assert voted_at - before >= QUARANTINE
        assert voted_at - forgot_at >= MAX_TTL
        until_all_vote(redlock)
        later = redlock.acquire(key)
        assert later.fence > successor.fence
        redlock.release(later)


def refusals(redlock: Redlock, key: str) -> tuple[list[list[VoteKind]], Lease]:
    """Try until the lock is granted; return the ballots before that, and the lease."""
    ballots: list[list[VoteKind]] = []

    def attempt() -> Lease | None:
        try:
            return redlock.acquire(key)
        except LockUnavailable as error:
            ballots.append(kinds(error.ballot))
            return None

    lease = until(attempt)
    assert lease
    return ballots, lease


@pytest.mark.parametrize("kind", [Loss, Flush, Replacement])
def test_without_the_guard_a_second_holder_gets_in(
    start_nodes: Callable[..., DevNodes],
    start_one: Callable[[], DevNode],
    key: str,
    kind: type[Loss],
) -> None:
    """What is given up with `restart_guard=False`: two hold the lock at once."""
    nodes = start_nodes(3)
    options = {"restart_guard": False}
    with (
        wires(nodes) as lines,
        client([line.url for line in lines], **options) as redlock,
        client([line.url for line in lines], **options) as rival,
    ):
        until_all_vote(redlock)
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))
        nodes.nodes[2].command("DEL", f"redlock:lock:{key}")

        kind(lines[0], start_one).happen()

        second = rival.acquire(key, wait=10)
        assert lease.is_valid()
        assert second.is_valid()
        redlock.release(lease)
        rival.release(second)


# -- A minority ------------------------------------------------------------------------


def test_recovered_node_has_the_fences_of_the_others(
    start_nodes: Callable[..., DevNodes], caplog: pytest.LogCaptureFixture
) -> None:
    """Before it votes again it has every counter, and no warning is due."""
    nodes = start_nodes(5, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        for number in range(50):
            redlock.release(redlock.acquire(f"k{number}"))
        nodes.nodes[4].restart()
        until_all_vote(redlock)

        ours = counters(nodes.nodes[4])

        theirs = [counters(node) for node in nodes.nodes[:4]]
        for stripe in set().union(*theirs):
            known = sorted(other.get(stripe, 0) for other in theirs)
            assert ours[stripe] >= known[-1]
    assert FLOOR not in caplog.text
    assert "votes again; fences recovered from 4 nodes" in caplog.text


def test_node_recovers_though_nobody_needs_it(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """Acquires that succeed without it bring it back as well: nothing has to fail."""
    nodes = start_nodes(5, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire("k"))
        nodes.nodes[4].restart()

        def is_synced() -> bool:
            redlock.release(redlock.acquire("k"))
            return bool(nodes.nodes[4].command("HGET", "redlock:meta", "synced"))

        until(is_synced)


def test_restarted_node_serves_those_who_hold_a_lock(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """In quarantine a node takes a lock back from its holder, and lets it go."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].restart()
        assert kinds(redlock.check().ballot)[0] in (
            VoteKind.QUARANTINED,
            VoteKind.SILENT,
        )

        until(lambda: redlock.extend(lease) and values(nodes, key)[0])

        lease.ensure(network=True)
        assert redlock.release(lease) >= 2
        until_nothing_is_left(nodes)


def test_holder_outlives_the_restart_of_all_nodes(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """While its lease is valid it may put the lock back; nobody else gets a vote."""
    nodes = start_nodes(3)
    with client(nodes) as redlock, client(nodes) as rival:
        lease = redlock.acquire(key)
        for node in nodes.nodes:
            node.restart()
        with pytest.raises(QuorumUnreachable):
            rival.acquire(key, wait=0.5)

        until(lambda: redlock.extend(lease) and None not in values(nodes, key))

        with pytest.raises(QuorumUnreachable, match="in quarantine"):
            rival.acquire(key)
        lease.ensure(network=True)
        redlock.release(lease)


# -- A majority ------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "lost"), [(1, 1), (3, 2), (5, 5)])
def test_majority_that_restarts_grants_nothing_for_a_while(
    start_nodes: Callable[..., DevNodes],
    key: str,
    caplog: pytest.LogCaptureFixture,
    count: int,
    lost: int,
) -> None:
    """Nothing is granted for max_ttl; then all recovers by itself, with a warning."""
    nodes = start_nodes(count, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        lease = redlock.acquire(key)
        for node in nodes.nodes[:lost]:
            node.restart()
        restarted_at = time.monotonic()

        successor = redlock.acquire(key, wait=20)

        assert time.monotonic() - restarted_at >= MAX_TTL
        assert successor.started_at > lease.until
        assert successor.fence > lease.fence
        assert FLOOR in caplog.text
        redlock.release(successor)
        until_all_vote(redlock)


def test_named_wait_is_the_one_to_wait(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The error and the report say for how long; after that the first try succeeds."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        redlock.release(redlock.acquire(key))
        for node in nodes.nodes[:2]:
            node.command("FLUSHALL")

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)
        report = redlock.check()

        error = refused.value
        assert error.retry_after is not None
        assert 0 < error.retry_after <= QUARANTINE
        assert report.waits is not None
        assert 0 < report.waits <= error.retry_after
        assert not report.has_quorum
        end = redlock.clock.monotonic() + error.retry_after
        until(lambda: redlock.clock.monotonic() >= end)
        redlock.release(redlock.acquire(key))


def test_quarantine_has_its_own_words(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A quarantined node is not down and names no holder: the error says what it is."""
    nodes = start_nodes(5)
    with client(nodes) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].command("FLUSHALL")
        nodes.nodes[1].command("FLUSHALL")
        nodes.nodes[2].kill()

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)

        error, labels = refused.value, redlock.labels
        assert kinds(error.ballot).count(VoteKind.QUARANTINED) == 2
        said = re.findall(r"(\S+) is in quarantine for (\d+\.\d) s", str(error))
        assert {label for label, _ in said} == {labels[0], labels[1]}
        assert all(60 < float(seconds) < 62.3 for _, seconds in said)
        assert labels[2] in str(error)
        assert "(need 3)" in str(error)
        assert "They vote again by themselves in" in str(error)
        report = redlock.check()
        assert report.waits is not None
        assert 60 < report.waits < 62.3
        assert sum("is in quarantine" in problem for problem in report.problems) == 2
        redlock.release(lease)


def test_wait_is_not_named_where_waiting_is_no_use(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With too few nodes up, the end of a quarantine would change nothing."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        redlock.check()
        nodes.nodes[0].kill()
        nodes.nodes[1].kill()
        nodes.nodes[2].command("FLUSHALL")
        redlock.check()

        with pytest.raises(QuorumUnreachable) as refused:
            redlock.acquire(key)

        assert refused.value.retry_after is None


def test_node_that_is_gone_for_good_does_not_block_the_others(
    start_nodes: Callable[..., DevNodes], key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One restarted, one gone: after one max_ttl of silence more, clocks have to do."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        lease = redlock.acquire(key)
        nodes.nodes[0].restart()
        nodes.nodes[1].kill()
        gone_at = time.monotonic()

        successor = redlock.acquire(key, wait=20)

        assert time.monotonic() - gone_at >= QUARANTINE
        assert successor.fence > lease.fence
        assert FLOOR in caplog.text
        redlock.release(successor)


def test_new_deployment_waits_or_is_initialized(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Brand-new nodes are like nodes that forgot: they wait, unless they are told."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes) as redlock:
        with pytest.raises(QuorumUnreachable, match="redlock init` ends the wait"):
            redlock.acquire(key)

        redlock.initialize()

        redlock.release(redlock.acquire(key))


# -- Again and again -------------------------------------------------------------------


@pytest.mark.parametrize("victims", [1, 3], ids=["one", "all"])
def test_node_wiped_over_and_over_admits_no_second_holder(
    start_nodes: Callable[..., DevNodes], key: str, victims: int
) -> None:
    """While a lock is contended, nodes forget again and again: leases never overlap."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    over = threading.Event()
    stays: list[tuple[float, float, int]] = []

    def work() -> None:
        with client(nodes, **SHORT) as redlock:
            while not over.is_set():
                with contextlib.suppress(LockUnavailable):
                    lease = redlock.acquire(key, wait=0.2)
                    began = time.monotonic()
                    over.wait(0.005)
                    if lease.is_valid():
                        stays.append((began, time.monotonic(), lease.fence))
                    redlock.release(lease)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(stays) > 5)
    wipes = itertools.cycle(nodes.nodes[:victims])
    for _ in range(60):
        next(wipes).command("FLUSHALL")
        assert not over.wait(0.02)
    wiped_until = time.monotonic()
    until(lambda: stays[-1][0] > wiped_until + 0.1, seconds=20)
    over.set()
    for thread in threads:
        thread.join()

    stays.sort()
    for (_, end, fence), (began, _, later) in itertools.pairwise(stays):
        assert began >= end
        assert later > fence
    until_nothing_is_left(nodes)


# -- Another configuration -------------------------------------------------------------


def assert_refused(
    redlock: Redlock, key: str, *facts: str, refusals: int
) -> QuorumUnreachable:
    """Assert that nodes refuse this client with these facts, and return the error."""
    with pytest.raises(QuorumUnreachable) as refused:
        redlock.acquire(key)
    error = refused.value
    assert kinds(error.ballot).count(VoteKind.REFUSED) >= refusals
    assert error.retry_after is None
    for fact in facts:
        assert fact in str(error)
    assert "is set up differently" in str(error)
    assert "celery -A proj redlock reconfigure" in str(error)
    return error


def names(nodes: Sequence[DevNode]) -> str:
    """Return the nodes as a configuration lists them."""
    return ", ".join(sorted(f"127.0.0.1:{node.port}/0" for node in nodes))


@pytest.mark.every_server
def test_another_list_of_nodes_is_refused(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Clients that name other nodes do not exclude each other, so nodes refuse them."""
    nodes = start_nodes(5)
    three, right = nodes.nodes[:3], f"max_ttl 60 s, nodes {names(nodes.nodes)}"
    with client(nodes) as redlock, client([node.url for node in three]) as other:
        until_all_vote(redlock)
        lease = redlock.acquire(key)

        assert_refused(other, key, right, refusals=2)

        assert redlock.extend(lease)
        assert redlock.inspect(key).votes == 5
        assert_refused(other, f"{key}:free", right, refusals=2)
        until_nothing_is_left(nodes, "free")
        redlock.release(lease)


def test_longer_list_of_nodes_is_refused(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """New nodes that believe a wrong client do not make a majority with it."""
    nodes = start_nodes(3)
    more = start_nodes(2, initialize=False)
    with client(nodes) as redlock, client([*nodes.urls, *more.urls]) as other:
        with pytest.raises(QuorumUnreachable):
            other.acquire(key)
        assert (
            kinds(other.check().ballot)
            == [VoteKind.REFUSED] * 3 + [VoteKind.QUARANTINED] * 2
        )

        redlock.release(redlock.acquire(key))


@pytest.mark.parametrize("max_ttl", [30.0, 120.0])
def test_another_max_ttl_is_refused(
    start_nodes: Callable[..., DevNodes], key: str, max_ttl: float
) -> None:
    """A client that may hold longer than nodes wait would break the guard."""
    nodes = start_nodes(3)
    with client(nodes) as redlock, client(nodes, max_ttl=max_ttl, ttl=20) as other:
        lease = redlock.acquire(key)

        assert_refused(other, key, "max_ttl 60 s", refusals=2)

        assert redlock.extend(lease)
        redlock.release(lease)


def test_order_and_credentials_make_no_difference(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """The same nodes in another order, and with their names, are the same."""
    nodes = start_nodes(3)
    turned = [
        {"url": f"{node.url}?socket_timeout=5", "name": f"127.0.0.1:{node.port}/0"}
        for node in reversed(nodes.nodes)
    ]
    with client(nodes) as redlock, client(turned) as other:
        lease = redlock.acquire(key)
        with pytest.raises(LockUnavailable, match="is held by"):
            other.acquire(key)
        redlock.release(lease)
        other.release(other.acquire(key))


def test_worker_that_looks_at_the_nodes_starts_the_wait(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """`check` puts nodes that forgot into quarantine, before anybody wants a lock."""
    nodes = start_nodes(3, max_ttl=MAX_TTL)
    with client(nodes, **SHORT) as redlock:
        for node in nodes.nodes:
            node.restart()
        with client(nodes, **SHORT) as starting:
            report = starting.check()
        checked_at = time.monotonic()
        assert kinds(report.ballot) == [VoteKind.QUARANTINED] * 3

        redlock.release(redlock.acquire("k", wait=10))

        assert time.monotonic() - checked_at < QUARANTINE + 2 * PATIENT + 1
