"""A plan: everything about a history that is decided before it begins.

A plan is plain data, so that the minimiser can leave parts out and play it again.
``planner`` makes one from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redlock.locks.limits import wanted
from celery_redlock.scripts.keys import keys_of

if TYPE_CHECKING:
    from celery_redlock.locks.limits import Limits
    from tests.simulation.network import Conditions


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client that are part of a view."""

    names: tuple[str, ...]
    max_ttl: float

    def __str__(self) -> str:
        return f"{', '.join(self.names)}, max_ttl {self.max_ttl:g} s"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a client.

    Attributes:
        kind: A method of ``clients.Task``.
        key: The lock; of several keys that are taken together, one a line.
        after: Seconds to pause before the operation.
        hold: Seconds to hold the lock.
        ttl: Seconds, or None for the default of the client.
        wait: Seconds to wait for the lock.
        keep: ``hold_at_least`` in seconds.
        stops_on_loss: Whether the body ends when the lock is lost.
        renews: Whether the watchdog renews the lease.
        settings: Which of the settings of the plan the client has by then.
        limit: How many holders the key may have at once; None: one.
        rate: How many starts each key may have, and in how many seconds.
        shares: How many holders each of several keys may have at once, in order.
    """

    kind: str
    key: str
    after: float
    hold: float
    ttl: float | None = None
    wait: float = 0.0
    keep: float = 0.0
    stops_on_loss: bool = True
    renews: bool = True
    settings: int = 0
    limit: int | None = None
    rate: tuple[int, float] | None = None
    shares: tuple[int, ...] = ()

    @property
    def wants(self) -> list[str] | dict[str, int]:
        """The keys, as `locking.lock` takes them."""
        keys = keys_of(self.key)
        return dict(zip(keys, self.shares, strict=True)) if self.shares else keys

    @property
    def limits(self) -> Limits:
        """The limits of holders and starts; empty for a plain lock."""
        return wanted(self.wants, self.limit, self.rate)[1]

    def __str__(self) -> str:
        parts = [f"{self.after:.3f} s later {self.kind} {self.key!r}"]
        parts += [f"for {self.hold:.3f} s"] if self.hold else []
        parts += [f"ttl {self.ttl:g}"] if self.ttl else []
        parts += [f"wait {self.wait:.3f}"] if self.wait else []
        parts += [f"keep {self.keep:.3f}"] if self.keep else []
        parts += [] if self.stops_on_loss else ["ignores losses"]
        parts += [] if self.renews else ["not renewed"]
        parts += [f"with settings {self.settings}"] if self.settings else []
        parts += [f"limit {self.limit}"] if self.limit else []
        parts += [f"{self.rate[0]} starts in {self.rate[1]:g} s"] if self.rate else []
        parts += [f"limits {self.shares}"] if self.shares else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """One client process.

    Attributes:
        name: The name of the process.
        rate: Seconds that its clocks count per true second.
        skew: Seconds by which its wall clock is ahead.
        tasks: The operations of each thread, in order.
        conditions: The network around the process.
    """

    name: str
    rate: float
    skew: float
    tasks: tuple[tuple[Operation, ...], ...]
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One server and its clock."""

    name: str
    rate: float
    skew: float


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: A row of the table in ``faults``.
        at: Seconds since the start. For "... at operation": the number of the client's
            operation. For "on call": the number of the client's call of the script.
        on: The node, the client or the operator.
        peer: The other end, for a fault of the path between two.
        seconds: How long it lasts, or by how much a clock is set.
        how: The variant.
    """

    kind: str
    at: float
    on: str
    peer: str = ""
    seconds: float = 0.0
    how: str = ""

    def __str__(self) -> str:
        where = f"{self.on}–{self.peer}" if self.peer else self.on
        numbered = self.kind == "on call" or self.kind.endswith("at operation")
        kind = f"{self.kind} {self.at:g}" if numbered else f"{self.kind} {self.at:.4f}"
        seconds = f", {self.seconds:+.3f} s" if self.seconds else ""
        return f"{where} {kind}{seconds}{f', {self.how}' if self.how else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A history that has not been played yet.

    Attributes:
        seed: The seed of the plan, and of the network's random numbers.
        nodes: All servers. A server that no settings name can take the place of
            another one.
        later_settings: Settings to which operators move the deployment. Settings 0 are
            those that it begins with.
        members: The nodes that the deployment begins with; empty: all servers.
        initialized: Whether the nodes vote from the start.
        final_quorums: After all clients have ended, each lock is taken once from each
            of these sets of nodes, if the deployment still has settings 0.
        is_calm: Whether the plan has no faults. More rules apply then.
        ends_soon: Whether nodes must vote again, and be rid of all locks, in time after
            the last client has ended, although clocks were set back.
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
    final_quorums: tuple[tuple[str, ...], ...]
    is_calm: bool
    members: tuple[str, ...] = ()
    later_settings: tuple[Settings, ...] = ()
    ends_soon: bool = False

    @property
    def settings(self) -> tuple[Settings, ...]:
        """All settings that clients have at some time."""
        names = self.members or tuple(node.name for node in self.nodes)
        return (Settings(names, self.max_ttl), *self.later_settings)

    @property
    def longest_max_ttl(self) -> float:
        """The greatest max_ttl of all settings, in seconds."""
        return max(settings.max_ttl for settings in self.settings)

    @property
    def moves(self) -> list[tuple[int, int]]:
        """The reconfigurations that operators begin: from settings to settings."""
        commands = [fault.how.split() for fault in self.faults]
        moves = [words[1:3] for words in commands if words[:1] == ["reconfigure"]]
        return list(dict.fromkeys((int(old), int(new)) for old, new in moves))

    @property
    def keys(self) -> list[str]:
        """The locks that clients want."""
        tasks = [task for client in self.clients for task in client.tasks]
        return sorted({operation.key for task in tasks for operation in task})

    @property
    def wants(self) -> list[tuple[str, Limits]]:
        """The same, with how many holders and starts they may have."""
        tasks = [task for client in self.clients for task in client.tasks]
        return sorted({(each.key, each.limits) for task in tasks for each in task})

    @property
    def longest_period(self) -> float:
        """The longest period of all rates, in seconds; 0 if there is none."""
        limits = [limit for _, limits in self.wants for limit in limits]
        return max((limit.period for limit in limits), default=0.0)

    @property
    def clocks_agree(self) -> bool:
        """Whether the wall clocks of the nodes agree."""
        skews = [node.skew for node in self.nodes]
        least = min(settings.max_ttl for settings in self.settings)
        return max(skews) - min(skews) <= least / 8

    def but(self, **parts: object) -> Plan:
        """Return a copy with other values for these parts."""
        return replace(self, **parts)  # type: ignore[arg-type]

    def __str__(self) -> str:
        start = "" if self.initialized else ", not initialized"
        head = (
            f"seed {self.seed}: {len(self.nodes)} nodes, ttl {self.ttl:g} s, max_ttl "
            f"{self.max_ttl:g} s, node time-out {self.node_timeout:g} s{start}"
        )
        lines = [head]
        lines += [f"  settings {n}: {each}" for n, each in enumerate(self.settings)]
        parts: tuple[NodePlan | ClientPlan, ...] = (*self.nodes, *self.clients)
        for part in parts:
            lines.append(f"  {part.name}  clock × {part.rate:.5f}, {part.skew:+.3f} s")
            for task in part.tasks if isinstance(part, ClientPlan) else ():
                lines += ["      thread:", *(f"        {each}" for each in task)]
        lines += [f"  fault: {fault}" for fault in self.faults]
        return "\n".join(lines)
