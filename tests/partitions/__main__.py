"""``python -m tests.partitions --seconds 600 --seed 1 --json report.json``."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path

from tests.partitions.network import missing_program, reason_against
from tests.partitions.session import partitions


def main() -> int:
    """Run and print the table; return 0 if all that must be zero is zero."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.partitions",
        description="Locks in network namespaces, faults at random, and verdicts.",
    )
    option = parser.add_argument
    option("--seconds", type=float, default=600, help="of faults; 600")
    option("--seed", type=int, help="chooses faults and operations; a random one")
    option("--json", type=Path, help="a file for the report")
    option("--keep", type=Path, help="an empty folder for history and logs")
    parser.set_defaults(seed=secrets.randbelow(10**6))
    chosen = parser.parse_args()
    if reason := missing_program() or reason_against():
        sys.stderr.write(f"nothing was run: {reason}\n")
        return 2
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if chosen.keep:
        chosen.keep = chosen.keep.absolute()
        chosen.keep.mkdir(parents=True)
    start = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - start:6.1f} s  {text}\n")

    report = partitions(chosen.seconds, chosen.seed, folder=chosen.keep, say=say)
    report.show()
    if chosen.json:
        chosen.json.write_text(report.json() + "\n")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
