"""The simulator itself: it finds planted bugs, and a seed gives the same history."""

from __future__ import annotations

import gc
import threading
import zlib
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import pack
from celery_redlock.locks.renewal_schedule import WakeupQueue
from celery_redlock.scripts import RELEASE
from celery_redlock.scripts.keys import stripe_of
from celery_redlock.wire import broadcast
from tests.conftest import with_long
from tests.simulation.history import play
from tests.simulation.minimise import minimised
from tests.simulation.network import Conditions, Connection, Network, SimConnection
from tests.simulation.oracles import Oracle, WakeupOracle
from tests.simulation.patches import simulated_core
from tests.simulation.plan import Operation
from tests.simulation.planner import KEYS, PERMITS, plan_of
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug
from tests.simulation.server import Server, ServerClock
from tests.simulation.world import Process, Thread, World

if TYPE_CHECKING:
    from collections.abc import Callable


_PATIENCE = 300  # seconds: two thousand histories on a busy machine
_MANY = 2000  # histories; a bug that may need more has three times as long


# In `make test`. The others take longer: "no drift" shows in the hundredth history.
FEW = {"half is a quorum", "grant of a taken lock", "fence without a second round"}


def first_found(bug: PlantedBug) -> int | None:
    """Return the seed of the first history that shows a planted bug."""
    with simulated_core(), bug.planted():
        for seed in range(bug.within):
            outcome = play(plan_of(seed, bug.style), ignored=bug.ignored)
            if {finding.kind for finding in outcome.findings} & {*bug.findings}:
                return seed
    return None


def _each_with_its_time() -> list[Any]:
    long = [bug.name for bug in PLANTED_BUGS if bug.name not in FEW]
    return [
        pytest.param(
            *param.values,
            id=param.id,
            marks=[
                *param.marks,
                pytest.mark.timeout(_PATIENCE * (1 + 2 * (bug.within > _MANY))),
            ],
        )
        for bug, param in zip(PLANTED_BUGS, with_long(PLANTED_BUGS, *long), strict=True)
    ]


@pytest.mark.parametrize("bug", _each_with_its_time())
def test_simulator_finds(bug: PlantedBug) -> None:
    """Each planted bug shows in the stated number of histories, as its own finding."""
    assert first_found(bug) is not None, (
        f"{bug.within} histories did not show the planted bug {bug.name!r}"
    )


def test_real_thread_beside_a_simulation_takes_no_part_of_it() -> None:
    """One that a test before has left may begin only now, on a busy machine."""
    made = []

    def begin() -> None:
        made.append(WakeupQueue(SYSTEM_CLOCK))
        made[0].wake()
        made[0].sleep(SYSTEM_CLOCK.monotonic() + _PATIENCE)

    with simulated_core():
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join(_PATIENCE)

    assert not thread.is_alive()
    assert not made[0].was_woken


def test_real_process_waits_for_no_request_of_a_simulated_one() -> None:
    """A killed process leaves requests, which its clock would let no test wait for."""
    gc.collect()
    before = {*broadcast._all}  # noqa: SLF001
    gc.disable()  # the objects of a history refer to each other
    try:
        with simulated_core():
            play(plan_of(0))
        after = {*broadcast._all}  # noqa: SLF001
    finally:
        gc.enable()

    assert after == before


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=str)
def test_planted_bug_is_removed_afterwards(bug: PlantedBug) -> None:
    """The right code is in its place after the block of a planted bug."""
    before = [getattr(target, name) for target, name, _ in bug.patches()]

    with bug.planted():
        pass

    assert [getattr(target, name) for target, name, _ in bug.patches()] == before


# -- Histories -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_history_depends_on_its_seed_alone(seed: int) -> None:
    """A seed that is played twice gives the same history, message by message."""
    with simulated_core():
        first = play(plan_of(seed), traced=True)
        second = play(plan_of(seed), traced=True)

    assert first.trace
    assert first.trace == second.trace


def test_plan_depends_on_its_seed_alone() -> None:
    """A seed gives the same plan each time, and another seed another plan."""
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


def test_plans_have_all_sizes() -> None:
    """Deployments begin with one to seven nodes; with servers that come later, nine.

    Some have locks that share a stripe.
    """
    plans = [plan_of(seed) for seed in range(300)]

    assert {len(plan.settings[0].names) for plan in plans} == set(range(1, 8))
    assert {len(plan.nodes) for plan in plans} == set(range(1, 10))
    assert any(len(plan.keys) > 1 for plan in plans)


def test_plans_of_permits_have_all_kinds_of_limits() -> None:
    """Limits from 1 to 20, on sets as well, and rates."""
    limited = [plan_of(seed, PERMITS) for seed in range(200)]
    limits = [each for plan in limited for _, limits in plan.wants for each in limits]

    assert {2, 3, 5, 20} <= {limit.most for limit in limits if not limit.period}
    assert any(limit.period > 1.0 for limit in limits)
    assert any("\n" in key and shares for plan in limited for key, shares in plan.wants)


def test_keys_share_a_stripe() -> None:
    """The locks of a history share one fence counter on a node."""
    assert len({stripe_of(key) for key in KEYS}) == 1
    assert len({zlib.crc32(key.encode()) for key in KEYS}) == len(KEYS)


