"""Inspects nodes: whether they vote, and their clocks, settings and permissions.

Also tells whether a lock is held. That is certain where a majority of the nodes names
one holder. That a lock is *not* held takes nodes that can tell: a node that is silent,
may have forgotten locks or belongs to another deployment could have the missing votes.

Nothing is judged here (``doctor`` does that), and no lock changes. But a node that
no client has asked since its restart is asked for its vote, as by a request for a lock.
So it is shown as that request would find it, and its wait begins now at the latest.

A node that takes no writes replies to all who only read: its disk or memory is full,
or it waits for a standby. So a node that should vote is asked for a grant, by the
script of the locks and with its own view, on a key of this look, for a second. One
that has to wait gets a text to write: it cannot begin to wait without.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from celery_redlock.basics.resp import DOES_NOT_KNOW, ErrorReply, without_place
from celery_redlock.basics.text import MOST_TOLD, fields_of, number_in, printable_line
from celery_redlock.basics.timing import duration
from celery_redlock.locks.lease import Holder, new_base
from celery_redlock.members.view import CLOSED, JOINED, View, differences
from celery_redlock.operations.acl import NOT_NEEDED, denied_command, try_commands
from celery_redlock.scripts import ACQUIRE
from celery_redlock.scripts.keys import stripe_of
from celery_redlock.wire.client import NodeUnreachable, PerNode, each_node
from celery_redlock.wire.quorum import SAME_SERVER, UNSURE, VoteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.locks.lease import Inspection
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.members.restart_guard import RestartGuard
    from celery_redlock.wire.client import NodeClient
    from celery_redlock.wire.quorum import Vote

_SAMPLE = 500  # keys
_TRIAL_MS = 1000
_T = TypeVar("_T")
_CLOCK_READINGS = 12
_PAUSED = (
    "see whether writes are paused (CLIENT PAUSE, or a FAILOVER that has not ended), "
    "and end that with CLIENT UNPAUSE or FAILOVER ABORT. Do not restart it: that loses "
    "its locks"
)
_MS, _US = 1000, 1_000_000
ANSWERS = (VoteKind.TAKEN, VoteKind.FREE)
"""Votes that say who holds a lock."""


class NodeState(enum.Enum):
    """Whether a node votes, and if not, why. The value is shown to operators."""

    VOTES = "votes"
    QUARANTINED = "in quarantine"
    UNSYNCED = "waits for other nodes to confirm it"
    NEW = "new, or may have forgotten locks"
    CLOSED = "closed for a reconfiguration"
    OTHER_CONFIG = "set up differently"
    UNFIT = "unfit"
    REFUSES = "refuses writes"
    SILENT = "silent"


# A request for a lock may bring a node in these states to the vote.
_UNASKED = (NodeState.NEW, NodeState.UNSYNCED)
# A node that does not answer is waited for, as long as a client goes on asking.
_ABSENT = (NodeState.SILENT, NodeState.UNFIT, NodeState.REFUSES)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node at one moment.

    Attributes:
        reason: Why it is silent or unfit or refuses writes, or its view if that
            differs. Reads on after the node's name.
        wait: Seconds until its quarantine ends.
        info: The reply to INFO, by name.
        view: The view that it has, if it has our settings. Of a node that refuses
            writes: "" if it would not vote otherwise.
    """

    label: str
    state: NodeState
    reason: str = ""
    wait: float = 0.0
    info: Mapping[str, str] = field(default_factory=dict)
    view: str = ""

    @property
    def run_id(self) -> str:
        """The random name of the server process."""
        return self.info.get("run_id", "")

    @property
    def can_tell(self) -> bool:
        """Whether a lock that is missing on this node counts as not held there."""
        votes_else = self.state is NodeState.REFUSES and bool(self.view)
        return votes_else or self.state in (NodeState.VOTES, NodeState.UNSYNCED)

    @property
    def waits_for_a_client(self) -> bool:
        """Whether it votes as soon as a client asks: the only node, or a store."""
        view = View.parse(self.view)
        is_alone = view is not None and len(view.members) == 1
        return self.state is NodeState.UNSYNCED and is_alone

    @property
    def waits_with_all(self) -> bool:
        """Whether it waits as a founder: all do, whichever of them lost its memory."""
        view = View.parse(self.view)
        return (
            self.state in (NodeState.QUARANTINED, NodeState.UNSYNCED)
            and view is not None
            and view.is_founded
            and len(view.members) > 1
            and view.member(self.label).number == 0
        )

    @property
    def doubt(self) -> str:
        """Why the node cannot tell what is held; reads on after its name; or ``""``."""
        if self.can_tell:
            return ""
        forgot = "it may have forgotten locks"
        if self.waits_with_all:
            forgot = "a majority of the nodes may have forgotten locks"
        return {
            NodeState.QUARANTINED: "is in quarantine for "
            f"{duration(self.wait)}: {forgot}",
            NodeState.NEW: UNSURE,
            NodeState.CLOSED: "is closed for a reconfiguration",
            NodeState.OTHER_CONFIG: "is set up differently",
        }.get(self.state, self.reason)


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of a deployment at one moment.

    Attributes:
        statuses: The nodes, in their order.
        quorum: How many of them are a majority.
        config: Our own configuration, or the view that this client has.
    """

    statuses: Sequence[NodeStatus]
    quorum: int
    config: str

    def __iter__(self) -> Iterator[NodeStatus]:
        return iter(self.statuses)

    def __len__(self) -> int:
        return len(self.statuses)

    def counts(self, node: NodeStatus) -> bool:
        """Tell whether a lock on this node is one on a majority of these nodes.

        A node of a deployment with other nodes may have it for a minority of those.
        """
        if node.state is NodeState.OTHER_CONFIG:
            view = View.parse(node.reason)
            names = view.configuration.labels if view else ()
            return {*names} == {it.label for it in self}
        return node.state is not NodeState.UNFIT

    @property
    def voting(self) -> list[NodeStatus]:
        """The nodes whose votes count."""
        return [node for node in self if node.state is NodeState.VOTES]

    @property
    def can_tell(self) -> int:
        """The number of nodes that can tell what is held."""
        return sum(node.can_tell for node in self)

    @property
    def most_can_tell(self) -> bool:
        """Whether enough nodes can tell: then nothing else is held than they have."""
        return self.can_tell >= self.quorum

    @property
    def doubts(self) -> dict[str, str]:
        """Why nodes cannot tell what is held, by the name of the node."""
        return {node.label: node.doubt for node in self if node.doubt}

    @property
    def silent(self) -> dict[str, str]:
        """Why nodes could not be read, or not to the end, by name."""
        return {it.label: it.reason for it in self if it.state is NodeState.SILENT}

    @property
    def awaited(self) -> str:
        """The names of nodes without an answer, if too few others vote.

        A client admits no other node before it has known for one max_ttl that they give
        none: see ``members.restart_guard``.
        """
        if len(self.voting) >= len(self) - self.quorum + 1:
            return ""
        return " and ".join(it.label for it in self if it.state in _ABSENT)

    @property
    def view(self) -> str:
        """The view in which most of the nodes vote; "" if none votes."""
        views = [it.view for it in self if it.state is NodeState.VOTES]
        return max(sorted(set(views)), key=views.count, default="")

    @property
    def settings(self) -> str:
        """The difference of their settings from ours, and the remedy; or ``""``."""
        states = (NodeState.OTHER_CONFIG, NodeState.CLOSED)
        theirs = sorted({node.reason for node in self if node.state in states})
        told = differences(theirs, self.view or self.config)
        return f"{told}." if told else ""


@dataclass(frozen=True, slots=True)
class LockStatus:
    """A lock, and the nodes that were asked about it.

    Attributes:
        seen: The holder, and the answer of each node.
    """

    seen: Inspection
    nodes: Nodes

    @property
    def is_held(self) -> bool | None:
        """Whether the lock is held; None if that cannot be told."""
        ballot = self.seen.ballot
        token, _ = ballot.top_taker
        votes = unsure = 0
        for vote, node in zip(ballot.votes, self.nodes, strict=True):
            answered = vote and vote.kind in ANSWERS
            names_it = vote and vote.kind is VoteKind.TAKEN and vote.token == token
            counts = self.nodes.counts(node)
            votes += bool(names_it and counts)
            unsure += not (counts if names_it else answered and node.can_tell)
        return is_held(votes, unsure, ballot.quorum)

    @property
    def doubts(self) -> dict[str, str]:
        """Why nodes cannot tell who holds it, by the name of the node."""
        votes = zip(self.nodes, self.seen.ballot.votes, strict=True)
        told = {node.label: node.doubt or unanswered(vote) for node, vote in votes}
        return {label: why for label, why in told.items() if why}

    @property
    def values(self) -> dict[str, list[str]]:
        """Each value of the lock with the nodes that have it, most nodes first.

        Values of one holder differ in the fence alone. They count as one value: the one
        with the greatest fence.
        """
        ballot = self.seen.ballot
        found: dict[str, tuple[str, list[str]]] = {}
        for index in ballot.indexes(VoteKind.TAKEN):
            vote = ballot.votes[index]
            value = vote.value if vote else ""
            holder = value.partition("\n")[0] if holder_in(value) else value
            known, nodes = found.get(holder, (value, []))
            greatest = max(known, value, key=lambda one: Holder.parse(one).fence)
            found[holder] = greatest, [*nodes, ballot.labels[index]]
        return dict(sorted(found.values(), key=lambda item: -len(item[1])))


@dataclass(frozen=True, slots=True)
class ClockSample:
    """The result of reading a node's clock several times.

    Attributes:
        latencies: Seconds that each answer took, sorted.
        ahead: Seconds by which the node's wall clock is ahead of ours.
        ahead_within: Seconds by which this may be wrong.
        watched: Seconds for which it was watched, by our monotonic clock.
        moved: Seconds by which it moved in that time.
        least_rate: Seconds that it provably counts in one of ours, at least.
        most_rate: Seconds that it counts at most.
    """

    latencies: tuple[float, ...] = ()
    ahead: float = 0.0
    ahead_within: float = 0.0
    watched: float = 0.0
    moved: float = 0.0
    least_rate: float = 0.0
    most_rate: float = math.inf


class _Reading(NamedTuple):
    """One reading of a node's clock, in microseconds by its clock, else in seconds.

    It was read between the request and the reply. A store knows the time of its server
    between two bounds only, which may be a second apart: see ``stores.server_clock``.
    """

    asked_at: float
    told_at: float
    earliest_us: int
    latest_us: int
    wall: float

    @property
    def latency(self) -> float:
        return self.told_at - self.asked_at

    @property
    def within(self) -> float:
        """Seconds by which the middles of both pairs of bounds may be wrong."""
        return (self.latency + (self.latest_us - self.earliest_us) / _US) / 2

    @property
    def ahead(self) -> float:
        middle_us = (self.earliest_us + self.latest_us) / 2
        return middle_us / _US - (self.wall - self.latency / 2)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The result of a thorough inspection of one node.

    Attributes:
        silent_members: Why members of the cluster cannot be used, by name, if the node
            is one.
        denied: Which of ``acl.COMMANDS``, our keys and our channels it denies us.
        unknown: Which of ``acl.COMMANDS`` it does not know.
        foreign_keys: Names of some keys outside of our prefix.
        holders: Some of the holders of locks on it.
        saves: When it writes snapshots, as in redis.conf; ``""`` if never or unknown.
        database: The number of the database with our keys.
    """

    status: NodeStatus
    clock: ClockSample = ClockSample()
    silent_members: Mapping[str, str] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    foreign_keys: tuple[str, ...] = ()
    holders: tuple[Holder, ...] = ()
    saves: str = ""
    database: int = 0

    @property
    def label(self) -> str:
        """The node's name."""
        return self.status.label

    @property
    def lacks_commands(self) -> bool:
        """Whether it denies us what a vote needs, or does not know such a command."""
        return not NOT_NEEDED.issuperset((*self.denied, *self.unknown))


