"""Measure everything, and write the figures into ``docs/performance.md``.

``--quick`` only shows that all of it runs: it takes a minute, writes nothing, and
asserts no figure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import goals, page
from benchmarks.machine import describe

GROUPS = (
    "locks",
    "plain",
    "profile",
    "hung",
    "nodes",
    "leases",
    "waiting",
    "crowd",
    "memory",
    "imports",
    "tasks",
)
_LONGEST = 300  # seconds for one group
RESULTS = Path(sys.prefix) / "benchmark.json"  # of the last run, for --only


def main() -> None:
    """Run groups, each in a process of its own, and report."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=GROUPS,
        metavar="GROUP",
        help="measure these anew and keep the rest of the last run; without a name, "
        f"only write the page. {', '.join(GROUPS)}",
    )
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:  # nothing has imported redis yet: see the group "plain"
        group = importlib.import_module(f"benchmarks.groups.{options.group}")
        print(json.dumps(group.measure(quick=options.quick)))  # noqa: T201
        return
    wanted = GROUPS if options.only is None else options.only
    found = {} if options.only is None else json.loads(RESULTS.read_text())
    if wanted:
        found["machine"] = describe()
    for name in wanted:
        began = time.monotonic()
        found[name] = _measure(name, quick=options.quick)
        _tell(f"{name:10} {time.monotonic() - began:5.1f} s")
    for goal in goals.check(found):
        _tell(f"{goal.what:62} {goal.text:>12}   {goal.goal:>9}   {goal.mark}")
    if not options.quick:
        RESULTS.write_text(json.dumps(found))
        page.write(found)


def _measure(name: str, *, quick: bool) -> Any:
    command = [sys.executable, "-m", "benchmarks", "--group", name]
    done = subprocess.run(  # noqa: S603  (this program)
        command + ["--quick"] * quick,
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201  (it talks to a person)


if __name__ == "__main__":
    main()
