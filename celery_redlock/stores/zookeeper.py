"""ZooKeeper as a store: znodes that are read, and one transaction that checks versions.

::

    /redlock/id                          the run id
    /redlock/keys/<digit>/<name>         the head of a key; of a hash, with its fields
    /redlock/keys/<digit>/<name>/_<m>    a member of a sorted set, or a fence counter
    /redlock/keys/<digit>/<name>/~<b>    its birth: another random name each time
    /redlock/wake/<channel>              ephemeral: a process listens, and its messages

A transaction checks the version of each znode that decides: those of all exclusive
keys, and of the fields that were read in part, with the head of their key. The fields
of a hash are data of its head, and a change of any field changes the version of the
head. So one read and one check tell whether the node votes. A fence counter is a field
whose name is a number. It is a znode of its own, so two locks with counters in
different stripes do not conflict. The version of a head also changes when a member
comes or goes, and with each change of a sorted set. A znode that must not exist is
created and deleted again: that fails if it exists.

A znode that is deleted and made again has version 0 again. So a version alone does not
tell the lock that was read from the next one of that name. Its head holds the name of
its birth, and the transaction checks that this birth is still there. A fence counter
has no birth: it is the same znode as long as its head has the same version and birth.

A session remembers how it left the locks that it took, so to extend or release one is a
commit alone: see ``compare_and_swap``. It also remembers the heads of the hashes that
it read in part. So an acquire reads the fence counter, takes the lock for free, and
commits. It does not even read a counter that it was the last one to raise, some times
in a row. That a release finds no wait queue is an assumption as well. A check that
fails is a write that waits for the disks, so none of this is assumed of locks and
queues that were there when last read.
A session forgets everything when its connection breaks: the ensemble may be another
one, from a backup, in which the same version may belong to other data.

A znode has 1 MB at most, and so have the fields of a hash together. The largest one is
the slots of beat's schedule: some 10,000 entries.

The znodes are read one after the other, in one round trip, and not at one moment. The
checks make good for that where something is written. A command that only reads may see
a part of a transaction of another client.

The reads follow a ``sync``, for which a follower asks the leader. The leader itself
does nothing for it, and tells its followers to commit before it does: its clients may
read what was so before. So a refusal counts only if it rests on reads that follow a
write. A transaction that failed is one, too: all servers write that it did.

A key ends by the clock of the leader, which writes it into each znode that changes, in
milliseconds: see ``server_clock``. A client that has changed nothing for some seconds
writes a znode to learn it. The session of a client is no substitute: it starts anew
when another server leads.

The run id is random, and is made with the first znode. An ensemble that lost its data
has another one. A backup that is restored has the old one: run ``redlock init`` then,
when one ``redlock_max_ttl`` has passed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import secrets
import socket
import struct
from contextlib import suppress
from functools import lru_cache
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from celery_redlock.basics.backoff import jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts.keyspace import HASH, STRING
from celery_redlock.stores.compare_and_swap import (
    CompareAndSwapStore,
    alive_at,
    decoded,
    encoded,
    has_ended,
    login_in,
    servers_in,
    writes_end,
)
from celery_redlock.stores.connection import (
    DROPPED,
    GRANT,
    MAKE,
    NOT_ACCEPTED,
    REJECTED,
    SILENT,
    StoreError,
    readable,
)
from celery_redlock.stores.keyspace import HEAD, Cell, is_counter
from celery_redlock.stores.server_clock import ServerClock, ServerTime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Changes, StoreKeyspace
    from celery_redlock.stores.needs import Needs

_ROOT, _ID, _KEYS, _WAKE = (
    *("/redlock", "/redlock/id"),
    *("/redlock/keys", "/redlock/wake"),
)
_NOT_MADE = f"has no {_ROOT}; {MAKE}. {DROPPED}"
_PORT = 2181
_SHARDS = 16  # the names of 100,000 keys fit into their replies, of 1 MB at most
_SESSION = 10.0  # seconds, after which a process that died listens no more
_MOVE_PAUSE = 0.05  # seconds
_TIME_KEPT = 10.0  # seconds, until the time is asked for again
_LOOK_EVERY = 1.0  # seconds, for a listener: whether its connection lives
_SWEEP_EVERY, _SWEPT = 4.0, 200  # seconds, for one shard; and keys of it, at random
_ENDED_MS = 60_000  # since when a key has ended that is swept
_PLAIN = " :"  # besides letters and digits, in the names of znodes
_MISSING = -1  # the version of a znode that does not exist
_NO_VERSION = 2**31 - 1  # which no znode has
_REMEMBERED = 10_000  # keys
# Times in a row that a session raises a counter, after which it no longer reads it. A
# commit that fails, and the reads that follow, cost as much as four of these reads.
_STEADY = 4
# A request for a session: length, protocol, zxid, ms, session, and its password.
_HELLO = struct.pack("!iiqiqi16s", 44, 0, 0, 1000, 0, 16, b"")
_CLOSES = (
    "closes our connections; start the servers that are down, and look into its log: "
    "without a majority of them it serves no client, and it takes so many connections "
    "of one host as maxClientCnxns says (60 by default)"
)
_REFUSED = "refused the connection"
_LATE = (SILENT, NOT_ACCEPTED)
_LATE_ANSWER = "did not answer in time"
# Name -> number of the server with which the sessions of this process begin.
_FIRST: dict[str, int] = {}
_RANDOM = random.SystemRandom()  # forked children must not sweep the same keys

# What the parts of a transaction say when another client has changed something.
_CONFLICTS = (
    *(BadVersionError, NoNodeError, NodeExistsError, NotEmptyError),
    *(RolledBackError, RuntimeInconsistency),  # of the other parts
)

logging.getLogger("kazoo.client").setLevel(logging.ERROR)


class _RefusedError(StoreError):
    """ZooKeeper refuses a transaction, and not for a change of another client."""


class ZooKeeper(CompareAndSwapStore):
    """One session with a ZooKeeper ensemble: see ``stores.connection.Store``."""

    grants = "setAcl -R /redlock auth:redlock:cdrwa"

    def __init__(self, url: str, timeout: float) -> None:
        self._name, self._timeout = self.name_of(url), timeout
        self._client = _started(url, timeout)
        self._breaks = 0  # of the connection
        self._client.add_listener(self._note_state)
        self._swept_at = SYSTEM_CLOCK.monotonic()
        self._sweeps = secrets.randbelow(_SHARDS)
        self._clock = ServerClock()
        self._memory: dict[bytes, tuple[int, _Head]] = {}  # with the version
        self._known_until = 0  # in breaks
        self._counters: dict[tuple[bytes, bytes], _Counter] = {}
        # Rare keys, and locks of others, that were there when last read.
        self._seen: set[bytes] = set()
        try:
            self._replid = self._identity()
            denied = self._denied()
        except StoreError:
            self.close()
            raise
        except (KazooException, KazooTimeoutError) as error:
            self.close()
            raise StoreError(_told(error)) from None
        self.info = {
            "store": "ZooKeeper",
            "encrypted": "no",
            "denied": denied,
        }

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return ``host:port`` of all servers, with a plus between, and the chroot."""
        return super().name_of(url) + _chroot(url)

    @staticmethod
    def emptied(_prefix: str) -> str:
        """Return how to delete all keys, for operators: its shell knows no prefix."""
        return f"deleteall {_ROOT}"

    @classmethod
    def _servers(cls, url: str) -> list[tuple[str, int]]:
        if urlsplit(url).query:
            raise ValueError("there are no options, and no TLS")
        return servers_in(url, _PORT)

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """Make the znodes that the keys are below, unless they are there."""
        client = _started(url, timeout)
        try:
            for path in (_ROOT, _KEYS, _WAKE):
                client.ensure_path_async(path).get(timeout=timeout)
            made = [
                client.create_async(f"{_KEYS}/{number:x}") for number in range(_SHARDS)
            ]
            for one in made:
                with suppress(NodeExistsError):
                    one.get(timeout=timeout)
            with suppress(NodeExistsError):  # last: it says that all others are there
                identity = client.create_async(_ID, secrets.token_hex(20).encode())
                identity.get(timeout=timeout)
        except (KazooException, KazooTimeoutError) as error:
            text = f"did not let us make {_ROOT}: {_reason(error)}"
            if isinstance(error, NoAuthError):
                text = (
                    f"did not let us make {_ROOT}: our user has no permission; create "
                    f"it as a user who may, and {GRANT}"
                )
            raise StoreError(text) from None
        finally:
            _end(client)

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out, and return the replies.

        When a server has gone, its session goes on at another one, and so do the
        commands: they run again, until the timeout is over.
        """
        give_up_at = SYSTEM_CLOCK.monotonic() + self._timeout
        while True:
            self._reads_newest = False
            try:
                return super()._run(commands)
            except (NoAuthError, _RefusedError) as refusal:
                words = f"ERR it {refusal}"
                if isinstance(refusal, NoAuthError):
                    words = f"NOPERM our user may not read and write below {_ROOT}"
                if self._may_be_done:  # by an earlier try
                    raise StoreError(words) from None
                return [ErrorReply(words) for _ in commands]
            except (KazooException, KazooTimeoutError) as error:
                is_gone = isinstance(error, ConnectionLoss)
                if isinstance(error, KazooTimeoutError):
                    _pass_over_first(self._name)
                if not is_gone or SYSTEM_CLOCK.monotonic() > give_up_at:
                    raise StoreError(_told(error)) from None
            SYSTEM_CLOCK.sleep(jittered(_MOVE_PAUSE, 0.0))

    def _identity(self) -> bytes:
        (found,) = self._each("get", [_ID])
        if found is None:
            raise StoreError(_NOT_MADE)
        identity: bytes = found[0]
        return identity

    def _denied(self) -> str:
        """Return that our user may not write, or ``""``.

        ZooKeeper looks at the permissions for each part of a transaction in turn. The
        last part fails, so that nothing is changed.
        """
        transaction = self._client.transaction()
        for parent in (_WAKE, f"{_KEYS}/0"):
            transaction.create(f"{parent}/~")
            transaction.delete(f"{parent}/~")
        transaction.check(_ID, _NO_VERSION)
        try:
            with suppress(_RefusedError):  # the reply to each request will say it
                self._committed(transaction)
        except NoAuthError:
            return f"does not let our user write below {_ROOT}"
        return ""

    # -- a transaction ---------------------------------------------------------------

    def _snapshot(self, needs: Needs, *, is_newest: bool) -> StoreKeyspace:
        breaks = self._breaks
        if self._known_until != breaks:
            # kazoo has a new session by itself; the ensemble may be another one.
            self._replid, self._clock = self._identity(), ServerClock()
            self._memory.clear()
            self._counters.clear()
            self._known_until, self._reads_newest = breaks, False
        self._begin()
        # Else a server that is behind would tell of a lock that was released. The reads
        # wait for it: a session's requests are carried out in order. But if the
        # connection breaks, kazoo sends the reads to another server.
        sent_at, caught_up = SYSTEM_CLOCK.monotonic(), None
        if not is_newest:
            caught_up = self._client.sync_async(_ROOT)
        elif not self._reads_newest:
            caught_up = self._client.set_async(_KEYS, b"")
        parts = needs.parts
        places = [(name, HEAD) for name in (*needs.names, *parts)]
        places += [place for name in parts for place in needs.counters(name)]
        cells = self._read(places)
        cells += self._read_members(needs.names)
        stat = caught_up and caught_up.get(timeout=self._timeout)
        if self._breaks != breaks:
            raise ConnectionLoss
        if is_newest and stat:
            self._observe(sent_at, stat)
        time = self._time()
        if has_ended(cells, time):
            # By a clock that was set back meanwhile, it may not have.
            time = self._time(is_asked=True)
        keys = self._keyspace(needs, cells, time, self)
        self._remember_read(needs)
        return keys

    def _time(self, *, is_asked: bool = False) -> ServerTime:
        """Return the time of the leader.

        Write a znode on which nothing depends if no write has told the time lately, or
        if the leader is to be asked.
        """
        now, observed_at = SYSTEM_CLOCK.monotonic(), self._clock.observed_at
        if is_asked or observed_at is None or now - observed_at > _TIME_KEPT:
            asked = self._client.set_async(_KEYS, b"")
            try:
                self._observe(now, asked.get(timeout=self._timeout))
            except NoAuthError:
                # Nor may this user take a lock: that writes the same znode.
                wall_us = round(SYSTEM_CLOCK.wall() * 1_000_000)
                return ServerTime(wall_us, wall_us)
        return self._clock.read(SYSTEM_CLOCK.monotonic())

    def _observe(self, sent_at: float, stat: Any) -> bool:
        """Take in the time of a write. Return whether it agrees with what was known."""
        received_at, ms = SYSTEM_CLOCK.monotonic(), stat.mtime
        return self._clock.observe(sent_at, received_at, ms / 1000, (ms + 1) / 1000)

    # -- what the session remembers while its connection does not break: the locks that
    # -- it wrote, and the hashes of which it read a part

    def _remembered(self, needs: Needs) -> StoreKeyspace | None:
        """Return the remembered cells of these keys; None if one is unknown.

        At most the counters are read. The commit checks all znodes, as after a read.
        """
        names = needs.names - needs.rare
        counters = [one for name in needs.stripes for one in needs.counters(name)]
        # Only what raises a counter can take a lock.
        taken = names - self._memory.keys() if counters else set()
        known = {name: self._memory.get(name) for name in names | needs.states}
        breaks = self._breaks
        if (
            self._known_until != breaks
            or not names
            or not names <= needs.own
            or any(one is None and name not in taken for name, one in known.items())
            or (needs.rare | taken) & self._seen
        ):
            return None
        self._begin()
        steady = {one: self._counters[one] for one in counters if self._is_steady(one)}
        self._versions |= {place: one.version for place, one in steady.items()}
        cells = [one.cell for one in steady.values()]
        # What a session reads is no older than the heads that it remembers. So they are
        # counters of these, and not of earlier ones with the same names.
        cells += self._read([one for one in counters if one not in steady])
        if self._breaks != breaks:
            return None
        for name, found in known.items():
            if found:
                self._versions[name, HEAD], self._heads[name] = found
                cells += self._heads[name].cells()
        self._versions |= {(name, HEAD): _MISSING for name in needs.rare | taken}
        time = self._time()
        if has_ended(cells, time):
            return None
        return self._keyspace(needs, cells, time, None)

    def _is_steady(self, place: tuple[bytes, bytes]) -> bool:
        """Tell whether a counter is likely to be as the session left it."""
        left = self._counters.get(place)
        if left is None or left.times < _STEADY:
            return False
        return left.head == self._memory.get(place[0])

    def _remember_read(self, needs: Needs) -> None:
        """Update what is remembered of the znodes that were read."""
        if len(self._seen) > _REMEMBERED:
            self._seen.clear()
        self._seen -= needs.rare | needs.own
        self._seen |= (needs.rare | needs.own) & self._heads.keys()
        for name in needs.names | needs.states:
            head = self._heads.get(name)
            known = head and (self._versions[name, HEAD], head)
            if known and name in needs.parts:
                self._memory[name] = known
            elif known != self._memory.get(name):
                self._memory.pop(name, None)

    def _remember_commit(
        self,
        heads: dict[bytes, _Head],
        gone: set[bytes],
        written: Mapping[tuple[bytes, bytes], Cell],
        needs: Needs,
    ) -> None:
        """Update the remembered locks and counters by the changes of a commit."""
        self._seen -= gone & needs.own
        for name in heads.keys() | gone:
            self._memory.pop(name, None)
        for place, cell in written.items():
            if cell.kind == HASH and is_counter(cell.field):
                version = self._versions.get(place, _MISSING)
                left = self._counters.pop(place, None)
                times = left.times + 1 if left and left.version == version else 1
                its_head = self._memory.get(cell.name)
                self._counters[place] = _Counter(version + 1, cell, its_head, times)
        for name, head in heads.items():
            if name in needs.own and head.cell.kind == STRING:
                version = self._versions.get((name, HEAD), _MISSING) + 1
                self._memory[name] = version, head
        memories: list[dict[Any, Any]] = [self._memory, self._counters]
        for memory in memories:
            while len(memory) > _REMEMBERED:
                del memory[next(iter(memory))]

    def _note_state(self, state: str) -> None:
        """Count breaks; called by kazoo's thread, before it connects again."""
        if state != KazooState.CONNECTED:
            self._breaks += 1

    def _begin(self) -> None:
        self._versions: dict[tuple[bytes, bytes], int] = {}  # of znodes
        self._heads: dict[bytes, _Head] = {}
        self._large: set[bytes] = set()  # keys with members
        self._listeners: dict[bytes, tuple[bytes, int]] = {}  # by channel

    def _read(self, places: Sequence[tuple[bytes, bytes]]) -> list[Cell]:
        """Read znodes in one round trip, and keep their versions."""
        paths = [_path(name, field) for name, field in places]
        cells = []
        for place, found in zip(places, self._each("get", paths), strict=True):
            if found is None:
                self._versions[place] = _MISSING
                continue
            (name, field), (data, stat) = place, found
            self._versions[place] = stat.version
            if field != HEAD:
                cells.append(decoded(name, field, data))
                continue
            self._heads[name] = _Head.read(name, data)
            cells += self._heads[name].cells()
            if stat.numChildren > 1:  # its birth is one of them
                self._large.add(name)
        return cells

    def _read_members(self, names: Iterable[bytes]) -> list[Cell]:
        """Read the cells below the heads that were read."""
        large = [name for name in names if name in self._large]
        if not large:
            return []
        found = self._each("get_children", [_path(name, HEAD) for name in large])
        places = [
            (name, b"." + unquote_to_bytes(child[1:]))
            for name, children in zip(large, found, strict=True)
            for child in children or ()
            if child.startswith("_")
        ]
        return self._read(places)

    def _commit(self, keys: StoreKeyspace, needs: Needs) -> bool:
        changes = keys.changes
        written = {
            place: encoded(cell)
            for place, cell in changes.written.items()
            if cell.field != HEAD and _has_znode(cell.kind, cell.field)
        }
        gone = {
            place
            for place, version in self._versions.items()
            if version != _MISSING
            and place not in changes.written
            and (place[0] in changes.wiped or place in changes.removed)
        }
        heads = self._changed_heads(changes, self._changed_inside(written, gone))
        written |= {(name, HEAD): head.data() for name, head in heads.items()}
        transaction = self._client.transaction()
        self._check(transaction, needs, {*written}, gone)
        self._delete(transaction, gone)
        for place in sorted(written, key=_heads_first):
            path, version = _path(*place), self._versions.get(place, _MISSING)
            if version == _MISSING:
                transaction.create(path, written[place])
            else:
                transaction.set_data(path, written[place], version)
        for name in heads.keys() - self._heads.keys():
            transaction.create(_birth(name, heads[name].birth))
        self._add_messages(transaction, changes.messages)
        has_end = writes_end(changes, needs)
        if has_end:
            transaction.set_data(_KEYS, b"")
        is_done, is_time_right = self._committed(transaction)
        if is_done:
            ended = {name for name, field in gone if field == HEAD}
            self._remember_commit(heads, ended, changes.written, needs)
        # An error of the sweep must not hide what the commit has done.
        with suppress(KazooException, KazooTimeoutError):
            self._sweep()
        return is_done and (is_time_right or not has_end)

    def _check(
        self,
        transaction: Any,
        needs: Needs,
        written: set[tuple[bytes, bytes]],
        gone: set[tuple[bytes, bytes]],
    ) -> None:
        """Add that all znodes that decided, and are not changed, are as they were."""
        checked = self._checked(needs, {name for name, _ in (*written, *gone)})
        for place in checked:
            if place in written or place in gone:
                continue
            if self._versions[place] == _MISSING:
                transaction.create(_path(*place))
                transaction.delete(_path(*place))
            else:
                transaction.check(_path(*place), self._versions[place])
        for name in {name for name, _ in (*checked, *written, *gone)}:
            if name in self._heads and (name, HEAD) not in gone:
                transaction.check(_birth(name, self._heads[name].birth), 0)

    def _changed_heads(
        self, changes: Changes, changed_inside: set[bytes]
    ) -> dict[bytes, _Head]:
        """Return each head that is to be written."""
        heads: dict[bytes, _Head] = {}

        def head_of(name: bytes) -> _Head:
            if name not in heads:
                cell = changes.written.get((name, HEAD)) or self._heads[name].cell
                old = self._heads.get(name)
                birth = old.birth if old else secrets.token_hex(8).encode()
                is_kept = name not in changes.wiped
                fields = dict(old.fields) if old and is_kept else {}
                heads[name] = _Head(birth, cell, fields)
            return heads[name]

        for (name, field), cell in changes.written.items():
            if field == HEAD:
                head_of(name)
            elif not _has_znode(cell.kind, field):
                head_of(name).fields[field] = cell.value or b""
        for name, field in changes.removed:
            is_there = name in self._heads and name not in changes.wiped
            if is_there and field in self._heads[name].fields:
                head_of(name).fields.pop(field, None)
        for name in changed_inside:
            head_of(name)
        return heads

    def _delete(self, transaction: Any, gone: Iterable[tuple[bytes, bytes]]) -> None:
        for name, field in sorted(gone, key=_heads_first, reverse=True):
            if field == HEAD:
                transaction.delete(_birth(name, self._heads[name].birth))
            transaction.delete(_path(name, field), self._versions[name, field])

    def _committed(self, transaction: Any) -> tuple[bool, bool]:
        """Commit. Return whether that was done, and whether the time was as expected.

        Nothing is changed if a check fails.

        Raises:
            _RefusedError: It was refused, and would be again.
        """
        sent_at = SYSTEM_CLOCK.monotonic()
        may_be_done, self._may_be_done = self._may_be_done, True
        results = transaction.commit_async().get(timeout=self._timeout)
        failed = [one for one in results if isinstance(one, Exception)]
        if failed:
            self._may_be_done = may_be_done
        for error in failed:
            if isinstance(error, NoAuthError):
                raise error
            if not isinstance(error, _CONFLICTS):
                raise _RefusedError(f"refuses our changes: {_reason(error)}")
        if failed:
            self._reads_newest = True  # as all servers have written that it failed
            return False, True
        stats = [one for one in results if isinstance(one, ZnodeStat)]
        return True, not stats or self._observe(sent_at, stats[0])

    def _changed_inside(
        self, written: Iterable[tuple[bytes, bytes]], gone: set[tuple[bytes, bytes]]
    ) -> set[bytes]:
        """Return the keys whose heads must get another version.

        Those that got or lost a member, and sorted sets of which one has changed.
        """
        return {
            name
            for name, field in (*written, *gone)
            if field
            and (name, HEAD) not in gone
            and not (
                (name, field) not in gone
                and self._versions.get((name, field), _MISSING) != _MISSING
                and self._is_hash(name)
            )
        }

    def _is_hash(self, name: bytes) -> bool:
        return name in self._heads and self._heads[name].cell.kind == HASH

    def _checked(self, needs: Needs, changed: set[bytes]) -> list[tuple[bytes, bytes]]:
        """Return the znodes that decided, and must be as they were read."""
        parts = needs.parts
        counters = {one for name in parts for one in needs.counters(name)}
        whole = (needs.exclusive | changed) - parts
        return [
            (name, field)
            for name, field in self._versions
            # A head that is missing stands for its members, too.
            if (field == HEAD or name in self._heads)
            and (
                (name in parts and field == HEAD)
                or (name, field) in counters
                or (name in whole and (field == HEAD or self._is_hash(name)))
            )
        ]

    # -- for the keyspace and the commands -------------------------------------------

    def load(self, names: Sequence[bytes]) -> list[Cell]:
        """Return all cells of these keys."""
        cells = self._read([(name, HEAD) for name in names])
        return cells + self._read_members(names)

    def listens(self, channel: bytes) -> bool:
        """Tell whether a process listens on this channel."""
        (found,) = self._each("get", [_wake(channel)])
        if found is None:
            return False
        self._listeners[channel] = found[0], found[1].version
        return True

    def _add_messages(
        self, transaction: Any, messages: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Add messages to those that their listeners have not read."""
        to = {channel: self._listeners[channel] for channel, _ in messages}
        for channel, (unread, version) in to.items():
            texts = [text.decode() for whose, text in messages if whose == channel]
            data = json.dumps([*json.loads(unread or b"[]"), *texts]).encode()
            transaction.set_data(_wake(channel), data, version)

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""
        names = [name for name in self._names(range(_SHARDS)) if name.startswith(head)]
        # Not by `_read`: another command of the batch may need what that has kept.
        found = self._each("get", [_path(name, HEAD) for name in names])
        pairs = zip(names, found, strict=True)
        heads = [_Head.read(name, one[0]).cell for name, one in pairs if one]
        return alive_at(now_ms, heads)

    def _names(self, shards: Iterable[int]) -> list[bytes]:
        paths = [f"{_KEYS}/{number:x}" for number in shards]
        found = self._each("get_children", paths)
        return [unquote_to_bytes(one) for names in found for one in names or ()]

    def _sweep(self) -> None:
        """Delete keys that ended, of one shard; every process does, now and then."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._swept_at < _SWEEP_EVERY:
            return
        self._swept_at, self._sweeps = now, (self._sweeps + 1) % _SHARDS
        self._begin()
        names = self._names([self._sweeps])
        if len(names) > _SWEPT:
            names = _RANDOM.sample(names, _SWEPT)
        cells = self._read([(name, HEAD) for name in names])
        if not has_ended(cells, self._time()):
            return
        ended_ms = self._time(is_asked=True).earliest_us // 1000 - _ENDED_MS
        ended = {
            cell.name: self._client.transaction()
            for cell in cells
            if cell.expires_at_ms is not None and cell.expires_at_ms < ended_ms
        }
        self._read_members(ended)
        for name, transaction in ended.items():
            self._delete(transaction, [one for one in self._versions if one[0] == name])
        # All at once: ZooKeeper writes to its disk once for many requests. One fails if
        # another process has used its key.
        for asked in [transaction.commit_async() for transaction in ended.values()]:
            asked.get(timeout=self._timeout)

    # -- listening -------------------------------------------------------------------

    def listen(self, channel: bytes, until_closed: socket.socket) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read."""
        path = _wake(channel)
        ours, theirs = socket.socketpair()

        def wake(_: object) -> None:
            with suppress(OSError):  # it listens no more
                theirs.send(b".")

        try:
            made = self._client.create_async(path, b"[]", ephemeral=True)
            made.get(timeout=self._timeout)
            yield b""
            while True:
                found = self._client.get_async(path, watch=wake)
                data, stat = found.get(timeout=self._timeout)
                if messages := json.loads(data):
                    emptied = self._client.set_async(path, b"[]", stat.version)
                    with suppress(BadVersionError):
                        emptied.get(timeout=self._timeout)
                        yield from (one.encode() for one in messages)
                    continue
                ready = readable(ours, until_closed, timeout=_LOOK_EVERY)
                if until_closed in ready:
                    return
                if ours in ready:
                    ours.recv(1)
        except (KazooException, KazooTimeoutError) as error:
            raise StoreError(_told(error)) from None
        finally:
            ours.close()
            theirs.close()

    # -- requests --------------------------------------------------------------------

    def _each(self, request: str, paths: Sequence[str]) -> list[Any]:
        """Send a request for each path at once. Return the replies; None: no node."""
        ask = getattr(self._client, f"{request}_async")
        asked = [ask(path) for path in paths]
        return [self._reply_to(one) for one in asked]

    def _reply_to(self, asked: Any) -> Any:
        try:
            return asked.get(timeout=self._timeout)
        except NoNodeError:
            return None

    def interrupt(self) -> None:
        """Do nothing: each request of another thread ends by its timeout."""

    def close(self) -> None:
        """End the session."""
        _end(self._client)


def _heads_first(place: tuple[bytes, bytes]) -> bool:
    return bool(place[1])


def _started(url: str, timeout: float) -> KazooClient:
    """Return a client with a session.

    Raises:
        StoreError: No server answers, or the chroot does not exist.
    """
    login = login_in(url) if "@" in urlsplit(url).netloc else None
    servers = [f"{host}:{port}" for host, port in servers_in(url, _PORT)]
    name = ZooKeeper.name_of(url)
    first = _FIRST.setdefault(name, os.getpid()) % len(servers)
    # One that is frozen accepts a connection: in time, another one is tried, too.
    patience = timeout / min(2, len(servers))
    began_at = SYSTEM_CLOCK.monotonic()
    client = KazooClient(
        hosts=",".join(servers[first:] + servers[:first]),
        randomize_hosts=False,
        handler=_Handler(patience),
        timeout=_SESSION,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5),
        default_acl=[make_digest_acl(*login, all=True)] if login else None,
        auth_data=[("digest", ":".join(login))] if login else None,
    )
    try:
        client.start(timeout=timeout)
        client.chroot = _chroot(url)  # in `hosts`, it would warn that it is missing
        if client.exists_async("/").get(timeout=timeout):
            return client
        problem = f"has no node {_chroot(url)}; create it first"
    except (KazooException, KazooTimeoutError) as error:
        problem = _unreachable(error)
        share = patience / len(servers)
        found = {_tried(*where, share) for where in servers_in(url, _PORT)}
        if _CLOSES in found:
            problem = _CLOSES
        elif found == {_REFUSED}:
            problem = _REFUSED
        elif isinstance(error, KazooTimeoutError):  # it tells no more
            problem = next((one for one in _LATE if one in found), problem)
    finally:
        if SYSTEM_CLOCK.monotonic() - began_at > patience:
            _pass_over_first(name)
    _end(client)
    raise StoreError(problem)


def _tried(host: str, port: int, patience: float) -> str:
    """Return how a server refuses a connection; ``""`` if it does not."""
    late = NOT_ACCEPTED
    try:
        with socket.create_connection((host.strip("[]"), port), patience) as sock:
            late = SILENT
            sock.sendall(_HELLO)
            return "" if sock.recv(1) else _CLOSES
    except (BrokenPipeError, ConnectionResetError):
        return _CLOSES
    except ConnectionRefusedError:
        return _REFUSED
    except OSError:
        return late


def _pass_over_first(name: str) -> None:
    """Have the next sessions of this process begin with the next server."""
    _FIRST[name] += 1


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler whose threads wait by our selector, which also works under eventlet.

    Args:
        patience: Seconds for a connection, and for the next part of a message. kazoo
            gives each server its share of the time of a session.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience

    def create_connection(self, *args: Any, **options: Any) -> Any:
        """Return a socket that is connected."""
        return super().create_connection(
            *args, **{**options, "timeout": self._patience}
        )

    def select(
        self,
        to_read: Sequence[Any],
        to_write: Sequence[Any],
        _: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return what can be read, or what can be written: kazoo asks for one only."""
        files, events = (to_read, EVENT_READ) if to_read else (to_write, EVENT_WRITE)
        if timeout is not None and len(files) == 1:
            timeout = min(timeout, self._patience)  # it does not wait for requests
        ready = [*readable(*files, timeout=timeout, events=events)]
        return (ready, [], []) if to_read else ([], ready, [])


def _end(client: KazooClient) -> None:
    with suppress(KazooException, KazooTimeoutError):
        client.stop()
        client.close()


def _chroot(url: str) -> str:
    return unquote(urlsplit(url).path.rstrip("/"))


class _Head(NamedTuple):
    """The head of a key.

    Attributes:
        birth: The name of its birth.
        cell: Itself.
        fields: Those fields of a hash that are no znodes of their own.
    """

    birth: bytes
    cell: Cell
    fields: dict[bytes, bytes]

    @classmethod
    def read(cls, name: bytes, data: bytes) -> _Head:
        """Return the head that was written as this data of its znode."""
        birth, _, data = data.partition(b"\n")
        cell = decoded(name, HEAD, data)
        if cell.kind != HASH:
            return cls(birth, cell, {})
        texts = json.loads(cell.value or b"{}").items()
        fields = {b"." + f.encode("latin-1"): v.encode("latin-1") for f, v in texts}
        return cls(birth, cell._replace(value=None), fields)

    def data(self) -> bytes:
        """Return the data of its znode. The fields of a hash are a table of JSON."""
        cell = self.cell
        if cell.kind == HASH:
            fields = self.fields.items()
            texts = {f[1:].decode("latin-1"): v.decode("latin-1") for f, v in fields}
            cell = cell._replace(value=json.dumps(texts).encode())
        return self.birth + b"\n" + encoded(cell)

    def cells(self) -> list[Cell]:
        """Return itself and the fields."""
        name = self.cell.name
        fields = self.fields.items()
        return [self.cell, *(Cell(name, f, HASH, v, None, None) for f, v in fields)]


class _Counter(NamedTuple):
    """A fence counter as the session left it.

    Attributes:
        version: Of its znode.
        cell: What was written.
        head: The head of its hash, with the version. A counter that is made anew may
            have the same version as before, but then the head has another one.
        times: How often no other session had changed it in between.
    """

    version: int
    cell: Cell
    head: tuple[int, _Head] | None
    times: int


def _has_znode(kind: str, field: bytes) -> bool:
    """Tell whether a member is a znode of its own: all but most fields of hashes."""
    return kind != HASH or is_counter(field)


@lru_cache(maxsize=1024)
def _path(name: bytes, field: bytes) -> str:
    digest = hashlib.md5(name, usedforsecurity=False).hexdigest()
    head = f"{_KEYS}/{digest[0]}/{quote(name, safe=_PLAIN)}"
    return f"{head}/_{quote(field[1:], safe=_PLAIN)}" if field else head


def _birth(name: bytes, birth: bytes) -> str:
    return f"{_path(name, HEAD)}/~{birth.decode()}"


def _wake(channel: bytes) -> str:
    return f"{_WAKE}/{quote(channel, safe=_PLAIN)}"


def _told(error: Exception) -> str:
    if isinstance(error, NoAuthError):
        return (
            f"does not let our user read and write below {_ROOT}; correct its user and "
            f"password in redlock_nodes, or {GRANT}"
        )
    if isinstance(error, NoNodeError):  # it was deleted while we used it
        return _NOT_MADE
    if isinstance(error, KazooTimeoutError):
        return _LATE_ANSWER
    return f"lost its connection: {_reason(error)}"


def _unreachable(error: Exception) -> str:
    if isinstance(error, KazooTimeoutError):
        return _LATE_ANSWER
    if isinstance(error, NoAuthError):
        return REJECTED
    return f"cannot be connected to: {_reason(error)}"


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__
