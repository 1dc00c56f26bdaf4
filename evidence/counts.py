"""Figures about the tools as a whole: states searched, histories played.

Each function returns a sentence. A new tool is a new function here, and a line in
``COUNTS``.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from spec.catalogue import RUNS
from spec.check import check_run, missing
from spec.trace import refusal_of
from tests.mutation.run import FIGURES
from tests.simulation.history import play
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of
from tests.simulation.planted_bugs import (
    MEMBERSHIP_BUGS,
    MISSED_BUGS,
    PLANTED_BUGS,
)
from tests.simulation.recorder import Recorder
from tests.simulation.soak import play_seeds
from tests.spec.real import record
from tests.torture.network import missing_program, reason_against
from tests.torture.session import torture

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torture.report import Report

_TESTS = Path(__file__).parents[1] / "tests"
_HISTORIES, _TRACES = 1000, 40
_REAL_SECONDS, _PARTITIONS_SECONDS = 60, 600
_SEED, _PARTITIONS_SEED = 1, 573163


def specification() -> str:
    """Let Spin visit all states of all models, with all rules."""
    if name := missing():
        return f"not run: {name} is missing"
    runs = [run for run in RUNS if not run.is_large]
    results = [check_run(run) for run in runs]
    states, cpu = sum(one.states for one in results), sum(one.cpu for one in results)
    errors = sum(one.errors for one in results)
    text = f"{states:,} states of {len(runs)} searches, {cpu:.0f} s: {errors} errors"
    is_complete = all(one.is_complete for one in results)
    return text if is_complete else f"{text}; NOT COMPLETE"


def simulator() -> str:
    """Play histories of the code as it is."""
    begun = time.monotonic()
    tally = play_seeds(range(_HISTORIES))
    return tally.summary(time.monotonic() - begun).partition("; seeds")[0]


def traces() -> str:
    """Have Spin take histories of the code, step by step."""
    if name := missing():
        return f"not run: {name} is missing"
    recorded, seed, count, begun = [], 0, 0, time.monotonic()
    with simulated_core():
        while count < _TRACES:
            plan = plan_of(seed)
            recorder = Recorder(plan)
            play(plan, recorder=recorder)
            found = list(recorder.traces().values())
            recorded += found
            count, seed = count + bool(found), seed + 1
    with ThreadPoolExecutor(1) as pool:
        refused = sum(map(bool, pool.map(refusal_of, recorded)))
    steps = sum(len(trace.steps) for trace in recorded)
    seconds = time.monotonic() - begun
    return (
        f"{count} histories of the simulator, {steps:,} steps, {seconds:.0f} s: "
        f"{refused} refused"
    )


def real_servers() -> str:
    """Record what real servers and processes do, and have Spin take it step by step."""
    if name := missing():
        return f"not run: {name} is missing"
    recording = record(_REAL_SECONDS, _SEED)
    refused = len(recording.refusals())
    steps = sum(len(trace.steps) for trace in recording.traces)
    return (
        f"{len(recording.traces)} histories of {_REAL_SECONDS} s, {steps:,} steps, "
        f"{recording.faults.total()} faults: {refused} refused"
    )


def kernel_partitions() -> str:
    """Cut, slow and stall links in network namespaces, and judge the histories."""
    if reason := missing_program() or reason_against():
        return f"not run: {reason}"
    return _sentence(torture(_PARTITIONS_SECONDS, _PARTITIONS_SEED, network=True))


def _sentence(report: Report) -> str:
    done, found = sum(report.jobs.values()), sum(report.zero.values())
    apart = report.apart
    overlaps = sum(n for what, n in apart.items() if what.startswith("overlaps"))
    return (
        f"{report.seconds:g} s, seed {report.seed}, "
        f"{sum(report.faults.values())} faults, {done:,} jobs, {report.runs:,} runs: "
        f"{found} findings. {overlaps} overlaps with a run that was frozen or had lost "
        f"its lock, {apart['late writes refused']} late writes refused by the fence. "
        f"Lost writes: {apart['increments lost to a late writer']} without the fence, "
        f"{report.zero['acknowledged elements missing']} with it"
    )


def mutation() -> str:
    """Read the results of the last `make mutation`, which takes hours."""
    results = json.loads(FIGURES.read_text("utf-8"))
    cells = [
        f"{name} {one['killed'] + one['timeouts']} of {one['mutants']}"
        for name, one in results.items()
    ]
    survived = sum(one["survived"] for one in results.values())
    known = sum(one["explained"] for one in results.values())
    listed = f"{survived} survive, of which {known} are explained in a list"
    return f"killed: {', '.join(cells)}; {listed}"


def planted() -> str:
    """Count the bugs that are planted into the real code."""
    missed = ", ".join(f"*{bug.name}*" for bug in MISSED_BUGS)
    return (
        f"{len(PLANTED_BUGS)} found within a stated number of histories, "
        f"{len(MEMBERSHIP_BUGS)} in plans that are written by hand, "
        f"{len(MISSED_BUGS)} not found: {missed}"
    )


def models() -> str:
    """Count the counterexamples that are kept as tests of the models in Python."""
    found = sum(
        len(re.findall(r"^def test_", file.read_text("utf-8"), re.MULTILINE))
        for file in (_TESTS / "model").glob("test_*.py")
    )
    return f"{found} tests; `pytest tests/model`"


def contracts() -> str:
    """Count the tests that hold each script against its statement in Python."""
    found = sum(
        len(re.findall(r"^def test_", file.read_text("utf-8"), re.MULTILINE))
        for file in (_TESTS / "contract").glob("test_*.py")
    )
    return f"{found} tests, in memory and on each redis-server of the machine"


COUNTS: dict[str, Callable[[], str]] = {
    "Specification, with all rules": specification,
    "Histories of the code against the specification": traces,
    "Real servers against the specification": real_servers,
    "Partitions by the kernel": kernel_partitions,
    "Models in Python": models,
    "Simulator, the code as it is": simulator,
    "Simulator, planted bugs": planted,
    "Contract suite": contracts,
    "Mutants of the core": mutation,
}
