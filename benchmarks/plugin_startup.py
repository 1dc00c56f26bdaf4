"""The cost of the pytest plugin in a project that does not use it.

``python benchmarks/plugin_startup.py``: the time of the import, and the CPU time of
a whole pytest run over one empty test with the plugin and without, in milliseconds.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 15
PLUGIN = "celery_redlock.pytest_plugin"
OURS = re.compile(r"\|\s*(\d+) \|\s*celery_redlock(?:\.pytest_plugin)?$", re.MULTILINE)


def import_ms() -> float:
    """Return the time of importing the plugin where pytest is loaded already."""
    program = f"import pytest, {PLUGIN}"
    done = subprocess.run(  # noqa: S603  (this very program)
        [sys.executable, "-X", "importtime", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(map(int, OURS.findall(done.stderr))) / 1000


def run_cpu_ms(folder: str, *options: str) -> float:
    """Return the CPU time of a run of pytest."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    subprocess.run(  # noqa: S603  (this program)
        command,
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return 1000 * (user + system)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_plain.py").write_text("def test_plain(): pass\n")
        imports = [import_ms() for _ in range(RUNS)]
        pairs = [
            (run_cpu_ms(folder), run_cpu_ms(folder, "-p", PLUGIN)) for _ in range(RUNS)
        ]
    without, with_it = map(min, zip(*pairs, strict=True))  # what else ran only adds
    print(f"import            {min(imports):6.2f} ms")  # noqa: T201
    print(f"run without       {without:6.1f} ms CPU")  # noqa: T201
    print(f"run with          {with_it:6.1f} ms CPU")  # noqa: T201
    print(f"difference        {with_it - without:6.1f} ms CPU")  # noqa: T201


if __name__ == "__main__":
    main()
