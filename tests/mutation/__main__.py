"""``python -m tests.mutation fence quorum``: judge these modules."""

from __future__ import annotations

import sys

from tests.mutation.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
