"""The assumptions of a connection to PostgreSQL, which save the read before a write.

::

    memory ──► the scripts run here ──► lock; compare what is assumed, and write
                                               │ else: write nothing

An assumption is checked by what the rows *say*, and not by a version of them. What a
script replies and changes follows from what it reads. So it does not matter whether a
row was another one meanwhile, or came back from a backup. The comparison and the
changes are one statement, under the locks that the general way takes. Where a new value
would be written, as by a grant, it returns the rows that are there instead: they are
enough for a refusal.

==============  ======================================================================
Assumed         Compared
==============  ======================================================================
the server      its timeline, the oid of the table, and the process of the session
a key           as this connection left it, and not ended by the server's clock; else
                that there is none. An ended one is no match: its row must be deleted
the node's      each field that decides whether the node votes
state
a fence         that it is lower than the number that the script has written there.
counter         The script does the same for all of these: see "stripes" in ``needs``
the time        that it is past for the server, by 1 s at most. Only for scripts that
                ask for it: a grant, whose fence is at least this time
==============  ======================================================================

A renewal that is asked again, word by word, gives the same reply and changes: it has
asked for no time, and read nothing but its lock and the node's state, which are as they
were. So its script is not run again.

The time is the earliest that the server's clock can show: it is not before the last
reply that told its time. So a fence is above all that were granted before that reply,
as on the general way. The ends of locks are counted by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.scripts.keyspace import HASH, STRING, Entry
from celery_redlock.stores.commands import add_needs
from celery_redlock.stores.keyspace import HEAD, NotRemembered, StoreKeyspace
from celery_redlock.stores.needs import STATE, Needs
from celery_redlock.stores.postgresql_statements import NULL, Assumed, element, elements
from celery_redlock.stores.server_clock import ServerClock, ServerTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Cell, Changes
    from celery_redlock.stores.postgresql_statements import Said

_MOST_LOCKS = 10_000
_MOST_LATE_US = 1_000_000
_HEAD, _STRING = element(HEAD), element(STRING.encode())
_STATE = HEAD, *(b"." + field for field in STATE)
_ALWAYS = 0, 2**63 - 1


class AssumedKeyspace(StoreKeyspace):
    """Keys that were not read. None has an end, and all are known.

    The ends that scripts write are in milliseconds from the moment of the comparison.

    Args:
        replid: Of the server, as it was last.
        time: The time that scripts see. They may not ask for it if it is inexact.

    Attributes:
        is_timed: Whether a script has asked for the time.
        said: What is assumed of locks, and of cells that decide about a vote.
        cells: The number of the cells in `said`.
        below: Cells that are absent, or a number that is lower than this.
    """

    def __init__(self, *, replid: bytes, time: ServerTime) -> None:
        super().__init__(None, replid=replid, time=time)
        self._latest_ms = 0
        self.is_timed = False
        self.said: list[Said] = []
        self.cells = 0
        self.below: dict[tuple[bytes, bytes], bytes] = {}
        self._has_time = time.latest_us - time.earliest_us < _MOST_LATE_US

    def now_us(self) -> int:
        """Return the assumed time."""
        if not self._has_time:
            raise NotRemembered
        self.is_timed = True
        return self.time.earliest_us

    def pttl(self, name: bytes) -> int:
        """Refuse to tell when a key ends; tell that there is none."""
        if self.get(name) is None:
            return super().pttl(name)
        raise NotRemembered

    def replace(self, _name: bytes, _value: bytes) -> None:
        """Refuse to keep an end that is not known."""
        raise NotRemembered

    def assume(self, name: bytes, entry: Entry | None, said: Said, cells: int) -> None:
        """Enter a key that is assumed, or its state; None: that it does not exist."""
        self._entries[name] = entry
        if cells > 1:  # of a hash, which has more
            self._parts.add(name)
        self.said.append(said)
        self.cells += cells

    def note_counters(self, stripes: Mapping[bytes, set[bytes]]) -> None:
        """Note what a script has written to counters that none has written before."""
        written = self.changes.written
        for name, fields in stripes.items():
            for field in fields:
                cell = written.get(place := (name, b"." + field))
                if cell is not None and cell.value is not None:
                    self.below.setdefault(place, cell.value)

    def is_writable(self, needs: Needs) -> bool:
        """Tell whether one statement can compare what was read, and write the changes.

        They are of one kind, and no script has left a counter as it is: that may depend
        on the counter.
        """
        changes, counters = self.changes, sum(map(len, needs.stripes.values()))
        return (
            bool(changes.wiped) != bool(changes.written)
            and not (changes.removed or changes.messages)
            and len(self.below) == counters
        )

    def as_sent(self, place: bytes, process: int) -> Assumed:
        """Return what the server compares."""
        times = _ALWAYS
        if self.is_timed:
            now_us = self.now_us()
            times = now_us, now_us + _MOST_LATE_US
        below = [
            (element(name), element(field), NULL, NULL, element(number))
            for (name, field), number in self.below.items()
        ]
        said = [*self.said, *below]
        return Assumed(place, process, *times, self.cells + len(below), said)


class _State(NamedTuple):
    """The state of a node: its cells as last read, and what is assumed of them."""

    cells: list[Cell | None]
    members: dict[bytes, bytes | None]
    said: Said

    @classmethod
    def of(cls, name: bytes, cells: list[Cell | None]) -> _State | None:
        """Return the state that these cells say, of `_STATE`; None if there is none."""
        if cells[0] is None or any(cell and cell.kind != HASH for cell in cells):
            return None
        said = (
            element(name) * len(_STATE),
            elements(_STATE),
            elements([cell and cell.kind.encode() for cell in cells]),
            elements([cell and cell.value for cell in cells]),
            NULL * len(_STATE),
        )
        members = {cell.field[1:]: cell.value for cell in cells[1:] if cell}
        return cls(cells, members, said)


class _Renewal(NamedTuple):
    """A command that renews one lock, its reply, and the head of the lock after it."""

    command: Command
    reply: Any
    head: Cell


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
        self._states: dict[bytes, _State | None] = {}
        self._renewals: dict[bytes, _Renewal] = {}  # by lock, as of these states
        self._clock = ServerClock()

    def assume(self, needs: Needs, replid: bytes) -> AssumedKeyspace | None:
        """Return what to assume of the keys that are needed; None if that is unknown.

        Args:
            needs: Of some scripts.
            replid: Of the server, without the place.
        """
        if not self.place or needs.is_read or needs.large or needs.rare & self._seen:
            return None
        if needs.names - needs.own - needs.rare:
            return None
        time = self._clock.read(SYSTEM_CLOCK.monotonic())
        keys = AssumedKeyspace(replid=replid + self.place, time=time)
        for name in needs.names:
            entry: Entry | None = None
            said: Said = element(name), _HEAD, NULL, NULL, NULL
            if value := self.locks.get(name):
                entry = Entry(STRING, value)
                said = element(name), _HEAD, _STRING, element(value), NULL
            keys.assume(name, entry, said, 1)
        for name in needs.states:
            state = self._states.get(name)
            if state is None:
                return None
            known = Entry(HASH, None, {**state.members})
            keys.assume(name, known, state.said, len(_STATE))
        return keys

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
            read = [found.get((name, field)) for field in _STATE]
            known = self._states.get(name)
            if known is None or known.cells != read:
                self._states[name] = _State.of(name, read)
                self._renewals.clear()

    def told(self, now_us: int, place: bytes, sent_at: float) -> None:
        """Remember what the server has told in reply to what was sent then."""
        if place != self.place:
            self._renewals.clear()
        self.place = place
        now = now_us / 1_000_000
        self._clock.observe(sent_at, SYSTEM_CLOCK.monotonic(), now, now)

    def wrote(self, changes: Changes, needs: Needs) -> None:
        """Remember the locks that were written, and forget those that are gone."""
        for name in changes.wiped:
            self.locks.pop(name, None)
            self._renewals.pop(name, None)
        for (name, field), cell in changes.written.items():
            if field == HEAD and name in needs.own and cell.value is not None:
                self.locks[name] = cell.value
        while len(self.locks) > _MOST_LOCKS:
            del self.locks[next(iter(self.locks))]

    def extends(self, changes: Changes) -> bool:
        """Tell whether nothing but the ends of remembered locks is written."""
        return bool(changes.written) and all(
            field == HEAD and cell.value == self.locks.get(name)
            for (name, field), cell in changes.written.items()
        )

    def repeat(self, commands: Sequence[Command], changes: Changes) -> list[Any] | None:
        """Renew locks as before, and return the replies; None if one must run."""
        renewals = []
        for command in commands:
            one = self._renewals.get(_first_key(command))
            if (
                one is None
                or one.command != command
                or one.head.value != self.locks.get(one.head.name)
            ):
                return None
            renewals.append(one)
        changes.written.update({(one.head.name, HEAD): one.head for one in renewals})
        return [one.reply for one in renewals]

    def note_renewals(
        self, commands: Sequence[Command], replies: Sequence[Any], changes: Changes
    ) -> None:
        """Note commands that have changed nothing but the ends of remembered locks."""
        for command, reply in zip(commands, replies, strict=True):
            name = _first_key(command)
            known = self._renewals.get(name)
            head = changes.written.get((name, HEAD))
            if head is None or (known is not None and known.command == command):
                continue
            needs = Needs()
            add_needs(needs, command)
            if needs.names == needs.own == {name} and not needs.stripes:
                self._renewals[name] = _Renewal(command, reply, head)
        if len(self._renewals) > _MOST_LOCKS:
            self._renewals.clear()


def _first_key(command: Command) -> bytes:
    return command[3] if len(command) > 3 else b""  # noqa: PLR2004  (verb, script, count)