def holder_in(value: str) -> Holder | None:
    """Return the holder in the value of a lock; None if it is of another program."""
    holder = Holder.parse(value)
    return holder if holder.is_ours else None


def lock_holder(value: str) -> Holder:
    """Return the holder in a value; of another program, one with a token alone."""
    return holder_in(value) or Holder(Holder.parse(value).token)


def holder_text(value: str) -> str:
    """Return the holder in the value of a lock, for display."""
    return str(holder_in(value) or "another program")


def unanswered(vote: Vote | None) -> str:
    """Return why this is no answer about a lock; ``""`` if it is one."""
    if vote is None:
        return "did not answer in time"
    return "" if vote.kind in ANSWERS else vote.reason or vote.kind.value


def is_held(votes: int, unsure: int, quorum: int) -> bool | None:
    """Tell whether a holder with so many votes holds the lock; None if it may.

    ``unsure`` is the number of other nodes that cannot tell.
    """
    if votes >= quorum:
        return True
    return None if votes + unsure >= quorum else False


def lock_status(redlock: Redlock, key: str) -> LockStatus:
    """Ask the nodes who holds the key, and whether each node can tell."""
    return LockStatus(redlock.inspect(key), node_status(redlock))


def node_status(redlock: Redlock) -> Nodes:
    """Return the nodes as a request for a lock would find them now.

    All that show the state of nodes to a user read it here.
    """
    nodes = _look(redlock)
    states = {it.state for it in nodes}
    is_watched = NodeState.QUARANTINED in states and not states.isdisjoint(_ABSENT)
    may_help = is_watched or not states.isdisjoint(_UNASKED)
    if redlock.asks_for_votes and may_help:
        redlock.guard.votes()
        nodes = _look(redlock)
    present, servers = nodes.view, dict[str, str]()
    statuses = [_beside_others(it, present, servers) for it in nodes]
    return replace(nodes, statuses=statuses)


