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

    Where the library is missing or does not work, skip here and fail in CI.
    """
    folders = [
        *Path("/usr/lib").glob("*/faketime"),
        *(Path(f"/usr/{lib}/faketime") for lib in ("lib", "lib64", "local/lib")),
    ]
    found = [library for f in folders if (library := f / "libfaketime.so.1").is_file()]
    if not found:
        missing("libfaketime is not installed (Debian: apt install faketime)")
    environment = {
        # jemalloc reads the clock during its own set-up, before libfaketime is ready.
        # Loaded before the server, the allocator of the C library replaces jemalloc.
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
    """The wall clocks of running nodes; each can be stepped on its own."""

    def __init__(self, nodes: DevNodes, files: list[Path]) -> None:
        self.nodes = nodes
        self._files = files

    def step(self, index: int, seconds: float) -> None:
        """Set the wall clock of a node to this distance from the real time."""
        node = self.nodes.nodes[index]
        self._files[index].write_text(f"{seconds:+.0f}\n")

        def has_stepped() -> bool:
            skew = int(node.command("TIME")[0]) - time.time() - seconds
            return abs(skew) < 5

        until(has_stepped, what="the clock to be stepped")
