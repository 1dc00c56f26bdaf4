"""Changes of the node list or of max_ttl: refused, interrupted, and taken back.

Clients that keep acquiring locks meanwhile are in the histories of `tests.simulation`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.devnodes import DevNodes
from celery_redlock.errors import (
    ConfigurationError,
    LockUnavailable,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locks.redlock import Redlock
from celery_redlock.members.restart_guard import NodeMembership
from celery_redlock.members.view import CLOSED, View
from celery_redlock.operations.doctor import diagnose
from celery_redlock.operations.reconfigure import reconfigure
from tests.nodes.support import StartNodes, granted, refusal, until

MAX_TTL = 1.0  # seconds: a reconfiguration waits for one of them and a bit
Service = Callable[..., Redlock]  # the fixture `service`
Move = Callable[[str, str], tuple[DevNodes, Redlock, Redlock]]  # the fixture `move`


@pytest.fixture
def service() -> Iterator[Service]:
    """Give a function that makes a client; slow machines get their time."""
    with contextlib.ExitStack() as stack:

        def make(urls: list[str], max_ttl: float = MAX_TTL, **options: Any) -> Redlock:
            options = {"ttl": MAX_TTL, "node_timeout": 0.2, **options}
            redlock = Redlock(urls, max_ttl=max_ttl, **options)
            stack.callback(redlock.close)
            return redlock

        yield make


@pytest.fixture
def move(start_nodes: StartNodes, service: Service) -> Move:
    """Give a function that starts nodes, and a client of two of their configurations.

    Each node is a letter: ``move("abc", "abd")`` replaces one of three. The first
    configuration is that of the nodes.
    """

    def make(before: str, after: str) -> tuple[DevNodes, Redlock, Redlock]:
        nodes = start_nodes(len({*before, *after}), initialize=False)
        url = dict(zip("abcdef", nodes.urls, strict=False))
        old, new = (service([url[node] for node in part]) for part in (before, after))
        old.initialize()
        return nodes, old, new

    return make


def reconfigure_until_closed(
    old: Redlock,
    new: Redlock,
    then: Callable[[], None],
    *,
    match: str,
    patience: float = 2.0,
) -> None:
    """Begin a reconfiguration that fails, with this error, because of ``then``.

    Args:
        old: A client with the old configuration.
        new: A client with the new configuration.
        then: Called when the nodes are closed.
        match: What the error says.
        patience: Seconds for which nodes are asked again.
    """

    def on_step(sentence: str) -> None:
        if "are closed" in sentence:
            then()

    with pytest.raises(RedlockError, match=match):
        reconfigure(old, new, on_step=on_step, patience=patience)


def looks(redlock: Redlock) -> list[NodeMembership]:
    """Return what each node knows of itself."""
    return [look for look in redlock.guard.look() if look]


def test_wait_of_a_clock_that_was_ahead_begins_anew(move: Move, key: str) -> None:
    """A node was closed while its clock was ahead for a moment, by an hour."""
    nodes, old, new = move("abc", "bcd")
    steps: list[str] = []

    def on_step(sentence: str) -> None:
        if "are closed" in sentence:
            until_ms = round((SYSTEM_CLOCK.wall() + 3600) * 1000)
            meta = old.keys.meta
            nodes.nodes[0].command("HSET", meta, "quarantine_until", until_ms)
        steps.append(sentence)

    reconfigure(old, new, on_step=on_step)

    new.release(granted(new, key))
    waits = [step for step in steps if step.startswith("Waiting")]
    assert not any("3600" in wait for wait in waits)


def test_client_with_removed_nodes_is_told_the_new_ones(move: Move, key: str) -> None:
    """A removed node stays closed. The client need not wait for a move that is done."""
    _, old, new = move("abc", "abd")
    reconfigure(old, new)

    error = refusal(old, key, says="The nodes are at epoch 2 with the nodes")
    assert "Set redlock_nodes to the same nodes" in str(error)
    assert "are closed" not in str(error)

    (removed,) = (
        finding for finding in diagnose(old) if finding.about == old.labels[2]
    )
    assert "shut this one down if nothing else uses it" in removed.remedy


def test_client_whose_nodes_were_all_left_need_not_wait(move: Move, key: str) -> None:
    """They stay closed, also when the move is done, and it cannot see the new ones."""
    _, old, new = move("ab", "cd")
    reconfigure(old, new)

    error = str(refusal(old, key, says="The nodes are closed"))
    remedies = [found.remedy for found in diagnose(old) if found.code == "closed"]

    assert len(remedies) == len(old.labels)
    for told in (error, *remedies):
        assert "reconfigure` is done, give this client the new settings" in told


def test_reconfiguration_that_was_interrupted_is_resumed(move: Move, key: str) -> None:
    """The wait continues meanwhile, and a second run finishes the first one's work."""
    nodes, old, new = move("abc", "abcde")

    reconfigure_until_closed(old, new, nodes.nodes[4].kill, match="run it again")
    with pytest.raises(QuorumUnreachable):
        old.acquire(key)

    nodes.nodes[4].restart()
    reconfigure(old, new)
    lease = granted(new, key)
    assert lease.votes >= new.quorum
    assert new.release(lease)


