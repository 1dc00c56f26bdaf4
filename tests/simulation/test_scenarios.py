"""Histories that once went wrong, or that could: each plan is written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from celery_redlock.locks.redlock import Redlock
from celery_redlock.locks.wait_queue import WaitQueue
from tests.conftest import with_long
from tests.simulation.history import Outcome, play
from tests.simulation.network import Conditions
from tests.simulation.patches import simulated_core
from tests.simulation.plan import (
    ClientPlan,
    Fault,
    NodePlan,
    Operation,
    Plan,
    Settings,
)
from tests.simulation.planted_bugs import MEMBERSHIP_BUGS, PlantedBug

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR, FAR = Conditions(0.0002, 0.001), Conditions(0.004, 0.005)
HOUR = 3600.0
LONG = 10.0  # seconds: no client waits so long here
MOVED, REFUSED = "operator reconfigure done", "operator reconfigure refused"
FINISHED = "reconfigurations finished at the end"
DELETED = "membership deleted at the end"


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


def assert_no_findings(plan: Plan, counts: dict[str, int] | None = None) -> Outcome:
    """Play a plan, and return its outcome if no rule was broken."""
    outcome = play(plan, traced=True)
    assert not outcome.findings, outcome.report()
    assert not counts or {n: outcome.coverage[n] for n in counts} == counts
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


def test_part_of_an_ended_set_may_come_back_with_the_clock() -> None:
    """A node that sets its clock back shows a lock that it has not deleted yet.

    Found at seed 21003430. The set of c0 had ended, and c1 took one of its keys, so
    the node deleted this one. Its clock then stepped back before the end of the other.
    """
    both = replace(run(0.1), key="a\nb")
    plan = plan_of(
        (replace(both, after=0.0, hold=5.0),),
        (replace(run(0.5), key="b"), replace(both, wait=LONG)),
        faults=(
            Fault("death", 0.1, "c0", how="powered off"),
            Fault("clock step", 0.55, "n0", seconds=-0.5),
        ),
    )

    outcome = assert_no_findings(plan)

    assert outcome.coverage["acquire taken"]


# -- Members -------------------------------------------------------------------------


def nodes(*names: str) -> tuple[NodePlan, ...]:
    """Return servers with exact clocks."""
    return tuple(NodePlan(name, 1.0, 0.0) for name in names)


def test_old_settings_do_not_take_a_node_back_after_a_reconfiguration() -> None:
    """A node that restarts joins the new view, although old clients see it first.

    Found at seed 100182. n1 and n2 restarted after the move, and a client with the old
    settings brought both into the old view. No client with the new settings could get
    n2 back to the vote.
    """
    polls = tuple(run(0.2, wait=0.2) for _ in range(25))
    plan = plan_of(
        polls,
        nodes=nodes("n0", "n1", "n2", "m8"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n0", "n2", "m8"), 0.6),),
        faults=(
            Fault("command", 1.5, "o0", how="reconfigure 0 1"),
            Fault("crash", 2.3, "n1", seconds=0.7, how="keep silent"),
            Fault("crash", 5.7, "n2", seconds=0.01, how="keep silent"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1, DELETED: 0})


def test_finished_reconfiguration_is_not_aborted_during_the_next_one() -> None:
    """The members that it has left stay out of the vote.

    Found at seed 21049815. The operator of the second move died while all its members
    were closed. An abort of the first move let the members vote that it had left,
    beside those of the second move.
    """
    plan = plan_of(
        (run(0.3),),
        nodes=nodes("n0", "n1", "n2", "n3", "n4", "m1", "m7", "m8"),
        members=("n0", "n1", "n2", "n3", "n4"),
        final_quorums=(("n0", "n1", "n2"),),
        later_settings=(
            Settings(("n2", "m1"), 0.3),
            Settings(("n2", "m1", "m8", "m7"), 0.6),
        ),
        faults=(
            Fault("command", 0.02, "o0", how="reconfigure 0 1"),
            Fault("command", 2.8, "o2", how="reconfigure 1 2 dies 224"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1, FINISHED: 1})


def test_fences_rest_on_a_node_that_knows_of_a_replacement() -> None:
    """The last such node must not forget while a name leads others to the old server.

    Found at seed 21022427. n0 alone knew that n1b was in the place of n1, and was
    flushed. The judge, for whom n1 was still n1, had n0 confirmed by it.
    """
    plan = plan_of(
        tuple(run(0.2, wait=LONG) for _ in range(40)),
        nodes=nodes("n0", "n1", "n1b"),
        members=("n0", "n1"),
        final_quorums=(("n0", "n1"),),
        faults=(
            Fault("lead", 0.5, "n1", "c0", how="n1b"),
            Fault("reset", 0.5, "c0", "n1"),
            Fault("flush", 15.0, "n0"),
        ),
    )
    (c0,) = plan.clients

    outcome = assert_no_findings(replace(plan, clients=(replace(c0, skew=-3600.0),)))

    assert outcome.coverage["recovered from others"]


def test_member_without_a_vote_at_a_reconfiguration_joins_the_new_view() -> None:
    """A planned node that was waiting to be confirmed is not left in the old view.

    Found at seed 200252. n1 was not closed, because it had no vote, so it was not
    opened. After the restart of n0, no client could bring n1 or n0 back to the vote.
    """
    plan = plan_of(
        tuple(run(0.1) for _ in range(14)),
        nodes=nodes("n0", "n1", "n2", "n3"),
        members=("n0", "n1", "n2", "n3"),
        later_settings=(Settings(("n0", "n1", "n3"), 0.3),),
        final_quorums=(("n0", "n1", "n2"),),
        faults=(
            Fault("crash", 0.9, "n1", seconds=0.05, how="keep reset"),
            Fault("command", 1.7, "o0", how="reconfigure 0 1"),
            Fault("crash", 4.0, "n0", seconds=0.5, how="keep reset"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1})


def test_abort_that_was_interrupted_can_be_run_again_after_a_node_has_opened() -> None:
    """Nodes that an abort has marked never open, so the abort has to be finished.

    Found at seed 200136. o1 marked a majority of the future nodes and died, and o0 had
    opened the last one. The move could not be finished, and not be taken back. o0 says
    so, and does not ask on.
    """
    plan = plan_of(
        tuple(run(0.3) for _ in range(10)),
        nodes=nodes("n0", "n1", "n2", "m7", "m8"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n2", "m7", "m8"), 0.3),),
        faults=(
            Fault("command", 0.5, "o0", how="reconfigure 0 1"),
            *(Fault("on call", 1, "o0", n, 1.0, "open delay") for n in ("n2", "m7")),
            Fault("cut", 0.6, "o1", "m8", 9.0),
            Fault("command", 2.0, "o1", how="reconfigure 0 1 abort"),
            Fault("on call", 1, "o1", "n0", how="reopen death"),
        ),
    )

    outcome = assert_no_findings(plan, {REFUSED: 1})

    assert outcome.coverage["open granted"]
    assert outcome.coverage["abort granted"]


@pytest.mark.parametrize("is_cut", [False, True])
def test_node_that_opened_for_an_aborted_move_comes_back(*, is_cut: bool) -> None:
    """Also if its view has grown since, and if the abort did not reach it.

    n2 opened, and m7 lost its memory, so clients with the new settings replaced m7 in
    the view of n2. The abort let n2 forget the view as it was planned, and clients
    with the old settings took n2 for the sign that the move was done.
    """
    cut = (Fault("cut", 2.7, "o1", "n2", 9.0), Fault("reset", 2.7, "o1", "n2"))
    plan = plan_of(
        tuple(run(0.3) for _ in range(20)),
        tuple(run(0.2, settings=1) for _ in range(10)),
        nodes=nodes("n0", "n1", "n2", "m7", "m8"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n2", "m7", "m8"), 0.3),),
        faults=(
            Fault("command", 0.5, "o0", how="reconfigure 0 1"),
            Fault("on call", 1, "o0", "m7", how="open death"),
            Fault("crash", 1.95, "m7", seconds=0.01, how="lose reset"),
            *(cut if is_cut else ()),
            Fault("command", 2.8, "o1", how="reconfigure 0 1 abort"),
            Fault("crash", 5.5, "n0", seconds=0.01, how="keep reset"),
        ),
    )

    outcome = assert_no_findings(plan, {MOVED: 1 - is_cut, FINISHED: 0, DELETED: 0})

    assert outcome.coverage["open granted"]


def test_server_that_was_replaced_before_a_reconfiguration_joins_the_new_view() -> None:
    """It still votes in a view that is over, when its name leads to it again.

    Found at seeds 1420 and 3249. No client let it forget that view, because it voted.
    """
    plan = plan_of(
        (run(0.1), *(run(0.3) for _ in range(10))),
        nodes=nodes("n0", "n1", "n2", "n2b", "m4", "m6"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n0", "n1", "n2", "m4", "m6"), 0.3),),
        faults=(
            Fault("lead", 0.2, "n2", how="n2b"),
            Fault("reset", 0.2, "c0", "n2"),
            Fault("command", 4.0, "o0", how="reconfigure 0 1"),
            Fault("lead", 8.0, "n2", how="n2"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1, FINISHED: 0, DELETED: 0})


def test_node_that_forgot_a_view_joins_the_one_for_which_it_did() -> None:
    """Clients with the old settings do not take it back in the same moment.

    Found at seeds 119 and 2593. n1 lost its memory, and n2 was not closed. Clients
    with the old settings let n1 join the old view, those with the new settings let it
    forget that, and so on.
    """
    plan = plan_of(
        tuple(run(0.3) for _ in range(5)),
        nodes=nodes("n0", "n1", "n2", "m2"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n1", "m2"), 0.3),),
        faults=(
            Fault("crash", 0.5, "n2", seconds=0.01, how="keep reset"),
            Fault("command", 1.5, "o0", how="reconfigure 0 1"),
            Fault("crash", 5.0, "n1", seconds=0.01, how="lose reset"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1, FINISHED: 0, DELETED: 0})


def test_node_of_a_deployment_without_other_nodes_has_its_membership_deleted() -> None:
    """A client that is cut off can found a deployment beside the one that was moved.

    Found at seed 2619. n1 lost its memory, and for c1 there was nothing but n1 and an
    empty server. No client may let it forget what may be a deployment of others. So
    the operator deletes its `meta`, as the refusal says.
    """
    plan = plan_of(
        (*(run(0.3) for _ in range(5)),),
        (run(8.0, wait=1.5),),
        nodes=nodes("n0", "n1", "n2", "n2b", "m2", "m7"),
        max_ttl=0.6,
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n0", "n1", "n2", "m2", "m7"), 0.6),),
        faults=(
            Fault("command", 2.0, "o0", how="reconfigure 0 1"),
            Fault("lead", 7.0, "n2", "c1", how="n2b"),
            Fault("reset", 7.0, "c1", "n2"),
            Fault("cut", 7.0, "c1", "n0", 9.0),
            Fault("crash", 7.5, "n1", seconds=0.01, how="lose reset"),
        ),
    )

    assert_no_findings(plan, {MOVED: 1, DELETED: 1})


def test_last_node_is_opened_by_a_second_run() -> None:
    """A new node that is still closed knows the plan, when no old node does any more.

    Found at seed 15593. The operator died when a majority was open, and a second run
    looked for a majority of voters in the view that was left.
    """
    plan = plan_of(
        tuple(run(0.3) for _ in range(5)),
        nodes=nodes("n0", "n1", "n2", "n3"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n0", "n1", "n2", "n3"), 0.3),),
        faults=(
            Fault("command", 0.5, "o0", how="reconfigure 0 1"),
            Fault("on call", 1, "o0", "n3", how="open death"),
        ),
    )

    outcome = assert_no_findings(plan)

    assert outcome.coverage["reconfigurations finished at the end"]


def test_reconfiguration_is_refused_if_too_few_future_nodes_would_open() -> None:
    """A node that does not vote is not closed, and so not opened.

    Found at seed 3249. One of two future nodes waited to be confirmed. The other one
    opened, and then the move could neither be finished nor be taken back.
    """
    plan = plan_of(
        (run(0.1), *(run(0.2) for _ in range(3))),
        nodes=nodes("n0", "n1", "n2", "n2b"),
        members=("n0", "n1", "n2"),
        later_settings=(Settings(("n1", "n2"), 0.3),),
        faults=(
            Fault("lead", 0.4, "n2", how="n2b"),
            Fault("reset", 0.4, "c0", "n2"),
            Fault("command", 4.0, "o0", how="reconfigure 0 1"),
        ),
    )

    outcome = assert_no_findings(plan, {REFUSED: 1})

    assert not outcome.coverage["close quarantined"]


def replaced(place: str, client: str, *faults: Fault) -> Plan:
    """Let a name lead one of two clients to an empty server, from second 1 on.

    c0 holds the lock on n0 and n1, and c1 tries to get it.
    """
    return plan_of(
        (run(0.1, 6.0, stops_on_loss=False),),
        tuple(run(0.35) for _ in range(20)),
        nodes=nodes("n0", "n1", "n2", f"{place}b"),
        members=("n0", "n1", "n2"),
        faults=(
            Fault("cut", 0.0, "c0", "n2", 9.0),
            Fault("lead", 1.0, place, client, how=f"{place}b"),
            Fault("reset", 1.0, client, place),
            *faults,
        ),
    )


def opened_late(lost_at: float) -> Plan:
    """Let the OPEN for n1 arrive late, and n2 lose its memory before that.

    c0 holds the lock on n0 and n2 until second 3, and c1 tries to get it.
    """
    first, again = run(2.2, settings=1), run(0.003, 0.001, settings=1)
    return plan_of(
        (run(2.4, 0.59, ttl=0.6, renews=False, settings=1),),
        (first, run(0.738, settings=1), *(again for _ in range(5))),
        nodes=nodes("n0", "n1", "n2"),
        later_settings=(Settings(("n0", "n1", "n2"), 0.6),),
        faults=(
            Fault("command", 0.5, "o0", how="reconfigure 0 1"),
            Fault("on call", 1, "o0", "n1", 0.8, "open delay"),
            Fault("crash", lost_at, "n2", seconds=0.01, how="lose reset"),
        ),
    )


def counters_read_early() -> Plan:
    """Let n2 lose its memory, and c1 reach n0 alone when its quarantine begins.

    c0 was granted the lock by n1 and n2 alone, so n0 does not know its fences.
    """
    return plan_of(
        tuple(run(0.1) for _ in range(5)),
        (replace(run(1.5), key="b"), *(replace(run(0.35), key="b") for _ in range(12))),
        final_quorums=(("n0", "n2"),),
        faults=(
            Fault("cut", 0.0, "c0", "n0", 9.0),
            Fault("crash", 1.2, "n2", seconds=0.01, how="lose reset"),
            Fault("cut", 1.3, "c1", "n1", 0.8),
        ),
    )


def memory_back(at: float) -> Plan:
    """Let n1 get a memory back that is older than the lock of c0 on n0 and n1."""
    return plan_of(
        (run(0.1, 4.0, stops_on_loss=False, renews=False, ttl=0.3),),
        tuple(run(0.05) for _ in range(20)),
        faults=(
            Fault("cut", 0.0, "c0", "n2", 9.0),
            Fault("snapshot", 0.05, "n1"),
            Fault("come back", at, "n1"),
        ),
    )


def evicted(at: float) -> Plan:
    """Let n1 evict the lock of c0 on n0 and n1, a moment after it is set to."""
    return plan_of(
        (run(0.1, 5.0, stops_on_loss=False, renews=False),),
        (run(at + 0.31), *(run(0.05) for _ in range(20))),
        ttl=5.0,
        max_ttl=5.0,
        faults=(Fault("cut", 0.0, "c0", "n2", 9.0), Fault("evict", at, "n1")),
    )


def clock_ahead(ahead: str) -> Plan:
    """Let n2 lose its memory while a clock is an hour ahead, for half a second."""
    return plan_of(
        tuple(run(0.05) for _ in range(20)),
        ends_soon=True,
        faults=(
            Fault("clock step", 0.2, ahead, seconds=HOUR),
            Fault("flush", 0.25, "n2"),
            Fault("clock step", 0.7, ahead, seconds=-HOUR),
        ),
    )


def clocks_back() -> Plan:
    """Let c0 die with the lock, and set all clocks back. c1 tries to get it."""
    back = (Fault("clock step", 0.35, f"n{n}", seconds=-HOUR) for n in range(3))
    return plan_of(
        (run(0.1, 5.0),),
        tuple(run(0.3) for _ in range(10)),
        ends_soon=True,
        faults=(Fault("death", 0.3, "c0", how="powered off"), *back),
    )


def forgotten_alone(kind: str) -> Plan:
    """Let the only node forget the lock of c0, long after its process began.

    A server tells its uptime in seconds, so what it proves is up to two seconds late.
    """
    return plan_of(
        (run(4.0, 1.0, stops_on_loss=False, renews=False),),
        (run(4.05, 0.01), *(run(0.02) for _ in range(20))),
        nodes=nodes("n0"),
        final_quorums=(("n0",),),
        faults=(Fault("snapshot", 3.9, "n0"), Fault(kind, 4.1, "n0")),
    )


_SPLIT = [replaced("n0", "c1")]
_PLANS = {
    "members are not checked": _SPLIT,
    "identity by name": _SPLIT,
    "one member confirms": [replaced("n0", "c1", Fault("cut", 1.0, "c1", "n1", 8.0))],
    "newcomer waits alone": [
        replaced("n0", "c1", Fault("cut", 1.0, "c1", "n1", 1.0 + 0.05 * step))
        for step in range(30)
    ],
    "renewal without a vote": [replaced("n1", "c0")],
    "recovery before the quarantine": [counters_read_early()],
    "memory back trusted": [memory_back(0.2 + 0.02 * n) for n in range(4)],
    "eviction overlooked": [evicted(0.2 + 0.02 * n) for n in range(4)],
    "instant ahead believed": [clock_ahead("n2"), clock_ahead("n0")],
    "lock outlasts a clock set back": [clocks_back()],
    "start trusted after a vote": [
        forgotten_alone(kind) for kind in ("flush", "forget meta")
    ],
    "start of a replica trusted": [forgotten_alone("come back")],
    "open lifts a quarantine": [opened_late(2.45 + 0.02 * n) for n in range(8)],
    # Each client reaches another pair of nodes, and each node two clients.
    "counter on each node": [
        plan_of(
            *((run(0.1, 1.0, limit=2),) for _ in range(3)),
            faults=tuple(Fault("cut", 0.0, f"c{n}", f"n{n}", 3.0) for n in range(3)),
        )
    ],
}


@pytest.mark.parametrize("name", with_long(_PLANS, *[*_PLANS][2:]))
def test_plan_of_a_membership_bug_breaks_no_rule_without_it(name: str) -> None:
    """The code as it is keeps all rules in these plans."""
    for plan in _PLANS[name]:
        assert_no_findings(plan)


@pytest.mark.parametrize("name", with_long(_PLANS, *[*_PLANS][2:]))
def test_membership_bug_is_found(name: str) -> None:
    """Without a rule two hold the lock, fences repeat, or nodes wait for an hour."""
    bug = MEMBERSHIP_BUGS[name]
    with bug.planted():
        outcomes = [play(plan) for plan in _PLANS[name]]

    found = {finding.kind for outcome in outcomes for finding in outcome.findings}
    assert {*bug.findings} <= found


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


def waiter_for_two_permits(*holds: float) -> Plan:
    """Let c0 and c1 hold the two permits for so long, and c2 wait for one."""
    holders = [(run(0.05 * place, hold, limit=2),) for place, hold in enumerate(holds)]
    return plan_of(
        *holders,
        (run(0.2, 0.05, wait=LONG, limit=2),),
        ttl=2.0,
        max_ttl=2.0,
        final_quorums=(("n0", "n1"),),
        is_calm=True,
    )


EITHER_FIRST = [(0.4, 1.2), (1.2, 0.4)]


@pytest.mark.parametrize("holds", EITHER_FIRST, ids=str)
def test_any_permit_that_comes_free_wakes_a_waiter(holds: tuple[float, ...]) -> None:
    """All permits of a key have one wait queue."""
    assert_no_findings(waiter_for_two_permits(*holds))


def test_start_that_is_kept_wakes_no_waiter_in_place_of_the_permit() -> None:
    """The permit of the limit is free now, and the one of the rate in some seconds.

    Where the second one woke the waiter first, it waited on beside a free permit.
    """
    one_at_a_time = {"limit": 1, "rate": (20, 6.0)}
    plan = plan_of(
        (run(0.0, 0.5, **one_at_a_time),),
        (run(0.3, 0.05, wait=LONG, **one_at_a_time),),
        nodes=(NodePlan("n0", 1.0, 0.0),),
        ttl=2.0,
        max_ttl=2.0,
        final_quorums=(("n0",),),
        is_calm=True,
    )

    assert_no_findings(plan)


def test_release_that_wakes_waiters_of_one_permit_is_found() -> None:
    """The simulator finds it where the permit is not the lock of the key."""
    right = Redlock._release_request  # noqa: SLF001

    def release(self: Redlock, key: str, permits: Any, *words: Any, **more: Any) -> Any:
        own = permits and [(limit._replace(key=name), name) for limit, name in permits]
        return right(self, key, own, *words, **more)

    patches = [(Redlock, "_release_request", release)]
    bug = PlantedBug("own queue", lambda: patches, (), 0)
    with bug.planted():
        outcomes = [play(waiter_for_two_permits(*holds)) for holds in EITHER_FIRST]

    found = [finding.kind for outcome in outcomes for finding in outcome.findings]
    assert {*found} == {"waiter not woken"}


# -- Permits for a start --------------------------------------------------------------

DAY = 86400.0
HELD = "verdict held"


@pytest.mark.parametrize("forgetting", [1, 2])
def test_permit_for_a_start_survives_one_node_of_three_that_forgets(
    forgetting: int,
) -> None:
    """Nodes forget it, one after the other, each after the last one votes again.

    One of three changes nothing. After the second one a majority has forgotten it, and
    the next start is granted: docs/explanation/why-it-is-safe.md says so.
    """
    rate = (1, DAY)
    plan = plan_of(
        (run(0.2, rate=rate),),
        (run(1.0), run(2.0), run(1.0), run(2.0), run(1.0, rate=rate)),
        faults=tuple(
            Fault("flush", 0.6 + 3.0 * number, f"n{number}")
            for number in range(forgetting)
        ),
    )

    outcome = assert_no_findings(plan)

    assert outcome.coverage["started"] == forgetting
    assert outcome.coverage["permit for a start forgotten"] == (forgetting == 2)


def test_restored_lock_brings_no_permit_for_a_start() -> None:
    """Three of four nodes gave it, and the fourth got the lock alone, by a renewal.

    When two of the three have forgotten it, a majority has not got it.
    """
    rate = (1, DAY)
    plan = plan_of(
        (run(0.2, hold=3.0, rate=rate),),
        tuple(Operation("run", "other", after, 0.01) for after in (0.9, 1.6)),
        (run(4.0), run(1.0), run(2.0), run(1.0), run(2.0), run(1.0, rate=rate)),
        faults=(
            Fault("flush", 0.1, "n0"),
            Fault("flush", 4.6, "n1"),
            Fault("flush", 7.6, "n2"),
        ),
        nodes=nodes("n0", "n1", "n2", "n3"),
        final_quorums=(("n0", "n1", "n2"),),
    )

    outcome = assert_no_findings(plan, {"started": 2})

    assert outcome.coverage["restore granted"]
