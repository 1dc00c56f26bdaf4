"""The assumptions of a connection to PostgreSQL, which save the read before a write.

::

    memory ──► a statement for each command ──► lock; compare what is assumed, and write
                                                  │ else: write nothing

A command that takes or releases one lock is one statement, without its script, and so
are all that renew locks: replies and changes are those that the script has for what is
assumed. If this is not so, the statement changes nothing, and the command runs in the
general way.

An assumption is checked by what the rows *say*, and not by a version of them. What a
script replies and changes follows from what it reads. So it does not matter whether a
row was another one meanwhile, or came back from a backup. The comparison and the
changes are one statement, under the locks that the general way takes. Where a lock
would be granted, the next statement reads its holder instead: enough for a refusal.

==============  ======================================================================
Assumed         Compared
==============  ======================================================================
the server      its timeline, the oid of the table, and the process of the session
a lock to take  that there is none. An ended one is no match: its row must be deleted
another lock    as this connection left it, and not ended by the server's clock
its wait queue  that there is none. Only for a release
the node's      each field that decides whether the node votes: a script of this
state           connection was granted its request by them, for the same view
a fence         that it is absent, or lower than the number that is written. The script
counter         does the same for all of these: see "stripes" in ``needs``
the time        that it is past for the server, by 1 s at most. Only for a grant, whose
                fence is at least this time
==============  ======================================================================

The time is the earliest that the server's clock can show: it is not before the last
reply that told its time. So a fence is above all that were granted before that reply,
as on the general way. The ends of locks are counted by the server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.scripts import ACQUIRE, ACQUIRE_PERMITS, EXTEND, GRANTED, RELEASE
from celery_redlock.stores.keyspace import HEAD, Cell
from celery_redlock.stores.needs import STATE
from celery_redlock.stores.postgresql_statements import (
    Assumed,
    Held,
    Statement,
    free,
    grant,
    lock,
    now_us_of,
    read_holder,
    renew,
    state_of,
)
from celery_redlock.stores.server_clock import ServerClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg.pq.abc import PGresult

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Changes
    from celery_redlock.stores.needs import Needs

_MOST_LOCKS = 10_000
_MOST_LATE_US = 1_000_000
_STATE = HEAD, *(b"." + field for field in STATE)
_OWN_TIME = -1  # in place of a hint: see shared/grant.lua
_GRANTS = _ACQUIRE, _PERMIT = ACQUIRE.sha.encode(), ACQUIRE_PERMITS.sha.encode()
_EXTEND, _RELEASE = EXTEND.sha.encode(), RELEASE.sha.encode()
# Scripts that are granted their request only if the node votes -> where ARGV has the
# client's view, from 0.
_VIEWS = {_ACQUIRE: 5, _PERMIT: 5, _EXTEND: 0}
_VOTES = b".votes"  # the field of a node that votes
_CANCELLED = b"\ncancelled "  # a renewal tells the holder who has asked it to end


_Here: TypeAlias = tuple[bytes, bytes]
"""Timeline and table, and the process of the server, in binary form."""


@dataclass(slots=True)
class _State:
    """The state of a node.

    Attributes:
        cells: Its cells as last read.
        compared: The same, as it is compared.
        floor: What all fences must be above.
        views: The clients' views with which a request was granted in this state.
    """

    cells: list[Cell]
    compared: bytes = field(init=False)
    floor: int = field(init=False)
    views: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        members = {cell.field: cell for cell in self.cells if cell.field != HEAD}
        self.compared = state_of(members.values())
        floor = members.get(b".floor")
        digits = floor.value if floor else None
        self.floor = int(digits) if digits and digits.isdigit() else 0


class _Step(NamedTuple):
    """The part of a plan for one command.

    Attributes:
        locks: What is left of the locks; a `value` is None if there is none then.
        reply: To the command.
        so: The assumptions about the node.
        others: More names to lock.
        statement: What does it. None: the locks are renewed, together with others.
    """

    locks: list[Held]
    reply: Any
    so: Assumed | None = None
    others: tuple[bytes, ...] = ()
    statement: Statement | None = None


class Plan(NamedTuple):
    """The statements for some commands, in one round trip.

    Attributes:
        statements: The first takes the locks, and the second renews, if one is renewed.
        steps: One for each command.
    """

    statements: list[Statement]
    steps: list[_Step]


class Memory:
    """The rows that one connection has last read or written.

    Attributes:
        place: Timeline and table, as last read.
        locks: The values of locks, as this connection has left them.
    """

    def __init__(self) -> None:
        self.place = b""
        self.locks: dict[bytes, bytes] = {}
        self._seen: set[bytes] = set()  # rare keys that were there when last read
        self._states: dict[bytes, _State] = {}
        self._clock = ServerClock()

    # -- one statement for each command ------------------------------------------------

    def plan(self, commands: Sequence[Command], process: int) -> Plan | None:
        """Return what carries commands out by what is assumed; None if unknown.

        Args:
            commands: Each acts on other locks.
            process: Of the server.
        """
        here, steps = (self.place, process.to_bytes(4, "big")), []
        for command in commands:
            make = _STEPS.get(_script_in(command))
            step = make(self, here, *command[2:]) if make and self.place else None
            if step is None:
                return None
            steps.append(step)
        held = [one for step in steps for one in step.locks]
        renewed = [one for step in steps if not step.statement for one in step.locks]
        names = {one.name for one in held}
        nodes = {step.so for step in steps if step.so}
        if len(names) < len(held) or len(nodes) > 1:
            return None
        names.update(*[step.others for step in steps])
        # The commit of a release may be lost in a crash, and no other one.
        statements = [lock(names, [so.meta for so in nodes], is_late=not nodes)]
        if renewed:
            (so,) = nodes
            statements.append(renew(so, renewed))
        statements += [step.statement for step in steps if step.statement]
        if len(steps) == 1 and nodes and not renewed:
            (so,) = nodes
            statements.append(read_holder(so, steps[0].locks[0].name))
        return Plan(statements, steps)

    def _acquire(self, here: _Here, count: bytes, *words: bytes) -> _Step | None:
        if count != b"2":  # a lock, and the node
            return None
        name, meta, token, info, ttl_ms, hint, tolerance, view, stripe, *limit = words
        state = self._states.get(meta)
        earliest, latest = self._clock.read(SYSTEM_CLOCK.monotonic())
        if (
            state is None
            or view not in state.views
            or latest - earliest >= _MOST_LATE_US
            or (limit and limit[2:] != [ttl_ms])  # a permit for a start, or of two
        ):
            return None
        number = state.floor + 1
        if (hint_us := int(hint)) == _OWN_TIME:
            number = max(number, earliest)
        elif abs(hint_us - earliest) <= int(tolerance):
            number = max(number, hint_us)
        value = b"%b\n%d\n%b" % (token, number, info)
        so, held = Assumed(*here, meta, state.compared), Held(name, value, int(ttl_ms))
        times = earliest, earliest + _MOST_LATE_US
        return _Step(
            *([held], [GRANTED, number], so, (b"%b\n%b" % (meta, stripe),)),
            grant(so, held, b"." + stripe, number, times),
        )

    def _extend(self, here: _Here, count: bytes, *words: bytes) -> _Step | None:
        last = int(count) - 2  # of the locks; then come the node, and releases
        names, (meta, _, view, *owners) = words[:last], words[last:]
        state, held = self._states.get(meta), []
        if state is None or view not in state.views:
            return None
        for name, token, ttl_ms in zip(names, owners[::2], owners[1::2], strict=True):
            value = self.locks.get(name, b"")
            if not value.startswith(token) or _CANCELLED in value:
                return None
            held.append(Held(name, value, int(ttl_ms)))
        so = Assumed(*here, meta, state.compared)
        return _Step(held, [GRANTED, 0], so)

    def _release(self, here: _Here, count: bytes, *words: bytes) -> _Step | None:
        if count != b"2":  # a lock, and its wait queue
            return None
        name, queue, token, keep_ms = words
        value = self.locks.get(name, b"")
        if keep_ms != b"0" or queue in self._seen or not value.startswith(token):
            return None
        statement = free(*here, name, value, queue)
        return _Step([Held(name, None, 0)], 1, None, (queue,), statement)

    def done(
        self, plan: Plan, results: Sequence[PGresult], sent_at: float
    ) -> list[Any]:
        """Return the replies to the commands; None for each that must run otherwise.

        Args:
            plan: What was sent.
            results: Of its statements.
            sent_at: When it was sent, by our monotonic clock.
        """
        told = [result for result in results[1:] if result.ntuples]
        if told:
            self.told(now_us_of(told[0]), self.place, sent_at)
        steps, left = plan.steps, iter(results[1:])
        renewals = sum(len(step.locks) for step in steps if step.statement is None)
        is_renewed = bool(renewals) and next(left).ntuples == renewals
        replies = []
        for step in steps:
            is_done = next(left).ntuples if step.statement else is_renewed
            replies.append(step.reply if is_done else None)
            for name, value, _ in step.locks if is_done else ():
                if value is None:
                    self.locks.pop(name, None)
                else:
                    self._remember(name, value)
        return replies

    # -- the general way ---------------------------------------------------------------

    def read(self, needs: Needs, cells: Iterable[Cell]) -> None:
        """Remember the cells that were read, all that are needed."""
        found = {(cell.name, cell.field): cell for cell in cells}
        if len(self._seen) > _MOST_LOCKS:
            self._seen.clear()
        self._seen -= needs.rare
        self._seen |= needs.rare.intersection(name for name, _ in found)
        for name in needs.own & self.locks.keys():
            cell = found.get((name, HEAD))
            if cell is None or cell.value != self.locks[name]:
                del self.locks[name]
        for name in needs.states:
            read = [cell for one in _STATE if (cell := found.get((name, one)))]
            known = self._states.get(name)
            if known is None or known.cells != read:
                self._states[name] = _State(read)

    def told(self, now_us: int, place: bytes, sent_at: float) -> None:
        """Remember what the server has told in reply to what was sent then."""
        if place != self.place:
            self._states.clear()
        self.place = place
        now = now_us / 1_000_000
        self._clock.observe(sent_at, SYSTEM_CLOCK.monotonic(), now, now)

    def ran(
        self, commands: Sequence[Command], replies: Sequence[Any], needs: Needs
    ) -> None:
        """Remember what scripts have said of the state of the node that was read."""
        if len(needs.states) != 1 or needs.states & needs.names:  # it may have changed
            return
        state = self._states[next(iter(needs.states))]
        if not any(cell.field == _VOTES for cell in state.cells):
            return
        for command, reply in zip(commands, replies, strict=True):
            at = _VIEWS.get(_script_in(command))
            if at is not None and isinstance(reply, list) and reply[0] == GRANTED:
                state.views.add(command[3 + int(command[2]) + at])

    def state(self, name: bytes) -> list[Cell]:
        """Return the cells of the state of a node, as last read."""
        return self._states[name].cells

    def wrote(self, changes: Changes, needs: Needs) -> None:
        """Remember the locks that were written, and forget those that are gone."""
        for name in changes.wiped:
            self.locks.pop(name, None)
        for (name, field_), cell in changes.written.items():
            if field_ == HEAD and name in needs.own and cell.value is not None:
                self._remember(name, cell.value)

    def _remember(self, name: bytes, value: bytes) -> None:
        self.locks[name] = value
        while len(self.locks) > _MOST_LOCKS:
            del self.locks[next(iter(self.locks))]


def _script_in(command: Command) -> bytes:
    return command[1] if len(command) > 1 else b""


_STEPS = {
    **dict.fromkeys(_GRANTS, Memory._acquire),  # noqa: SLF001  (of this module)
    _EXTEND: Memory._extend,  # noqa: SLF001
    _RELEASE: Memory._release,  # noqa: SLF001
}
