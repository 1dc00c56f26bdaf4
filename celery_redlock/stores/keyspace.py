"""The keys of one transaction of a store, on which scripts run.

::

    load ──► entries ──► a script reads and changes them ──► changes ──► the store

An *entry* is one key: a string, a hash or a sorted set, and when it expires. In the
store it is several *cells*: its head (kind, string, end) and one for each member, so
that the fence counters of one hash can be changed by many transactions at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from celery_redlock.scripts.keyspace import (
    HASH,
    STRING,
    ZSET,
    Entry,
    Keyspace,
    WrongType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_redlock.stores.server_clock import ServerTime

HEAD = b""  # the field of the cell that is the head of an entry
_MEMBER = b"."  # the start of the field of every other cell


class Cell(NamedTuple):
    """A row of a store.

    Attributes:
        name: The name of the key.
        field: `HEAD`, or a member with a dot before it.
        kind: Of the key: `STRING`, `HASH` or `ZSET`.
        value: The string, or the value of a field of a hash.
        score: The score of a member of a sorted set.
        expires_at_ms: When the key ends, in ms since 1970, of a head; None: never.
    """

    name: bytes
    field: bytes
    kind: str
    value: bytes | None
    score: float | None
    expires_at_ms: int | None


@dataclass(slots=True)
class Changes:
    """The changes of a transaction.

    Attributes:
        wiped: Keys of which all cells are deleted, before anything is written.
        removed: Cells that are deleted: name and field.
        written: Cells that are written, over older ones.
        messages: Channel and message of each release that wakes a waiter.
    """

    wiped: set[bytes] = field(default_factory=set)
    removed: dict[tuple[bytes, bytes], None] = field(default_factory=dict)
    written: dict[tuple[bytes, bytes], Cell] = field(default_factory=dict)
    messages: list[tuple[bytes, bytes]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.wiped or self.removed or self.written or self.messages)


class NotRemembered(Exception):  # noqa: N818  (no error: the store is read)
    """A script asked for more than the store remembers."""


class Loader(Protocol):
    """The part of a store that a keyspace and its commands ask while they run.

    Attributes:
        info: What INFO replies.
    """

    info: dict[str, str]

    def load(self, names: Sequence[bytes]) -> Iterable[Cell]:
        """Return all cells of these keys."""

    def listens(self, channel: bytes) -> bool:
        """Tell whether a process listens on this channel."""

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""


class Counter(Loader, Protocol):
    """A store that counts sorted sets itself: see ``Needs.large``."""

    def flush(self, changes: Changes) -> None:
        """Write these changes, which the transaction may still take back."""

    def zcard(self, name: bytes) -> int:
        """Return how many members the cells of a sorted set say that it has."""

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many of them come before this one."""

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this."""


class StoreKeyspace(Keyspace):
    """Keys that are loaded from a store, and the changes of scripts to them.

    Args:
        loader: Loads keys that were not loaded before. None: nothing was read, and who
            asks for more raises `NotRemembered`, as its cells would be of another time.
        replid: The name of the memory of the store: another one after it may have
            lost keys.
        time: What the clock of the store says.
        sees_ended: Whether a string that has ended is still there, for a millisecond.

    Attributes:
        changes: What the scripts have changed, and the store has not written.
        is_changed: Whether the store has written other changes before.
        time: What the clock of the store says.
    """

    _least_left_ms = 1  # a key may have ended by the latest time, and is still there

    def __init__(
        self,
        loader: Loader | None,
        *,
        replid: bytes,
        time: ServerTime,
        sees_ended: bool = False,
    ) -> None:
        super().__init__()
        self.changes = Changes()
        self.is_changed = False
        self.replid = replid
        self.time = time
        self._loader = loader
        self._now_ms = time.earliest_us // 1000
        self._latest_ms = -(-time.latest_us // 1000)  # rounded up
        self._sees_ended = sees_ended
        self._stale: set[bytes] = set()  # the store has cells of a key that has ended
        self._parts: set[bytes] = set()  # the store has members that were not loaded
        self._shrunk: set[bytes] = set()

    @property
    def loader(self) -> Loader:
        """The store, to ask it for more."""
        if self._loader is None:
            raise NotRemembered
        return self._loader

    # -- loading -------------------------------------------------------------------

    def enter(
        self,
        names: Iterable[bytes],
        cells: Iterable[Cell],
        parts: Iterable[bytes] = (),
    ) -> None:
        """Enter the cells of keys; one without a cell does not exist.

        Args:
            names: The keys that were loaded.
            cells: Their cells.
            parts: More keys, of which some members were loaded.
        """
        for name in (*names, *parts):
            self._entries[name] = None
        found: dict[bytes, Entry] = {}
        for name, field_, kind, value, score, ends in cells:
            entry = found.get(name)
            if entry is None:
                entry = found[name] = Entry("")
            if field_ == HEAD:
                entry.kind, entry.value, entry.expires_at_ms = kind, value, ends
            else:
                entry.members[field_[1:]] = value if kind == HASH else score
        for name, entry in found.items():
            if self._is_there(entry):
                self._entries[name] = entry
            else:
                self._stale.add(name)
        for name in parts:
            if self._entries[name]:
                self._parts.add(name)

    def _is_there(self, entry: Entry) -> bool:
        """Tell whether the time of a key is not over."""
        ends = entry.expires_at_ms
        if not entry.kind:  # members without a head are what a crash of a sweep left
            return False
        if ends is None or self._now_ms <= ends:
            return True
        entry.expires_at_ms = self._now_ms + 1
        return self._sees_ended and entry.kind == STRING

    def _at(self, name: bytes, kind: str = "") -> Entry | None:
        try:
            entry = self._entries[name]
        except KeyError:
            self.enter([name], self.loader.load([name]))
            entry = self._entries[name]
        if entry is not None and kind and entry.kind != kind:
            raise WrongType
        return entry

    def _counter(self, name: bytes) -> Counter | None:
        """Return the store if it counts this set, when it has written the changes.

        Messages stay until the end.
        """
        self._at(name, ZSET)
        if name not in self._parts:
            return None
        taken, self.changes = self.changes, Changes(messages=self.changes.messages)
        taken.messages = []
        self.is_changed = self.is_changed or bool(taken)
        counter = cast("Counter", self.loader)  # or nothing was loaded in part
        counter.flush(taken)
        return counter

    # -- what scripts do -------------------------------------------------------------

    def now_us(self) -> int:
        """Return microseconds since 1970 by the clock of the store (TIME).

        The earliest that it may say, so that nothing ends too early.
        """
        return self.time.earliest_us

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message at the end of the transaction, if a process listens."""
        if not self.loader.listens(channel):
            return 0
        self.changes.messages.append((channel, message))
        return 1

    def mget(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return strings, loaded together."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._entries]
        if unknown:
            self.enter(unknown, self.loader.load(unknown))
        return super().mget(names)

    def delete(self, name: bytes) -> bool:
        """Delete a key of any type; tell whether it was there."""
        entry = self._at(name)
        if entry is None and name not in self._stale:
            return False
        members = entry.members if entry else ()
        for field_ in (HEAD, *[_MEMBER + member for member in members]):
            self.changes.written.pop((name, field_), None)
        self.changes.wiped.add(name)
        self._entries[name] = None
        self._stale.discard(name)
        self._parts.discard(name)
        return entry is not None

    def zcard(self, name: bytes) -> int:
        """Return how many members a sorted set has."""
        counter = self._counter(name)
        return counter.zcard(name) if counter else super().zcard(name)

    def zrank(self, name: bytes, member: bytes) -> int | None:
        """Return how many members come before this one."""
        counter = self._counter(name)
        return counter.zrank(name, member) if counter else super().zrank(name, member)

    def zrangebyscore(self, name: bytes, most: float, count: int) -> list[bytes]:
        """Return the first members whose score is at most this."""
        if counter := self._counter(name):
            return counter.zrangebyscore(name, most, count)
        return super().zrangebyscore(name, most, count)

    # -- changes ---------------------------------------------------------------------

    def _store(self, name: bytes, value: bytes, ends_ms: int | None) -> None:
        self.delete(name)
        super()._store(name, value, ends_ms)

    def _put(self, name: bytes, kind: str, members: Mapping[bytes, Any]) -> None:
        super()._put(name, kind, members)
        for member, value in members.items():
            field_ = _MEMBER + member
            self.changes.removed.pop((name, field_), None)
            value_, score = (value, None) if kind == HASH else (None, value)
            cell = Cell(name, field_, kind, value_, score, None)
            self.changes.written[name, field_] = cell

    def _remove(self, name: bytes, kind: str, member: bytes) -> None:
        entry = self._at(name, kind)
        is_part = name in self._parts
        if entry is None or (member not in entry.members and not is_part):
            return
        place = name, _MEMBER + member
        self.changes.written.pop(place, None)
        self.changes.removed[place] = None
        if is_part:
            entry.members.pop(member, None)
            self._shrunk.add(name)
        else:
            super()._remove(name, kind, member)

    def _note_head(self, name: bytes, entry: Entry) -> None:
        if name in self._stale:
            self._stale.remove(name)
            self.changes.wiped.add(name)
        cell = Cell(name, HEAD, entry.kind, entry.value, None, entry.expires_at_ms)
        self.changes.written[name, HEAD] = cell

    def finish(self) -> None:
        """Delete the sets that lost their last member, where the store counts them."""
        for name in self._shrunk & self._parts:
            if not self.zcard(name):
                self.delete(name)
        self._shrunk.clear()


def is_counter(field: bytes) -> bool:
    """Tell whether this cell of a hash is a fence counter, by its number."""
    return field[1:].isdigit()