def test_reconfiguration_looks_before_it_closes(move: Move, key: str) -> None:
    """If it cannot be finished, nothing is changed, and locks are granted as before."""
    nodes, old, new = move("abc", "abcd")
    nodes.nodes[3].kill()

    with pytest.raises(RedlockError, match=r"must be up: .*Nothing was changed"):
        reconfigure(old, new)

    old.release(granted(old, key))


def test_server_under_two_addresses_is_named(
    start_nodes: StartNodes, service: Service, key: str
) -> None:
    """It is one member. The error says so, and does not call it silent."""
    nodes = start_nodes(4, initialize=False)
    twice = nodes.urls[3].replace("127.0.0.1", "localhost")
    old, new = service(nodes.urls[:3]), service([*nodes.urls[2:], twice])
    old.initialize()

    with pytest.raises(RedlockError, match=r"is the same server as .*Nothing was cha"):
        reconfigure(old, new)

    old.release(granted(old, key))


def test_node_of_another_deployment_is_not_moved(
    start_nodes: StartNodes, service: Service, key: str
) -> None:
    """Its locks would be forgotten. The error says so."""
    nodes = start_nodes(6, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls[:4])
    theirs = service(nodes.urls[3:], 2 * MAX_TTL)
    old.initialize()
    theirs.initialize()

    with pytest.raises(
        RedlockError, match=r"members of deployment .*Nothing was chang"
    ):
        reconfigure(old, new)

    old.release(granted(old, key))
    theirs.release(granted(theirs, key))


def test_clients_that_are_early_are_found(move: Move, key: str) -> None:
    """They have founded a deployment of the new nodes. The move is not done by that."""
    _, old, new = move("abc", "def")
    new.initialize()

    with pytest.raises(RedlockError, match=r"another deployment.*Nothing was changed"):
        reconfigure(old, new)

    old.release(granted(old, key))


def test_second_run_lifts_no_quarantine(
    start_nodes: StartNodes, service: Service, key: str
) -> None:
    """A node that restarts after the move waits, also when the move is run once more.

    B holds the lock on nodes 4 and 5; 6 is frozen. 5 restarts empty. If a second run
    admitted it at once, 5 and 6 would grant the lock to C.
    """
    nodes = start_nodes(6, initialize=False)
    long = 6.0  # seconds, for a restart and a second run
    old, new = (
        service(urls, long, ttl=long) for urls in (nodes.urls[:3], nodes.urls[3:])
    )
    rival = service(nodes.urls[3:], long, ttl=long)
    old.initialize()
    reconfigure(old, new)
    nodes.nodes[5].pause()
    lease = granted(new, key)
    nodes.nodes[4].restart()
    nodes.nodes[5].resume()

    finished: list[str] = []
    again = threading.Thread(
        target=reconfigure, args=(old, new), kwargs={"on_step": finished.append}
    )
    again.start()
    while lease.is_valid() and again.is_alive():
        with pytest.raises(LockUnavailable):
            rival.acquire(key)
        new.extend(lease)
    again.join()

    assert lease.is_valid(), "the lease ended before the second run: it shows nothing"
    assert finished == ["The nodes have the new configuration already."]
    with pytest.raises(LockUnavailable):
        rival.acquire(key)


