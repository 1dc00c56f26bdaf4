"""Network namespaces on one bridge, and the faults of their links.

All servers are on one host, the hub, where each of them has an address. Each client has
a host of its own. A host is a namespace, and none has a link to the machine. The thread
that makes the network enters the hub, and so does all that it starts there. It reaches
each server on the loopback of the hub, which has no faults.

A packet is dropped where it is received, so its sender sees a network that loses it,
and no error. The machine's kernel may lack ``netem``, as the one on which this was
written does. So a lossy link drops packets at random in nftables, and a slow or
reordered link sends all or some of its packets through a slow class of ``htb``.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from spec.check import missing
from tests.harness.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

Link: TypeAlias = tuple[str, str]  # sender and receiver
Undo: TypeAlias = "Callable[[], object]"

HUB = "hub"
_PROGRAMS = ("ip", "nft", "tc")
_PREFIX = "redlock-partitions"
_BRIDGE, _LINK = "bridge", "link0"
_ESTABLISHED = "01"  # in /proc/net/tcp
_CLONE_NEWNET = 0x40000000


def missing_program() -> str:
    """Return what must be installed for a run; ``""`` if everything is."""
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        programs = ", ".join(absent)
        return f"{programs} not on PATH: apt-get install iproute2 nftables"
    if checker := missing():
        return f"{checker} is not on PATH: apt-get install spin gcc libc6-dev"
    return ""


def reason_against() -> str:
    """Return why this process cannot make namespaces; ``""`` if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    try:
        with Network(["probe"], []) as network:
            network.drop([("probe", "probe")])()
    except OSError as error:
        said = str(error).partition("\n")[0]
        return f"this machine cannot make network namespaces: {said}"
    return ""


