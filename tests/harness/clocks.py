"""Wall clocks of redis-servers that libfaketime steps."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery_redlock.devnodes import DevNode, DevNodes, ServerOptions


class ClockError(Exception):
    """The library is not installed, or does not work with this server."""


class Clock:
    """The wall clock of one server, which tests step.

    Attributes:
        environment: Variables of the server.
        offset: Its distance from the real time in seconds; negative if it is behind.

    Args:
        binary: The server.
        file: The file with the offset, which the server reads each time.

    Raises:
        ClockError: It cannot be stepped here.
    """

    def __init__(self, binary: str, file: Path) -> None:
        self._file = file
        self.environment = faketime_environment(binary)
        self.environment["FAKETIME_TIMESTAMP_FILE"] = str(file)
        self.set(0.0)

    def set(self, offset: float) -> None:
        """Step the clock to this offset. The server sees it when it next reads it."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{offset:+.3f}\n", "ascii")
        draft.replace(self._file)
        self.offset = offset


def nodes_with_clocks(
    count: int,
    binary: str,
    folder: Path,
    config: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[DevNodes, list[Clock]]:
    """Return nodes that are not started, and the clock of each one.

    Args:
        count: How many.
        binary: The redis-server.
        folder: The folder of the clocks.
        config: Directives for redis.conf.
        **options: As for `DevNodes`.

    Raises:
        ClockError: The clocks cannot be stepped here.
    """
    clocks = [Clock(binary, folder / f"clock-{number}") for number in range(count)]
    nodes = DevNodes(count, **options)
    for number, clock in enumerate(clocks):
        own = ServerOptions(config=config or {}, environment=clock.environment)
        nodes.nodes[number] = DevNode(binary=binary, options=own)
    return nodes, clocks


def faketime_environment(binary: str) -> dict[str, str]:
    """Return the environment in which a program's wall clock can be another one.

    ``FAKETIME`` is to be added: its distance from the real time in seconds.

    Raises:
        ClockError: It cannot be another one here.
    """
    return {**_environment(binary)}


@functools.cache
def _environment(binary: str) -> dict[str, str]:
    folders = [
        *Path("/usr/lib").glob("*/faketime"),
        *(Path(f"/usr/{lib}/faketime") for lib in ("lib", "lib64", "local/lib")),
    ]
    found = [library for f in folders if (library := f / "libfaketime.so.1").is_file()]
    if not found:
        raise ClockError("libfaketime is not installed (Debian: apt install faketime)")
    environment = {
        # jemalloc reads the clock during its own set-up, before libfaketime is ready.
        # Loaded before the server, the allocator of the C library replaces jemalloc.
        "LD_PRELOAD": f"{found[0]}:libc.so.6",
        "FAKETIME_NO_CACHE": "1",
        # Redis measures its own time-outs by the monotonic clock.
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
        text = f"libfaketime does not work with {binary}: {error}"
        raise ClockError(text) from error
    return environment
