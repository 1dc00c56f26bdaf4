"""Histories that once went wrong, or that could: each plan is written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.core.wait_queue import WaitQueue
from tests.simulation.history import Outcome, play
from tests.simulation.network import Conditions
from tests.simulation.patches import simulated_core
from tests.simulation.plan import ClientPlan, Fault, NodePlan, Operation, Plan
from tests.simulation.planted_bugs import PlantedBug

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR, FAR = Conditions(0.0002, 0.001), Conditions(0.004, 0.005)
LONG = 10.0  # seconds: no client waits so long here


@pytest.fixture(autouse=True)
def core() -> Iterator[None]:
    """Run the core in the simulated world."""
    with simulated_core():
        yield


def run(after: float, hold: float = 0.01, **options: Any) -> Operation:
    """Return an operation that holds the lock, so many seconds after the last one."""
    return Operation("run", "a", after, hold, **options)


def plan_of(
    *tasks: tuple[Operation, ...],
    faults: tuple[Fault, ...] = (),
    conditions: Conditions = NEAR,
    **parts: Any,
) -> Plan:
    """Return a plan with three nodes, and a client for each task."""
    clients = [
        ClientPlan(f"c{number}", 1.0, 0.0, (task,), conditions)
        for number, task in enumerate(tasks)
    ]
    settings = {
        "seed": 1,
        "nodes": tuple(NodePlan(name, 1.0, 0.0) for name in ("n0", "n1", "n2")),
        "ttl": 0.3,
        "max_ttl": 0.3,
        "node_timeout": 0.05,
        "connect_timeout": 0.3,
        "initialized": True,
        "final_quorums": (("n0", "n2"), ("n1", "n2")),
        "is_calm": False,
    }
    return Plan(clients=tuple(clients), faults=faults, **{**settings, **parts})


def assert_no_findings(plan: Plan) -> Outcome:
    """Play a plan, and return its outcome if no rule was broken."""
    outcome = play(plan, traced=True)
    assert not outcome.findings, outcome.report()
    return outcome


@pytest.mark.parametrize("how", ["pause", "delay"])
def test_recovery_for_an_earlier_quarantine_does_not_end_a_later_one(how: str) -> None:
    """Counters that were read before a second flush do not end the second quarantine.

    c0 reads the counters for n2 and stops. c1 recovers n2, gets fences from n1 and n2
    alone, and n2 is flushed again. Then the SYNC of c0 arrives, and c0 dies.
    """
    plan = plan_of(
        (run(0.2), run(1.5)),
        (run(2.0), run(0.05), run(0.05), run(1.0)),
        faults=(
            Fault("flush", 0.1, "n2"),
            Fault("on call", 1, "c0", "n2", 5.0, f"sync {how}"),
            Fault("cut", 2.04, "c1", "n0", 10.0),
            Fault("flush", 3.0, "n2"),
            Fault("death", 6.7185, "c0", how="killed"),
        ),
    )

    assert_no_findings(plan)


@pytest.mark.parametrize("operation", range(5, 60))
def test_interrupt_at_any_operation_while_connecting_breaks_no_rule(
    operation: int,
) -> None:
    """A time limit that interrupts a connecting task leaves no broken connection."""
    interrupt = Fault("interrupt at operation", operation, "c0")

    assert_no_findings(plan_of((run(0.0), run(0.1), run(0.1)), faults=(interrupt,)))


@pytest.mark.parametrize("operation", range(20, 60))
def test_pause_before_a_sleep_does_not_delay_later_leases(operation: int) -> None:
    """The watchdog does not sleep longer than planned after a pause of its process.

    Found at seed 8310251. The watchdog was paused just before it slept, and then slept
    its full time. Leases that were taken meanwhile relied on an earlier wake-up.
    """
    short = run(0.5, 0.4, wait=0.6, renews=False)
    long = run(0.4, 1.5, ttl=1.0)
    plan = plan_of(
        (short, long),
        faults=(Fault("pause at operation", operation, "c0", seconds=3.0),),
        nodes=(NodePlan("n0", 1.0, 0.0),),
        final_quorums=(("n0",),),
        ttl=2.0,
        max_ttl=4.0,
        node_timeout=0.02,
    )

    assert_no_findings(plan)


# -- The wait queue ------------------------------------------------------------------

# How long c1 waits, so that its wait times out around the release of c0.
AROUND_THE_RELEASE = [0.4 + 0.001 * step for step in range(5, 45)]


def two_waiters(wait: float, *faults: Fault) -> Plan:
    """Let c0 hold the lock for half a second, c1 wait so long, and c2 wait longer.

    No fault of c1 may delay the wake-up of c2.
    """
    return plan_of(
        (run(0.0, 0.5),),
        (run(0.1, 0.05, wait=wait),),
        (run(0.2, 0.05, wait=LONG),),
        faults=faults,
        conditions=FAR,
        ttl=2.0,
        max_ttl=2.0,
        final_quorums=(("n0", "n1"),),
        is_calm=True,
    )


@pytest.mark.parametrize("wait", AROUND_THE_RELEASE)
def test_waiter_that_times_out_at_the_release_wakes_the_next(wait: float) -> None:
    """A waiter that was woken, and needs the lock no more, passes the wake-up on."""
    assert_no_findings(two_waiters(wait))


def test_waiter_that_does_not_wake_the_next_is_found() -> None:
    """The simulator finds a waiter that times out and keeps its wake-up."""
    right = WaitQueue.end

    def end(self: WaitQueue, *, acquired: bool) -> None:
        right(self, acquired=acquired or True)

    bug = PlantedBug("wake-up kept", lambda: [(WaitQueue, "end", end)], (), 0)
    with bug.planted():
        outcomes = [play(two_waiters(wait)) for wait in AROUND_THE_RELEASE]

    found = {finding.kind for outcome in outcomes for finding in outcome.findings}
    assert found == {"waiter not woken"}


@pytest.mark.parametrize("wait", [0.45, 0.6, 0.8])
def test_waiter_that_times_out_passes_on_when_a_kept_lock_expires(wait: float) -> None:
    """With `hold_at_least`, only the first waiter knows when the lock expires.

    If its wait times out before that, it passes the instant on to the next waiter.
    """
    plan = two_waiters(wait)
    (holder, *others) = plan.clients
    kept = replace(holder, tasks=((run(0.0, 0.5, keep=1.0),),))

    assert_no_findings(plan.but(clients=(kept, *others)))


def test_killed_waiter_is_skipped() -> None:
    """The nodes see that its connections have ended, and wake the next waiter."""
    death = Fault("death", 0.3, "c1", how="killed")

    outcome = assert_no_findings(two_waiters(LONG, death))

    nodes = len(outcome.plan.nodes)
    assert outcome.coverage["wake-up without a subscriber"] == nodes
    assert outcome.coverage["verdict won"] == len(("c0", "c2", "the judge"))


def test_wakeup_of_a_powered_off_machine_is_lost() -> None:
    """The nodes cannot know that it is off; the next waiter polls and gets the lock."""
    plan = two_waiters(LONG, Fault("death", 0.3, "c1", how="powered off"))

    outcome = play(plan, traced=True)

    assert {finding.kind for finding in outcome.findings} == {"waiter not woken"}
    assert outcome.coverage["wake-up lost"] == len(outcome.plan.nodes)

    late = play(plan, ignored=["waiter not woken"])

    assert not late.findings
    assert late.coverage["verdict won"] == len(("c0", "c2", "the judge"))


def test_broken_subscriptions_are_made_again() -> None:
    """A waiter whose subscriptions broke polls more often until it has new ones."""
    resets = [Fault("reset", 0.3, "c2", node) for node in ("n0", "n1", "n2")]

    outcome = assert_no_findings(two_waiters(LONG, *resets))

    # Both waiters have subscribed once on each node, and c2 a second time.
    assert outcome.coverage["subscribed"] == 3 * len(outcome.plan.nodes)
