"""Play histories until stopped: ``python -m tests.simulation.soak [first seed]``.

It prints the number of histories and faults, and the seeds of failures. For the first
failure of each kind it also prints the history, reduced to the parts that it needs.
``--histories N`` ends after N histories, and ``--seed N`` shows one history.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.simulation.campaign import Tally, campaign, failure_report
from tests.simulation.history import play
from tests.simulation.patches import simulated_core
from tests.simulation.planner import plan_of

_ROUND = 5_000  # histories between two lines of the summary


def main() -> int:
    """Play and print; return the exit code, 0 when there was no finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("first", nargs="?", type=int, default=0, help="first seed")
    parser.add_argument("--histories", type=int, help="end after so many")
    parser.add_argument("--seed", type=int, help="show this one history and end")
    options = parser.parse_args()
    if options.seed is not None:
        with simulated_core():
            echo(play(plan_of(options.seed), traced=True).report())
        return 0
    tally, kinds, began = Tally(), set[str](), time.monotonic()
    try:
        for start in itertools.count(options.first, _ROUND):
            left = (options.histories or sys.maxsize) - tally.histories
            if left <= 0:
                break
            for part in campaign(range(start, start + min(_ROUND, left))):
                tally.add(part)
                for seed, finding in part.failures:
                    echo(f"seed {seed}: {finding}")
                    kind = finding.partition(":")[0]
                    if kind not in kinds:
                        kinds.add(kind)
                        echo(failure_report(seed))
            echo(summary(tally, time.monotonic() - began))
    except KeyboardInterrupt:
        echo(summary(tally, time.monotonic() - began))
    for name, count in sorted(tally.coverage.items()):
        echo(f"{count:12,}  {name}")
    return 1 if tally.failures else 0


def summary(tally: Tally, seconds: float) -> str:
    """Return the results so far in a line."""
    return (
        f"{tally.histories:,} histories, {tally.faults:,} faults, "
        f"{tally.coverage['verdict won']:,} grants, {len(tally.failures)} failures "
        f"in {seconds:.0f} s; seeds of failures: "
        f"{[seed for seed, _ in tally.failures][:50]}"
    )


def echo(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
