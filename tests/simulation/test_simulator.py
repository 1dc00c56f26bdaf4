"""The simulator itself: the same seed gives the same history, and can be read."""

from __future__ import annotations

import zlib
from random import Random
from typing import TYPE_CHECKING

import pytest

from celery_redlock.core.fence import stripe_of
from celery_redlock.core.scripts import ACQUIRE, RELEASE
from celery_redlock.core.wire import pack
from tests.simulation.connection import Connection, Weather
from tests.simulation.history import play
from tests.simulation.minimise import minimised
from tests.simulation.network import Network, SimLink
from tests.simulation.planning import KEYS, plan_of
from tests.simulation.plants import PLANTS
from tests.simulation.seams import simulated_seams
from tests.simulation.server import Server, ServerClock
from tests.simulation.witness import Witness
from tests.simulation.world import Process, Thread, World

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def seams() -> Iterator[None]:
    """Put the simulated world under the core."""
    with simulated_seams():
        yield


@pytest.mark.parametrize("seed", range(0, 200, 7))
@pytest.mark.usefixtures("seams")
def test_history_depends_on_its_seed_alone(seed: int) -> None:
    """Played twice, a seed gives the same history to the last message."""
    first = play(plan_of(seed), traced=True)
    second = play(plan_of(seed), traced=True)

    assert first.trace
    assert first.trace == second.trace


def test_plan_depends_on_its_seed_alone() -> None:
    """A seed gives the same plan each time, and another seed another one."""
    assert plan_of(5) == plan_of(5)
    assert plan_of(5) != plan_of(6)


def test_plans_are_of_all_sizes() -> None:
    """There are histories of one to seven nodes, and of locks that share a stripe."""
    plans = [plan_of(seed) for seed in range(300)]

    assert {len(plan.nodes) for plan in plans} == set(range(1, 8))
    assert any(len(plan.keys) > 1 for plan in plans)


def test_keys_share_a_stripe() -> None:
    """The locks of a history share one fence counter on a node."""
    assert len({stripe_of(key) for key in KEYS}) == 1
    assert len({zlib.crc32(key.encode()) for key in KEYS}) == len(KEYS)


@pytest.mark.usefixtures("seams")
def test_minimised_plan_shows_the_same_kind_of_finding_with_less() -> None:
    """What is left of a failing plan is needed for its failure, and can be read."""
    (plant,) = (plant for plant in PLANTS if plant.name == "release by DEL")
    with plant.planted():
        failing = next(
            plan for plan in map(plan_of, range(plant.within)) if play(plan).findings
        )
        (finding, *_) = play(failing).findings

        small = minimised(failing)
        outcome = play(small, traced=True)

    assert outcome.findings[0].kind == finding.kind
    assert len(small.faults) <= len(failing.faults)
    assert len(small.clients) <= len(failing.clients)
    assert f"seed {failing.seed}" in outcome.report()
    assert finding.kind.upper() in outcome.report()


def _process(world: World, rate: float = 1.0) -> Process:
    return Process(world, "p", rate=rate, skew=0.0)


def test_pause_holds_up_all_threads_of_a_process() -> None:
    """A thread that would wake during a pause wakes when that has ended."""
    world, woken = World(), []
    process = _process(world)

    def sleep() -> None:
        process.clock.sleep(1.0)
        woken.append(world.now)

    Thread(target=sleep, process=process).start()
    world.at(0.5, process.pause, 3.0)
    world.run(10.0)

    assert woken == [3.5]


def test_clock_runs_at_the_rate_of_its_process() -> None:
    """A process whose clock is fast sleeps shorter than it thinks."""
    world, woken = World(), []
    process = _process(world, rate=1.25)

    def sleep() -> None:
        process.clock.sleep(1.0)
        woken.append(world.now)

    Thread(target=sleep, process=process).start()
    world.run(10.0)

    assert woken == [0.8]


def test_dead_process_does_nothing_more() -> None:
    """Not even the ``finally`` of a killed process touches the world."""
    world, done = World(), []
    process = _process(world)

    def body() -> None:
        try:
            process.clock.sleep(1.0)
        finally:
            process.clock.monotonic()
            done.append(world.now)

    Thread(target=body, process=process).start()
    world.at(0.5, process.die)
    world.run(10.0)

    assert not done
    assert not world.crashes


def test_waiting_without_letting_time_pass_is_a_finding() -> None:
    """Code that asks for the time again and again, and does not wait, is caught."""
    world = World()
    process = _process(world)

    def spin() -> None:
        while process.clock.monotonic() < process.origin + 1.0:
            pass

    Thread(target=spin, process=process).start()
    world.run(10.0)

    assert "in no time" in str(world.crashes[0])


def test_node_that_crashed_while_it_hung_answers_in_order_afterwards() -> None:
    """What reached it between that and its restart held up what came much later."""
    world = World()
    network = Network(Random)
    witness = Witness(world, network, 1, clocks_sane=True)
    server = Server(world, witness, "n", ServerClock(world, rate=1.0, skew=0.0))
    network.add(server)
    process = _process(world)
    network.attach(process, Weather(0.001, 0.001))
    path = network.path("p", "n")
    server.hang(10.0)
    server.crash(silently=False)
    server.take_in(Connection(path), b"")
    server.restart("keep")

    connection = Connection(path)
    server.hang(1.0)
    world.at(0.5, server.take_in, connection, pack("SCRIPT", "LOAD", ACQUIRE.source))
    world.at(1.5, server.take_in, connection, pack("EVALSHA", RELEASE.sha, 0))
    world.run(5.0)

    link = SimLink(connection)
    link.reader.feed(connection.recv(1000))
    assert link.reader.gets() == ACQUIRE.sha.encode()
    assert str(link.reader.gets()).startswith("NOSCRIPT")
