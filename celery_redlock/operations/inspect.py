"""Inspects nodes: whether they vote, and their clocks, settings and permissions.

Nothing is judged here (``doctor`` does that), and nothing on a node changes.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.core.lease import Holder
from celery_redlock.core.transport.client import each_node
from celery_redlock.operations.acl import denied_command, denied_permissions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.redlock import Redlock
    from celery_redlock.core.restart_guard import RestartGuard
    from celery_redlock.core.transport.client import NodeClient

__all__ = [
    "ClockSample",
    "NodeReport",
    "NodeState",
    "NodeStatus",
    "inspect_nodes",
    "node_status",
]

_SAMPLE = 500  # keys
_CLOCK_READINGS = 12
_MS, _US = 1000, 1_000_000


class NodeState(enum.Enum):
    """Whether a node votes, and if not, why. The value is shown to operators."""

    VOTES = "votes"
    QUARANTINED = "in quarantine"
    UNSYNCED = "recovers its fences"
    NEW = "new or restarted"
    CLOSED = "closed for a reconfiguration"
    OTHER_CONFIG = "set up differently"
    UNFIT = "unfit"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node at one moment.

    Attributes:
        label: The node's name.
        state: Whether it votes.
        reason: Why it is silent or unfit, or its configuration if that differs. Reads
            on after the node's name.
        wait: Seconds until its quarantine ends.
        info: The reply to INFO, by name.
    """

    label: str
    state: NodeState
    reason: str = ""
    wait: float = 0.0
    info: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The random name of the server process."""
        return self.info.get("run_id", "")


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The result of reading a node's clock several times.

    Attributes:
        latencies: Seconds that each answer took, sorted.
        ahead: Seconds by which the node's wall clock is ahead of ours.
        drift: Seconds per second by which it runs faster than our monotonic clock. Only
            the part that network latency cannot explain.
    """

    latencies: tuple[float, ...] = ()
    ahead: float = 0.0
    drift: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The result of a thorough inspection of one node.

    Attributes:
        status: Whether it votes.
        clock: Its clock.
        denied: Which of ``acl.COMMANDS`` and ``acl.OUR_KEYS`` it denies us.
        foreign_keys: Names of some keys outside of our prefix.
        holders: Some of the holders of locks on it.
        saves: When it writes snapshots, as in redis.conf; ``""`` if never or unknown.
        database: The number of the database with our keys.
    """

    status: NodeStatus
    clock: ClockSample = ClockSample()
    denied: tuple[str, ...] = ()
    foreign_keys: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    saves: str = ""
    database: int = 0

    @property
    def label(self) -> str:
        """The node's name."""
        return self.status.label


def node_status(redlock: Redlock) -> list[NodeStatus]:
    """Return the present status of each node."""
    nodes = each_node(
        redlock.addresses,
        lambda client: _status(client, redlock.guard),
        timeout=redlock.timing.connect_timeout,
    )
    return [
        nodes.results.get(label) or _silent(label, nodes.unseen[label])
        for label in redlock.labels
    ]


def inspect_nodes(redlock: Redlock, *, span: float = 1.0) -> list[NodeReport]:
    """Inspect each node thoroughly.

    Args:
        redlock: The lock service on these nodes.
        span: Seconds for which their clocks are watched. It takes about a second to
            tell a drift of 0.5 % from a change of the network's latency.
    """

    def visit(client: NodeClient) -> NodeReport:
        foreign_keys, holders = _sample(client, redlock)
        return NodeReport(
            status=_status(client, redlock.guard),
            clock=_watch_clock(client, redlock.clock, span),
            foreign_keys=foreign_keys,
            holders=holders,
            saves=_saves(client),
            database=client.database,
            denied=denied_permissions(client, redlock.keys.prefix),  # must be last
        )

    timeout = redlock.timing.connect_timeout
    nodes = each_node(redlock.addresses, visit, timeout=timeout)
    return [
        nodes.results.get(label) or _unreachable(label, nodes.unseen[label])
        for label in redlock.labels
    ]


def _silent(label: str, reason: str) -> NodeStatus:
    return NodeStatus(label, NodeState.SILENT, reason)


def _unreachable(label: str, reason: str) -> NodeReport:
    denied = denied_command(reason)
    return NodeReport(_silent(label, reason), denied=(denied,) if denied else ())


