"""Acquire, extend, release and inspect, on servers that are well."""

from __future__ import annotations

import contextlib
import contextvars
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.lease import Holder, LeaseState, new_base
from celery_redlock.core.timing import drift_of
from celery_redlock.errors import (
    ConfigurationError,
    LockContended,
    LockHeld,
    LockLost,
    QuorumUnreachable,
    RedlockError,
)
from celery_redlock.locking import current_lease, lock, watchdog_of
from tests.nodes.support import (
    client,
    kinds,
    locks,
    until,
    until_nothing_is_left,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redlock.core.lease import Lease
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.devnodes import DevNodes

pytestmark = pytest.mark.every_server

FOREIGN = f"{'f' * 32}.{'0' * 16}"


@pytest.fixture
def redlock(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give a service on the shared nodes, which know its scripts."""
    with client(shared_nodes) as redlock:
        assert redlock.check().problems == []
        yield redlock


@pytest.fixture
def rival(shared_nodes: DevNodes) -> Iterator[Redlock]:
    """Give another service on the same nodes, with connections of its own."""
    with client(shared_nodes) as redlock:
        yield redlock


def commands_of(nodes: DevNodes) -> int:
    """Count what the nodes were asked to do by clients of the package."""
    stats = [node.command("INFO", "commandstats") for node in nodes.nodes]
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stat[name]["calls"] for stat in stats for name in names if name in stat)


# -- A lease -----------------------------------------------------------------------


def test_lease_is_stored_on_the_nodes(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """The token, the fence and the facts are on every node, and end with the ttl."""
    facts = Holder.here(task="send", task_id="id-1", started=12.5)
    before = redlock.clock.monotonic()

    lease = redlock.acquire(key, ttl=20, facts=facts)

    latest = redlock.clock.monotonic() + 20 - drift_of(20)
    assert before + 20 - drift_of(20) <= lease.until <= latest
    assert lease.is_valid()
    until(lambda: None not in values(shared_nodes, key))
    for node in shared_nodes.nodes:
        assert 0 < node.command("PTTL", f"redlock:lock:{key}") <= 20_000
    for value in values(shared_nodes, key):
        holder = Holder.parse(str(value))
        assert (holder.token, holder.task, holder.task_id) == (
            lease.token,
            "send",
            "id-1",
        )
        assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
        assert (holder.started, holder.fence) == (12.5, lease.fence)
    redlock.release(lease)


def test_loser_learns_who_holds_it(redlock: Redlock, rival: Redlock, key: str) -> None:
    """A second acquire names the holder, and when the lock ends by itself."""
    lease = redlock.acquire(key, ttl=20, facts=Holder.here(task="send", task_id="1"))

    with pytest.raises(LockHeld, match=r"send\[1\] on .* \(pid \d+\), as \d of 5") as e:
        rival.acquire(key)

    assert e.value.key == key
    assert e.value.holder
    assert e.value.holder.token == lease.token
    assert e.value.retry_after
    assert 0 < e.value.retry_after <= 20
    redlock.release(lease)


def test_loser_leaves_nothing_and_disturbs_nothing(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """The holder keeps what it has on all nodes, whoever else asked."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    before = values(shared_nodes, key)

    for _ in range(20):
        with pytest.raises(LockHeld):
            rival.acquire(key)

    assert values(shared_nodes, key) == before
    redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)


def test_released_lock_is_free_everywhere(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Release tells how many nodes agreed, and somebody else can have it at once."""
    lease = redlock.acquire(key)

    assert redlock.release(lease) >= redlock.quorum

    assert lease.state is LeaseState.RELEASED
    assert not lease.is_valid()
    other = rival.acquire(key)
    assert other.fence > lease.fence
    assert rival.release(other) >= rival.quorum
    until_nothing_is_left(shared_nodes, key)


def test_release_twice_is_harmless(
    redlock: Redlock, rival: Redlock, key: str, shared_nodes: DevNodes
) -> None:
    """The second release finds nothing of its own, and leaves a successor alone."""
    lease = redlock.acquire(key)
    redlock.release(lease)
    until_nothing_is_left(shared_nodes, key)
    successor = rival.acquire(key)

    assert redlock.release(lease) == 0

    assert rival.inspect(key).votes == 5
    assert rival.extend(successor)
    rival.release(successor)


def test_keys_are_independent(redlock: Redlock, key: str) -> None:
    """Other keys of the same execution and other prefixes are other locks."""
    one = redlock.acquire(f"{key}:1")
    two = redlock.acquire(f"{key}:2")

    assert one.is_valid()
    assert two.is_valid()
    redlock.release(one)
    assert redlock.inspect(f"{key}:2").holder
    redlock.release(two)


@pytest.mark.parametrize(
    "text",
    [
        "with space",
        "ünïcode ☃",
        "{hash}tag",
        "quote'\"\\",
        "*?[a]",
        "nul\0tab\t",
        "x" * 5000,
    ],
    ids=["space", "unicode", "braces", "quotes", "glob", "control", "long"],
)
def test_key_is_taken_literally(redlock: Redlock, text: str, key: str) -> None:
    """Whatever one line of text a key is, it locks that and nothing else."""
    name = f"{key}{text}"
    lease = redlock.acquire(name)

    with pytest.raises(LockHeld):
        redlock.acquire(name)

    found = redlock.inspect(name)
    assert found.holder
    assert found.holder.token == lease.token
    assert redlock.release(lease) >= 3


def test_facts_cannot_forge_a_field(redlock: Redlock, key: str) -> None:
    """A line feed in a task's name does not move the fields after it."""
    facts = Holder.here(task="evil\nforged-id\nhost", task_id="real")
    lease = redlock.acquire(key, facts=facts)

    holder = redlock.inspect(key).holder

    assert holder
    assert holder.task_id == "real"
    assert holder.pid == os.getpid()
    redlock.release(lease)


def test_inspect_of_a_free_key(redlock: Redlock, key: str) -> None:
    """Nobody holds it: no holder, no votes, no time left."""
    found = redlock.inspect(key)

    assert (found.holder, found.votes, found.ttl_left) == (None, 0, 0.0)
    assert kinds(found.ballot) == [VoteKind.FREE] * 5


def test_check_locks_nothing(shared_nodes: DevNodes, redlock: Redlock) -> None:
    """Looking at nodes that are well finds no problem and leaves no lock."""
    report = redlock.check()

    assert report.problems == []
    assert report.has_quorum
    assert report.waits is None
    until_nothing_is_left(shared_nodes, "check")


# -- Time --------------------------------------------------------------------------


def test_unrenewed_lock_ends_with_its_ttl(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A holder that does nothing is followed by the next one; the fence grows."""
    lease = redlock.acquire(key, ttl=1)

    successor = rival.acquire(key, wait=10)

    assert not lease.is_valid()
    assert successor.started_at > lease.until
    assert successor.fence > lease.fence
    rival.release(successor)


def test_waiter_follows_a_release(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """An acquire that waits gets the lock when it is let go, long before the ttl."""
    lease = redlock.acquire(key, ttl=30)
    got: list[int] = []

    def take() -> None:
        with lock(rival, key, wait=20) as successor:
            got.append(successor.fence)

    thread = threading.Thread(target=take)
    before = commands_of(shared_nodes)
    thread.start()
    until(lambda: commands_of(shared_nodes) > before + 10, what="it to have asked")
    assert not got
    redlock.release(lease)
    thread.join(10)

    assert got
    assert got[0] > lease.fence


def test_expired_lease_is_never_resurrected(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Extending a lease that has ended fails and creates nothing."""
    lease = redlock.acquire(key, ttl=1)
    until(lambda: not lease.is_valid())
    until_nothing_is_left(shared_nodes, key)

    assert not redlock.extend(lease)

    assert not lease.is_valid()
    assert locks(shared_nodes, key) == []


def test_late_release_leaves_the_successor_alone(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A holder that comes back after its ttl deletes nobody's lock."""
    late = redlock.acquire(key, ttl=1)
    successor = rival.acquire(key, wait=10)
    until(lambda: None not in values(shared_nodes, key))

    assert redlock.release(late) == 0

    assert rival.inspect(key).votes == 5
    with pytest.raises(LockLost):
        late.ensure()
    rival.release(successor)


def test_extend_moves_validity_and_keeps_the_fence(
    redlock: Redlock, key: str, shared_nodes: DevNodes
) -> None:
    """A renewal counts from its own start; the fence stays what it was."""
    lease = redlock.acquire(key, ttl=2)
    fence, before = lease.fence, lease.until
    until(lambda: lease.remaining() < 1.5)

    assert redlock.extend(lease)

    assert lease.until > before
    assert lease.until <= redlock.clock.monotonic() + 2 - drift_of(2)
    assert lease.fence == fence
    until(lambda: min(ttls(shared_nodes, key)) > 1_500)
    redlock.release(lease)


def ttls(nodes: DevNodes, key: str) -> list[int]:
    """Return the milliseconds that each node still keeps the lock."""
    return [node.command("PTTL", f"redlock:lock:{key}") for node in nodes.nodes]


def test_extend_restores_a_minority(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Nodes that lost the lock get it back from the holder, with fence and facts."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    before = values(shared_nodes, key)
    for node in shared_nodes.nodes[:2]:
        node.command("DEL", f"redlock:lock:{key}")

    # A majority may say yes before these two are heard; then the next one restores.
    until(lambda: redlock.extend(lease) and values(shared_nodes, key) == before)
    redlock.release(lease)


def test_extend_does_not_take_what_another_has(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Where a majority names another token the renewal fails and touches nothing."""
    lease = redlock.acquire(key)
    until_before = lease.until
    for node in shared_nodes.nodes[:3]:
        node.command("SET", f"redlock:lock:{key}", f"{FOREIGN}\n1", "PX", 20_000)

    assert not redlock.extend(lease)

    assert lease.until == until_before
    assert [str(value)[:50] for value in values(shared_nodes, key)].count(
        f"{FOREIGN}\n"
    ) == 3
    redlock.release(lease)
    assert len(locks(shared_nodes, key)) == 3
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")


def test_release_can_keep_the_lock_for_a_while(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """With `keep` the nodes hold the lock so long, and then let it go."""
    lease = redlock.acquire(key, ttl=30)

    assert redlock.release(lease, keep=1.0) >= 3

    assert not lease.is_valid()
    with pytest.raises(LockHeld) as held:
        rival.acquire(key)
    assert held.value.retry_after is not None
    assert held.value.retry_after <= 1.0
    until_nothing_is_left(shared_nodes, key, seconds=5)


# -- Bases -------------------------------------------------------------------------


def test_release_base_frees_any_attempt_of_one_execution(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """Who knows the base frees the lock; another base, or a part of it, does not."""
    base = new_base()
    lease = redlock.acquire(key, base=base)
    until(lambda: None not in values(shared_nodes, key))

    assert rival.release_base(key, new_base()) == 0
    assert rival.release_base(key, base[:-1]) == 0
    assert None not in values(shared_nodes, key)

    assert rival.release_base(key, base) >= 3
    until(lambda: rival.inspect(key).votes == 0)
    until_nothing_is_left(shared_nodes, key)
    with pytest.raises(LockLost):
        lease.ensure(network=True)


def test_same_base_does_not_lock_twice(redlock: Redlock, key: str) -> None:
    """A base names an execution, and is no permission to take its lock again."""
    base = new_base()
    lease = redlock.acquire(key, base=base)

    with pytest.raises(LockHeld) as held:
        redlock.acquire(key, base=base)

    assert held.value.holder
    assert held.value.holder.base == base
    assert redlock.inspect(key).votes == 5
    redlock.release(lease)


# -- Ensure ------------------------------------------------------------------------


def test_ensure_notices_what_an_operator_deleted(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """The free check cannot know; the one that asks the nodes does."""
    lease = redlock.acquire(key)
    lease.ensure()
    lease.ensure(network=True)
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")

    lease.ensure()
    with pytest.raises(LockLost, match="write nothing more"):
        lease.ensure(network=True)
    redlock.release(lease)


def test_ensure_is_content_with_a_majority(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Two of five nodes that lost the lock do not end the lease."""
    lease = redlock.acquire(key)
    until(lambda: None not in values(shared_nodes, key))
    for node in shared_nodes.nodes[:2]:
        node.command("DEL", f"redlock:lock:{key}")

    lease.ensure(network=True)
    redlock.release(lease)


# -- What nodes may say ------------------------------------------------------------


def test_forgotten_scripts_are_sent_again(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """A node that was told to forget its scripts costs a round trip, no vote."""
    nodes = start_nodes(3)

    def forget() -> None:
        for node in nodes.nodes:
            node.command("SCRIPT", "FLUSH")

    with client(nodes) as redlock:
        for step in range(5):
            lease = redlock.acquire(f"{key}:{step}")
            forget()
            assert redlock.extend(lease)
            forget()
            assert redlock.inspect(lease.key).votes >= 2
            forget()
            assert redlock.release(lease) >= 1
            redlock.inspect(lease.key)
        until_nothing_is_left(nodes)


def test_fresh_nodes_know_the_scripts(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """On new servers the first lock is on all of them, and gone from all of them."""
    nodes = start_nodes(5)
    with client(nodes) as redlock, client(nodes) as rival:
        redlock.check()  # connects to all of them
        lease = redlock.acquire(key)
        until(lambda: None not in values(nodes, key))

        rival.release_base(key, lease.token.partition(".")[0])
        watchdog_of(rival).look_after_debts()  # some may still be connecting

        until_nothing_is_left(nodes)


@pytest.mark.parametrize(
    "words",
    [("LPUSH", "x"), ("HSET", "field", "x")],
    ids=["list", "hash"],
)
def test_key_of_another_type_is_an_error_of_that_node(
    shared_nodes: DevNodes, redlock: Redlock, key: str, words: tuple[str, ...]
) -> None:
    """What somebody else keeps under a lock's name is no lock, and is not deleted."""
    command, *rest = words
    for node in shared_nodes.nodes[:2]:
        node.command(command, f"redlock:lock:{key}", *rest)
    lease = redlock.acquire(key)
    assert redlock.extend(lease)
    assert redlock.release(lease) == 3
    shared_nodes.nodes[2].command(command, f"redlock:lock:{key}", *rest)

    with pytest.raises(QuorumUnreachable, match="WRONGTYPE") as unreachable:
        redlock.acquire(key)

    assert kinds(unreachable.value.ballot).count(VoteKind.REFUSED) == 3
    until(lambda: len(locks(shared_nodes, key)) == 3)
    for node in shared_nodes.nodes[:3]:
        node.command("DEL", f"redlock:lock:{key}")


@pytest.mark.parametrize(
    "value", ["hello", "", "\n\n\n", "a.b\nx\ny\nz\nw\nnone\nnever\nmore", "\xff\xfe"]
)
def test_foreign_value_is_a_holder_nobody_knows(
    shared_nodes: DevNodes, redlock: Redlock, key: str, value: str
) -> None:
    """Whatever text is under a lock's name, somebody holds it; it stays untouched."""
    for node in shared_nodes.nodes:
        node.command("SET", f"redlock:lock:{key}", value)

    with pytest.raises(LockHeld) as held:
        redlock.acquire(key)

    assert held.value.retry_after == 0.0
    assert held.value.holder
    assert held.value.holder.pid == 0
    assert values(shared_nodes, key) == [value] * 5
    assert redlock.inspect(key).votes == 5
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")


def test_node_that_refuses_to_write_is_an_error_of_that_node(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """Without enough replicas, or memory, a node refuses; a majority decides."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        redlock.release(redlock.acquire(key))
        nodes.nodes[0].command("CONFIG", "SET", "min-replicas-to-write", "1")
        lease = redlock.acquire(key)
        assert redlock.extend(lease)
        redlock.release(lease)
        until_nothing_is_left(nodes.nodes[1:])
        nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(QuorumUnreachable, match=r"(?s)NOREPLICAS.*OOM") as refused:
            redlock.acquire(key)

        assert kinds(refused.value.ballot)[:2] == [VoteKind.REFUSED] * 2
        nodes.nodes[1].command("CONFIG", "SET", "maxmemory", "0")
        until_nothing_is_left(nodes.nodes)
        redlock.release(redlock.acquire(key))


# -- With lock() -------------------------------------------------------------------


def test_block_does_not_run_without_the_lock(
    redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A lock that is not had is an error before the block, not a lesser lease in it."""
    lease = redlock.acquire(key)
    ran = []

    with pytest.raises(LockHeld), lock(rival, key):
        ran.append(1)

    assert ran == []
    assert redlock.inspect(key).votes == 5
    redlock.release(lease)


@pytest.mark.parametrize("ends_with", [None, ValueError, SystemExit, KeyboardInterrupt])
def test_block_releases_however_it_ends(
    shared_nodes: DevNodes,
    redlock: Redlock,
    key: str,
    ends_with: type[BaseException] | None,
) -> None:
    """The lock is let go at the end, and an exception passes through unchanged."""
    error = ends_with() if ends_with else None

    def run() -> None:
        assert current_lease() is lease
        assert current_lease(key) is lease
        assert current_lease("another") is None
        if error:
            raise error

    passed = pytest.raises(ends_with) if ends_with else contextlib.nullcontext()
    with passed as raised, lock(redlock, key) as lease:
        run()

    assert raised is None or raised.value is error
    assert current_lease() is None
    assert lease.state is LeaseState.RELEASED
    until_nothing_is_left(shared_nodes, key)


def test_nested_block_is_free(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Taking a key that this execution holds asks no node; only the outer lets go."""
    with lock(redlock, key) as outer:
        until(lambda: None not in values(shared_nodes, key))
        before = commands_of(shared_nodes)
        with lock(redlock, key) as inner:
            assert inner is outer
        assert commands_of(shared_nodes) == before
        assert outer.is_valid()
        assert None not in values(shared_nodes, key)


def test_nested_block_is_refused_to_other_threads(redlock: Redlock, key: str) -> None:
    """A thread that got a copy of the holder's context is not the holder."""
    outcome: list[object] = []

    def take() -> None:
        outcome.append(current_lease())
        try:
            with lock(redlock, key):
                outcome.append("ran")
        except LockHeld:
            outcome.append("refused")

    with lock(redlock, key):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(take,))
        thread.start()
        thread.join()

    assert outcome == [None, "refused"]


def test_block_that_outlives_its_lock_is_told(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Without renewal, a block longer than the ttl ends in LockLost."""
    lost: list[str] = []

    def run() -> None:
        until(lambda: lost)
        assert current_lease() is None

    def note(lease: Lease) -> None:
        lost.append(lease.key)

    short: dict[str, Any] = {"ttl": 1, "renew": False, "on_lost": note}
    with pytest.raises(LockLost, match=key), lock(redlock, key, **short):
        run()

    assert lost == [key]
    assert locks(shared_nodes, key) == []


def test_error_of_the_block_is_not_hidden_by_the_loss(
    redlock: Redlock, key: str
) -> None:
    """A block that raises ends with its own exception, though the lock was lost."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        raise ZeroDivisionError

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(ZeroDivisionError), short as lease:
        run(lease)


def test_lost_block_can_take_the_lock_again(redlock: Redlock, key: str) -> None:
    """Inside a block that lost it, taking the key again asks the nodes again."""

    def run(lease: Lease) -> None:
        until(lambda: not lease.is_valid())
        with lock(redlock, key, wait=5) as again:
            assert again is not lease
            assert again.fence > lease.fence

    short = lock(redlock, key, ttl=1, renew=False)
    with pytest.raises(LockLost), short as lease:
        run(lease)


def test_lock_is_held_at_least_so_long(
    shared_nodes: DevNodes, redlock: Redlock, rival: Redlock, key: str
) -> None:
    """A block that was quick leaves the lock for the rest of the time, no longer."""
    with lock(redlock, key, hold_at_least=1.5) as lease:
        began = lease.started_at

    with pytest.raises(LockHeld):
        rival.acquire(key)
    until_nothing_is_left(shared_nodes, key)
    assert redlock.clock.monotonic() - began >= 1.5


# -- Starting a deployment -----------------------------------------------------------


def test_init_refuses_where_locks_live(start_nodes: Callable[..., DevNodes]) -> None:
    """A deployment with a live lock is not new: nothing is changed."""
    nodes = start_nodes(3)
    with client(nodes) as redlock:
        lease = redlock.acquire("k")
        nodes.nodes[0].command("SET", "redlock:quarantine", "", "PX", 60_000)

        with pytest.raises(RedlockError, match=r"live locks.*\(1 of them\).*not new"):
            redlock.initialize()

        assert nodes.nodes[0].command("EXISTS", "redlock:quarantine")
        redlock.release(lease)


def test_init_refuses_where_a_node_is_down(
    start_nodes: Callable[..., DevNodes],
) -> None:
    """A node that cannot be looked at may hold locks: nothing is changed."""
    nodes = start_nodes(3, initialize=False)
    nodes.nodes[2].kill()
    with client(nodes) as redlock:
        with pytest.raises(RedlockError, match=r"could not be looked at.*Nothing was"):
            redlock.initialize()

        assert not any(node.command("KEYS", "*") for node in nodes.nodes[:2])
        with pytest.raises(QuorumUnreachable):
            redlock.acquire("k")


def test_init_lets_a_new_deployment_vote(start_nodes: Callable[..., DevNodes]) -> None:
    """After init nobody waits for the restart guard; twice is harmless."""
    nodes = start_nodes(3, initialize=False)
    with client(nodes) as redlock:
        redlock.initialize()
        redlock.initialize()

        redlock.release(redlock.acquire("k"))


@pytest.mark.parametrize("name", ["", "two\nlines"])
def test_key_must_be_one_line(redlock: Redlock, name: str) -> None:
    """A key that could not be read back is refused before anything is sent."""
    with pytest.raises(ConfigurationError, match="one line"):
        redlock.acquire(name)


def test_split_vote_is_contended_and_names_nobody(
    shared_nodes: DevNodes, redlock: Redlock, key: str
) -> None:
    """Where two others have two nodes each nobody has won, and nothing is left."""
    for number, node in enumerate(shared_nodes.nodes[:4]):
        token = f"{number % 2:032x}.{'0' * 16}"
        node.command("SET", f"redlock:lock:{key}", f"{token}\n1", "PX", 20_000)

    with pytest.raises(LockContended, match="were split: 1 of 5") as contended:
        redlock.acquire(key)

    assert not isinstance(contended.value, LockHeld)
    until(lambda: len(locks(shared_nodes, key)) == 4)
    for node in shared_nodes.nodes:
        node.command("DEL", f"redlock:lock:{key}")
