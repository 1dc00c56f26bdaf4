"""A ZooKeeper ensemble on loopback, without znodes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redlock.devnodes.stores.cluster import Cluster
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

_JARS = Path("/usr/share/java")
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# Three of them start in seconds and take little memory. By default each reserves 64 MB
# of disk for its log, and one that found no majority asks for one ever more rarely.
_JAVA = (
    *("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Dzookeeper.preAllocSize=1024", "-Djava.net.preferIPv4Stack=true"),
    "-Dzookeeper.fastleader.maxNotificationInterval=500",  # milliseconds
)
_NO_FSYNC = "-Dzookeeper.forceSync=no"
# Ticks of half a second: others notice within two seconds that the leader is gone. One
# server is an ensemble of one, which elects itself. Quotas are enforced.
_SETTINGS = """\
tickTime=500
initLimit=20
syncLimit=4
minSessionTimeout=1000
maxSessionTimeout=40000
maxClientCnxns=0
clientPortAddress=127.0.0.1
admin.enableServer=false
standaloneEnabled=false
enforceQuota=true
"""


class ZooKeeper(Cluster):
    """A ZooKeeper ensemble: see `Cluster`."""

    scheme = "zookeeper"
    ready_text = " - broadcast"  # it leads or follows, and serves

    def _find(self) -> list[str]:
        java = shutil.which("java")
        jars = [_JARS / "zookeeper.jar", _JARS / "slf4j-simple.jar"]
        absent = [str(jar) for jar in jars if not jar.is_file()]
        if not java:
            absent.append("java on PATH")
        if not java or absent:
            raise RedlockError(
                f"No ZooKeeper was found: there is no {' and no '.join(absent)}. No "
                "server was started. Install it with your system's packages (on "
                "Debian: zookeeper)."
            )
        return [java, "-cp", ":".join(map(str, jars))]

    def _command_of(
        self, number: int, data: Path, peers: Sequence[tuple[int, int]]
    ) -> list[str]:
        servers = [f"127.0.0.1:{peer}:{election}" for peer, election in peers]
        lines = [f"server.{n}={server}" for n, server in enumerate(servers, start=1)]
        lines += [f"dataDir={data}", f"clientPort={self.ports[number]}"]
        config = data / "zoo.cfg"
        config.write_text(_SETTINGS + "".join(f"{line}\n" for line in lines))
        (data / "myid").write_text(f"{number + 1}\n")
        options = [*_JAVA] if self._durable else [*_JAVA, _NO_FSYNC]
        return [*self._programs, *options, _MAIN, str(config)]
