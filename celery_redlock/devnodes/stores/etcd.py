"""An etcd cluster on loopback, without keys."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING

from celery_redlock.devnodes.stores.cluster import Cluster
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_NO_FSYNC = "--unsafe-no-fsync"  # since etcd 3.5


class Etcd(Cluster):
    """An etcd cluster: see `Cluster`."""

    scheme = "etcd"
    ready_text = "ready to serve client requests"

    def _find(self) -> list[str]:
        if found := shutil.which("etcd"):
            return [found]
        raise RedlockError(
            "No etcd was found: it is not on PATH. No server was started. Install it "
            "with your system's packages (on Debian: etcd-server)."
        )

    def _command_of(
        self, number: int, data: Path, peers: Sequence[tuple[int, int]]
    ) -> list[str]:
        (program,) = self._programs
        urls = [f"http://127.0.0.1:{port}" for port, _ in peers]
        own = f"http://127.0.0.1:{self.ports[number]}"
        cluster = ",".join(f"m{n}={url}" for n, url in enumerate(urls))
        # It makes the id of the cluster, by which clients know that data are lost.
        token = f"{self.folder}-{peers[0][0]}"
        options = [] if self._durable or not _may_skip_fsync(program) else [_NO_FSYNC]
        return [
            *(program, "--name", f"m{number}", "--data-dir", str(data / "data")),
            *("--listen-client-urls", own, "--advertise-client-urls", own),
            *("--listen-peer-urls", urls[number]),
            *("--initial-advertise-peer-urls", urls[number]),
            *("--initial-cluster", cluster, "--initial-cluster-token", token),
            *options,
        ]


@cache
def _may_skip_fsync(program: str) -> bool:
    """Tell whether this etcd has the option ``--unsafe-no-fsync``."""
    said = subprocess.run(  # noqa: S603  (the found etcd)
        [program, "--help"], capture_output=True, text=True, check=False
    )
    return _NO_FSYNC in said.stdout + said.stderr
