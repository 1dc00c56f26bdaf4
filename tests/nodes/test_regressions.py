"""Bugs of other lock libraries, and the tests that would show them here.

Most of these tests existed before the reports were read:

node-redlock, abort after its own retries instead of with the lease
    nodes/test_renewal.py::test_stolen_lock_is_announced_as_lost
    nodes/test_renewal.py::test_loss_is_reported_while_other_threads_wait_for_hung_nodes
redlock-ng, body runs without the lock, extension is not held against the clock
    nodes/test_blocks.py::test_block_does_not_run_without_the_lock
    nodes/test_renewal.py::test_confirmation_that_comes_too_late_is_a_loss
redlock-py, redlock-rb #129 #134, keys are left where one node is down
    nodes/test_outages.py::test_every_subset_of_five_dead
    nodes/test_outages.py::test_every_subset_of_five_hung
aioredlock, redlock-rb #36, RedLock.net, extension creates an ended lock anew
    nodes/test_operations.py::test_expired_lease_is_never_resurrected
    contract/test_lock_scripts.py::test_extend_never_creates
redsync #186 #149, nodes that were away stay without the lock
    nodes/test_renewal.py::test_renewal_claims_nodes_that_lost_it
    nodes/test_nodes_come_and_go.py::test_lock_moves_over_as_nodes_die_and_come_back
redlock-py, redsync and others, one token for all tries
    unit/core/test_refusals.py::test_each_try_has_a_token_of_its_own
    nodes/test_lost_replies.py::test_acquire_overtaken_by_its_release_leaves_nothing
Redisson #624, RedLock.net #93 #97, two holders
    nodes/test_exclusion.py::test_valid_leases_never_overlap_in_any_history
Redisson #7272 #1966 #1626, renewal outlives the release
    nodes/test_renewal.py::test_renewal_never_brings_a_released_lock_back
    nodes/test_renewal.py::test_released_block_stays_released
Redisson #4822 #5256, a replica that was promoted knows no lock
    nodes/test_misfits.py::test_node_that_becomes_a_replica_loses_its_vote
Redisson #3854, a holder is not notified of a loss
    nodes/test_renewal.py::test_holder_without_a_majority_is_notified
ShedLock safeUpdate, Sidekiq unique jobs #779, lock of another is overwritten
    nodes/test_operations.py::test_extend_does_not_take_the_lock_of_another
    nodes/test_operations.py::test_late_release_leaves_the_successor_alone
    nodes/test_init.py::test_init_refuses_where_locks_live
ShedLock KeepAlive, one exception ends all renewals
    nodes/test_renewal.py::test_watchdog_survives_its_callbacks
    nodes/test_renewal.py::test_watchdog_survives_an_error_of_the_system
ShedLock #231 #2031, clocks of clients decide
    nodes/test_fences.py::test_wrong_client_clock_neither_refuses_nor_drags
python-redis-lock #85 #91, renewal in a task of Celery, and under gevent
    worker/test_pools.py::test_pool_renews_the_lock_while_the_body_runs
    nodes/test_green.py::test_renewal_is_a_greenlet
python-redis-lock #73, a lock that never ends
    contract/test_lock_scripts.py::test_extend_gives_a_ttl_to_a_lock_without_one
redis-py #4082, a hung node is asked again for a minute
    unit/core/test_url.py::test_connection_of_redis_py_tries_once
    nodes/test_nodes_come_and_go.py::test_hung_minority_is_waited_for_once
redis-py, a repeated request is refused because of its own first run
    contract/test_lock_scripts.py::test_acquire_by_the_same_token_is_granted_again
Inngest #2625, publisher and worker use different servers
    nodes/test_differing_clients.py::test_another_list_of_nodes_is_refused
BullMQ #4311, an outage leaves keys
    nodes/test_lost_replies.py::test_replies_that_are_lost_leave_no_lock
    nodes/test_lost_replies.py::test_release_that_was_lost_is_told_again
    worker/test_broker_outage.py::test_duplicate_waits_for_the_broker_to_be_republished
activejob-uniqueness #23 #24, a split vote is taken for a duplicate
    worker/test_conflicts.py::test_split_votes_are_never_a_reason_to_skip
"""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_redlock.errors import LockContended, LockHeld
from celery_redlock.locking import lock, watchdog_of
from tests.harness.tcp import proxies
from tests.nodes.support import client, until, until_nothing_is_left, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.lease import Lease
    from celery_redlock.devnodes import DevNode, DevNodes

