"""``python -m tests.torture --seconds 600 --seed 1 --json report.json``.

``--kinds limited --jobs 1000``: faults while 1,000 jobs of this kind are sent.

``--kinds once``: each job has its effect in a database exactly once, and the database
is killed, too; ``--kinds often``: the same without the option.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from pathlib import Path

from tests.torture.broker import BROKERS
from tests.torture.producer import KINDS
from tests.torture.session import torture
from tests.torture.site import TORTURED


def main(name: str = "torture", *, network: bool = False) -> int:
    """Torture and print the table; return 0 if all that must be zero is zero."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.{name}",
        description="Real processes, faults at random, and verdicts at the end.",
    )
    option = parser.add_argument
    option("--seconds", type=float, default=600, help="of faults; 600")
    option("--seed", type=int, help="chooses faults and jobs; a random one")
    option("--json", type=Path, help="a file for the report")
    option("--keep", type=Path, help="an empty folder for journal and logs")
    if not network:
        option("--jobs", type=int, default=0, help="faults end when so many were sent")
        option("--kinds", nargs="+", choices=[*KINDS], default=[], help="of jobs; all")
        option("--broker", choices=[*BROKERS], default="redis", help="redis")
        option("--store", choices=TORTURED, default="", help="in place of Redis")
        option("--plant", choices=["split", "own permits"], default="", help="a bug")
    parser.set_defaults(seed=secrets.randbelow(10**6))
    chosen = vars(parser.parse_args())
    report_to, folder = chosen.pop("json"), chosen.pop("keep")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in background
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if folder:
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"--keep needs an empty folder; {folder} has files in it")
    start = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - start:6.1f} s  {text}\n")

    report = torture(**chosen, network=network, folder=folder, say=say)
    report.show()
    if report_to:
        report_to.write_text(report.json() + "\n")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
