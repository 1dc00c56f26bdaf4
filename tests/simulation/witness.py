"""What is checked, while it happens and after.

The witness sees what no client can: true time, and what each node really did.

==================  ==========================================================
two holders         two leases of one key are valid at the same instant, each by
                    its own holder's clock (not asked after a node's wall clock
                    has stepped forward, which ends its keys early)
same fence          two grants of one key carry the same number
fence goes back     a grant whose first vote came after another was granted has
                    not the greater number, under any fault, while no more than
                    N − r nodes are unsynced at once; beyond that and after a
                    floor, while the nodes' wall clocks do not step
grants out of order the same for attempts that overlap, while clocks are kept
resurrected         the validity of a lease moved after it had ended
loss kept quiet     a watched lease ended and its holder was not told by then
false holder        somebody was refused for a holder who never had a majority
released too early  a lock was re-created by a command that its release overtook
lock left behind    a lock outlives the last client by more than its ttl
nobody woken        a lock lies free for longer than a message takes while somebody
                    waits in line for it, though nothing goes wrong
nobody can lock     a lone client with all nodes up does not get a lock
stuck, error        a client never came to an end, or raised what it should not
==================  ==========================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.ballot import quorum_of
from celery_redlock.core.lease import LeaseState
from tests.simulation.account import account_of, said_by, short
from tests.simulation.observed import Grant, ObservedLease

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.scripts import Script
    from celery_redlock.errors import LockUnavailable
    from tests.simulation.connection import Connection
    from tests.simulation.handover import Handovers
    from tests.simulation.network import Network
    from tests.simulation.server import Server
    from tests.simulation.world import Process, World

__all__ = ["Finding", "Witness"]

_TOLERANCE = 0.001  # seconds: of timers that count in floating point


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not happen.

    Attributes:
        kind: A row of the table above.
        text: What happened, with names and numbers.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Witness:
    """Sees everything, writes down what must not happen.

    Attributes:
        network: All connections.
        blind_to: What it does not mention, so that something else is found.
        handovers: Sees locks that lie free, where nothing goes wrong.
        findings: What must not happen and did; the history stops at the first.
        coverage: How often which fault, vote and verdict occurred.
        grants: By key, in the order in which they were granted.
        clocks_kept: Whether no node has ended keys before their time.
        counters_kept: Whether fences rest on counters and not on clocks.
        held_up: Seconds by which keys may live longer, as clocks were set back.
        clocks_sane: Whether the nodes' wall clocks agree and do not step.
    """

    world: World
    network: Network
    nodes: int
    clocks_sane: bool = True
    blind_to: frozenset[str] = frozenset()
    handovers: Handovers | None = None
    findings: list[Finding] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    grants: dict[str, list[Grant]] = field(default_factory=dict)
    clocks_kept: bool = True
    counters_kept: bool = True
    held_up: float = 0.0
    _unsynced: set[str] = field(default_factory=set)
    _begun: dict[str, float] = field(default_factory=dict)
    _on: dict[str, set[str]] = field(default_factory=dict)
    # The connections that were open when a node executed the release of a token.
    _released: dict[tuple[str, str], set[Connection]] = field(default_factory=dict)

    def count(self, what: str) -> None:
        """Note that something occurred."""
        self.coverage[what] += 1

    def find(self, kind: str, text: str) -> None:
        """Write down what must not happen, and stop the history."""
        if kind in self.blind_to:
            return
        self.findings.append(Finding(kind, text))
        self.world.note("witness", f"{kind.upper()}: {text}")
        self.world.stopped = True

    # -- what nodes do -----------------------------------------------------------

    def lost_memory(self, server: Server) -> None:
        """See a node start, or be wiped."""
        self._unsynced.add(server.name)
        allowed = quorum_of(self.nodes) - 1
        if self._begun and len(self._unsynced) > allowed:
            self.count("too many unsynced")
            self.counters_kept = False

    def synced(self, server: Server, *, with_floor: bool) -> None:
        """See a node vote again."""
        self._unsynced.discard(server.name)
        if with_floor and self._begun:
            self.counters_kept = False

    def stepped(self, server: Server, seconds: float) -> None:
        """See a node's wall clock being set."""
        self.clocks_sane = False
        self.held_up += max(0.0, -seconds)
        if seconds > 0:
            self.clocks_kept = False
            if server.name in self._unsynced:
                # Its quarantine ends early, and recovery is as early as that.
                self.counters_kept = False

    def executed(  # noqa: PLR0913, PLR0917  (what a script call consists of)
        self,
        server: Server,
        connection: Connection,
        script: Script,
        keys: list[bytes],
        args: list[bytes],
        reply: Any,
    ) -> None:
        """See a node execute a script."""
        name = script.name
        status = reply[0] if isinstance(reply, list) else reply
        said = said_by(reply)
        self.coverage[f"{name} {said}"] += 1
        if self.world.trace is not None:
            what = account_of(name, keys, args, reply)
            self.world.note(connection.path.process.name, f"→ {server.name}  {what}")
        if name == "release":
            if status:
                token = args[0].decode()
                self._given_up(token)
                open_now = set(connection.path.connections)
                self._released[server.name, token] = open_now
        elif status != scripts.GRANTED:
            return
        elif name == "acquire":
            token = args[0].decode()
            self._begun.setdefault(token, self.world.now)
            self._on.setdefault(token, set()).add(server.name)
            self._check_overtaken(server, connection, token, name)
        elif name == "restore":
            token = args[1].decode()
            self._on.setdefault(token, set()).add(server.name)
            self._check_overtaken(server, connection, token, name)
        elif name == "sync":
            floor = args[1] == b"1"
            self.count("recovered with floor" if floor else "recovered from others")
            self.synced(server, with_floor=floor)

    def _given_up(self, base: str) -> None:
        """Note grants whose holder was interrupted as it got them: it has no lease."""
        for grant in (grant for grants in self.grants.values() for grant in grants):
            if base.endswith(".") and grant.lease.token.startswith(base):
                grant.over |= grant.watched_at is None

    def _check_overtaken(
        self, server: Server, connection: Connection, token: str, name: str
    ) -> None:
        if connection in self._released.get((server.name, token), ()):
            self.find(
                "released too early",
                f"{server.name} executed {name} of {short(token)} after its release, "
                "though both came from one client that had not reconnected",
            )

    # -- what holders have ---------------------------------------------------------

    def granted(self, lease: ObservedLease, process: Process) -> None:
        """See a lease come into being."""
        now = self.world.now
        self.count("verdict won")
        grant = Grant(
            lease,
            process,
            self._begun.get(lease.token, now),
            now,
            process.instant_of(lease.until),
        )
        lease.grant = grant
        earlier = self.grants.setdefault(lease.key, [])
        self.world.note(
            process.name,
            f"HAS {lease.key} as {short(lease.token)}, fence {lease.fence}, valid "
            f"until {grant.valid_until:.4f}",
        )
        self._check_alone(grant)
        self._check_fence(grant, earlier)
        earlier.append(grant)

    def extended(self, grant: Grant, until: float) -> None:
        """See a lease's validity move."""
        now, before = self.world.now, grant.valid_until
        grant.valid_until = grant.process.instant_of(until)
        if grant.valid_until <= before:
            return
        self.count("renewed")
        self.world.note(
            grant.process.name,
            f"renewed {grant.lease.key}, valid until {grant.valid_until:.4f}",
        )
        if now > before or grant.over:
            self.find("resurrected", f"{grant} had ended at {before:.4f}")
        self._check_alone(grant)

    def ended(self, grant: Grant, state: LeaseState) -> None:
        """See a lease being released or announced as lost."""
        now = self.world.now
        grant.over = True
        self.world.note(grant.process.name, f"{state.value} {grant.lease.key}")
        if state is LeaseState.LOST:
            self.count("lost")
            self._check_told(grant, now)

    def watches(self, lease: Lease) -> None:
        """See a holder who asked to be told when its lease ends."""
        if isinstance(lease, ObservedLease) and lease.grant:
            lease.grant.watched_at = self.world.now

    def task_ended(self) -> None:
        """See a client's thread come to its end."""
        self.world.stopped = True

    def refused(self, error: LockUnavailable) -> None:
        """See somebody not get a lock."""
        verdict = type(error).__name__.removeprefix("Lock").removeprefix("Quorum")
        self.count(f"verdict {verdict.lower()}")
        ballot = error.ballot
        if ballot is not None:
            for vote in ballot.votes:
                self.count("no vote yet" if vote is None else f"vote {vote.kind.value}")
        holder = getattr(error, "holder", None)
        if holder is not None:
            on = self._on.get(holder.token, set())
            if len(on) < quorum_of(self.nodes):
                self.find(
                    "false holder",
                    f"{short(holder.token)} was named as the holder and has been on "
                    f"{len(on)} of {self.nodes} nodes",
                )

    def _check_alone(self, grant: Grant) -> None:
        now = self.world.now
        if not self.clocks_kept or not grant.is_held(now):
            return
        for other in self.grants[grant.lease.key]:
            if other is not grant and other.is_held(now):
                self.find("two holders", f"{grant.lease.key}: {other} and {grant}")
                return

    def _check_fence(self, grant: Grant, earlier: list[Grant]) -> None:
        ordered = self.counters_kept or self.clocks_sane
        in_time = self.clocks_kept and grant.is_held(self.world.now)
        for other in earlier:
            fence, before = grant.lease.fence, other.lease.fence
            if fence > before or not ordered:
                continue
            if fence == before:
                kind = "same fence"
            elif grant.begun_at > other.granted_at:
                kind = "fence goes back"
            elif in_time:
                kind = "grants out of order"
            else:
                continue
            self.find(kind, f"{grant.lease.key}: {other}, then {grant}")
            return

    def _check_told(self, grant: Grant, now: float) -> None:
        watched_at, resumed_at = grant.watched_at or 0.0, grant.process.last_resumed_at
        due = max(grant.valid_until, watched_at)
        if resumed_at >= watched_at:
            # A wait that was about to begin when it was paused begins after that.
            due = max(due, resumed_at + grant.lease.ttl * 1.01)
        if now > due + _TOLERANCE:
            self.find("loss kept quiet", f"{grant} was told at {now:.4f}")

    # -- at the end ------------------------------------------------------------------

    def check_all_told(self) -> None:
        """Look for holders that were never told that their lease has ended."""
        now = self.world.now
        for grants in self.grants.values():
            for grant in grants:
                told = grant.watched_at is None or grant.over
                if not told and not grant.process.dead:
                    self._check_told(grant, now)

    def check_nothing_left(self, servers: list[Server], why: str) -> None:
        """Look for locks that should be gone."""
        for server in servers:
            locks = server.locks()
            if locks:
                names = ", ".join(key.decode() for key in locks)
                self.find("lock left behind", f"{server.name} has {names} {why}")
