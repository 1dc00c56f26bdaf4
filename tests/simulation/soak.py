"""Play histories until stopped: ``python -m tests.simulation.soak [first seed]``.

Prints how many histories and faults there were, and the seeds of failures; for
the first failure of each kind also its history, made as small as possible. With
``--histories N`` it ends by itself, and with ``--seed N`` it shows one history.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.simulation.campaign import Tally, campaign, failure_report
from tests.simulation.history import play
from tests.simulation.planning import plan_of
from tests.simulation.seams import simulated_seams

_ROUND = 5_000  # histories between two lines of the report


def main() -> int:
    """Play, print, and return how it went: 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak")
    parser.add_argument("first", nargs="?", type=int, default=0, help="first seed")
    parser.add_argument("--histories", type=int, help="end after so many")
    parser.add_argument("--seed", type=int, help="show this one history and end")
    options = parser.parse_args()
    if options.seed is not None:
        with simulated_seams():
            say(play(plan_of(options.seed), traced=True).report())
        return 0
    tally, shown, began = Tally(), set[str](), time.monotonic()
    try:
        for start in itertools.count(options.first, _ROUND):
            left = (options.histories or sys.maxsize) - tally.histories
            if left <= 0:
                break
            for part in campaign(range(start, start + min(_ROUND, left))):
                tally.add(part)
                for seed, finding in part.failures:
                    say(f"seed {seed}: {finding}")
                    kind = finding.partition(":")[0]
                    if kind not in shown:
                        shown.add(kind)
                        say(failure_report(seed))
            summarise(tally, time.monotonic() - began)
    except KeyboardInterrupt:
        summarise(tally, time.monotonic() - began)
    for name, count in sorted(tally.coverage.items()):
        say(f"{count:12,}  {name}")
    return 1 if tally.failures else 0


def summarise(tally: Tally, seconds: float) -> None:
    """Print a line that says how far it has come."""
    say(
        f"{tally.histories:,} histories, {tally.faults:,} faults, "
        f"{tally.coverage['verdict won']:,} grants, {len(tally.failures)} failures "
        f"in {seconds:.0f} s; seeds of failures: "
        f"{[seed for seed, _ in tally.failures][:50]}"
    )


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
