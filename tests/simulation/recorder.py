"""Write a history down as steps of the specification: see ``spec.trace``.

The recorder sees what the oracle sees: each script that a node executes, and each
change of a lease. One `Trace` is the history of one lock. A history is left out where
the specification has no word for it: permits, several configurations, names that lead
to other servers, and `init` beside locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock import scripts
from celery_redlock.locks.lease import drift_of
from celery_redlock.scripts.keys import keys_of
from spec.trace import MOST_CLIENTS, MOST_NODES, Kind, Step, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.observed_lease import Grant
    from tests.simulation.plan import Plan
    from tests.simulation.server import Server
    from tests.simulation.world import Process

_US = 1_000_000
_LONGEST = (
    1_000_000_000  # µs, after which everything has ended; an int of Spin has 31 bits
)
_TOKEN_AT = {"acquire": 0, "extend": 1, "restore": 1, "release": 0}


@dataclass(slots=True)
class _Attempt:
    """An attempt to get the lock, and the lease that it led to."""

    client: int
    process: Process
    grant: Grant | None = None


@dataclass(slots=True)
class _Event:
    """A step at an instant (µs), and since when its renewal has been under way."""

    at: int
    step: Step
    token: str = ""
    since: int = 0


@dataclass(slots=True)
class _Lock:
    """The record of one lock."""

    events: list[_Event] = field(default_factory=list)
    attempts: dict[str, _Attempt] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)  # tokens
    on_nodes: dict[int, str] = field(default_factory=dict)  # node -> token


class Recorder:
    """Records the history of each key of a plan.

    Attributes:
        left_out: Why the specification has no word for the history; "" if it has.
    """

    def __init__(self, plan: Plan) -> None:
        self.left_out = ""
        self._plan = plan
        self._keys = {one for key, _ in plan.wants for one in keys_of(key)}
        self._nodes = {node.name: number for number, node in enumerate(plan.nodes)}
        self._locks: dict[str, _Lock] = {}
        self._before: list[_Event] = []  # what is true of all locks
        if len(self._nodes) > MOST_NODES:
            self.left_out = f"more than {MOST_NODES} nodes"
        elif plan.later_settings or plan.members:
            self.left_out = "several configurations"

    # -- what happens ----------------------------------------------------------------

    def executed(  # noqa: PLR0913, PLR0917  (as of the oracle)
        self,
        server: Server,
        process: Process,
        name: str,
        locks: list[str],
        args: list[bytes],
        status: Any,
    ) -> None:
        """Record a script that a node executed."""
        if name == "acquire_permits":
            self.left_out = "permits"
        if name == "initialize":
            self.left_out = "init beside locks"
        if name not in _TOKEN_AT or self.left_out:
            return
        token = args[_TOKEN_AT[name]].decode()
        node = self._nodes[server.name]
        for key in self._keys.intersection(locks):
            lock = self._lock(key)
            self._end_dead(lock, server)
            if name == "release":
                self._released(lock, server, token, node, kept=args[1] != b"0")
            elif status == scripts.GRANTED:
                is_there = lock.on_nodes.get(node) == token
                if name == "extend" and is_there and not server.votes:
                    self.left_out = "renewals on nodes that do not vote"
                ttl = int(args[2 if name != "restore" else 3]) * 1000
                self._granted_on(lock, server, process, token, node, name, ttl)

    def _granted_on(  # noqa: PLR0913, PLR0917
        self,
        lock: _Lock,
        server: Server,
        process: Process,
        token: str,
        node: int,
        name: str,
        ttl: int,
    ) -> None:
        attempt = lock.attempts.get(token)
        if attempt is None and token not in lock.over:
            attempt = self._start(lock, server, process, token, ttl)
        if lock.on_nodes.get(node, token) != token:
            self._note(lock, server, Step(Kind.GONE, node=node))
        if attempt is not None:
            kind = Kind.ACQUIRE if name == "acquire" else Kind.EXTEND
            self._note(lock, server, Step(kind, attempt.client, node), token)
        elif lock.on_nodes.get(node) != token or not server.has(token):
            self._note(lock, server, Step(Kind.TAKE_LATE, node=node))
        lock.on_nodes[node] = token

    def _released(
        self, lock: _Lock, server: Server, token: str, node: int, *, kept: bool
    ) -> None:
        for one in [one for one in lock.attempts if one.startswith(token)]:
            grant = lock.attempts[one].grant
            if grant is None or grant.watched_at is None:
                self._finish(lock, server, one)
        there = lock.on_nodes.get(node, "")
        if there and there.startswith(token) and not kept:
            self._note(lock, server, Step(Kind.RELEASE, node=node))
            del lock.on_nodes[node]

    def memory_lost(self, server: Server) -> None:
        """Record a node that starts again, is flushed, or forgets its membership."""
        node = self._nodes.get(server.name)
        if node is None:
            return
        for lock in self._locks.values():
            self._end_dead(lock, server)
            if server.has(lock.on_nodes.get(node, "")):
                self._note(lock, server, Step(Kind.RESTART, node=node))
            else:
                self._note(lock, server, Step(Kind.FORGET, node=node))
                lock.on_nodes.pop(node, None)
        self._before.append(_Event(_now(server), Step(Kind.RESTART, node=node)))

    def synced(self, server: Server) -> None:
        """Record a node that votes again."""
        if server.name not in self._nodes:
            return
        step = Step(Kind.VOTE, node=self._nodes[server.name])
        for lock in self._locks.values():
            self._note(lock, server, step)
        self._before.append(_Event(_now(server), step))

    def clock_stepped(self, server: Server, seconds: float) -> None:
        """Record a node whose clock is set."""
        if seconds <= 0 or server.name not in self._nodes:
            return
        step = Step(Kind.JUMP, node=self._nodes[server.name])
        for lock in self._locks.values():
            self._note(lock, server, step)
        self._before.append(_Event(_now(server), step))

    def granted(self, grant: Grant) -> None:
        """Record a client that counts on a new lease."""
        for lock, attempt in self._of(grant):
            attempt.grant = grant
            step = Step(Kind.GRANT, attempt.client, much=_left(grant))
            self._note(lock, grant.process, step, grant.lease.token)

    def extended(self, grant: Grant, until: float) -> None:
        """Record a client that counts on its lease for longer."""
        ttl = grant.lease.ttl
        since = grant.process.instant_of(until - (ttl - drift_of(ttl)))
        for lock, attempt in self._of(grant):
            step = Step(Kind.RENEW, attempt.client, much=_left(grant))
            self._note(lock, grant.process, step, grant.lease.token, round(since * _US))

    def ended(self, grant: Grant) -> None:
        """Record a client that no longer counts on its lease."""
        for lock, _ in self._of(grant):
            self._finish(lock, grant.process, grant.lease.token)

    # -- one lock --------------------------------------------------------------------

    def _lock(self, key: str) -> _Lock:
        if key not in self._locks:
            lock = self._locks[key] = _Lock(list(self._before))
            silent = [Step(Kind.NO_VOTE, node=node) for node in self._nodes.values()]
            lock.events[:0] = [_Event(0, step) for step in silent]
        return self._locks[key]

    def _of(self, grant: Grant) -> Iterator[tuple[_Lock, _Attempt]]:
        token = grant.lease.token
        keys = () if self.left_out else self._keys.intersection(grant.lease.keys)
        for key in keys:
            lock = self._lock(key)
            if token in lock.attempts:
                yield lock, lock.attempts[token]
            elif token not in lock.over:
                self.left_out = "a lease without votes"

    def _start(
        self, lock: _Lock, server: Server, process: Process, token: str, ttl: int
    ) -> _Attempt | None:
        taken = {attempt.client for attempt in lock.attempts.values()}
        free = [client for client in range(MOST_CLIENTS) if client not in taken]
        if not free:
            self.left_out = f"more than {MOST_CLIENTS} attempts at once"
            return None
        lock.attempts[token] = attempt = _Attempt(free[0], process)
        self._note(lock, server, Step(Kind.START, free[0], much=ttl), token)
        return attempt

    def _finish(self, lock: _Lock, place: Server | Process, token: str) -> None:
        attempt = lock.attempts.pop(token)
        lock.over.add(token)
        self._note(lock, place, Step(Kind.FINISH, attempt.client), token)

    def _end_dead(self, lock: _Lock, server: Server) -> None:
        dead = [one for one, attempt in lock.attempts.items() if attempt.process.dead]
        for token in dead:
            self._finish(lock, server, token)

    def _note(
        self,
        lock: _Lock,
        place: Server | Process,
        step: Step,
        token: str = "",
        since: int = 0,
    ) -> None:
        lock.events.append(_Event(_now(place), step, token, since))

    # -- the end ---------------------------------------------------------------------

    def traces(self) -> dict[str, Trace]:
        """Return the history of each lock; none if it was left out."""
        if self.left_out:
            return {}
        max_ttl = round(self._plan.max_ttl * _US)
        return {
            key: Trace(len(self._nodes), max_ttl, list(_timed(_with_renewals(lock))))
            for key, lock in self._locks.items()
        }


def _now(place: Server | Process) -> int:
    return round(place.world.now * _US)


def _left(grant: Grant) -> int:
    return int((grant.valid_until - grant.process.world.now) * _US)


def _with_renewals(lock: _Lock) -> list[_Event]:
    """Add when each renewal begins, and that it is given up.

    The messages do not say to which renewal they belong. A renewal that succeeds says
    by its validity when it began. All others are told as one: it began at once, was
    given up, and its messages come late.
    """
    first: dict[int, None] = {}  # events before which a renewal begins
    late: set[str] = set()  # tokens with messages of renewals that were given up
    open_: dict[str, list[int]] = {}
    for index, event in enumerate(lock.events):
        if event.step.kind is Kind.EXTEND:
            open_.setdefault(event.token, []).append(index)
        elif event.step.kind is Kind.RENEW:
            own = [
                one
                for one in open_.pop(event.token, [])
                if lock.events[one].at >= event.since - 1 or late.add(event.token)  # type: ignore[func-returns-value]
            ]
            first[own[0] if own else index] = None
    late.update(open_)
    found: list[_Event] = []
    for index, event in enumerate(lock.events):
        begin = Step(Kind.BEGIN_RENEWAL, event.step.client)
        if index in first:
            found.append(_Event(event.at, begin))
        found.append(event)
        if event.step.kind is Kind.GRANT and event.token in late:
            give_up = Step(Kind.GIVE_UP, event.step.client)
            found += [_Event(event.at, begin), _Event(event.at, give_up)]
    return found


def _timed(events: list[_Event]) -> Iterator[Step]:
    """Yield the steps, and between them the time that passes."""
    now = events[0].at if events else 0
    for event in events:
        if event.at > now:
            yield Step(Kind.PASS, much=min(event.at - now, _LONGEST))
            now = event.at
        yield event.step