def test_closed_nodes_that_fall_silent_are_waited_for(move: Move) -> None:
    """They may have lost their memory, and then their locks have not ended."""
    nodes, old, new = move("abc", "def")

    def silence() -> None:
        for node in nodes.nodes[:2]:
            node.kill()

    reconfigure_until_closed(old, new, silence, match="could be closed")

    assert not any(
        node.command("HGET", "redlock:meta", "config") == new.guard.config
        for node in nodes.nodes[3:]
    )


def test_reconfiguration_is_taken_back(move: Move, key: str) -> None:
    """Until the first node is opened, --abort leads back, with all fences."""
    nodes, old, new = move("abc", "abcde")
    before = granted(old, key)
    old.release(before)

    reconfigure_until_closed(old, new, nodes.nodes[4].kill, match="--abort")

    reconfigure(old, new, abort=True)

    lease = granted(old, key)
    assert lease.fence > before.fence
    old.release(lease)
    with pytest.raises(QuorumUnreachable):
        new.acquire(key)


@pytest.mark.parametrize(
    ("future", "after", "killed"),
    [(3, "are closed", 2), (2, "fences were read", 1)],
    ids=["too few answer", "too many vote"],
)
def test_abort_is_not_recommended_where_it_would_be_refused(
    start_nodes: StartNodes, service: Service, future: int, after: str, killed: int
) -> None:
    """It marks a majority of the future nodes, of those that do not vote yet."""
    nodes = start_nodes(3 + future, initialize=False)
    old, new = service(nodes.urls[:3]), service(nodes.urls[3:])
    old.initialize()

    def kill(sentence: str) -> None:
        if after in sentence:
            for node in nodes.nodes[-killed:]:
                node.kill()

    with pytest.raises(RedlockError) as ended:
        reconfigure(old, new, on_step=kill, patience=1.0)
    with pytest.raises(RedlockError, match="run it again"):
        reconfigure(old, new, abort=True, patience=1.0)

    assert "when the nodes are up" in str(ended.value)
    assert "--abort" not in str(ended.value)


def test_reconfiguration_ends_when_another_operator_aborts(
    move: Move, service: Service, key: str
) -> None:
    """It does not ask on until its patience ends, and it says what has happened."""
    nodes, old, new = move("abc", "abcde")
    other_old, other_new = service(nodes.urls[:3]), service(nodes.urls)

    def abort() -> None:
        reconfigure(other_old, other_new, abort=True)

    aborted = r"operator aborts this .* never open for it"
    reconfigure_until_closed(old, new, abort, match=aborted, patience=600.0)

    old.release(granted(old, key))
    reconfigure(old, new)
    new.release(granted(new, key))


def test_abort_ends_when_another_operator_has_finished(
    move: Move, service: Service, key: str
) -> None:
    """It looked before the nodes were opened, and marks them after that."""
    nodes, old, new = move("abc", "abcde")
    other_old, other_new = service(nodes.urls[:3]), service(nodes.urls)

    reconfigure_until_closed(old, new, nodes.nodes[4].pause, match="--abort")
    nodes.nodes[4].resume()
    look = other_new.guard.look

    def finish_after(*, forget: str = "") -> list[NodeMembership | None]:
        seen = look(forget=forget)
        reconfigure(old, new)
        return seen

    with (
        mock.patch.object(other_new.guard, "look", finish_after),
        pytest.raises(RedlockError, match=r"Too many nodes vote for .* If .* not done"),
    ):
        reconfigure(other_old, other_new, abort=True, patience=600.0)

    new.release(granted(new, key))


def test_abort_outlasts_locks_of_members_that_have_forgotten(
    move: Move, key: str
) -> None:
    """Members that lost their memory cannot tell that they voted, and for what."""
    nodes, old, new = move("abc", "def")
    reconfigure(old, new)
    lease = granted(new, key)
    for node in nodes.nodes[3:5]:
        node.command("FLUSHALL")
    said: list[str] = []

    reconfigure(old, new, abort=True, on_step=said.append)

    assert not lease.is_valid()
    assert any("may have voted, and forgotten it" in sentence for sentence in said)
    later = granted(old, key)
    assert later.fence > lease.fence
    old.release(later)


