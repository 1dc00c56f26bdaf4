"""Histories that once went wrong, or that somebody thought would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.connection import Weather
from tests.simulation.history import play
from tests.simulation.plan import ClientPlan, Fault, NodePlan, Operation, Plan
from tests.simulation.seams import simulated_seams

STEADY = Weather(0.0002, 0.001)


def run(after: float) -> Operation:
    """Take the lock for a moment, so many seconds after what was before."""
    return Operation("run", "a", after, 0.01)


def stale_recovery(how: str) -> Plan:
    """Let fences that were read for one quarantine arrive at the end of a later one.

    c0 reads the counters for n2 and stands still; c1 recovers n2, gets fences from
    n1 and n2 alone, and n2 is wiped again. Then c0's SYNC arrives, and c0 dies.
    """
    return Plan(
        seed=1,
        nodes=tuple(NodePlan(name, 1.0, 0.0) for name in ("n0", "n1", "n2")),
        clients=(
            ClientPlan("c0", 1.0, 0.0, ((run(0.2), run(1.5)),), STEADY),
            ClientPlan(
                "c1", 1.0, 0.0, ((run(2.0), run(0.05), run(0.05), run(1.0)),), STEADY
            ),
        ),
        faults=(
            Fault("flush", 0.1, "n2"),
            Fault("ambush", 1, "c0", "n2", 5.0, f"sync {how}"),
            Fault("cut", 2.04, "c1", "n0", 10.0),
            Fault("flush", 3.0, "n2"),
            Fault("death", 6.7185, "c0", how="killed"),
        ),
        ttl=0.3,
        max_ttl=0.3,
        node_timeout=0.05,
        connect_timeout=0.3,
        initialized=True,
        probes=(("n0", "n2"), ("n1", "n2")),
        is_calm=False,
    )


@pytest.mark.parametrize("how", ["pause", "delay"])
def test_recovery_for_an_earlier_quarantine_does_not_end_a_later_one(how: str) -> None:
    """Counters that were read before a node was wiped again are not believed."""
    with simulated_seams():
        outcome = play(stale_recovery(how), traced=True)

    assert not outcome.findings, outcome.report()


@pytest.mark.parametrize("operation", range(5, 60))
def test_interrupt_at_any_operation_while_connecting_breaks_nothing(
    operation: int,
) -> None:
    """A time limit that strikes while connections are made leaves no torn one."""
    plan = stale_recovery("pause")
    (first, *_) = plan.clients
    interrupted = plan.without(
        clients=(replace(first, tasks=((run(0.0), run(0.1), run(0.1)),)),),
        faults=(Fault("interrupt trap", operation, "c0"),),
    )

    with simulated_seams():
        outcome = play(interrupted, traced=True)

    assert not outcome.findings, outcome.report()


@pytest.mark.parametrize("operation", range(20, 60))
def test_pause_before_a_sleep_is_no_reason_to_sleep_over_later_leases(
    operation: int,
) -> None:
    """Found at seed 8310251: stopped just before it slept, it slept as long after.

    Whoever took a lease by then believed that it would wake when it had meant to.
    """
    plan = stale_recovery("pause")
    (client, _) = plan.clients
    short = Operation("run", "a", 0.5, 0.4, wait=0.6, renews=False)
    long = Operation("run", "a", 0.4, 1.5, ttl=1.0)
    paused = plan.without(
        nodes=plan.nodes[:1],
        clients=(replace(client, tasks=((short, long),)),),
        faults=(Fault("pause trap", operation, "c0", seconds=3.0),),
        probes=(("n0",),),
        ttl=2.0,
        max_ttl=4.0,
        node_timeout=0.02,
    )

    with simulated_seams():
        outcome = play(paused, traced=True)

    assert not outcome.findings, outcome.report()