def _beside_others(
    node: NodeStatus, present: str, servers: dict[str, str]
) -> NodeStatus:
    """Return the status of a node that others have a part in.

    The view of a node that votes may be another one than that of the others, and a
    server that has two names has one vote. ``servers`` has the names so far.
    """
    first = servers.setdefault(node.run_id or node.label, node.label)
    if first != node.label:
        reason = f"{SAME_SERVER} {first}; list each one once"
        return replace(node, state=NodeState.UNFIT, reason=reason)
    if node.state is NodeState.VOTES and node.view != present:
        return replace(node, state=NodeState.OTHER_CONFIG, reason=node.view)
    return node


def _look(redlock: Redlock) -> Nodes:
    nodes = each_answering(redlock, lambda client: _status_of(client, redlock))
    statuses = [
        nodes.results.get(label)
        or NodeStatus(label, NodeState.SILENT, nodes.unseen[label])
        for label in redlock.labels
    ]
    return Nodes(statuses, redlock.quorum, redlock.guard.config)


def each_answering(
    redlock: Redlock,
    visit: Callable[[NodeClient], _T],
    nodes: Nodes | None = None,
) -> PerNode[_T]:
    """Call a function for all nodes, but those that are silent; see ``each_node``."""
    silent = nodes.silent if nodes else {}
    addresses = [it for it in redlock.addresses if it.name not in silent]
    visited = each_node(addresses, visit, timeout=redlock.timing.connect_timeout)
    return PerNode(visited.results, {**silent, **visited.unseen})