class Network:
    """Hosts on one bridge: a context manager. Its block runs on the hub.

    Each method that makes a fault returns the function that undoes it. Faults of one
    link add up.

    Attributes:
        servers, clients: Their names.
    """

    def __init__(self, servers: Sequence[str], clients: Sequence[str]) -> None:
        self.servers, self.clients = servers, clients
        self._numbers = {
            name: number
            for number, name in enumerate((HUB, *servers, *clients), start=1)
        }
        self._numbers_of_faults = itertools.count(2)  # 1 is the usual class
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        _remove_left_overs()
        with contextlib.ExitStack() as stack:
            self._build(stack)
            stack.enter_context(_entered(self._namespace(HUB)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: contextlib.ExitStack) -> None:
        for host in (HUB, *self.clients):
            name = self._namespace(host)
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        self._ip(HUB, "link set lo up", f"link add {_BRIDGE} type bridge")
        for name in (HUB, *self.servers):
            self._ip(HUB, f"address add {self.address(name)}/24 dev {_BRIDGE}")
        self._ip(HUB, f"link set {_BRIDGE} up")
        for host in self.clients:
            port = f"port{self._numbers[host]}"
            peer = f"peer name {_LINK} netns {self._namespace(host)}"
            self._ip(HUB, f"link add {port} type veth {peer}")
            self._ip(HUB, f"link set {port} master {_BRIDGE} up")
            address = f"address add {self.address(host)}/24 dev {_LINK}"
            self._ip(host, "link set lo up", address, f"link set {_LINK} up")
        for host in (HUB, *self.clients):
            self._tc(host, "qdisc add dev {} root handle 1: htb default 1")
            self._tc(host, "class add dev {} parent 1: classid 1:1 htb rate 1gbit")

    def _ip(self, host: str, *lines: str) -> None:
        words = ("ip", "-n", self._namespace(host), "-batch", "-")
        _run(*words, text="\n".join(lines))

    def _tc(self, host: str, line: str) -> None:
        device = _BRIDGE if host == HUB else _LINK
        _run(*self.on(host, "tc", *line.format(device).split()))

    # -- Hosts -----------------------------------------------------------------------

    @staticmethod
    def _namespace(host: str) -> str:
        return f"{_PREFIX}-{os.getpid()}-{host}"

    def address(self, name: str) -> str:
        """Return the address of a server, of a client or of the hub."""
        return f"10.213.77.{self._numbers[name]}"

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command that runs a command on the hub or on a client's host."""
        return ["ip", "netns", "exec", self._namespace(host), *command]

    # -- Faults ----------------------------------------------------------------------

    def drop(self, links: Iterable[Link], percent: int = 100) -> Undo:
        """Drop all packets of these links, or some at random."""
        rules = ((link, f"{_chance(percent)}drop") for link in links)
        return self._add("input", rules)

    def stall(self, client: str, server: str) -> Undo:
        """Drop all packets of the connections that exist now; new ones work.

        So these connections neither deliver nor die.
        """
        rules: list[tuple[Link, str]] = []
        for port in self._ports(client, server):
            rules += [
                ((client, server), f"tcp sport {port} drop"),
                ((server, client), f"tcp dport {port} drop"),
            ]
        return self._add("input", rules)

    def slow(self, links: Sequence[Link], kbit: int, percent: int = 100) -> Undo:
        """Send packets of these links, which have one sender, through a slow class.

        Args:
            links: The links.
            kbit: What the class sends in a second.
            percent: The share of the packets, chosen at random. If it is below 100,
                packets overtake each other.
        """
        host, number = self._host(links[0][0]), f"1:{next(self._numbers_of_faults):x}"
        add = f"class add dev {{}} parent 1: classid {number} htb"
        self._tc(host, f"{add} rate {kbit}kbit burst 100 cburst 100")
        rule = f"{_chance(percent)}meta priority set {number}"
        undo = self._add("postrouting", [(link, rule) for link in links])

        def undo_both() -> None:
            undo()
            self._tc(host, f"class delete dev {{}} classid {number}")

        return undo_both

    def _host(self, name: str) -> str:
        return name if name in self.clients else HUB

    def _add(self, hook: str, rules: Iterable[tuple[Link, str]]) -> Undo:
        """Add a rule for each link, on its receiver's host or on its sender's."""
        by_host: defaultdict[str, list[str]] = defaultdict(list)
        for (sender, receiver), rule in rules:
            pair = f"ip saddr {self.address(sender)} ip daddr {self.address(receiver)}"
            host = self._host(receiver if hook == "input" else sender)
            by_host[host].append(f"{pair} {rule}\n")
        table = f"fault{next(self._numbers_of_faults)}"
        chain = f"type filter hook {hook} priority 0\n"

        def nft(host: str, text: str) -> None:
            _run(*self.on(host, "nft", "-f", "-"), text=text)

        for host, lines in by_host.items():
            body = f"chain faults {{\n{chain}{''.join(lines)}}}\n"
            nft(host, f"table inet {table} {{\n{body}}}\n")

        def undo() -> None:
            for host in by_host:
                nft(host, f"delete table inet {table}")

        return undo

    def _ports(self, client: str, server: str) -> list[int]:
        """Return the client's ports of its established connections to a server."""
        parts = reversed(self.address(server).split("."))
        remote = "".join(f"{int(part):02X}" for part in parts)
        ports = []
        said = _run(*self.on(client, "cat", "/proc/net/tcp"))
        for line in said.splitlines()[1:]:
            _, local, peer, state, *_ = line.split()
            if peer.startswith(f"{remote}:") and state == _ESTABLISHED:
                ports.append(int(local.partition(":")[2], 16))
        return ports


def _chance(percent: int) -> str:
    """Return the condition of a rule for a share of the packets."""
    return f"numgen random mod 100 < {percent} " if percent < 100 else ""


@contextlib.contextmanager
def _entered(namespace: str) -> Iterator[None]:
    """Have this thread, and what it starts, in a namespace while the block runs."""
    with (
        Path("/proc/thread-self/ns/net").open("rb") as before,
        Path("/run/netns", namespace).open("rb") as there,
    ):
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _remove_left_overs() -> None:
    """Remove the namespaces of runs whose process was killed."""
    for line in _run("ip", "netns", "list").splitlines():
        name = line.partition(" ")[0]
        pid = name.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if name.startswith(_PREFIX) and pid.isdecimal() and not is_alive(int(pid)):
            _run("ip", "netns", "delete", name)


def _run(*command: str, text: str | None = None) -> str:
    """Run a command and return its output.

    Raises:
        OSError: It failed. The message ends with what it printed.
    """
    done = subprocess.run(  # noqa: S603  (all words are ours)
        command, input=text, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
