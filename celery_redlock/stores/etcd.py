"""etcd as a store: a snapshot at one revision, and one transaction that compares.

Each cell of a key is a key of etcd: ``redlock/cell/<name> 00 01 <field>``. What a
transaction compares is only what decides:

* of an exclusive key that exists: its head. A removed member leaves no trace, so its
  transaction writes the head again;
* of one that does not exist, or has members: that no cell of it is newer than the
  snapshot;
* of a hash that is read in part (``meta``): its head, that no field of it is newer, and
  its fence counters. So two locks with counters in different stripes do not conflict;
* of a counter that was not read: that it is less than what is written.

An acquire is one transaction where no other client wants the lock, and so are an
extension and a release. A connection remembers what it wrote and what it read of
``meta``, and takes keys that it has not seen for free: see ``compare_and_swap``. If
that was wrong, the reply of the transaction has the keys as they are, so the second try
is right. All is forgotten when a connection is made: the cluster may be another one,
from a backup, in which the same revision may belong to other data. So a transaction
that changes something is sent on the connection that its snapshot came from, or not at
all.

etcd takes 128 comparisons at most. Where those would be too many, one comparison is for
all that lies between several keys, in the order of their names: it may find a change
of a key that is none of ours, and then the scripts run again.

All members of the cluster are tried in turn, by a new connection first the one that has
answered this process last. The run id is the id of the cluster: it is the same after
members restart, because a majority of them has each commit on disk; a cluster that is
made anew, also from a backup, has another one. A backup that is restored with the
names, URLs and token of the old members keeps the id: do not do that.

A key ends by the clock of the member that answers, which each reply tells in its header
Date (RFC 9110), in whole seconds: see ``server_clock``. An etcd lease is no substitute:
it counts whole seconds as well, and starts anew when another member leads. Keys that
ended a minute ago are deleted now and then.

A process that listens has a key with a lease of its own. A message is a key with the
same lease, so both are gone when the process is.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import re
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from celery_redlock.basics.backoff import jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.scripts.keyspace import HASH, STRING
from celery_redlock.stores.commands import split_release
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
    GRANT,
    IS_BUSY,
    REJECTED,
    StoreError,
    readable,
)
from celery_redlock.stores.etcd_member import LATE, EtcdMember, MemberError, tls_of
from celery_redlock.stores.keyspace import HEAD, Cell, NotRemembered, is_counter

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Changes, StoreKeyspace
    from celery_redlock.stores.needs import Needs
    from celery_redlock.stores.server_clock import ServerTime

_CELLS, _LISTENERS, _MESSAGES = b"redlock/cell/", b"redlock/listen/", b"redlock/wake/"
_DEFAULT_PORT = 2379
# etcd's --max-txn-ops. The comparisons of a transaction and the operations of one that
# is nested in it count together.
_TXN_OPS, _MOST_COMPARED, _MOST_READ = 128, 120, 100
_MOST_RELEASED = 50  # locks in one transaction: each has a wait queue
_LISTENER_TTL = 10  # seconds
_ELECTION_PAUSE = 0.1  # seconds
_OPTIONS = ("ca", "cert", "key")
_NO_PERMISSION = "permission denied"
_FULL = "space exceeded"
# What etcd says under an alarm -> the same, after the name of the node.
_ALARMS = {
    _FULL: "is full (NOSPACE) and takes no changes; compact its history "
    "(--auto-compaction-mode=periodic), defragment it, raise --quota-backend-bytes, "
    "and run `etcdctl alarm disarm`",
    "corrupt cluster": "has members with different data (CORRUPT) and answers no "
    "request; replace the member that `etcdctl endpoint hashkv --cluster` shows to "
    "differ, and run `etcdctl alarm disarm`",
}
_QUOTA = re.compile(r"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_LARGE = 1_000_000  # bytes of a database whose quota is worth a request
# What etcd says when a client connects -> the same, after the name of the node.
_REFUSALS = {
    "authentication failed": REJECTED,
    "user name is empty": "asks for a user and a password; write them as "
    "etcd://user:password@… in redlock_nodes",
    "authentication is not enabled": "has its authentication switched off; remove the "
    "user from redlock_nodes, or run `etcdctl auth enable`",
    _NO_PERMISSION: f"does not let our user read below redlock/; {GRANT}",
    "404 page not found": "has its JSON gateway switched off, as some versions have "
    "that are started with a configuration file; write `enable-grpc-gateway: true` "
    "into it, and restart the members",
}
# What it says of a request without a token, or with one that it does not know, and of
# all requests that it has not carried out.
_FORGOTTEN = re.compile("auth token|auth store is old|user name is empty")
_REFUSED = re.compile(
    "authentic|user name|permission|lease not|too many|too large"
    "|auth token|auth store is old"
)
_SWEEP_EVERY, _SWEPT, _ENDED_MS = 60.0, 1000, 60_000
_REMEMBERED = 10_000  # locks
_TIME_KEPT = 30.0  # seconds, in which the bounds of the time become 0.3 s wider
_MOST_ASKED_FOR = 16  # ranges of a transaction that may be refused
_ABSENT = "0"  # the revision of a key that does not exist
# Fields of a hash that are no counters, by their first letter: "." and more than "9".
_FIRST_FIELD, _LAST_FIELD = b".:", b"/"
# A fence counter that is a time, in microseconds: from 2001 to 2286. Of such, the
# greater one is also the greater text.
_TIME_DIGITS = 16


class _NotKnown(Exception):  # noqa: N818  (no error: it is read)
    """Whether a commit was done is not known."""


class _RefusedError(StoreError):
    """etcd refuses a request, which it has not carried out."""


class Etcd(CompareAndSwapStore):
    """One connection to an etcd cluster: see ``stores.connection.Store``."""

    grants = "etcdctl role grant-permission redlock --prefix=true readwrite redlock/"
    # Cluster -> the member that a new connection of this process asks first.
    _answered_last: ClassVar[dict[str, str]] = {}

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        self._timeout = timeout
        is_encrypted = parts.scheme == "etcds"
        tls = tls_of(dict(parse_qsl(parts.query))) if is_encrypted else None
        self._members = [EtcdMember(*one, timeout, tls) for one in self._servers(url)]
        self._cluster = super().name_of(url)
        first = self._answered_last.get(self._cluster)
        self._members.sort(key=lambda member: member.name != first)
        self._token = self._told_revision = ""
        self._swept_at = SYSTEM_CLOCK.monotonic()
        self._sweeps_from = _CELLS
        # What is remembered, until another connection is made.
        self._locks: dict[bytes, tuple[str, Cell]] = {}  # with the revision
        self._states: dict[bytes, _State] = {}
        self._seen: set[bytes] = set()  # keys that were there when last read
        self._remembered_until = 0  # in connections
        # What a commit that was refused has read for the next try, and for which needs.
        self._refused: tuple[Needs | None, dict[str, Any]] = None, {}
        name, password = login_in(url)
        self._user = {"name": name, "password": password}
        try:
            if name:
                self._log_in()
            self._begin([])
            status = self._if_allowed("/maintenance/status")
            members = self._if_allowed("/cluster/member/list").get("members", ())
            self.info = {
                "store": f"etcd {status.get('version', '')}".strip(),
                "encrypted": "yes" if is_encrypted else "no",
                "denied": self._denied(),
                "members": str(len(members) or ""),
                "database_bytes": status.get("dbSize", ""),
                "database_quota": self._quota(int(status.get("dbSize", 0))),
            }
        except StoreError as error:
            self.close()
            known = (words for sign, words in _REFUSALS.items() if sign in str(error))
            raise StoreError(next(known, str(error))) from None

    @staticmethod
    def emptied(prefix: str) -> str:
        """Return how to delete all keys of a deployment, for operators."""
        return f"etcdctl del --prefix {quote(f'{_CELLS.decode()}{prefix}:')}"

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return ``host:port`` of all members, sorted, with a plus between."""
        _check_files(url)
        return super().name_of(url)

    @classmethod
    def _servers(cls, url: str) -> list[tuple[str, int]]:
        if urlsplit(url).path.strip("/"):
            raise ValueError("an etcd has no path; all keys are below redlock/")
        return servers_in(url, _DEFAULT_PORT)

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """See that the cluster can be used; there is nothing to make."""
        cls(url, timeout).close()

    def _denied(self) -> str:
        """Return that our user may not write, or ``""``.

        etcd looks at the permissions of a transaction, also of what it will not do. One
        that is full refuses it, and releases locks nevertheless.
        """
        heads = (_CELLS, _LISTENERS, _MESSAGES)
        never = {"target": "VERSION", "result": "LESS", "version": "0"}
        compare = [{**never, "key": _text(_CELLS)}]
        body = {"compare": compare, "success": [_put(head, b"") for head in heads]}
        try:
            self._call("/kv/txn", body)
        except StoreError as error:
            if _NO_PERMISSION in str(error):
                return "does not let our user write below redlock/"
            if str(error) != _ALARMS[_FULL]:
                raise
        return ""

    # -- a transaction ---------------------------------------------------------------

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        if len(commands) == 1:
            parts = split_release(commands[0], _MOST_RELEASED)
            if len(parts) > 1:
                replies = [self._run([part])[0] for part in parts]
                errors = [one for one in replies if isinstance(one, ErrorReply)]
                return [errors[0] if errors else max(replies)]
        try:
            return super()._run(commands)
        except _RefusedError as refusal:
            if self._may_be_done:  # by an earlier try
                raise
            words = str(refusal)
            if _NO_PERMISSION in words:
                words = "NOPERM our user may not read and write below redlock/"
            elif words in _ALARMS.values():
                words = f"ERR it {words}"
            else:  # another connection may be let in
                raise
            return [ErrorReply(words) for _ in commands]

    def _fits(self, needs: Needs) -> bool:
        return len(needs.locked) <= _MOST_READ

    def _snapshot(self, needs: Needs, *, is_newest: bool) -> StoreKeyspace:
        del is_newest  # as all that etcd reads is
        whose, refused = self._refused
        self._refused = None, {}
        if whose is needs:
            self._start()
            cells = self._cells_of(refused)
        else:
            cells = self._begin(_ranges_of(needs))
        self._remember_read(needs, cells)
        return self._keyspace(needs, cells, self._time(), self)

    def _begin(self, ranges: list[dict[str, Any]]) -> list[Cell]:
        """Read these ranges at one revision, and keep the versions of their cells."""
        self._start()
        cells: list[Cell] = []
        # The reply to a range tells revision and time, also where no key is needed.
        for part in _chunks(ranges or [{"key": _text(_CELLS)}], _MOST_READ):
            cells += self._read(part)
        return cells

    def _start(self, revision: str = "") -> None:
        self._versions: dict[tuple[bytes, bytes], str] = {}
        self._with_members: set[bytes] = set()
        self._revision = revision
        self._asked_for: list[dict[str, Any]] = []
        self._listeners: dict[bytes, str] = {}  # channel -> lease

    def _read(self, ranges: list[dict[str, Any]]) -> list[Cell]:
        at = {"revision": self._revision} if self._revision else {}
        ops = [{"request_range": {**one, **at}} for one in ranges]
        return self._cells_of(self._call("/kv/txn", {"success": ops}))

    def _cells_of(self, reply: dict[str, Any]) -> list[Cell]:
        if not self._revision:
            self._revision = reply["header"]["revision"]
            self._replid = reply["header"]["cluster_id"].encode()
        cells = []
        for response in reply.get("responses", ()):
            for kv in response["response_range"].get("kvs", ()):
                name, field = _parts(_bytes(kv["key"]))
                self._versions[name, field] = kv["mod_revision"]
                cell = decoded(name, field, _bytes(kv.get("value", "")))
                if field != HEAD or cell.kind != STRING:
                    self._with_members.add(name)
                cells.append(cell)
        return cells

    # -- what the connection remembers: the locks that it wrote, and what it has read of
    # -- a hash that is read in part

    def _remembered(self, needs: Needs) -> StoreKeyspace | None:
        """Return the remembered cells of these keys; of others, that they are free.

        None of them is read. The commit compares each of them, as after a read.
        """
        self._forget_if_connected_again()
        parts = needs.parts
        now, observed_at = SYSTEM_CLOCK.monotonic(), self._members[0].clock.observed_at
        if (
            not needs.own
            or needs.names != needs.exclusive
            or not parts <= self._states.keys()
            or needs.names & self._states.keys()
            or (needs.names - self._locks.keys()) & self._seen
            or len(needs.names) > _MOST_READ
            or observed_at is None
            or now - observed_at > _TIME_KEPT
        ):
            return None
        self._start(_ABSENT)
        cells = []
        for name in needs.names & self._locks.keys():
            self._versions[name, HEAD], cell = self._locks[name]
            cells.append(cell)
        for name in parts:
            self._versions |= self._states[name].versions
            cells += self._states[name].cells
        if has_ended(cells, self._time()):
            return None
        ranges = _ranges_of(needs)
        self._asked_for = ranges if len(ranges) <= _MOST_ASKED_FOR else []
        return self._keyspace(needs, cells, self._time(), None)

    def _forget_if_connected_again(self) -> None:
        connects = sum(member.connects for member in self._members)
        if self._remembered_until != connects:
            self._remembered_until = connects
            self._locks.clear()
            self._states.clear()

    def _remember_read(self, needs: Needs, cells: Iterable[Cell]) -> None:
        self._forget_if_connected_again()
        for name in needs.names & self._locks.keys():
            if self._locks[name][0] != self._versions.get((name, HEAD)):
                del self._locks[name]
        if len(self._seen) > _REMEMBERED:
            self._seen.clear()
        self._seen -= needs.names
        self._seen |= needs.names & {cell.name for cell in cells}
        for name in needs.parts:
            known = [
                cell
                for cell in cells
                if cell.name == name and not is_counter(cell.field)
            ]
            versions = {
                (name, cell.field): self._versions[name, cell.field] for cell in known
            }
            self._states[name] = _State(self._revision, versions, known)

    def _remember_commit(self, changes: Changes, needs: Needs, revision: str) -> None:
        self._seen -= changes.wiped & needs.own
        for name in changes.wiped | {name for name, _ in changes.written}:
            self._locks.pop(name, None)
        for (name, field), cell in changes.written.items():
            if field == HEAD and name in needs.own and cell.kind == STRING:
                self._locks[name] = revision, cell
        while len(self._locks) > _REMEMBERED:
            del self._locks[next(iter(self._locks))]

    # -- the end of a transaction ----------------------------------------------------

    def _commit(self, keys: StoreKeyspace, needs: Needs) -> bool:
        changes, asked_for = keys.changes, self._asked_for
        compare = self._comparisons(changes, needs)
        ops = self._operations(changes)
        if len(ops) > _TXN_OPS:
            parts = _chunks(ops, _TXN_OPS - len(compare))
            ops = [{"request_txn": {"success": part}} for part in parts]
        body = {"compare": compare, "success": ops}
        if asked_for:
            body["failure"] = [{"request_range": one} for one in asked_for]
        may_be_done, self._may_be_done = self._may_be_done, True
        revision = self._told_revision
        try:
            reply = self._call("/kv/txn", body, is_commit=True)
        except _NotKnown:
            return False  # what is remembered is compared again
        except _RefusedError as refusal:
            # etcd applies a transaction, and then says so if it had no room for it:
            # https://github.com/etcd-io/etcd/issues/16659
            is_full = str(refusal) == _ALARMS[_FULL]
            if is_full and not self._is_undone(compare, revision):
                raise
            self._may_be_done = may_be_done
            if "lease not found" in str(refusal):  # a listener has ended
                return False
            raise
        header = reply["header"]
        if header["cluster_id"].encode() != self._replid:
            raise StoreError("was replaced by another cluster; is there a proxy?")
        if not reply.get("succeeded", False):
            self._may_be_done = may_be_done
            self._refused = (needs, reply) if asked_for else (None, {})
            return False
        self._remember_commit(changes, needs, header["revision"])
        is_time_right = self._members[0].is_time_right or not writes_end(changes, needs)
        # An error of the sweep must not hide what the commit has done.
        with contextlib.suppress(StoreError):
            self._sweep()
        return is_time_right

    def _is_undone(self, compare: list[dict[str, Any]], revision: str) -> bool:
        """Tell whether a commit that was refused is certainly not done.

        Then what it compares is unchanged, or nothing was written since a revision from
        before. A transaction that only reads needs no room.
        """
        # etcd answers a transaction that asks for nothing from one member's memory.
        read = [{"request_range": {"key": _text(_CELLS)}}]
        body = {"compare": compare, "success": read, "failure": read}
        try:
            reply = self._call("/kv/txn", body)
        except StoreError:
            return False
        is_unchanged: bool = reply.get("succeeded", False)
        return is_unchanged or reply["header"]["revision"] == revision

    def _operations(self, changes: Changes) -> list[dict[str, Any]]:
        """Return the operations of a transaction that write the changes."""
        ops = [_delete(name, field) for name, field in changes.removed]
        touched = {name for name, _ in changes.removed} - changes.wiped
        for name, field in self._versions:
            is_written = (name, field) in changes.written
            if name in changes.wiped and not is_written:
                ops.append(_delete(name, field))
            elif name in touched and field == HEAD and not is_written:
                head = _text(_key(name, HEAD))
                ops.append({"request_put": {"key": head, "ignore_value": True}})
        ops += [_put(_key(c.name, c.field), _data(c)) for c in changes.written.values()]
        for place, (channel, message) in enumerate(changes.messages):
            key = _MESSAGES + _escaped(channel) + b"%d" % place
            ops.append(_put(key, message, self._listeners[channel]))
        return ops

    def _comparisons(self, changes: Changes, needs: Needs) -> list[dict[str, Any]]:
        """Return the comparisons of the transaction, `_MOST_COMPARED` at most.

        Raises:
            NotRemembered: It needs a counter that was not read.
        """
        changed = {n for n, _ in (*changes.removed, *changes.written)} | changes.wiped
        parts = needs.parts
        whole = (needs.exclusive | changed) - parts
        present = {name for name in whole if (name, HEAD) in self._versions}
        heads = [self._is_unchanged(name, HEAD) for name in present | parts]
        fields = [one for n in parts for one in self._of_part(n, needs, changes)]
        ranges = (whole - present) | (whole & self._with_members)
        if len(heads) + len(fields) + len(ranges) > _MOST_COMPARED:
            if self._revision == _ABSENT:  # there may be keys between them
                raise NotRemembered
            fields, ranges = [], ranges | parts
        room = _MOST_COMPARED - len(heads) - len(fields)
        if ranges and room < 1:
            raise StoreError(f"cannot compare {len(heads)} keys at once")
        starts = sorted(_key(name, HEAD) for name in ranges)
        groups = _chunks(starts, math.ceil(len(starts) / max(1, room)) or 1)
        ends = [(group[0], _end_of(group[-1])) for group in groups]
        return heads + fields + [_is_no_newer(*one, self._revision) for one in ends]

    def _of_part(
        self, name: bytes, needs: Needs, changes: Changes
    ) -> Iterator[dict[str, Any]]:
        """Yield the comparisons of a hash that is read in part, without its head."""
        is_assumed = self._revision == _ABSENT
        revision = self._states[name].revision if is_assumed else self._revision
        first, last = _key(name, _FIRST_FIELD), _key(name, _LAST_FIELD)
        yield _is_no_newer(first, last, revision)
        for place in needs.counters(name):
            written = changes.written.get(place)
            if not is_assumed:
                yield self._is_unchanged(*place)
            elif written and len(written.value or b"") == _TIME_DIGITS:
                yield {
                    "target": "VALUE",
                    "result": "LESS",
                    "value": _text(_data(written)),
                    "key": _text(_key(*place)),
                }
            else:
                raise NotRemembered

    def _is_unchanged(self, name: bytes, field: bytes) -> dict[str, Any]:
        return {
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": self._versions.get((name, field), _ABSENT),
            "key": _text(_key(name, field)),
        }

    def _sweep(self) -> None:
        """Delete keys that ended, now and then; every process does."""
        now = SYSTEM_CLOCK.monotonic()
        if now - self._swept_at < _SWEEP_EVERY:
            return
        self._swept_at = now
        swept = {**_prefix(_CELLS), "key": _text(self._sweeps_from), "limit": _SWEPT}
        cells = self._begin([swept])
        is_last = len(cells) < _SWEPT
        last = _CELLS if is_last else _key(cells[-1].name, cells[-1].field) + b"\0"
        self._sweeps_from = last
        ended_ms = self._time().earliest_us // 1000 - _ENDED_MS
        # Each in a transaction of its own, which leaves a key alone that has changed.
        deletions = [
            {
                "request_txn": {
                    "compare": [self._is_unchanged(cell.name, HEAD)],
                    "success": [{"request_delete_range": _range_of(cell.name)}],
                }
            }
            for cell in cells
            if cell.expires_at_ms is not None and cell.expires_at_ms < ended_ms
        ]
        # Many to a request: the client's request, which a sweep delays, waits for few.
        for part in _chunks(deletions, _MOST_READ):
            self._call("/kv/txn", {"success": part})

    # -- for the keyspace and the commands -------------------------------------------

    def load(self, names: Sequence[bytes]) -> list[Cell]:
        """Return all cells of these keys, at the revision of the snapshot."""
        cells = []
        for part in _chunks(list(names), _MOST_READ):
            cells += self._read([_range_of(name) for name in part])
        return cells

    def listens(self, channel: bytes) -> bool:
        """Tell whether a process listens on this channel."""
        found = self._call("/kv/range", _prefix(_LISTENERS + _escaped(channel)))
        for kv in found.get("kvs", ()):
            self._listeners[channel] = kv["lease"]
        return bool(found.get("kvs"))

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""
        start = _CELLS + head.replace(b"\0", b"\0\xff")
        # At the revision of the snapshot: other commands of the batch rest on it.
        cells = self._read([_prefix(start)])
        return alive_at(now_ms, [cell for cell in cells if cell.field == HEAD])

    # -- listening -------------------------------------------------------------------

    def listen(self, channel: bytes, until_closed: socket.socket) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read."""
        lease = self._call("/lease/grant", {"TTL": _LISTENER_TTL, "ID": 0})["ID"]
        key = _LISTENERS + _escaped(channel) + lease.encode()
        put = _put(key, b"", lease)["request_put"]
        revision = int(self._call("/kv/put", put)["header"]["revision"])
        watched = _prefix(_MESSAGES + _escaped(channel))
        create = {"create_request": {**watched, "start_revision": revision + 1}}
        try:
            member = self._members[0]  # the one that answered last
            with contextlib.closing(member.watch(create, self._token)) as watch:
                results = watch.read()
                kept_at = SYSTEM_CLOCK.monotonic()
                yield b""
                while True:
                    for result in results:
                        for event in result.get("events", ()):
                            if "type" not in event:  # a put
                                yield _bytes(event["kv"].get("value", ""))
                    left = kept_at + _LISTENER_TTL / 3 - SYSTEM_CLOCK.monotonic()
                    if left <= 0:  # also while messages keep coming
                        kept = self._call("/lease/keepalive", {"ID": lease})
                        if not kept.get("result", {}).get("TTL"):
                            raise StoreError("has ended our lease: we were away")
                        if member is not self._members[0]:
                            raise StoreError("has a member that answers no more")
                        kept_at = SYSTEM_CLOCK.monotonic()
                    files = watch.socket, until_closed
                    ready = readable(*files, timeout=max(0.0, left))
                    if until_closed in ready:
                        return
                    results = watch.read() if ready else []
        except MemberError as error:
            raise StoreError(f"lost its connection: {error}") from None
        finally:
            with contextlib.suppress(StoreError):  # else it ends by itself
                self._call("/lease/revoke", {"ID": lease})

    # -- members ---------------------------------------------------------------------

    def _log_in(self) -> None:
        """Ask for a token of our user, which all requests then carry.

        With one that etcd has forgotten, it would refuse this request, too.
        """
        self._token = ""
        self._token = self._ask("/auth/authenticate", self._user)["token"]

    def _call(
        self, path: str, body: dict[str, Any], *, is_commit: bool = False
    ) -> dict[str, Any]:
        """Send a request; log in and send it again if etcd has forgotten our token.

        etcd forgets a token five minutes after its last use, when a member restarts,
        and when an operator changes users or roles. Then it carries nothing out.
        """
        try:
            return self._ask(path, body, is_commit=is_commit)
        except StoreError as refusal:
            if not (self._user["name"] and _FORGOTTEN.search(str(refusal))):
                raise
        self._log_in()
        return self._ask(path, body, is_commit=is_commit)

    def _ask(
        self, path: str, body: dict[str, Any], *, is_commit: bool = False
    ) -> dict[str, Any]:
        """Ask the member that answered last, or else the next one that answers.

        While they elect a leader, members answer that they have none. So they are asked
        again until the timeout is over. A request may be carried out twice: each of
        ours has the same effect then. A commit is sent once, on the connection of its
        snapshot.

        Raises:
            _RefusedError: They refuse it.
            StoreError: No member has done it.
            _NotKnown: It is a commit, which may have been done.
        """
        give_up_at = SYSTEM_CLOCK.monotonic() + self._timeout
        while True:
            is_up = False
            reasons: dict[str, str] = {}
            for _ in self._members:
                member = self._members[0]
                try:
                    reply = member.ask(path, body, self._token, once=is_commit)
                except MemberError as error:
                    reason, failure = str(error), error
                else:
                    self._answered_last[self._cluster] = member.name
                    header = reply.get("header", {})
                    self._told_revision = header.get("revision", self._told_revision)
                    return reply
                for sign, words in _ALARMS.items():
                    if sign in reason:
                        raise _RefusedError(words)
                if _REFUSED.search(reason) or (is_commit and failure.is_refused):
                    raise _RefusedError(f"refused the request: {reason}")
                # If it is frozen, it costs a time limit each time.
                self._members.append(self._members.pop(0))
                if is_commit:
                    raise _NotKnown
                is_up = is_up or failure.is_up
                reasons[member.name] = reason
            if not is_up or SYSTEM_CLOCK.monotonic() > give_up_at:
                raise StoreError(_without_answer(reasons))
            SYSTEM_CLOCK.sleep(jittered(_ELECTION_PAUSE, 0.0))

    def _time(self) -> ServerTime:
        """Return the time of the member that answered last."""
        return self._members[0].clock.read(SYSTEM_CLOCK.monotonic())

    def _if_allowed(self, path: str) -> dict[str, Any]:
        """Return what a member says of the cluster; nothing if a user is denied it."""
        try:
            return self._call(path, {})
        except StoreError:
            return {}

    def _quota(self, size: int) -> str:
        """Return how large the database of the member may become; "" if unknown.

        Up to etcd 3.5 only its metrics tell it: see --listen-metrics-urls.
        """
        if size < _LARGE:
            return ""
        told = _QUOTA.search(self._members[0].metrics())
        return str(int(float(told[1]))) if told else ""

    def interrupt(self) -> None:
        """End the wait of another thread, which then sends no other request."""
        for member in list(self._members):
            member.interrupt()

    def close(self) -> None:
        """Close the connections to all members."""
        for member in self._members:
            member.close()


class _State(NamedTuple):
    """A hash that is read in part, as it was read: all but its counters.

    Attributes:
        revision: When it was so.
        versions: The revisions of its cells.
        cells: Its head and the fields that are there.
    """

    revision: str
    versions: dict[tuple[bytes, bytes], str]
    cells: list[Cell]


def _check_files(url: str) -> None:
    """Refuse options of a URL that cannot be used.

    Raises:
        ValueError: There is no such option, or no such file.
    """
    parts = urlsplit(url)
    files = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(files.keys() - set(_OPTIONS)):
        raise ValueError(
            f"there is no option {unknown[0]}; there are {', '.join(_OPTIONS)}"
        )
    if files and parts.scheme != "etcds":
        raise ValueError("its certificates need etcds://")
    if len(files.keys() & {"cert", "key"}) == 1:
        raise ValueError("cert and key are needed together")
    for name, path in files.items():
        if not os.access(path, os.R_OK):
            raise ValueError(f"the file of its option {name} cannot be read")


_START = (
    "start the members that are down, and check the network between them: without a "
    "majority of them, one that runs cannot answer"
)


def _without_answer(reasons: Mapping[str, str]) -> str:
    """Return the error text for a request that no member has answered."""
    if len(reasons) == 1:
        (reason,) = reasons.values()
        advice = f"; {IS_BUSY}, or a majority of its cluster is away"
        return f"gives no answer: {reason}{advice * (reason == LATE)}"
    told, remedies = [], []
    for name, why in sorted(reasons.items()):
        fact, _, remedy = why.partition("; ")
        told.append(f"{name} ({fact})")
        remedies.append(remedy or _START)
    remedy = "; ".join(dict.fromkeys(remedies))
    return f"has no member that answers: {', '.join(told)}; {remedy}"


def _chunks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _put(key: bytes, value: bytes, lease: str = "0") -> dict[str, Any]:
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": lease}}


def _delete(name: bytes, field: bytes) -> dict[str, Any]:
    return {"request_delete_range": {"key": _text(_key(name, field))}}


def _ranges_of(needs: Needs) -> list[dict[str, Any]]:
    """Return the ranges of all cells that these needs ask for."""
    ranges = [_range_of(name) for name in needs.names]
    for name in needs.parts:
        places = [(name, HEAD), *needs.counters(name)]
        ranges += [{"key": _text(_key(*place))} for place in places]
        ranges.append(_span(_key(name, _FIRST_FIELD), _key(name, _LAST_FIELD)))
    return ranges


def _is_no_newer(start: bytes, end: bytes, revision: str) -> dict[str, Any]:
    """Return the comparison: no cell of a range is newer than a revision."""
    later = str(int(revision) + 1)
    newest = {"target": "MOD", "result": "LESS", "mod_revision": later}
    return {**newest, **_span(start, end)}


def _data(cell: Cell) -> bytes:
    """Return the bytes of a cell.

    Of two counters with up to 16 digits, the lesser text is the lesser number. Those
    with more digits have a score, by which their text is greater than all of these.
    """
    if cell.kind == HASH and is_counter(cell.field):
        is_long = len(cell.value or b"") > _TIME_DIGITS
        cell = cell._replace(score=0.0 if is_long else None)
    return encoded(cell)


def _escaped(name: bytes) -> bytes:
    return name.replace(b"\0", b"\0\xff") + b"\0\x01"


def _key(name: bytes, field: bytes) -> bytes:
    return _CELLS + _escaped(name) + field


def _parts(key: bytes) -> tuple[bytes, bytes]:
    name, _, field = key[len(_CELLS) :].partition(b"\0\x01")
    return name.replace(b"\0\xff", b"\0"), field


def _end_of(head: bytes) -> bytes:
    """Return the first name after all names with this prefix."""
    head = head.rstrip(b"\xff")  # no byte comes after that
    return head[:-1] + bytes([head[-1] + 1])


def _span(start: bytes, end: bytes) -> dict[str, Any]:
    return {"key": _text(start), "range_end": _text(end)}


def _prefix(head: bytes) -> dict[str, Any]:
    return _span(head, _end_of(head))


def _range_of(name: bytes) -> dict[str, Any]:
    return _prefix(_key(name, HEAD))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