TESTS = Path(__file__).parents[1]


def tries(node: DevNode) -> int:
    """Return how many scripts the node has run by their SHA."""
    stats = node.command("INFO", "commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


# -- Acquiring a lock --------------------------------------------------------------

PAUSED = """
import sys
from celery_redlock.core.redlock import Redlock
key, *urls = sys.argv[1:]
redlock = Redlock(urls, ttl=1.0, node_timeout=0.33)
redlock.release(redlock.acquire(key + ":before", wait=20))
print("ready", flush=True)
sys.stdin.readline()
lease = redlock.acquire(key, wait=40)
print(lease.fence)
redlock.release(lease)
"""


def test_votes_that_are_read_after_the_ttl_are_no_lock(
    three_nodes: DevNodes, key: str
) -> None:
    """A client that is stopped for longer than the ttl while it gets votes tries again.

    Source: node-redlock #296, #299; Redisson #624.
    """
    with proxies(three_nodes) as lines, client([line.url for line in lines]) as rival:
        rival.initialize()
        command = [sys.executable, "-c", PAUSED, key, *(line.url for line in lines)]
        with subprocess.Popen(  # noqa: S603  (a program of the tests)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdin
                assert process.stdout
                assert process.stdout.readline() == "ready\n"
                for line in lines:
                    line.hold_replies()
                process.stdin.write("\n")
                process.stdin.flush()
                until(lambda: values(three_nodes, key).count(None) < 2)
                process.send_signal(signal.SIGSTOP)
                for line in lines:
                    line.resume()  # granted, granted, granted
                until_nothing_is_left(three_nodes, key)
                lease = rival.acquire(key)
                before = sum(tries(node) for node in three_nodes.nodes)

                process.send_signal(signal.SIGCONT)

                until(lambda: sum(tries(node) for node in three_nodes.nodes) > before)
                rival.confirm(lease)
                assert process.poll() is None
                rival.release(lease)
                assert int(process.stdout.readline()) > lease.fence
            finally:
                process.kill()
    until_nothing_is_left(three_nodes, key)


def test_two_against_two_is_contended(
    start_nodes: Callable[..., DevNodes], key: str
) -> None:
    """With an even number of nodes a split vote ends, and names no holder.

    Source: node-redlock, where the promise is never settled.
    """
    nodes = start_nodes(4)
    with client(nodes) as redlock:
        for number, node in enumerate(nodes.nodes):
            token = f"{number % 2:032x}.{'0' * 16}"
            node.command("SET", f"redlock:lock:{key}", f"{token}\n1", "PX", 60_000)

        with pytest.raises(LockContended) as contended:
            redlock.acquire(key)

        assert not isinstance(contended.value, LockHeld)
        assert None not in values(nodes, key)
        for node in nodes.nodes:
            node.command("DEL", f"redlock:lock:{key}")
        redlock.release(redlock.acquire(key))


def test_earlier_tries_do_not_block_later_ones(three_nodes: DevNodes, key: str) -> None:
    """A node that granted a failed try grants the next try as well.

    Source: node-redlock, "self-blocking" (pull request #369).
    """
    well, hung, dead = three_nodes.nodes
    leases: list[Lease] = []
    with client(three_nodes, ttl=60) as redlock:
        assert redlock.check().problems == []
        dead.kill()
        hung.pause()
        before = tries(well)
        thread = threading.Thread(
            target=lambda: leases.append(redlock.acquire(key, wait=30))
        )
        thread.start()
        until(lambda: tries(well) >= before + 3)

        hung.resume()

        thread.join(30)
        assert [lease.votes for lease in leases] == [2]  # so both were needed
        redlock.release(leases[0])
        until_nothing_is_left(three_nodes)


@pytest.mark.parametrize("ttl", [None, 1.5, 0.75])
def test_nodes_keep_the_ttl_that_was_asked_for(
    three_nodes: DevNodes, key: str, ttl: float | None
) -> None:
    """No ttl means the default, and a fraction of a second is a ttl.

    Source: sherlock 0.4.1, where None deletes the lock and 1.5 keeps it for ever.
    """
    with (
        client(three_nodes, node_timeout=0.2) as redlock,
        client(three_nodes) as rival,
    ):
        lease = redlock.acquire(key, ttl=ttl)

        left = [
            node.command("PTTL", f"redlock:lock:{key}") for node in three_nodes.nodes
        ]

        whole = round((ttl or 30) * 1000)
        assert all(ms <= whole and ms != -1 for ms in left)
        if ttl is None:
            with pytest.raises(LockHeld):
                rival.acquire(key)
            redlock.release(lease)
        until_nothing_is_left(three_nodes, key)


def test_time_left_is_that_of_the_majority(five_nodes: DevNodes, key: str) -> None:
    """Of three nodes that name the holder, the first that expires ends the lock.

    Source: pottery, AIORedlock.locked().
    """
    with client(five_nodes) as redlock, client(five_nodes) as rival:
        assert redlock.check().problems == []
        lease = redlock.acquire(key)
        until(lambda: None not in values(five_nodes, key))
        for node in five_nodes.nodes[:2]:
            node.command("DEL", f"redlock:lock:{key}")
        five_nodes.nodes[3].command("PEXPIRE", f"redlock:lock:{key}", 9_000)

        assert until(lambda: rival.inspect(key).ttl_left) <= 9

        redlock.release(lease)


# -- Renewal -----------------------------------------------------------------------


def test_failed_renewal_is_tried_again(three_nodes: DevNodes, key: str) -> None:
    """A lease whose renewal broke all connections is kept by the next renewal.

    Source: ShedLock KeepAliveLockProvider; Redisson #3194, #3714; aioredlock.
    """
    renewed = threading.Event()
    with proxies(three_nodes) as lines, client([line.url for line in lines]) as redlock:
        redlock.initialize()
        lost: list[Lease] = []
        with lock(
            redlock,
            key,
            on_renewed=lambda *_: renewed.set(),
            on_lost=lost.append,
        ) as lease:
            before = lease.until
            breaks = [line.cut_when(lease.token.encode()) for line in lines]
            watchdog_of(redlock).renew_now(lease)
            until(lambda: all(count() for count in breaks))
            assert not renewed.is_set()
            assert lease.is_valid()

            for line in lines:
                line.cut_when(None)

            assert renewed.wait(20)
            assert lease.until > before
        assert lost == []
        until_nothing_is_left(three_nodes, key)


def test_outer_block_is_renewed_after_the_end_of_a_nested_one(
    three_nodes: DevNodes, key: str
) -> None:
    """The end of a nested block does not end the renewal of the lock around it.

    Source: Redisson, "watchdog fails to renew on reentry locks".
    """
    renewals: list[float] = []
    with (
        client(three_nodes, ttl=2.4) as redlock,
        lock(redlock, key, on_renewed=lambda _, late: renewals.append(late)) as outer,
    ):
        with lock(redlock, key):
            until(lambda: renewals)
        before = len(renewals)

        until(lambda: len(renewals) >= before + 4)  # longer than the ttl

        outer.ensure(network=True)


# -- The tables --------------------------------------------------------------------


@pytest.mark.parametrize("where", ["nodes", "worker"])
def test_table_of_regressions_names_tests_that_exist(where: str) -> None:
    """Each test in the table above, and in that of the workers, exists."""
    source = (TESTS / where / "test_regressions.py").read_text("utf-8")
    table = ast.get_docstring(ast.parse(source)) or ""
    named = re.findall(r"^ +(\S+\.py)::(\w+)$", table, re.MULTILINE)

    missing = [
        f"{path}::{name}"
        for path, name in named
        if f"\ndef {name}(" not in (TESTS / path).read_text("utf-8")
    ]

    assert missing == []
    assert len(named) == table.count("::") > 0