def inspect_nodes(redlock: Redlock, *, span: float = 1.0) -> list[NodeReport]:
    """Inspect each node thoroughly, and watch its clock for ``span`` seconds.

    It takes about a second to tell a drift of 0.5 % from a change of the network's
    latency.
    """
    found = node_status(redlock)
    by_label = {status.label: status for status in found}

    def visit(client: NodeClient) -> NodeReport:
        status = by_label[client.label]
        if "store" in status.info:  # it has no ACL of Redis, and no other keys
            (address,) = redlock.addresses
            silent = each_node(
                address.members, lambda _: None, timeout=redlock.timing.connect_timeout
            ).unseen
            clock = watch_clock(client, redlock.clock, span)
            return NodeReport(status, clock=clock, silent_members=silent)
        foreign_keys, holders = _sample(client, redlock)
        report = NodeReport(
            status=status,
            clock=watch_clock(client, redlock.clock, span),
            foreign_keys=foreign_keys,
            holders=holders,
            saves=_saves(client),
            database=client.database,
        )
        is_new = status.state in (NodeState.NEW, NodeState.REFUSES)  # or may be
        try:
            denied, unknown = try_commands(  # must be last
                client, redlock.keys.prefix, is_new=is_new
            )
        except NodeUnreachable:
            if status.state is not NodeState.REFUSES:
                raise
            return report  # it finishes no write, as its status says
        return replace(report, denied=denied, unknown=unknown)

    nodes = each_answering(redlock, visit, found)
    return [
        nodes.results.get(label) or _unreachable(label, nodes.unseen[label])
        for label in redlock.labels
    ]