@pytest.mark.long
def test_minimised_plan_shows_the_same_finding_with_less() -> None:
    """A failing plan is reduced to a smaller one with the same kind of finding."""
    (bug,) = (bug for bug in PLANTED_BUGS if bug.name == "release by DEL")
    with simulated_core(), bug.planted():
        failing = next(
            plan for plan in map(plan_of, range(bug.within)) if play(plan).findings
        )
        (finding, *_) = play(failing).findings

        small = minimised(failing)
        outcome = play(small, traced=True)

    assert outcome.findings[0].kind == finding.kind
    assert len(small.faults) <= len(failing.faults)
    assert len(small.clients) <= len(failing.clients)
    assert f"seed {failing.seed}" in outcome.report()
    assert finding.kind.upper() in outcome.report()


# -- The world -----------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    """Give a world without events."""
    return World()


def start(
    world: World, body: Callable[[Process], object], rate: float = 1.0
) -> Process:
    """Start a process with one thread that runs this body."""
    process = Process(world, "p", rate=rate, skew=0.0)
    Thread(target=lambda: body(process), process=process).start()
    return process


def test_pause_delays_all_threads_of_a_process(world: World) -> None:
    """A thread that would wake during a pause wakes at its end."""
    woken = []

    def sleep(process: Process) -> None:
        process.clock.sleep(1.0)
        woken.append(world.now)

    world.schedule(0.5, start(world, sleep).pause, 3.0)
    world.run(10.0)

    assert woken == [3.5]


def test_clock_runs_at_the_rate_of_its_process(world: World) -> None:
    """A process whose clock is fast sleeps for less than it asked for."""
    woken = []

    def sleep(process: Process) -> None:
        process.clock.sleep(1.0)
        woken.append(world.now)

    start(world, sleep, rate=1.25)
    world.run(10.0)

    assert woken == [0.8]


def test_killed_process_does_nothing_more(world: World) -> None:
    """Not even the ``finally`` of a killed process touches the world."""
    done = []

    def body(process: Process) -> None:
        try:
            process.clock.sleep(1.0)
        finally:
            process.clock.monotonic()
            done.append(world.now)

    world.schedule(0.5, start(world, body).die)
    world.run(10.0)

    assert not done
    assert not world.crashes


def test_busy_loop_is_a_finding(world: World) -> None:
    """Code that reads the time again and again, and never waits, is found."""

    def spin(process: Process) -> None:
        while process.clock.monotonic() < process.origin + 1.0:
            pass

    start(world, spin)
    world.run(10.0)

    assert "operations at once" in str(world.crashes[0])


def test_node_that_crashed_during_a_hang_answers_in_order_afterwards(
    world: World,
) -> None:
    """Bytes that arrived between the crash and the restart delay no later command."""
    network = Network(Random)
    oracle = Oracle(world, network, 1, ())
    server = Server(world, oracle, "n", ServerClock(world, rate=1.0, skew=0.0))
    network.add(server)
    process = Process(world, "p", rate=1.0, skew=0.0)
    network.attach(process, Conditions(0.001, 0.001))
    path = network.path("p", "n")
    server.hang(10.0)
    server.crash(silently=False)
    server.receive(Connection(path), b"")
    server.restart("keep")

    connection = Connection(path)
    server.hang(1.0)
    subscribe, call = pack(("SUBSCRIBE", "c")), pack(("EVALSHA", RELEASE.sha, 0))
    world.schedule(0.5, server.receive, connection, subscribe)
    world.schedule(1.5, server.receive, connection, call)
    world.run(5.0)

    client = SimConnection(connection)
    client.reader.feed(connection.recv(1000))
    assert client.reader.gets() == [b"subscribe", b"c", 1]
    assert str(client.reader.gets()).startswith("NOSCRIPT")


def test_lock_that_is_released_on_one_node_may_expire_on_others() -> None:
    """No client wakes a waiter when it expires: the waiter may learn of it by a look.

    Seed 4059392: a client released its split vote on a third node.
    """
    world = SimpleNamespace(now=0.0)
    process = SimpleNamespace(dead=False)
    found: list[str] = []
    oracle: Any = SimpleNamespace(nodes=3, find=lambda _, text: found.append(text))
    waits = WakeupOracle(oracle)

    def executed(script: str, node: str, *args: bytes) -> None:
        server: Any = SimpleNamespace(name=node, world=world)
        waits.executed(server, script, [b"p:lock:a"], [*args], 1)

    for node in ("n0", "n1"):
        executed("acquire", node, b"token", b"info", b"500")
    thread: Any = mock.Mock(process=process, world=world)
    waits.wait_begun(thread, Operation("run", "a", 0.0, 0.1, wait=9.0))
    executed("acquire", "n2", b"other", b"info", b"500")
    executed("release", "n2", b"other", b"0")
    world.now = 0.5 + 1.0
    executed("acquire", "n0", b"late", b"info", b"500")
    assert not found

    for node in ("n0", "n1"):
        executed("release", node, b"late", b"0")
    world.now += 1.0
    executed("acquire", "n0", b"later", b"info", b"500")

    assert found == ["'a' was free for 1.000 s while a client waited"]
