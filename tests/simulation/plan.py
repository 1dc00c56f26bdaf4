"""What a history consists of: everything that is decided before it begins.

A plan is plain data, so that the minimiser can leave things out and try again.
``planning`` makes one from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.connection import Weather

__all__ = ["ClientPlan", "Fault", "NodePlan", "Operation", "Plan"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that a client does.

    Attributes:
        kind: A method of ``clients.Task``.
        key: Of which lock.
        after: Seconds to pause before.
        hold: Seconds to hold the lock.
        ttl: Seconds, or None for the service's.
        wait: Seconds to keep trying.
        keep: ``hold_at_least`` in seconds.
        obeys: Whether it ends its body when the lock was lost.
        renews: Whether the watchdog renews.
    """

    kind: str
    key: str
    after: float
    hold: float
    ttl: float | None = None
    wait: float = 0.0
    keep: float = 0.0
    obeys: bool = True
    renews: bool = True

    def __str__(self) -> str:
        parts = [f"{self.after:.3f} s later {self.kind} {self.key!r}"]
        parts += [f"for {self.hold:.3f} s"] if self.hold else []
        parts += [f"ttl {self.ttl:g}"] if self.ttl else []
        parts += [f"wait {self.wait:.3f}"] if self.wait else []
        parts += [f"keep {self.keep:.3f}"] if self.keep else []
        parts += [] if self.obeys else ["deaf to losses"]
        parts += [] if self.renews else ["not renewed"]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client process.

    Attributes:
        name: Of the process.
        rate: Seconds that its clocks count in a second.
        skew: Seconds by which its wall clock is ahead.
        tasks: What each of its threads does, one thing after the other.
        weather: Of the network around it.
    """

    name: str
    rate: float
    skew: float
    tasks: tuple[tuple[Operation, ...], ...]
    weather: Weather


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: how its clock runs."""

    name: str
    rate: float
    skew: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: See ``faults.KINDS``.
        at: Seconds since the start; for a trap the number of the client's
            operation, and for an ambush that of its message, at which it happens.
        on: The node or the client.
        peer: The other end, where it happens to the way between the two.
        seconds: For how long, or by how much.
        how: Which variety.
    """

    kind: str
    at: float
    on: str
    peer: str = ""
    seconds: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        where = f"{self.on}–{self.peer}" if self.peer else self.on
        when = f"{self.at:.4f}"
        if self.kind == "ambush":
            when = f"message {self.at:g}"
        elif "trap" in self.kind:
            when = f"operation {self.at:g}"
        much = f", {self.seconds:+.3f} s" if self.seconds else ""
        return f"{when}  {where} {self.kind}{much}{f', {self.how}' if self.how else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A history that has not happened yet.

    Attributes:
        seed: From which it was made; also of the network's dice.
        initialized: Whether the nodes vote from the start.
        probes: For each lock that is taken at the very end, the nodes that can
            be reached for it.
        is_calm: Whether nothing goes wrong, so that more can be asked for.
    """

    seed: int
    nodes: tuple[NodePlan, ...]
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    ttl: float
    max_ttl: float
    node_timeout: float
    connect_timeout: float
    initialized: bool
    probes: tuple[tuple[str, ...], ...]
    is_calm: bool

    @property
    def keys(self) -> list[str]:
        """The locks that somebody wants."""
        return sorted(
            {
                operation.key
                for client in self.clients
                for task in client.tasks
                for operation in task
            }
        )

    @property
    def clocks_sane(self) -> bool:
        """Whether the nodes agree about what time it is."""
        skews = [node.skew for node in self.nodes]
        return max(skews) - min(skews) <= self.max_ttl / 8

    def without(self, **parts: object) -> Plan:
        """Return a copy in which something is different."""
        return replace(self, **parts)  # type: ignore[arg-type]

    def __str__(self) -> str:
        start = "" if self.initialized else ", not initialized"
        head = (
            f"seed {self.seed}: {len(self.nodes)} nodes, ttl {self.ttl:g} s, max_ttl "
            f"{self.max_ttl:g} s, node time-out {self.node_timeout:g} s{start}"
        )
        lines = [head]
        lines += [
            f"  {node.name}  clock × {node.rate:.5f}, {node.skew:+.3f} s"
            for node in self.nodes
        ]
        for client in self.clients:
            lines.append(
                f"  {client.name}  clock × {client.rate:.5f}, {client.skew:+.3f} s"
            )
            for task in client.tasks:
                lines.append("      thread:")
                lines += [f"        {operation}" for operation in task]
        lines += [f"  fault: {fault}" for fault in self.faults]
        return "\n".join(lines)
