"""The command of this package, as errors and log lines name it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def command_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the command for the app that a command line of Celery names.

    Celery reads it from ``-A``, or from the variable ``APP``.
    """
    program, *words = argv or [""]
    if Path(program).name != "celery" and "/celery/" not in program:
        return _command("")
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word in ("-A", "--app"):
            return _command(following)
        for option in ("--app=", "-A"):
            if word.startswith(option):
                return _command(word.removeprefix(option))
    return _command(environ.get("APP", ""))


def _command(app: str) -> str:
    return f"celery -A {shlex.quote(app or 'proj')} redlock"


COMMAND = command_of(sys.argv, os.environ)
"""The command with the app of this process, or with ``proj`` where it has none."""

DOCS = "https://github.com/celery-redlock/celery-redlock/blob/main/docs/"
"""The address of the documentation, which is not in the wheel."""
