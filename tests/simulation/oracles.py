"""The rules that no history may break, checked while it is played and at its end.

The oracle sees what no client can see: true time, and each operation of each node.

==========================  ==================================================
two holders                 two leases of one key are valid at the same instant, each
                            by the clock of its holder (not checked after the wall
                            clock of a node was set forward, which ends its keys early)
duplicate fence             two grants of one key have the same fence
fence decreased             a grant whose first vote came after another grant does not
                            have the greater fence. This holds under any fault while
                            at most N − r nodes are unsynced at once; beyond that, and
                            after a floor, while the nodes' wall clocks do not step
fences out of order         the same for attempts that overlap, while clocks are kept
ended lease extended        the validity of a lease moved after it had ended
loss reported late          a watched lease ended, and its holder was not notified in
                            time
holder without a majority   a client was refused because of a holder that never had a
                            majority
release overtaken           a command re-created a lock after its release, on the same
                            connection
lock left behind            a lock outlives the last client by more than its ttl
waiter not woken            a lock is free while a client waits for it, for longer than
                            a wake-up takes, although nothing fails (`WakeupOracle`)
lock unavailable            a lone client gets no lock although all nodes are up
stuck                       a client does not end
unexpected error            a client raises an error that is not its own
==========================  ==================================================
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.lease import LeaseState
from celery_redlock.core.quorum import quorum_of
from tests.simulation.observed_lease import Grant, ObservedLease

if TYPE_CHECKING:
    from celery_redlock.core.lease import Lease
    from celery_redlock.core.scripts import Script
    from celery_redlock.errors import LockUnavailable
    from tests.simulation.network import Connection, Network
    from tests.simulation.server import Server
    from tests.simulation.world import Process, Thread, World

__all__ = ["Finding", "Oracle", "WakeupOracle"]

_TOLERANCE = 0.001  # seconds: timers count in floating point


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a history broke.

    Attributes:
        kind: A row of the table above.
        text: What happened, with names and numbers.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Oracle:
    """Observes a history and collects findings.

    Attributes:
        network: All connections.
        ignored: Kinds of findings that do not count.
        wakeups: Checks the waiters, in histories without faults.
        findings: The broken rules. The history stops at the first.
        coverage: How often each fault, vote and verdict occurred.
        grants: The grants of each key, in order.
        ttls_kept: Whether no node has ended keys too early.
        counters_kept: Whether fences rest on counters and not on clocks.
        delayed_by: Seconds that keys may live longer, because clocks were set back.
        clocks_agree: Whether the nodes' wall clocks agree and do not step.
    """

    world: World
    network: Network
    nodes: int
    clocks_agree: bool = True
    ignored: frozenset[str] = frozenset()
    wakeups: WakeupOracle | None = None
    findings: list[Finding] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    grants: dict[str, list[Grant]] = field(default_factory=dict)
    ttls_kept: bool = True
    counters_kept: bool = True
    delayed_by: float = 0.0
    _unsynced: set[str] = field(default_factory=set)
    _begun: dict[str, float] = field(default_factory=dict)
    _voters: dict[str, set[str]] = field(default_factory=dict)
    # The connections that were open when a node executed the release of a token.
    _released: dict[tuple[str, str], set[Connection]] = field(default_factory=dict)

    def count(self, event: str) -> None:
        """Count an event."""
        self.coverage[event] += 1

    def find(self, kind: str, text: str) -> None:
        """Add a finding, and stop the history."""
        if kind in self.ignored:
            return
        self.findings.append(Finding(kind, text))
        self.world.log("oracle", f"{kind.upper()}: {text}")
        self.world.stopped = True

    # -- events of nodes ---------------------------------------------------------

    def memory_lost(self, server: Server) -> None:
        """Observe a node that starts or is flushed."""
        self._unsynced.add(server.name)
        allowed = quorum_of(self.nodes) - 1
        if self._begun and len(self._unsynced) > allowed:
            self.count("too many unsynced")
            self.counters_kept = False

    def synced(self, server: Server, *, with_floor: bool) -> None:
        """Observe a node that votes again."""
        self._unsynced.discard(server.name)
        if with_floor and self._begun:
            self.counters_kept = False

    def clock_stepped(self, server: Server, seconds: float) -> None:
        """Observe a node whose wall clock is set."""
        self.clocks_agree = False
        self.delayed_by += max(0.0, -seconds)
        if seconds > 0:
            self.ttls_kept = False
            if server.name in self._unsynced:
                # Its quarantine ends early, and so does the recovery of its fences.
                self.counters_kept = False

    def executed(  # noqa: PLR0913, PLR0917  (the parts of a script call)
        self,
        server: Server,
        connection: Connection,
        script: Script,
        keys: list[bytes],
        args: list[bytes],
        reply: Any,
    ) -> None:
        """Observe a node that executes a script."""
        name = script.name
        status = reply[0] if isinstance(reply, list) else reply
        self.coverage[f"{name} {_status_word(reply)}"] += 1
        if self.world.trace is not None:
            call = _call_text(name, keys, args, reply)
            self.world.log(connection.path.process.name, f"→ {server.name}  {call}")
        if name == "release":
            if status:
                token = args[0].decode()
                self._abandoned(token)
                open_now = set(connection.path.connections)
                self._released[server.name, token] = open_now
        elif status == scripts.GRANTED and name in ("acquire", "restore"):
            token = args[_TOKEN_AT[name]].decode()
            if name == "acquire":
                self._begun.setdefault(token, self.world.now)
            self._voters.setdefault(token, set()).add(server.name)
            self._check_not_overtaken(server, connection, token, name)
        elif status == scripts.GRANTED and name == "sync":
            floor = args[2] == b"1"
            self.count("recovered with floor" if floor else "recovered from others")
            self.synced(server, with_floor=floor)
        if self.wakeups:
            self.wakeups.executed(server, name, keys, args, status)

    def _abandoned(self, base: str) -> None:
        """End grants whose holder was interrupted before it had its lease."""
        for grant in (grant for grants in self.grants.values() for grant in grants):
            if base.endswith(".") and grant.lease.token.startswith(base):
                grant.over |= grant.watched_at is None

    def _check_not_overtaken(
        self, server: Server, connection: Connection, token: str, name: str
    ) -> None:
        if connection in self._released.get((server.name, token), ()):
            self.find(
                "release overtaken",
                f"{server.name} executed {name} of {_short(token)} after its release, "
                "although both came from one client that had not reconnected",
            )

    # -- events of clients -------------------------------------------------------

    def wait_begun(self, thread: Thread, key: str) -> None:
        """Observe a thread that begins to wait for a lock."""
        if self.wakeups:
            self.wakeups.wait_begun(thread, key)

    def granted(self, lease: ObservedLease, process: Process) -> None:
        """Observe a new lease."""
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
        self.world.log(
            process.name,
            f"HAS {lease.key} as {_short(lease.token)}, fence {lease.fence}, valid "
            f"until {grant.valid_until:.4f}",
        )
        self._check_alone(grant)
        self._check_fence(grant, earlier)
        earlier.append(grant)

    def watched(self, thread: Thread, lease: Lease) -> None:
        """Observe a holder that asks to be notified of a loss."""
        if isinstance(lease, ObservedLease) and lease.grant:
            lease.grant.watched_at = self.world.now
        if self.wakeups:
            self.wakeups.wait_ended(thread)

    def extended(self, grant: Grant, until: float) -> None:
        """Observe a lease whose validity moves."""
        now, before = self.world.now, grant.valid_until
        grant.valid_until = grant.process.instant_of(until)
        if grant.valid_until <= before:
            return
        self.count("renewed")
        self.world.log(
            grant.process.name,
            f"renewed {grant.lease.key}, valid until {grant.valid_until:.4f}",
        )
        if now > before or grant.over:
            self.find("ended lease extended", f"{grant} had ended at {before:.4f}")
        self._check_alone(grant)

    def ended(self, grant: Grant, state: LeaseState) -> None:
        """Observe a lease that is released or reported as lost."""
        now = self.world.now
        grant.over = True
        self.world.log(grant.process.name, f"{state.value} {grant.lease.key}")
        if state is LeaseState.LOST:
            self.count("lost")
            self._check_reported(grant, now)

    def task_ended(self) -> None:
        """Observe a thread of a client that ends."""
        self.world.stopped = True

    def refused(self, thread: Thread, error: LockUnavailable) -> None:
        """Observe a client that gets no lock."""
        if self.wakeups:
            self.wakeups.wait_timed_out(thread)
        verdict = type(error).__name__.removeprefix("Lock").removeprefix("Quorum")
        self.count(f"verdict {verdict.lower()}")
        for vote in error.ballot.votes if error.ballot else ():
            self.count("no vote yet" if vote is None else f"vote {vote.kind.value}")
        holder = getattr(error, "holder", None)
        if holder is not None:
            voters = len(self._voters.get(holder.token, ()))
            if voters < quorum_of(self.nodes):
                self.find(
                    "holder without a majority",
                    f"{_short(holder.token)} was named as the holder, but has been on "
                    f"{voters} of {self.nodes} nodes",
                )

    def _check_alone(self, grant: Grant) -> None:
        now = self.world.now
        if not self.ttls_kept or not grant.is_held(now):
            return
        for other in self.grants[grant.lease.key]:
            if other is not grant and other.is_held(now):
                self.find("two holders", f"{grant.lease.key}: {other} and {grant}")
                return

    def _check_fence(self, grant: Grant, earlier: list[Grant]) -> None:
        ordered = self.counters_kept or self.clocks_agree
        in_time = self.ttls_kept and grant.is_held(self.world.now)
        for other in earlier:
            fence, before = grant.lease.fence, other.lease.fence
            if fence > before or not ordered:
                continue
            if fence == before:
                kind = "duplicate fence"
            elif grant.begun_at > other.granted_at:
                kind = "fence decreased"
            elif in_time:
                kind = "fences out of order"
            else:
                continue
            self.find(kind, f"{grant.lease.key}: {other}, then {grant}")
            return

    def _check_reported(self, grant: Grant, now: float) -> None:
        watched_at, resumed_at = grant.watched_at or 0.0, grant.process.last_resumed_at
        due = max(grant.valid_until, watched_at)
        if resumed_at >= watched_at:
            # A sleep that was about to begin at the pause begins after the pause.
            due = max(due, resumed_at + grant.lease.ttl * 1.01)
        if now > due + _TOLERANCE:
            self.find("loss reported late", f"{grant} was notified at {now:.4f}")

    # -- at the end --------------------------------------------------------------

    def check_all_reported(self) -> None:
        """Find holders that were never notified that their lease has ended."""
        for grant in (grant for grants in self.grants.values() for grant in grants):
            waits = grant.watched_at is not None and not grant.over
            if waits and not grant.process.dead:
                self._check_reported(grant, self.world.now)

    def check_nothing_left(self, servers: list[Server], when: str) -> None:
        """Find locks that should be gone."""
        for server in servers:
            names = ", ".join(key.decode() for key in server.locks())
            if names:
                self.find("lock left behind", f"{server.name} has {names} {when}")


# -- Waiters ---------------------------------------------------------------------

# Seconds. A wake-up takes a few messages, and the longest pause between two tries if
# another client tries at the same moment. A waiter polls after 0.75 s at the earliest.
_WAKEUP_TAKES = 0.5
_POLLS_EVERY = 1.25 / 2  # at most, times the number of nodes; of one node as of two
_RATE = 1.005  # true seconds per second of a node's clock, at most

# The index in ARGV of the milliseconds for which a script keeps the lock.
_TTL_AT = {"acquire": 2, "extend": 2, "restore": 3, "release": 1}


class WakeupOracle:
    """The rule for waiters: a released lock wakes the first waiter in time.

    It is checked in histories without faults: there no wake-up may get lost, so the
    first waiter learns of a release at once, and not only when it polls again.

    Args:
        oracle: Gets the findings.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._waiting: dict[Thread, tuple[str, float]] = {}
        self._ends: dict[tuple[str, str], float] = {}
        self._may_expire: set[str] = set()  # keys whose end no node announces

    def wait_begun(self, thread: Thread, key: str) -> None:
        """Observe a thread that begins to wait for a lock."""
        self._waiting[thread] = key, thread.world.now

    def wait_ended(self, thread: Thread) -> None:
        """Observe a thread that has got the lock."""
        self._waiting.pop(thread, None)

    def wait_timed_out(self, thread: Thread) -> None:
        """Observe a thread whose wait has timed out."""
        key, _ = self._waiting.get(thread, ("", 0.0))
        self._check(key, thread.world.now)
        self.wait_ended(thread)

    def executed(
        self,
        server: Server,
        name: str,
        keys: list[bytes],
        args: list[bytes],
        status: int,
    ) -> None:
        """Observe a node that executes a script."""
        key, now = keys[0].decode().rpartition(":")[2], server.world.now
        if name == "join_wait_queue" and status == scripts.FREE:
            self._check(key, now)
        if name not in _TTL_AT or status != scripts.GRANTED:  # RELEASE returns 1 too
            return
        if name == "acquire":
            self._check(key, now)
        if name == "release":
            self._may_expire.discard(key)
        else:
            self._may_expire.add(key)
        ttl = int(args[_TTL_AT[name]]) / 1000
        self._ends[key, server.name] = now + ttl * _RATE

    def _check(self, key: str, now: float) -> None:
        begun = [
            begun_at
            for thread, (wanted, begun_at) in self._waiting.items()
            if wanted == key and not thread.process.dead
        ]
        ends = [end for (of, _), end in self._ends.items() if of == key]
        if not begun or not ends:
            return
        free_for = now - max(min(begun), *ends)
        bound = _WAKEUP_TAKES
        if key in self._may_expire:
            bound += _POLLS_EVERY * max(2, self._oracle.nodes)
        if free_for > bound:
            self._oracle.find(
                "waiter not woken",
                f"{key} was free for {free_for:.3f} s while a client waited for it",
            )


