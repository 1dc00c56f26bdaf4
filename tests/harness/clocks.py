"""Wall clocks of redis-servers that libfaketime steps."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path


class ClockError(Exception):
    """The library is not installed, or does not work with this server."""


@functools.cache
def faketime_environment(binary: str) -> dict[str, str]:
    """Return the environment in which a server's wall clock can be stepped.

    ``FAKETIME_TIMESTAMP_FILE`` is to be added: a file with the distance from the real
    time in seconds, such as ``+2.5``. The server reads it each time.

    Raises:
        ClockError: It cannot be stepped here.
    """
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
