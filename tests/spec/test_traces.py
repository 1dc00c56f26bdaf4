"""The code obeys the specification: its histories are histories of the model.

Each history of the simulator is written down as steps of ``spec/lock.pml``, and Spin
takes them one by one. With a bug in the code, Spin refuses the history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from spec.check import missing
from spec.trace import Kind, Step, Trace, refusal_of
from tests.simulation.history import play
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of
from tests.simulation.planted_bugs import PLANTED_BUGS
from tests.simulation.recorder import Recorder
from tests.spec.real import record

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=f"{missing()} is missing"),
]

SOME, MANY = 40, 250  # histories
FIRST_SEEDS = (  # of many: a thousand together
    0,
    *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (10_000, 20_000, 30_000)),
)
JOBS = 2  # Spins at once
# The faults that many histories must have had. Nodes lose their membership (DEL
# of `meta`) only in histories with several configurations, which are left out.
FAULTS = (
    *("fault crash lose", "fault crash keep", "fault crash rollback", "fault flush"),
    *("fault hang", "fault cut", "fault slow", "fault reset"),
    *("fault pause", "fault death killed", "fault clock step"),
    *("fault on call break", "fault on call delay", "fault on call death"),
)
BUGS = {bug.name: bug for bug in PLANTED_BUGS}


def recorded(seed: int, style: str = "") -> tuple[list[Trace], Counter[str]]:
    """Play a history; return what the specification can check, and its events."""
    plan = plan_of(seed, style)
    recorder = Recorder(plan)
    outcome = play(plan, recorder=recorder)
    return list(recorder.traces().values()), outcome.coverage


def histories(
    count: int, seed: int = 0
) -> Iterator[tuple[int, list[Trace], Counter[str]]]:
    """Play histories from this seed on, until so many can be checked."""
    with simulated_core():
        while count:
            traces, coverage = recorded(seed)
            if traces:
                count -= 1
                yield seed, traces, coverage
            seed += 1


def refusals(
    checked: Sequence[tuple[int, list[Trace], Counter[str]]],
) -> list[tuple[int, str]]:
    """Return which of these histories Spin refuses, and why."""
    pairs = [(seed, trace) for seed, traces, _ in checked for trace in traces]
    with ThreadPoolExecutor(JOBS) as pool:
        found = pool.map(refusal_of, [trace for _, trace in pairs])
        return [(seed, why) for (seed, _), why in zip(pairs, found, strict=True) if why]


def test_histories_are_accepted() -> None:
    """The first histories have all kinds of steps, and Spin accepts each."""
    checked = list(histories(SOME))

    assert refusals(checked) == []
    kinds = {
        step.kind for _, traces, _ in checked for one in traces for step in one.steps
    }
    assert kinds >= {*Kind} - {Kind.JUMP}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_many_histories_of_all_faults_are_accepted(first: int) -> None:
    """Spin accepts them, and each kind of fault occurred."""
    checked = list(histories(MANY, first))

    assert refusals(checked) == []
    events = sum((coverage for _, _, coverage in checked), Counter())
    assert [name for name in FAULTS if not events[name]] == []


@pytest.mark.timeout(300)
def test_histories_of_real_servers_are_accepted() -> None:
    """Processes and nodes fail for a minute, and Spin accepts what they did."""
    recording = record(60.0)

    assert len(recording.traces) > SOME / 2
    assert recording.refusals() == []


@pytest.mark.timeout(120)
def test_bug_of_real_processes_is_refused() -> None:
    """Processes that count on their leases for a tenth longer are found out."""
    bug = "module.end_of_validity = lambda started_at, ttl: started_at + 1.1 * ttl"
    assert record(4.0, bug=bug).refusals()


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("no drift", 1),
        ("half is a quorum", 12),
        ("extension re-creates", 1),
        ("release by DEL", 3),
        ("validity from the reply", 1),
        ("no restart guard", 5),
    ],
)
def test_history_of_a_planted_bug_is_refused(name: str, within: int) -> None:
    """Spin refuses what the code does with the bug, in so many histories."""
    bug = BUGS[name]
    with simulated_core(), bug.planted():
        traces = [
            trace for seed in range(within) for trace in recorded(seed, bug.style)[0]
        ]
    assert any(map(refusal_of, traces))


def test_step_that_did_not_happen_is_missed() -> None:
    """Without any one of the votes of a bare majority a history is refused."""
    steps = [
        Step(Kind.START, much=300_000),
        Step(Kind.ACQUIRE, node=0),
        Step(Kind.PASS, much=1000),
        Step(Kind.ACQUIRE, node=2),
        Step(Kind.GRANT, much=290_000),
        Step(Kind.PASS, much=289_000),
        Step(Kind.BEGIN_RENEWAL),
        Step(Kind.EXTEND, node=0),
        Step(Kind.EXTEND, node=2),
        Step(Kind.RENEW, much=290_000),
        Step(Kind.FINISH),
        Step(Kind.RELEASE, node=0),
    ]
    assert not refusal_of(Trace(3, 300_000, steps))
    for number in (0, 1, 3, 4, 6, 7, 8):
        fewer = [*steps[:number], *steps[number + 1 :]]
        assert refusal_of(Trace(3, 300_000, fewer)), steps[number]


def test_lease_that_lasts_too_long_is_refused() -> None:
    """A client may count on its lease for less than the ttl of its first message."""
    for much, is_accepted in ((297_500, True), (299_500, False)):
        steps = [
            Step(Kind.START, much=300_000),
            Step(Kind.ACQUIRE, node=0),
            Step(Kind.ACQUIRE, node=1),
            Step(Kind.GRANT, much=much),
        ]
        assert (not refusal_of(Trace(3, 300_000, steps))) is is_accepted