def _unreachable(label: str, reason: str) -> NodeReport:
    _, _, unknown = reason.partition(DOES_NOT_KNOW)
    return NodeReport(
        NodeStatus(label, NodeState.SILENT, reason),
        denied=(denied,) if (denied := denied_command(reason)) else (),
        unknown=(unknown.lower(),) if unknown else (),
    )


def _status_of(client: NodeClient, redlock: Redlock) -> NodeStatus:
    """Return the present status of the node at the other end of this connection."""
    guard = redlock.guard
    fields = ("config", "votes", "quarantine_until", "replid", "evicted")
    info_text, meta, time = client.ask(
        ("INFO",), ("HMGET", guard.keys.meta, *fields), ("TIME",)
    )
    info = fields_of(text_in(info_text))
    values = meta if isinstance(meta, list) else []
    known = {
        name: text_in(value)
        for name, value in zip(fields, values, strict=False)
        if value
    }
    left = 0.0
    if isinstance(time, list) and "quarantine_until" in known:
        now = int(time[0]) + int(time[1]) / _US
        left = max(0.0, number_in(known["quarantine_until"]) / _MS - now)
    state, reason = _state(client, guard, info, known, left)
    if (error := _refusal(info_text, meta, time)) and state is not NodeState.UNFIT:
        reason = info.get("denied") or error  # and nothing follows from what it told
        return NodeStatus(client.label, NodeState.REFUSES, reason, info=info)
    view = known.get("config", "") if _has_our_settings(guard, known) else ""
    own = view if state is NodeState.VOTES else ""
    if state in (NodeState.VOTES, NodeState.QUARANTINED, *_UNASKED):
        refused = info.get("denied") or _refusal_to_write(client, redlock, own)
        if refused:
            state = NodeState.REFUSES
            return NodeStatus(client.label, state, refused, info=info, view=own)
    return NodeStatus(client.label, state, reason, left, info, view)


def _refusal_to_write(client: NodeClient, redlock: Redlock, view: str) -> str:
    """Return why a node cannot grant a lock, or be made to; ``""`` if it can.

    Any other reply than an error is that of a node that has changed since it was read.
    A node that should vote now is given its ``view``; any other has a text to write.
    """
    key = redlock.keys.trial(token := new_base())
    try:
        if view:
            hint = (round(redlock.clock.wall() * _US), redlock.guard.hint_tolerance_us)
            words = (token, "", _TRIAL_MS, *hint, view, stripe_of(token))
            reply = _acquire(client, 2, key, redlock.keys.meta, *words)
        else:
            (reply,) = client.ask(("SET", key, "", "PX", _TRIAL_MS))
    except NodeUnreachable as error:
        if "did not answer" not in str(error):
            raise
        late = f"has not finished a write within {redlock.timing.connect_timeout:g} s"
        return late if client.is_store else f"{late}; {_PAUSED}"
    return _refusal(reply)


def _acquire(client: NodeClient, *words: object) -> Any:
    """Send the script of a grant as the locks do, and return the reply.

    By its name; and where the server lacks it, once more after it was loaded, and then
    as a text. A user may be denied one of these commands and not the others.
    """
    by_name = ("EVALSHA", ACQUIRE.sha, *words)
    load, by_text = ("SCRIPT", "LOAD", ACQUIRE.source), ("EVAL", ACQUIRE.source, *words)
    for commands in ((by_name,), (load, by_name), (by_text,)):
        *_, reply = client.ask(*commands)
        if not str(reply).startswith("NOSCRIPT"):
            break
    return reply


def _refusal(*replies: object) -> str:
    """Return why a node grants no lock: the first error in its replies, or ``""``."""
    error = next((str(it) for it in replies if isinstance(it, ErrorReply)), "")
    said = printable_line(without_place(error).removeprefix("ERR "), MOST_TOLD)
    # Advice follows behind the first sentence.
    return f"grants no lock: {said.partition('. ')[0].rstrip('.')}" if error else ""


def _has_our_settings(guard: RestartGuard, meta: Mapping[str, str]) -> bool:
    view = View.parse(meta.get("config", ""))
    return view is not None and view.configuration == guard.configuration


