"""Programs that tests run to their end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Ended = subprocess.CompletedProcess[str]


def end_of(
    *words: str | Path,
    code: int | None = 0,
    variables: Mapping[str, str] | None = None,
    seconds: float = 120.0,
    **options: Any,
) -> Ended:
    """Run a program to its end.

    Args:
        words: The command line.
        code: The expected exit code; None: any.
        variables: Environment variables besides those of this process.
        seconds: After how long it will not end any more.
        options: More options of `subprocess.run`.

    Raises:
        AssertionError: The exit code is another one. The message has the output.
    """
    done: Ended = subprocess.run(  # noqa: S603  (programs of the tests)
        [str(word) for word in words],
        **{"env": {**os.environ, **(variables or {})}, **options},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done
