"""The rules that no history may break, checked while it is played and at its end.

The oracle sees what no client can see: true time, and each operation of each node.

==========================  ==================================================
two holders                 two leases of one key are valid at the same instant, each
                            by the clock of its holder (not checked after the wall
                            clock of a node was set forward, which ends its keys early)
more holders than permits   more valid leases of a key than the greatest of their limits
more starts than the rate   within a period, two starts have the same permit. Nodes may
                            forget a permit that outlasts their quarantine; then it is
                            checked while those that keep it still prevent another
                            majority
part of the keys            a node has some of the keys that were taken together, and
                            not the others, after it executed a script for them
duplicate fence             two grants of one key, or of one permit, have the same fence
fence decreased             a grant whose first vote came after another grant does not
                            have the greater fence. This holds under any fault while
                            counters are handed on from node to node; after a floor,
                            while the nodes' wall clocks do not step
fences out of order         the same for attempts that overlap, while clocks are kept
ended lease extended        the validity of a lease moved after it had ended
loss reported late          a watched lease ended, and its holder was not notified at
                            once, or within one node_timeout of a lease that had less
                            left when it was watched
holder without a majority   a client was refused because of a holder that never had a
                            majority
release overtaken           a command re-created a lock after its release, on the same
                            connection
lock left behind            a lock outlives the last client by more than its ttl, or a
                            permit for a start by more than its period besides
waiter not woken            a lock is free while a client waits for it, for longer than
                            a wake-up takes, although nothing fails (`WakeupOracle`)
node does not vote          a node is up for some quarantines, and does not vote (not
                            checked where a move is stuck after a name led clients to
                            two servers)
lock unavailable            a lone client gets no lock although all nodes are up
stuck                       a client does not end
unexpected error            a client raises an error that is not its own
==========================  ==================================================
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock import scripts
from celery_redlock.locks.lease import LeaseState
from celery_redlock.locks.limits import Limit
from celery_redlock.members.view import View
from celery_redlock.scripts.keys import START, keys_of, shown
from celery_redlock.wire.quorum import quorum_of
from tests.simulation.observed_lease import Grant, ObservedLease

if TYPE_CHECKING:
    from celery_redlock.errors import LockUnavailable
    from celery_redlock.locks.lease import Lease
    from celery_redlock.scripts import Script
    from tests.simulation.network import Connection, Network
    from tests.simulation.plan import Operation, Settings
    from tests.simulation.recorder import Recorder
    from tests.simulation.server import Server
    from tests.simulation.world import Process, Thread, World

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


class _Start(NamedTuple):
    """A start of work: when, under which token, and by which limit."""

    at: float
    token: str
    limit: Limit


@dataclass(slots=True)
class Oracle:
    """Observes a history and collects findings.

    Attributes:
        network: All connections.
        ignored: Kinds of findings that do not count.
        wakeups: Checks the waiters, in histories without faults.
        recorder: Writes the history down for the specification.
        findings: The broken rules. The history stops at the first.
        coverage: How often each fault, vote and verdict occurred.
        grants: The grants of each key, in order; each permit is a key of its own.
        sharers: The same, where the permits of a key are grants of that key.
        ttls_kept: Whether no node has ended keys too early.
        counters_kept: Whether fences rest on counters and not on clocks.
        delayed_by: Seconds that keys may live longer, because clocks were set back.
        settings: All settings of the plan.
        node_timeout: Of all clients, in seconds.
        opened_settings: Those to which some node has been moved.
        led_apart: The names that have led some client to another server.
        clocks_agree: Whether the nodes' wall clocks agree and do not step.
    """

    world: World
    network: Network
    nodes: int
    settings: tuple[Settings, ...]
    node_timeout: float = 0.0
    clocks_agree: bool = True
    ignored: frozenset[str] = frozenset()
    wakeups: WakeupOracle | None = None
    recorder: Recorder | None = None
    findings: list[Finding] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    grants: dict[str, list[Grant]] = field(default_factory=dict)
    sharers: dict[str, list[Grant]] = field(default_factory=dict)
    ttls_kept: bool = True
    counters_kept: bool = True
    delayed_by: float = 0.0
    opened_settings: set[int] = field(default_factory=set)
    _rash: set[Process] = field(default_factory=set)  # whose init breaks its promise
    _lost: set[str] = field(default_factory=set)  # places without memory
    led_apart: set[str] = field(default_factory=set)
    _set_back: set[str] = field(default_factory=set)  # nodes by their clocks
    _begun: dict[str, float] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)  # tokens whose client released
    _voters: dict[str, set[str]] = field(default_factory=dict)
    _limits: dict[str, list[tuple[Limit, str]]] = field(default_factory=dict)
    _starts: dict[str, list[_Start]] = field(default_factory=dict)
    # The nodes that have given permits for a start, by token. To restore a lock
    # gives no permit for a start.
    _starters: dict[str, set[str]] = field(default_factory=dict)
    # When nodes forgot permits for a start, by token and node.
    _forgotten: dict[tuple[str, str], float] = field(default_factory=dict)
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
        """Observe a server that starts, is flushed, or forgets its membership."""
        self._lose(server.place)
        self._note_forgotten(server)
        if self.recorder:
            self.recorder.memory_lost(server)

    def _note_forgotten(self, server: Server) -> None:
        """Note which permits for a start the server has lost with its memory."""
        there = {holder.token for holder in server.holders() if holder.is_kept}
        for token, permits in self._limits.items():
            has_start = any(limit.period for limit, _ in permits)
            has_given = server.name in self._starters[token]
            if has_start and token not in there and has_given:
                self._forgotten.setdefault((token, server.name), self.world.now)

    def led(self, place: str) -> None:
        """Observe a name that leads to another server, perhaps to one from before.

        That one does not know what happened meanwhile, and cannot know that.
        """
        self.led_apart.add(place)
        self._lose(place)
        if self.recorder:
            self.recorder.left_out = "names that lead to other servers"

    def _lose(self, place: str) -> None:
        self._lost.add(place)
        for number in (0, *self.opened_settings) if self._begun else ():
            names = self.settings[number].names
            lost = self._lost & {*names}
            quorum = quorum_of(len(names))
            # A server that others have replaced confirms those that have forgotten it.
            split = {name for name in names if self.network.is_split(name)}
            none_knows = split and len(lost - split) > len(names) - quorum
            if len(lost) >= quorum or none_knows:
                self.count("too many lost their memory")
                self.counters_kept = False
                self.clocks_agree &= not (lost | split) & self.led_apart

    def synced(self, server: Server, *, with_floor: bool) -> None:
        """Observe a node that votes again."""
        self._lost.discard(server.place)
        if self.recorder:
            self.recorder.synced(server)
        if with_floor and self._begun:
            self.counters_kept = False

    def gone(self) -> None:
        """Observe a client that takes silent nodes for gone, and does without them.

        If a name leads to two servers, the silent one may live on for other clients.
        """
        self.count("taken for gone")
        if self.led_apart:
            self.ttls_kept = self.counters_kept = False

    def init_begun(self, process: Process) -> None:
        """Observe an operator's init, and whether no lock lives, as it promises."""
        if not self.is_quiet:
            self._rash.add(process)

    @property
    def is_quiet(self) -> bool:
        """Whether no lock lives, and no attempt can still lead to one."""
        now = self.world.now
        longest = 1.02 * max(settings.max_ttl for settings in self.settings)
        grants = [grant for grants in self.grants.values() for grant in grants]
        if any(grant.is_held(now) for grant in grants):
            return False
        settled = self._given_up | {grant.lease.token for grant in grants}
        return not any(
            now - begun_at < longest and token not in settled
            for token, begun_at in self._begun.items()
        )

    def clock_stepped(self, server: Server, seconds: float) -> None:
        """Observe a node whose wall clock is set."""
        self.clocks_agree = False
        if self.recorder:
            self.recorder.clock_stepped(server, seconds)
        self.delayed_by += max(0.0, -seconds)
        if seconds < 0:
            self._set_back.add(server.name)
        if seconds > 0:
            self.ttls_kept = False
            if self._lost or server.is_closed:
                # Waits end early, and so does the recovery of fences.
                self.counters_kept = False

    def executed(  # noqa: C901, PLR0912, PLR0913, PLR0917  (one branch a script)
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
        if name == "release" and not (args[1] != b"0" and b"@@" in keys[0]):
            token = args[0].decode()  # not of a permit for a start, at the start
            self._given_up.add(token)
            if status:
                self._abandoned(token)
                open_now = set(connection.path.connections)
                self._released[server.name, token] = open_now
        elif status == scripts.GRANTED and name in _GRANTING:
            token = args[_TOKEN_AT[name]].decode()
            if name == "acquire_permits":
                self._limits.setdefault(token, _permits_in(keys, args))
                self._starters.setdefault(token, set()).add(server.name)
                self._forgotten.pop((token, server.name), None)
            if name != "restore":
                self._begun.setdefault(token, self.world.now)
            self._voters.setdefault(token, set()).add(server.name)
            self._check_not_overtaken(server, connection, token, name)
        elif status == scripts.GRANTED and name == "sync":
            floor = args[2] == b"1"
            self.count("recovered with floor" if floor else "recovered from others")
            self.synced(server, with_floor=floor)
        elif status == scripts.GRANTED and name == "initialize":
            if connection.path.process in self._rash:
                self.count("init against its promise")
                self.ttls_kept = False
            self.synced(server, with_floor=True)
        elif status == scripts.GRANTED and name == "open":
            self._opened(args[1].decode())
            self.synced(server, with_floor=False)
        if self.wakeups:
            self.wakeups.executed(server, name, keys, args, status)
        if self.recorder:
            process, locks = connection.path.process, _keys_in(keys)
            self.recorder.executed(server, process, name, locks, args, status)
        if name in _TTL_AT and len(_keys_in(keys)) > 1:
            self._check_complete(server, name)

    def _check_complete(self, server: Server, name: str) -> None:
        """Find keys that were taken together, of which the node has only some.

        A clock that is set back revives those keys that have ended and that the node
        has not deleted yet.
        """
        if server.name in self._set_back:
            return
        for holder, there in server.holders().items():
            if holder.keys and not holder.is_kept and {*holder.keys} != there:
                self.find(
                    "part of the keys",
                    f"after {name}, {server.name} has {sorted(there)} of "
                    f"{holder.keys} for {_short(holder.token)}",
                )

    def _opened(self, planned: str) -> None:
        """Note to which settings a reconfiguration leads."""
        view = View.parse(planned)
        for number, settings in enumerate(self.settings[1:], start=1):
            wanted = settings.max_ttl, tuple(sorted(settings.names))
            if view and wanted == (
                view.configuration.max_ttl,
                view.configuration.labels,
            ):
                self.opened_settings.add(number)

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

    def wait_begun(self, thread: Thread, operation: Operation) -> None:
        """Observe a thread that begins to wait for a lock."""
        if self.wakeups:
            self.wakeups.wait_begun(thread, operation)

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
        held = self._held_by(lease.token)
        grant.holders = {limit.key: limit.most for limit, _ in held}
        grant.holders = grant.holders or dict.fromkeys(lease.keys, 1)
        lease.grant = grant
        self.world.log(
            process.name,
            f"HAS {shown(lease.key)} as {_short(lease.token)}, fence {lease.fence}, "
            f"valid until {grant.valid_until:.4f}",
        )
        for key in lease.keys:
            self.grants.setdefault(key, [])
        self._check_alone(grant)
        for key in lease.keys:
            self._check_fence(grant, self.grants[key])
            self.grants[key].append(grant)
        for key in grant.holders:
            self.sharers.setdefault(key, []).append(grant)
        self._check_number(grant)
        if self.recorder:
            self.recorder.granted(grant)

    def _held_by(self, token: str) -> list[tuple[Limit, str]]:
        """Return the permits that a token has besides those for a start."""
        permits = self._limits.get(token, ())
        return [(limit, name) for limit, name in permits if not limit.period]

    def started(self, grant: Grant) -> None:
        """Observe work that begins under a lease with permits for a start."""
        self.count("started")
        token, now = grant.lease.token, self.world.now
        self.world.log(grant.process.name, f"starts as {_short(token)}")
        choice = grant.lease.choice
        for limit, name in choice.starts if choice else ():
            start = _Start(now, token, limit)
            starts = self._starts.setdefault(name, [])
            for other in starts if self.ttls_kept else ():
                self._check_rate(name, other, start)
            starts.append(start)

    def _check_rate(self, name: str, before: _Start, start: _Start) -> None:
        period = min(before.limit.period, start.limit.period)
        apart = start.at - before.at
        if apart + _TOLERANCE >= period or self._may_be_forgotten(before.token):
            return
        self.find(
            "more starts than the rate",
            f"{name}: {_short(start.token)} starts {apart:.3f} s after "
            f"{_short(before.token)}, and the period is {period:g} s",
        )

    def _may_be_forgotten(self, token: str) -> bool:
        """Tell whether a majority without this permit for a start may vote now.

        A node that has forgotten it votes again after a quarantine.
        """
        if self.opened_settings or self.led_apart:  # there are other nodes by now
            return True
        granted = self._starters[token]
        waited = min(settings.max_ttl for settings in self.settings)
        forgotten = [
            node
            for node in granted
            if self.world.now > self._forgotten.get((token, node), math.inf) + waited
        ]
        if forgotten:
            self.count("permit for a start forgotten")
        nodes = len(self.settings[0].names)
        return len(granted) - len(forgotten) <= nodes - quorum_of(nodes)

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
            f"renewed {shown(grant.lease.key)}, valid until {grant.valid_until:.4f}",
        )
        if now > before or grant.over:
            self.find("ended lease extended", f"{grant} had ended at {before:.4f}")
        self._check_alone(grant)
        self._check_number(grant)
        if self.recorder:
            self.recorder.extended(grant, until)

    def ended(self, grant: Grant, state: LeaseState) -> None:
        """Observe a lease that is released or reported as lost."""
        now = self.world.now
        grant.over = True
        if self.recorder:
            self.recorder.ended(grant)
        self.world.log(grant.process.name, f"{state.value} {shown(grant.lease.key)}")
        if state is LeaseState.LOST:
            self.count("lost")
            if grant.watched_at is not None:  # else its holder learns it as it releases
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
        for key in grant.lease.keys:
            for other in self.grants[key]:
                if other is not grant and other.is_held(now):
                    self.find("two holders", f"{key}: {other} and {grant}")
                    return

    def _check_number(self, grant: Grant) -> None:
        """Find a key with more holders than permits."""
        now = self.world.now
        if not self.ttls_kept or not grant.is_held(now):
            return
        for key in grant.holders:
            held = [other for other in self.sharers[key] if other.is_held(now)]
            most = max(other.holders[key] for other in held)
            if most > 1 and len(held) == most:
                self.count("all permits held")
            if len(held) > most:
                text = f"{key}: {len(held)} of {most}: {', '.join(map(str, held))}"
                self.find("more holders than permits", text)
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
            self.find(kind, f"{shown(grant.lease.key)}: {other}, then {grant}")
            return

    def _check_reported(self, grant: Grant, now: float) -> None:
        watched_at, resumed_at = grant.watched_at or 0.0, grant.process.last_resumed_at
        due = max(grant.valid_until, watched_at)
        if resumed_at >= watched_at:
            # A sleep that was about to begin at the pause begins after the pause.
            due = max(due, resumed_at + grant.lease.ttl * 1.01)
        if grant.valid_until < watched_at + self.node_timeout:
            # The watchdog may wait for the replies to a renewal.
            due = max(due, watched_at + self.node_timeout)
        if now > due + _TOLERANCE:
            self.find("loss reported late", f"{grant} was notified at {now:.4f}")

    # -- at the end --------------------------------------------------------------

    def check_all_reported(self) -> None:
        """Find holders that were never notified that their lease has ended."""
        for grant in (grant for grants in self.grants.values() for grant in grants):
            waits = grant.watched_at is not None and not grant.over
            if waits and not grant.process.dead:
                self._check_reported(grant, self.world.now)

    def check_nothing_left(
        self, servers: list[Server], when: str, *, with_starts: bool = False
    ) -> None:
        """Find locks that should be gone, and perhaps permits for a start."""
        for server in servers:
            left = [key.decode() for key in server.locks()]
            names = ", ".join(name for name in left if with_starts or START not in name)
            if names:
                self.find("lock left behind", f"{server.name} has {names} {when}")