def _status(client: NodeClient, guard: RestartGuard) -> NodeStatus:
    fields = ("config", "run_id", "incarnation", "synced", "quarantine_until")
    info_text, meta, time = client.ask(
        ("INFO",), ("HMGET", guard.keys.meta, *fields), ("TIME",)
    )
    lines = re.split(r"\r?\n", _text(info_text))
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    values = meta if isinstance(meta, list) else []
    known = {
        name: _text(value) for name, value in zip(fields, values, strict=False) if value
    }
    left = 0.0
    if isinstance(time, list) and "quarantine_until" in known:
        now = int(time[0]) + int(time[1]) / _US
        left = max(0.0, float(known["quarantine_until"]) / _MS - now)
    state, reason = _state(client, guard, info, known, left)
    return NodeStatus(client.label, state, reason, left, info)


def _state(
    client: NodeClient,
    guard: RestartGuard,
    info: Mapping[str, str],
    meta: Mapping[str, str],
    left: float,
) -> tuple[NodeState, str]:
    """Judge in the same order as the script that votes (``core.scripts``)."""
    config, run_id = meta.get("config", ""), info.get("run_id")
    unfit = client.facts.unfit_because
    is_new = not config or (guard.enabled and meta.get("run_id") != run_id)
    is_synced = "incarnation" in meta and meta.get("synced") == meta["incarnation"]
    judgements = (
        (unfit, NodeState.UNFIT, unfit),
        (config.startswith("closed"), NodeState.CLOSED, config),
        (config not in ("", guard.config), NodeState.OTHER_CONFIG, config),
        (is_new, NodeState.NEW, ""),
        (left, NodeState.QUARANTINED, ""),
        (not is_synced, NodeState.UNSYNCED, ""),
        (True, NodeState.VOTES, ""),
    )
    return next((state, reason) for applies, state, reason in judgements if applies)


def _watch_clock(client: NodeClient, clock: Clock, span: float) -> ClockSample:
    readings: list[tuple[float, float, float]] = []  # our clock, its clock, latency
    ahead = 0.0
    for number in range(_CLOCK_READINGS):
        if number:
            clock.sleep(span / _CLOCK_READINGS)
        asked_at = clock.monotonic()
        (reply,) = client.ask(("TIME",))
        latency = clock.monotonic() - asked_at
        if not isinstance(reply, list):
            return ClockSample()
        time = int(reply[0]) + int(reply[1]) / _US
        readings.append((asked_at + latency / 2, time, latency))
        ahead = time - (clock.wall() - latency / 2)
    # The fastest answers of the first and of the last third are the most exact ones.
    third = _CLOCK_READINGS // 3
    first = min(readings[:third], key=lambda reading: reading[2])
    last = min(readings[-third:], key=lambda reading: reading[2])
    elapsed = last[0] - first[0]
    gained = (last[1] - first[1]) - elapsed
    uncertainty = (first[2] + last[2]) / 2
    certain = max(0.0, abs(gained) - uncertainty) / elapsed
    return ClockSample(
        latencies=tuple(sorted(latency for _, _, latency in readings)),
        ahead=ahead,
        drift=certain if gained > 0 else -certain,
    )


def _saves(client: NodeClient) -> str:
    # A user with an ACL does not need CONFIG, and the node would log the attempt.
    (reply,) = [None] if client.user else client.ask(("CONFIG", "GET", "save"))
    return _text(reply[1]) if isinstance(reply, list) and len(reply) > 1 else ""


def _sample(
    client: NodeClient, redlock: Redlock
) -> tuple[tuple[str, ...], tuple[Holder, ...]]:
    """Return foreign keys and holders among some keys: a small part of a large node."""
    (reply,) = client.ask(("SCAN", 0, "COUNT", _SAMPLE))
    keys = reply[1] if isinstance(reply, list) else []
    ours, locks = f"{redlock.keys.prefix}:".encode(), redlock.keys.lock("").encode()
    foreign = [_text(key) for key in keys if not key.startswith(ours)]
    held = [("GET", key) for key in keys if key.startswith(locks)]
    values = client.ask(*held) if held else []
    holders = [Holder.parse(_text(v)) for v in values if isinstance(v, bytes)]
    return tuple(foreign), tuple(holders)


def _text(data: Any) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data)
