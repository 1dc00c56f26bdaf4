"""Measure all groups, print the goals, and write the tables of two pages of ``docs``.

``--quick`` only checks that everything runs. It takes a minute, and writes no page.
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

from benchmarks import report
from benchmarks.machine import describe

GROUPS = (
    "locks",
    "plain",
    "keys",
    "permits",
    "profile",
    "hung",
    "nodes",
    "leases",
    "waiting",
    "crowd",
    "many",
    "memory",
    "imports",
    "layer",
    "tasks",
    "one_node",
    "refusals",
    "backlog",
    "line",
    "processes",
    "records",
    "stores",
)
_LONGEST = 900  # seconds for one group
RESULTS = Path(sys.prefix) / "benchmark.json"  # the figures of the last run


def main() -> None:
    """Run groups, each in a process of its own, and report."""
    parser = argparse.ArgumentParser(
        prog="make bench",
        description=__doc__,
        epilog=f"The figures of the last run are in {RESULTS}.",
    )
    parser.add_argument("--quick", action="store_true", help="only check that it runs")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=GROUPS,
        metavar="GROUP",
        help="measure these groups again; the pages keep the other figures. Without a "
        f"name, only write the pages. {', '.join(GROUPS)}",
    )
    parser.add_argument(
        "--json", type=Path, help="another file for the figures of this run"
    )
    parser.add_argument(
        "--compare", type=Path, help="the figures of an earlier run, for a column"
    )
    parser.add_argument("--group", choices=GROUPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.group:  # nothing has imported redis yet: see the group "plain"
        group = importlib.import_module(f"benchmarks.groups.{options.group}")
        print(json.dumps(group.measure(quick=options.quick)))  # noqa: T201
        return
    if options.compare and not options.compare.is_file():
        parser.error(f"there are no figures of an earlier run in {options.compare}")
    wanted = GROUPS if options.only is None else options.only
    keep = options.only is not None and RESULTS.is_file()
    found = json.loads(RESULTS.read_text()) if keep else {}
    earlier = json.loads(options.compare.read_text()) if options.compare else {}
    if wanted:
        found["machine"] = describe()
    for name in wanted:
        began = time.monotonic()
        found[name] = _measure(name, quick=options.quick)
        _say(f"{name:10} {time.monotonic() - began:5.1f} s")
    for line in report.compared(found, earlier):
        _say(line)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.quick:
        return
    RESULTS.write_text(json.dumps(found, indent=1))
    report.write_pages(found)


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


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  (a program for the terminal)


if __name__ == "__main__":
    main()
