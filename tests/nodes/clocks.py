"""Wall clocks of redis-servers that tests can step, by libfaketime."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conftest import missing
from tests.nodes.support import until

if TYPE_CHECKING:
    from celery_redlock.devnodes import DevNodes

__all__ = ["Clocks", "clock_environment"]


@functools.cache
def clock_environment(binary: str) -> dict[str, str]:
    """Return the environment in which a server's wall clock can be stepped.

    Without the library, or where it does not work, skip here and fail in CI.
    """
    folders = [
        *Path("/usr/lib").glob("*/faketime"),
        *(Path(f"/usr/{lib}/faketime") for lib in ("lib", "lib64", "local/lib")),
    ]
    found = [library for f in folders if (library := f / "libfaketime.so.1").is_file()]
    if not found:
        missing("libfaketime is not installed (Debian: apt install faketime)")
    environment = {
        # jemalloc reads the clock while it sets itself up, which libfaketime cannot
        # bear: with the C library before it, it is not the one that is called.
        "LD_PRELOAD": f"{found[0]}:libc.so.6",
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    try:
        subprocess.run(  # noqa: S603  (a server that tests are about to run)
            [binary, "--version"],
            env={**os.environ, **environment, "FAKETIME": "+0"},
            check=True,
            capture_output=True,
            timeout=10,
        )
    except subprocess.SubprocessError as error:
        missing(f"libfaketime does not work with {binary}: {error}")
    return environment


class Clocks:
    """The wall clocks of some nodes, to be stepped one by one while they run."""

    def __init__(self, nodes: DevNodes, files: list[Path]) -> None:
        self.nodes = nodes
        self.files = files

    def step(self, index: int, seconds: float) -> None:
        """Set the wall clock of a node so far from the real time."""
        node = self.nodes.nodes[index]
        self.files[index].write_text(f"{seconds:+.0f}\n")

        def is_there() -> bool:
            skew = int(node.command("TIME")[0]) - time.time() - seconds
            return abs(skew) < 5

        until(is_there, what="the clock to be stepped")
