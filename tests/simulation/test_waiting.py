"""Who waits in line is woken, whatever the others in it do just then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.waiting import Waiting
from tests.simulation.connection import Weather
from tests.simulation.history import play
from tests.simulation.plan import ClientPlan, Fault, NodePlan, Operation, Plan
from tests.simulation.plants import Plant
from tests.simulation.seams import simulated_seams

if TYPE_CHECKING:
    from collections.abc import Iterator

FAR = Weather(0.004, 0.005)
LONG = 10.0  # seconds that nobody waits in here
# How long the first in line waits, so that its time runs out as the holder is done.
MOMENTS = [0.4 + 0.001 * step for step in range(5, 45)]


def waits(after: float, wait: float, hold: float = 0.05) -> Operation:
    """Want the lock, so many seconds after the beginning."""
    return Operation("run", "a", after, hold, wait=wait)


def line_of_two(wait: float, *faults: Fault) -> Plan:
    """Let c0 hold the lock for half a second, c1 wait so long, and c2 for long.

    What goes wrong with c1 is no reason for c2 to be woken late.
    """
    operations = waits(0.0, 0.0, hold=0.5), waits(0.1, wait), waits(0.2, LONG)
    return Plan(
        seed=1,
        nodes=tuple(NodePlan(name, 1.0, 0.0) for name in ("n0", "n1", "n2")),
        clients=tuple(
            ClientPlan(f"c{i}", 1.0, 0.0, ((operation,),), FAR)
            for i, operation in enumerate(operations)
        ),
        faults=faults,
        ttl=2.0,
        max_ttl=2.0,
        node_timeout=0.05,
        connect_timeout=0.3,
        initialized=True,
        probes=(("n0", "n1"),),
        is_calm=True,
    )


def leaves_without_a_word() -> Plant:
    """Have people go without the lock and not pass on that it is free."""
    right = Waiting.end

    def end(self: Waiting, *, acquired: bool) -> None:
        right(self, acquired=acquired or True)

    return Plant("leaves", lambda: [(Waiting, "end", end)], ("nobody woken",), 0)


@pytest.fixture(autouse=True)
def seams() -> Iterator[None]:
    """Put the simulated world under the core."""
    with simulated_seams():
        yield


@pytest.mark.parametrize("wait", MOMENTS)
def test_who_gives_up_at_the_moment_of_a_release_passes_it_on(wait: float) -> None:
    """It was woken, or was about to be, and does not want the lock any more."""
    outcome = play(line_of_two(wait), traced=True)

    assert not outcome.findings, outcome.report()


def test_who_gives_up_and_does_not_pass_it_on_is_found() -> None:
    """The same with a bug: then nobody wakes who comes after it."""
    with leaves_without_a_word().planted():
        outcomes = [play(line_of_two(wait)) for wait in MOMENTS]

    found = {finding.kind for outcome in outcomes for finding in outcome.findings}
    assert found == {"nobody woken"}


@pytest.mark.parametrize("wait", [0.45, 0.6, 0.8])
def test_who_gives_up_while_the_lock_is_kept_passes_on_when_it_is_free(
    wait: float,
) -> None:
    """It was told when to try, alone, and does not want the lock any more."""
    plan = line_of_two(wait)
    (holder, *others) = plan.clients
    ((operation,),) = holder.tasks
    kept = replace(holder, tasks=((replace(operation, keep=1.0),),))

    outcome = play(plan.without(clients=(kept, *others)), traced=True)

    assert not outcome.findings, outcome.report()


def test_who_died_in_line_is_passed_over() -> None:
    """The nodes see that its connections are gone, and wake who comes after it."""
    death = Fault("death", 0.3, "c1", how="killed")

    outcome = play(line_of_two(LONG, death), traced=True)

    assert not outcome.findings, outcome.report()
    assert outcome.coverage["wake-up passed over"] == len(outcome.plan.nodes)
    assert outcome.coverage["verdict won"] == len(("c0", "c2", "the judge"))


def test_wake_up_of_a_machine_that_lost_its_power_is_lost() -> None:
    """The nodes cannot know; who comes after it finds out by looking."""
    death = Fault("death", 0.3, "c1", how="powered off")

    outcome = play(line_of_two(LONG, death), traced=True)

    assert {finding.kind for finding in outcome.findings} == {"nobody woken"}
    assert outcome.coverage["wake-up lost"] == len(outcome.plan.nodes)

    late = play(line_of_two(LONG, death), blind_to=["nobody woken"])

    assert not late.findings
    assert late.coverage["verdict won"] == len(("c0", "c2", "the judge"))


def test_connections_of_who_listens_break_and_are_made_again() -> None:
    """Until then it looks more often."""
    resets = [Fault("reset", 0.3, "c2", node) for node in ("n0", "n1", "n2")]

    outcome = play(line_of_two(LONG, *resets), traced=True)

    assert not outcome.findings, outcome.report()
    # Both who wait have subscribed once on each node, and c2 twice.
    assert outcome.coverage["subscribed"] == 3 * len(outcome.plan.nodes)
