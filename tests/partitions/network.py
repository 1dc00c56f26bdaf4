"""Network namespaces on one bridge, and the faults of their links.

Each host has a namespace with one link to the bridge, which has a namespace of its
own. No namespace has a link to the machine. A packet is dropped where it is received,
so its sender sees a network that loses it, and no error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spec.check import missing
from tests.harness.processes import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

_PROGRAMS = ("ip", "nft", "tc")
_PREFIX = "redlock-partitions"
_BRIDGE = "bridge"
_LINK = "link0"
_ESTABLISHED = "01"  # in /proc/net/tcp


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
        with Network(["probe"]) as network:
            network.block("probe", "probe")()
    except OSError as error:
        said = str(error).partition("\n")[0]
        return f"this machine cannot make network namespaces: {said}"
    return ""


class Network:
    """Hosts on one bridge: a context manager.

    Each method that makes a fault returns the function that undoes it.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._numbers = {host: number for number, host in enumerate(hosts, start=1)}
        self._faults = itertools.count()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        _remove_left_overs()
        with contextlib.ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: contextlib.ExitStack) -> None:
        for host in (_BRIDGE, *self._numbers):
            name = self.namespace(host)
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        bridge = [f"link add {_BRIDGE} type bridge", f"link set {_BRIDGE} up"]
        for host, number in self._numbers.items():
            peer = f"peer name {_LINK} netns {self.namespace(host)}"
            bridge += [
                f"link add port{number} type veth {peer}",
                f"link set port{number} master {_BRIDGE} up",
            ]
        self._ip(_BRIDGE, bridge)
        for host in self._numbers:
            address = f"address add {self.address(host)}/24 dev {_LINK}"
            self._ip(host, ["link set lo up", address, f"link set {_LINK} up"])

    def _ip(self, host: str, lines: list[str]) -> None:
        _run("ip", "-n", self.namespace(host), "-batch", "-", text="\n".join(lines))

    # -- Hosts -----------------------------------------------------------------------

    @staticmethod
    def namespace(host: str) -> str:
        """Return the name of the namespace of a host."""
        return f"{_PREFIX}-{os.getpid()}-{host}"

    def address(self, host: str) -> str:
        """Return the address of a host."""
        return f"10.213.77.{self._numbers[host]}"

    def on(self, host: str, *command: str) -> list[str]:
        """Return the command that runs a command on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def ask(self, host: str, *command: str) -> str:
        """Run a command on a host and return its output."""
        return _run(*self.on(host, *command))

    # -- Faults ----------------------------------------------------------------------

    def block(self, sender: str, receiver: str) -> Callable[[], object]:
        """Drop all packets of one host at another one: a cut one way."""
        return self._drop(receiver, f"ip saddr {self.address(sender)} drop")

    def lose(self, host: str, percent: int) -> Callable[[], object]:
        """Drop packets at random, in both directions."""
        chance = f"numgen random mod 100 < {percent} drop"
        received = self._drop(host, f"iifname {_LINK} {chance}")
        sent = [
            self._drop(other, f"ip saddr {self.address(host)} {chance}")
            for other in self._numbers
            if other != host
        ]

        def undo() -> None:
            for one in (received, *sent):
                one()

        return undo

    def stall(self, client: str, server: str, pid: int) -> Callable[[], object]:
        """Drop all packets of the connections that exist now; new ones work.

        So these connections neither deliver nor die.

        Args:
            client: The host that made the connections.
            server: The host to which they lead.
            pid: A process on the client's host.
        """
        ports = _ports(pid, self.address(server))
        if not ports:
            return lambda: None
        listed = ", ".join(map(str, ports))
        ways = (
            (server, f"ip saddr {self.address(client)} tcp sport {{ {listed} }} drop"),
            (client, f"ip saddr {self.address(server)} tcp dport {{ {listed} }} drop"),
        )
        undoes = [self._drop(host, rule) for host, rule in ways]

        def undo() -> None:
            for one in undoes:
                one()

        return undo

    def slow(self, host: str, kbit: int, percent: int = 100) -> Callable[[], object]:
        """Send packets of a host through a slow class.

        Args:
            host: The host. It can have one such fault at a time.
            kbit: What the class sends in a second.
            percent: The share of the packets, chosen at random. If it is below 100,
                packets overtake each other.
        """
        tc = self.on(host, "tc")
        _run(*tc, *f"qdisc add dev {_LINK} root handle 1: htb default 1".split())
        add = f"class add dev {_LINK} parent 1: classid"
        _run(*tc, *f"{add} 1:1 htb rate 1gbit".split())
        _run(*tc, *f"{add} 1:2 htb rate {kbit}kbit burst 100 cburst 100".split())
        chance = f"numgen random mod 100 < {percent} " if percent < 100 else ""
        rule = f"oifname {_LINK} {chance}meta priority set 1:2"
        undo = self._add(host, "postrouting", rule)

        def undo_both() -> None:
            undo()
            _run(*tc, "qdisc", "delete", "dev", _LINK, "root")

        return undo_both

    def _drop(self, host: str, rule: str) -> Callable[[], object]:
        return self._add(host, "input", rule)

    def _add(self, host: str, hook: str, rule: str) -> Callable[[], object]:
        table = f"fault{next(self._faults)}"
        chain = f"type filter hook {hook} priority 0\n{rule}\n"
        nft = self.on(host, "nft", "-f", "-")
        _run(*nft, text=f"table inet {table} {{\nchain faults {{\n{chain}}}\n}}\n")
        return lambda: _run(*nft, text=f"delete table inet {table}")


def _ports(pid: int, address: str) -> list[int]:
    """Return the local ports of the established connections to an address."""
    remote = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    ports = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]:
        _, local, peer, state, *_ = line.split()
        if peer.startswith(f"{remote}:") and state == _ESTABLISHED:
            ports.append(int(local.partition(":")[2], 16))
    return ports


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
