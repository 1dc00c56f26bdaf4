"""``python -m tests.partitions --seconds 600 --seed 1 --json report.json``."""

from __future__ import annotations

import sys

from tests.torture.__main__ import main
from tests.torture.network import missing_program, reason_against

if __name__ == "__main__":
    if reason := missing_program() or reason_against():
        sys.stderr.write(f"nothing was run: {reason}\n")
        sys.exit(2)
    sys.exit(main("partitions", network=True))