@pytest.mark.parametrize("refusing", [1, 2])
def test_abort_has_not_ended_while_nodes_refuse_to_be_reopened(
    move: Move, key: str, refusing: int
) -> None:
    """They answer, and take no writes. The same abort ends it when they do."""
    nodes, old, new = move("abc", "def")

    def interrupt() -> None:
        raise RedlockError("interrupted")

    reconfigure_until_closed(old, new, interrupt, match="interrupted")
    for node in nodes.nodes[:refusing]:
        node.command("CONFIG", "SET", "min-replicas-to-write", "1")
    said: list[str] = []

    with pytest.raises(RedlockError, match="NOREPLICAS") as ended:
        reconfigure(old, new, abort=True, on_step=said.append, patience=0.5)

    is_granting = "The others vote in the old configuration." in str(ended.value)
    assert is_granting is (refusing == 1)
    assert ("Nothing is granted until the abort is done" in str(ended.value)) is (
        refusing == 2
    )
    assert not any("in the old configuration again" in sentence for sentence in said)
    for node in nodes.nodes[:refusing]:
        node.command("CONFIG", "SET", "min-replicas-to-write", "0")
    reconfigure(old, new, abort=True, on_step=said.append)
    assert said[-1] == "3 of 3 nodes vote in the old configuration again."
    old.release(old.acquire(key))


def test_refused_abort_of_one_of_two_plans_changes_nothing(move: Move) -> None:
    """Also the other plan, which could be taken back, stays as it is."""
    nodes, old, new = move("ab", "abcd")

    def interrupt() -> None:
        raise RedlockError("interrupted")

    reconfigure_until_closed(old, new, interrupt, match="interrupted")
    plan = next(View.parse(it.config.removeprefix(CLOSED)) for it in looks(new))
    assert plan is not None
    later, earlier = (replace(plan, epoch=epoch) for epoch in (10, 9))
    done = replace(earlier, nonce="z", is_founded=True)
    stored = [CLOSED + str(later)] * 2 + [CLOSED + str(earlier), str(done)]
    for node, config in zip(nodes.nodes, stored, strict=True):
        node.command("HSET", new.keys.meta, "config", config)
    before = looks(new)

    with pytest.raises(RedlockError, match=r"was done: .* Nothing was changed\."):
        reconfigure(old, new, abort=True)

    assert looks(new) == before


def test_finished_reconfiguration_is_not_taken_back(
    start_nodes: StartNodes, service: Service, key: str
) -> None:
    """The nodes vote for the new configuration, and go on with it."""
    nodes = start_nodes(3, initialize=False)
    old, new = service(nodes.urls), service(nodes.urls, 2 * MAX_TTL)
    old.initialize()
    reconfigure(old, new)

    with pytest.raises(RedlockError, match="Nothing was changed"):
        reconfigure(old, new, abort=True)

    new.release(granted(new, key))


@pytest.mark.parametrize("abort", [False, True])
def test_reconfiguration_that_was_done_is_not_begun_again(
    move: Move, abort: bool
) -> None:
    """The future nodes have lost their memory since, and do not vote just now."""
    nodes, old, new = move("abc", "def")
    reconfigure(old, new)

    def lose_two() -> None:
        for node in nodes.nodes[3:5]:
            node.command("FLUSHALL")

    lose_two()
    until(lambda: not new.check().problems, what="the nodes found a new epoch")
    lose_two()

    with pytest.raises(RedlockError, match=r"was done.*epoch 3.*Nothing was changed"):
        reconfigure(old, new, abort=abort)

    until(lambda: not new.check().problems, what="the nodes vote again")


def test_reconfiguration_without_enough_witnesses_rests_on_clocks(
    move: Move, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If too few old nodes know the fences, a warning says that clocks decide.

    Nodes that lost their memory are no members any more, and cannot be closed. The
    operator may give those that are switched off.
    """
    nodes, old, new = move("abc", "cde")
    for node in nodes.nodes[:2]:
        node.kill()
    with pytest.raises(RedlockError, match=r"Only 1 of the 3 nodes.*Nothing was"):
        reconfigure(old, new)

    with caplog.at_level(logging.WARNING):
        reconfigure(old, new, gone=old.labels[:2], patience=3.0)

    assert "depends on clocks" in caplog.text
    new.release(granted(new, key))


def test_reconfiguration_without_the_guard_is_refused(service: Service) -> None:
    """The nodes do not know their configuration; the error names the manual steps."""
    urls = ["redis://a:1", "redis://b:1"]
    unguarded = Redlock(urls, restart_guard=False)

    with pytest.raises(ConfigurationError, match="restart guard is off"):
        reconfigure(unguarded, service(urls[:1]))
