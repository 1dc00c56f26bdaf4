"""The import in a program that has imported Celery."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

_PROGRAM = """
import sys, time
import celery
{before}
began = time.process_time()
{then}
print(time.process_time() - began, "redis" in sys.modules)
"""
_CASES = {
    "package": ("", "import celery_redlock"),
    "task": ("from celery import Task", "from celery_redlock import SingletonTask"),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """Return milliseconds of CPU time, and whether it imports redis."""
    found: dict[str, Any] = {}
    for name, (before, then) in _CASES.items():
        program = _PROGRAM.format(before=before, then=then)
        times, redis = [], False
        for _ in range(3 if quick else 15):
            done = subprocess.run(  # noqa: S603  (this Python)
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                check=True,
            )
            took, imported = done.stdout.split()
            times.append(float(took) * 1000)
            redis = redis or imported == "True"
        found[f"{name}_ms"], found[f"{name}_redis"] = statistics.median(times), redis
    return found
