"""Bugs of other lock libraries, and the tests that would show them here.

Most of these tests existed before the reports were read. Those that were written for a
report name it as their source.

node-redlock, abort after its own retries instead of with the lease
    unit/lock/test_watchdog.py::test_loss_is_announced_at_the_end_of_validity
    unit/lock/test_watchdog.py::test_loss_is_announced_in_time_while_the_transport_is_busy
redlock-ng, body runs without the lock, extension is not held against the clock
    unit/locking/test_block.py::test_block_never_runs_without_the_lock
    unit/lock/test_extension.py::test_extension_confirmed_too_late_does_not_count
redlock-py, redlock-rb #129 #134, keys are left where one node is down
    nodes/test_outages.py::test_every_subset_of_five
aioredlock, redlock-rb #36, RedLock.net, extension creates an ended lock anew
    unit/lock/test_extension.py::test_extension_of_an_ended_lease_never_resurrects
    contract/test_lock_scripts.py::test_extend_never_creates
redsync #186 #149, nodes that were away stay without the lock
    unit/lock/test_extension.py::test_extension_restores_where_the_lock_is_missing
    nodes/test_outages.py::test_lock_moves_over_as_nodes_die_and_come_back
redlock-py, redsync and others, one token for all tries
    unit/lock/test_refusals.py::test_split_votes_are_tried_five_times
    nodes/test_connections.py::test_acquire_overtaken_by_its_release_leaves_nothing
Redisson #624, RedLock.net #93 #97, two holders
    simulation/test_histories.py::test_histories_break_no_rule
    torture/test_torture.py::test_torture
Redisson #7272 #1966 #1626, renewal outlives the release
    nodes/test_renewal.py::test_renewal_never_brings_a_released_lock_back
    unit/locking/test_block.py::test_released_lock_is_not_restored
Redisson #4822 #5256, a replica that was promoted knows no lock
    nodes/test_misfits.py::test_node_that_becomes_a_replica_loses_its_vote
Redisson #3854, a holder is not notified of a loss
    nodes/test_renewal.py::test_holder_without_a_majority_is_notified
ShedLock safeUpdate, Sidekiq unique jobs #779, lock of another is overwritten
    unit/lock/test_extension.py::test_extension_leaves_a_successor_alone
    unit/lock/test_redlock.py::test_release_after_the_end_never_touches_a_successor
    nodes/test_init.py::test_init_refuses_where_locks_live
ShedLock KeepAlive, one exception ends all renewals
    unit/lock/test_watchdog.py::test_callbacks_that_raise_end_nothing
    unit/lock/test_watchdog_thread.py::test_thread_survives_an_unexpected_error
ShedLock #231 #2031, clocks of clients decide
    unit/lock/test_fence.py::test_hint_of_a_client_with_a_wrong_clock_is_ignored
python-redis-lock #85 #91, renewal in a task of Celery, and under gevent
    worker/test_pools.py::test_pool_renews_the_lock_while_a_body_runs
    nodes/test_green.py::test_renewal_is_a_greenlet
python-redis-lock #73, a lock that never ends
    contract/test_lock_scripts.py::test_extend_gives_a_ttl_to_a_lock_without_one
redis-py #4082, a hung node is asked again for a minute
    unit/lock/test_url.py::test_connection_of_redis_py_tries_once
    unit/lock/test_refusals.py::test_node_that_was_late_is_not_waited_for_again
redis-py, a repeated request is refused because of its own first run
    contract/test_lock_scripts.py::test_acquire_by_the_same_token_is_granted_again
Inngest #2625, publisher and worker use different servers
    nodes/test_differing_clients.py::test_another_list_of_nodes_is_refused
BullMQ #4311, an outage leaves keys
    nodes/test_connections.py::test_replies_that_are_lost_leave_no_lock
    contract/test_deployments.py::test_release_reaches_a_node_that_was_away
    worker/test_redelivery.py::test_duplicate_waits_for_the_broker_to_be_republished
activejob-uniqueness #23 #24, a split vote is taken for a duplicate
    unit/tasks/test_admission.py::test_split_votes_are_republished_and_never_skipped
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("where", ["nodes", "worker"])
def test_table_of_regressions_names_tests_that_exist(where: str) -> None:
    """Each test in the table above, and in that of the workers, exists."""
    source = (TESTS / where / "test_regressions.py").read_text("utf-8")
    table = ast.get_docstring(ast.parse(source)) or ""
    named = re.findall(r"^ +(\S+\.py)::(\w+)$", table, re.MULTILINE)

    def exists(path: str, name: str) -> bool:
        file = TESTS / path
        return file.exists() and f"\ndef {name}(" in file.read_text("utf-8")

    assert [test for test in named if not exists(*test)] == []
    assert len(named) == table.count("::") > 0
