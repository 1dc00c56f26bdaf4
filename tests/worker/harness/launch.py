"""Exec a command that ends with the process that launched it.

``python launch.py PARENT COMMAND ...``: on Linux the kernel kills the command
when PARENT (a pid) dies in whatever way, so that an interrupted test run leaves
nothing behind. Elsewhere it is a plain exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: str, *command: str) -> None:
    """Become the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):  # it died before the line above
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  (no shell is the point)


if __name__ == "__main__":
    main(*sys.argv[1:])