def _state(
    client: NodeClient,
    guard: RestartGuard,
    info: Mapping[str, str],
    meta: Mapping[str, str],
    left: float,
) -> tuple[NodeState, str]:
    """Return the state of a node and why, judged in the order of the script."""
    config = meta.get("config", "")
    unfit = client.facts.unfit_because
    is_new = config in ("", JOINED)
    is_other = not is_new and not _has_our_settings(guard, meta)
    names = {"replid": "master_replid", "evicted": "evicted_keys"}
    has_lost = guard.enabled and any(
        meta.get(name, "") != info.get(told, "") for name, told in names.items()
    )
    judgements = (
        (unfit, NodeState.UNFIT, unfit),
        (config.startswith(CLOSED), NodeState.CLOSED, config),
        (is_other, NodeState.OTHER_CONFIG, config),
        (is_new or has_lost, NodeState.NEW, ""),
        (left, NodeState.QUARANTINED, ""),
        ("votes" not in meta, NodeState.UNSYNCED, ""),
        (True, NodeState.VOTES, ""),
    )
    return next((state, reason) for applies, state, reason in judgements if applies)


def watch_clock(client: NodeClient, clock: Clock, span: float) -> ClockSample:
    """Read the clock of a node several times, and return what that proves."""
    readings: list[_Reading] = []
    for number in range(_CLOCK_READINGS):
        if number:
            clock.sleep(span / _CLOCK_READINGS)
        asked_at = clock.monotonic()
        (reply,) = client.ask(("TIME",))
        told_at = clock.monotonic()
        if not isinstance(reply, list):
            return ClockSample()
        seconds, us, *width = map(int, reply)
        earliest_us = seconds * _US + us
        latest_us = earliest_us + max([1, *width])
        readings.append(
            _Reading(asked_at, told_at, earliest_us, latest_us, clock.wall())
        )
    # The most exact readings of the first and of the last third.
    third = _CLOCK_READINGS // 3
    first = min(readings[:third], key=lambda reading: reading.within)
    last = min(readings[-third:], key=lambda reading: reading.within)
    best = min(first, last, key=lambda reading: reading.within)
    least_watched = last.asked_at - first.told_at
    most_watched = last.told_at - first.asked_at
    least_moved = (last.earliest_us - first.latest_us) / _US
    most_moved = (last.latest_us - first.earliest_us) / _US
    return ClockSample(
        latencies=tuple(sorted(reading.latency for reading in readings)),
        ahead=best.ahead,
        ahead_within=best.within,
        watched=(least_watched + most_watched) / 2,
        moved=(least_moved + most_moved) / 2,
        least_rate=_rate(least_moved, most_watched),
        most_rate=_rate(most_moved, least_watched),
    )


def _rate(moved: float, watched: float) -> float:
    """Return seconds that a clock counts in one of ours, which may stand still."""
    return moved / watched if watched > 0 else math.inf if moved > 0 else 0.0


def _saves(client: NodeClient) -> str:
    # A user with an ACL does not need CONFIG, and the node would log the attempt.
    (reply,) = [None] if client.user else client.ask(("CONFIG", "GET", "save"))
    return text_in(reply[1]) if isinstance(reply, list) and len(reply) > 1 else ""


def _sample(
    client: NodeClient, redlock: Redlock
) -> tuple[tuple[str, ...], tuple[Holder, ...]]:
    """Return foreign keys and holders among some keys: a small part of a large node."""
    (reply,) = client.ask(("SCAN", 0, "COUNT", _SAMPLE))
    keys = reply[1] if isinstance(reply, list) else []
    ours, locks = f"{redlock.keys.prefix}:".encode(), redlock.keys.lock("").encode()
    foreign = [text_in(key) for key in keys if not key.startswith(ours)]
    held = [("GET", key) for key in keys if key.startswith(locks)]
    values = client.ask(*held) if held else []
    holders = [holder_in(text_in(v)) for v in values if isinstance(v, bytes)]
    return tuple(foreign), tuple(filter(None, holders))


def text_in(data: object) -> str:
    """Return a reply as text; bytes that are none are replaced."""
    return data.decode(errors="replace") if isinstance(data, bytes) else str(data)