# -- Texts -----------------------------------------------------------------------

_STATUS = {
    scripts.GRANTED: "granted",
    scripts.TAKEN: "taken",
    scripts.FREE: "free",
    scripts.QUARANTINED: "quarantined",
    scripts.UNSYNCED: "unsynced",
    scripts.MISCONFIGURED: "misconfigured",
}
_TOKEN_AT = {"acquire": 0, "extend": 1, "restore": 1, "raise_fence": 0, "release": 0}


def _status_word(reply: Any) -> str:
    """Return the status in a reply as a word, or the number that is the reply."""
    return _STATUS[reply[0]] if isinstance(reply, list) else str(reply)


def _call_text(name: str, keys: list[bytes], args: list[bytes], reply: Any) -> str:
    """Return a script call and its reply as a line for readers."""
    status = _status_word(reply)
    key = keys[0].decode().rpartition(":")[2]
    token = _TOKEN_AT.get(name)
    by = "" if token is None else f" as {_short(args[token].decode())}"
    detail = ""
    if name == "acquire" and status == "granted":
        detail = f" {reply[1]}"
    elif name == "raise_fence":
        detail = f" to {args[3].decode()}"
    elif status == "taken":
        detail = f" by {_short(reply[1].decode().partition(chr(10))[0])}"
    elif status == "quarantined":
        detail = f" for {reply[1]} ms"
    elif name == "sync" and args[2] == b"1":
        detail = " with a floor"
    return f"{name} {key}{by}: {status}{detail}"


def _short(token: str) -> str:
    """Return a token without its leading zeros: the execution and the attempt."""
    base, dot, attempt = token.partition(".")
    return f"{base.lstrip('0')}{dot}{attempt.lstrip('0')}"
