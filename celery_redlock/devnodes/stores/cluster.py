"""A store of several servers that agree by a majority: for etcd and ZooKeeper."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redlock.devnodes.processes import free_port
from celery_redlock.devnodes.stores.server import StoreNode
from celery_redlock.errors import RedlockError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORT_TRIES = 5
_PORT_TAKEN = "address already in use"


class ClusterServer(StoreNode):
    """One server of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        super().__init__(cluster.scheme, [], log=Path(), ready=cluster.ready_text)

    @property
    def url(self) -> str:
        """The URL of the whole cluster."""
        return self._cluster.url

    def start(self) -> None:
        """Start the server, and return when it answers.

        A server answers only while it is one of a majority. Without one, this returns
        at once: start others.

        Raises:
            RedlockError: It ended, or did not answer in time.
        """
        self.launch()
        if self._cluster.has_majority:
            self.wait_until_ready()


class Cluster:
    """Servers that elect a leader. Subclasses say how a member is started.

    Attributes:
        scheme: The scheme of its URL.
        ready_text: What a member prints when it answers.
        members: The servers.
        folder: Where data and logs go, from the start until `remove`.

    Args:
        members: How many servers.
        durable: Whether a commit waits for the disk. Only a crash of the machine makes
            a difference, and not that of a server.

    Raises:
        RedlockError: The programs are not on this machine.
    """

    scheme = ""
    ready_text = ""

    def __init__(self, members: int = 3, *, durable: bool = False) -> None:
        self._programs = self._find()
        self.members: list[StoreNode] = [ClusterServer(self) for _ in range(members)]
        self.folder = Path()
        self._durable = durable

    @property
    def ports(self) -> list[int]:
        """The ports for clients; zeros before the first start."""
        return [member.port for member in self.members]

    @property
    def url(self) -> str:
        """The URL of the store, which lists all members."""
        return f"{self.scheme}://" + ",".join(f"127.0.0.1:{p}" for p in self.ports)

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the servers run, and are not paused."""
        running = [one for one in self.members if one.is_running and not one.is_paused]
        return 2 * len(running) > len(self.members)

    def start(self) -> None:
        """Start all servers that do not run, and return when all answer.

        After a `kill` they have the data and the ports that they had.

        Raises:
            RedlockError: A server did not start.
        """
        if all(self.ports):
            self._start_all()
            return
        self.folder = Path(tempfile.mkdtemp(prefix=f"redlock-{self.scheme}-"))
        for tries_left in reversed(range(_PORT_TRIES)):
            self._choose_ports()
            try:
                self._start_all()
            except RedlockError:
                logs = "".join(member.logs() for member in self.members)
                self._forget()
                if not tries_left or _PORT_TAKEN not in logs.lower():
                    raise
            else:
                return

    def remove(self) -> None:
        """End all servers, paused or not, and remove their data."""
        self._forget()
        if self.folder.name:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = Path()

    def _find(self) -> list[str]:
        """Return the words with which the command of each member begins."""
        raise NotImplementedError

    def _choose_ports(self) -> None:
        peers = [(free_port(), free_port()) for _ in self.members]
        for number, member in enumerate(self.members):
            member.port = free_port()
            member.log_file = self.folder / f"{number}.log"
        for number, member in enumerate(self.members):
            data = self.folder / str(number)
            data.mkdir()
            member.words = self._command_of(number, data, peers)

    def _command_of(
        self, number: int, data: Path, peers: Sequence[tuple[int, int]]
    ) -> list[str]:
        """Return the command of one member, and write its files.

        Args:
            number: Its place in the cluster.
            data: Its folder, which is empty.
            peers: Two more free ports for each member.
        """
        raise NotImplementedError

    def _start_all(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_ready()

    def _forget(self) -> None:
        for number, member in enumerate(self.members):
            member.kill()
            member.port = 0
            shutil.rmtree(self.folder / str(number), ignore_errors=True)
            with contextlib.suppress(OSError):
                member.log_file.unlink()