# -- Waiters ---------------------------------------------------------------------

# Seconds. A wake-up takes a few messages, and the longest pause between two tries if
# another client tries at the same moment. A waiter polls after 0.75 s at the earliest.
_WAKEUP_TAKES = 0.5
_POLLS_EVERY = 1.25 / 2  # at most, times the number of nodes; of one node as of two
_RATE = 1.005  # true seconds per second of a node's clock, at most

# The index in ARGV of the milliseconds for which a script keeps the lock.
_TTL_AT = {"acquire": 2, "acquire_permits": 2, "extend": 2, "restore": 3, "release": 1}


class WakeupOracle:
    """The rule for waiters: a released lock wakes the first waiter in time.

    It is checked in histories without faults: there no wake-up may get lost, so the
    first waiter learns of a release at once, and not only when it polls again.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._waiting: dict[Thread, tuple[Operation, float]] = {}
        self._waited: list[tuple[Operation, float]] = []  # and until when
        self._ends: dict[tuple[str, str], float] = {}
        # Locks whose end no node announces, each on the nodes that have it.
        self._may_expire: set[tuple[str, str]] = set()

    def wait_begun(self, thread: Thread, operation: Operation) -> None:
        """Observe a thread that begins to wait for a lock."""
        self._waiting[thread] = operation, thread.world.now

    def wait_ended(self, thread: Thread) -> None:
        """Observe a thread that has got the lock."""
        if waited := self._waiting.pop(thread, None):
            self._waited.append((waited[0], thread.world.now))

    def wait_timed_out(self, thread: Thread) -> None:
        """Observe a thread whose wait has timed out."""
        if thread in self._waiting:
            self._check(self._waiting[thread][0], thread.world.now)
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
        names, now = _keys_in(keys), server.world.now
        if name == "join_wait_queue" and status == scripts.FREE:
            self._check_all(names, now)
        if name == "join_permit_queue":
            self._check_all([of for of, _ in self._ends], now)
        if name not in _TTL_AT or status != scripts.GRANTED:  # RELEASE returns 1 too
            return
        if name.startswith("acquire"):
            self._check_all(names, now)
        there = {(key, server.name) for key in names}
        if name == "release":
            self._may_expire -= there
        else:
            self._may_expire |= there
        ttls = [int(args[_TTL_AT[name]])] * len(names)
        if name == "acquire_permits":
            ttls = [int(word) for word in args[8 + len(names) :: 3]]
        for key, ttl_ms in zip(names, ttls, strict=True):
            self._ends[key, server.name] = now + ttl_ms / 1000 * _RATE

    def _check_all(self, names: list[str], now: float) -> None:
        """Check all waits for one of these locks, or for several with one of them."""
        for wanted in {operation for operation, _ in self._waiting.values()}:
            if any(not set(each).isdisjoint(names) for each in _choices(wanted)):
                self._check(wanted, now)

    def _check(self, wanted: Operation, now: float) -> None:
        choices = _choices(wanted)
        begun = [
            begun_at
            for thread, (operation, begun_at) in self._waiting.items()
            if _choices(operation) == choices and not thread.process.dead
        ]
        if not begun:
            return
        free_since = max(min(map(self._free_since, each)) for each in choices)
        if not free_since:
            return
        free_for = now - max(min(begun), free_since)
        bound = _WAKEUP_TAKES
        others = [operation for operation, _ in self._waiting.values()]
        others += [operation for operation, until in self._waited if until > free_since]
        are_alike = all(_choices(other) == choices for other in others)
        names = {name for each in choices for name in each}
        may_expire = any(name in names for name, _ in self._may_expire)
        # Who waits for one permit of several may be woken for another one.
        if may_expire or (wanted.limits and not are_alike):
            bound += _POLLS_EVERY * max(2, self._oracle.nodes)
        if free_for > bound:
            self._oracle.find(
                "waiter not woken",
                f"{shown(wanted.key)} was free for {free_for:.3f} s while a client "
                "waited",
            )

    def _free_since(self, name: str) -> float:
        """Return since when a lock is free on all nodes; 0 if no client had it."""
        return max((at for (of, _), at in self._ends.items() if of == name), default=0)


def _choices(wanted: Operation) -> list[list[str]]:
    """Return the names of the locks of which it needs one each."""
    if not wanted.limits:
        return [[key] for key in keys_of(wanted.key)]
    return [[*limit.names()] for limit in wanted.limits]


# -- Texts -----------------------------------------------------------------------

_STATUS = {
    scripts.GRANTED: "granted",
    scripts.TAKEN: "taken",
    scripts.FREE: "free",
    scripts.QUARANTINED: "quarantined",
    scripts.UNSYNCED: "unsynced",
    scripts.MISCONFIGURED: "misconfigured",
    scripts.EVICTS: "evicts",
}
_TOKEN_AT = {
    **dict.fromkeys(("acquire", "acquire_permits", "raise_fence", "release"), 0),
    **dict.fromkeys(("extend", "restore"), 1),
}
_GRANTING = ("acquire", "acquire_permits", "restore")


def _keys_in(names: list[bytes]) -> list[str]:
    """Return the keys whose locks are among the KEYS of a script."""
    return [n.decode().rpartition(":")[2] for n in names if b":lock:" in n]


def _permits_in(keys: list[bytes], args: list[bytes]) -> list[tuple[Limit, str]]:
    """Return the permits that ACQUIRE_PERMITS asks for: the limit and the name.

    The nodes do not know the period of a limit of starts.
    """
    names = _keys_in(keys)
    words = [word.decode() for word in args[6 + len(names) :]]
    return [
        (Limit(head.rpartition(":")[2][:-2], int(most), head.endswith(START)), name)
        for name, head, most in zip(names, words[::3], words[1::3], strict=True)
    ]


def _status_word(reply: Any) -> str:
    """Return the status in a reply as a word, or the number that is the reply."""
    return _STATUS[reply[0]] if isinstance(reply, list) else str(reply)


def _call_text(name: str, keys: list[bytes], args: list[bytes], reply: Any) -> str:
    """Return a script call and its reply as a line for readers."""
    status = _status_word(reply)
    key = " and ".join(_keys_in(keys)) or keys[0].decode().rpartition(":")[2]
    token = _TOKEN_AT.get(name)
    by = "" if token is None else f" as {_short(args[token].decode())}"
    detail = ""
    if name.startswith("acquire") and status == "granted":
        detail = f" {reply[1]}"
    elif name == "raise_fence":
        detail = f" to {args[2].decode()}"
    elif status == "taken":
        values = reply[1:-1:2] if name == "acquire_permits" else reply[1::2]
        named = [value.decode().partition(chr(10))[0] for value in values if value]
        detail = f" by {', '.join(map(_short, named))}"
    elif status == "quarantined":
        detail = f" for {reply[1]} ms"
    elif name == "sync" and args[2] == b"1":
        detail = " with a floor"
    return f"{name} {key}{by}: {status}{detail}"


def _short(token: str) -> str:
    """Return a token without its leading zeros: the execution and the attempt."""
    base, dot, attempt = token.partition(".")
    return f"{base.lstrip('0')}{dot}{attempt.lstrip('0')}"
