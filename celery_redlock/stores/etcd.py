"""etcd as a store: a snapshot at one revision, and one transaction that compares.

Each cell of a key is a key of etcd: ``redlock/cell/<name> 00 01 <field>``. What a
transaction compares is only what decides:

* of an exclusive key that exists: its head. A removed member leaves no trace, so its
  transaction writes the head again;
* of one that does not exist, or has members: that no cell of it is newer than the
  snapshot;
* of a hash that is read in part (``meta``): these fields and its head. So two locks
  with counters in different stripes do not conflict.

etcd takes 128 comparisons at most. Where those would be too many, one comparison is for
all that lies between several keys, in the order of their names: it may find a change
of a key that is none of ours, and then the scripts run again.

All members of the cluster are tried in turn. The run id is the id of the cluster: it is
the same after members restart, because a majority of them has each commit on disk; a
cluster that is made anew, also from a backup, has another one. A backup that is
restored with the names, URLs and token of the old members keeps the id: do not do that.

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
import json
import math
import os
import re
import socket
import threading
import warnings
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

with warnings.catch_warnings():  # of what its thread pools would like to use
    warnings.simplefilter("ignore")
    from etcd3gw.client import Etcd3Client
    from etcd3gw.exceptions import (
        ConnectionFailedError,
        ConnectionTimeoutError,
        Etcd3Exception,
    )
from requests.exceptions import RequestException, SSLError

from celery_redlock.basics.backoff import jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.stores.commands import split_release
from celery_redlock.stores.compare_and_swap import (
    CompareAndSwapStore,
    decoded,
    encoded,
)
from celery_redlock.stores.connection import GRANT, StoreError, readable
from celery_redlock.stores.keyspace import HEAD, STRING, Cell, StoreKeyspace
from celery_redlock.stores.server_clock import ServerClock, ServerTime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_redlock.stores.commands import Command
    from celery_redlock.stores.keyspace import Changes
    from celery_redlock.stores.needs import Needs

__all__ = ["Etcd"]

_CELLS, _LISTENERS, _MESSAGES = b"redlock/cell/", b"redlock/listen/", b"redlock/wake/"
_DEFAULT_PORT = 2379
# etcd's --max-txn-ops. The comparisons of a transaction and the operations of one that
# is nested in it count together.
_TXN_OPS, _MOST_COMPARED, _MOST_READ = 128, 120, 100
_MOST_RELEASED = 50  # locks in one transaction: each has a wait queue
_LISTENER_TTL = 10  # seconds
_READ_SIZE = 1 << 16
_UNREACHABLE = "it cannot be reached"
_PLAIN = ("UNEXPECTED_EOF", "WRONG_VERSION_NUMBER")  # what a port without TLS replies
_NO_TLS = (
    "it closes TLS connections; if it speaks no TLS, write etcd:// in redlock_nodes"
)
_ELECTION_PAUSE = 0.1  # seconds
_OPTIONS = ("ca", "cert", "key")
_NO_PERMISSION = "permission denied"
# What etcd says under an alarm -> the same, after the name of the node.
_ALARMS = {
    "space exceeded": "is full (NOSPACE) and takes no changes; compact its history "
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
    "authentication failed": "rejected the credentials",
    "user name is empty": "asks for a user and a password; write them as "
    "etcd://user:password@… in redlock_nodes",
    "authentication is not enabled": "has its authentication switched off; remove the "
    "user from redlock_nodes, or run `etcdctl auth enable`",
    _NO_PERMISSION: f"does not let our user read below redlock/; {GRANT}",
}
# "invalid auth token", and "revision of auth store is old".
_FORGOTTEN = ("auth token", "auth store is old")
_SWEEP_EVERY, _SWEPT, _ENDED_MS = 60.0, 1000, 60_000


class Etcd(CompareAndSwapStore):
    """One connection to an etcd cluster: see ``stores.connection.Store``."""

    grants = "etcdctl role grant-permission redlock --prefix=true readwrite redlock/"
    empties = "etcdctl del --prefix redlock/"

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        members, files = _members(url), _files(url)
        self._timeout = timeout
        protocol = "https" if parts.scheme == "etcds" else "http"
        self._members = [
            _EtcdServer(
                host,
                port,
                protocol,
                ca_cert=files.get("ca"),
                cert_cert=files.get("cert"),
                cert_key=files.get("key"),
                timeout=timeout,
                api_path="/v3/",
            )
            for host, port in members
        ]
        self._swept_at = SYSTEM_CLOCK.monotonic()
        self._sweeps_from = _CELLS
        self._leases: dict[bytes, str] = {}
        name, _, password = parts.netloc.rpartition("@")[0].partition(":")
        self._user = {"name": unquote(name), "password": unquote(password)}
        try:
            if name:
                self._log_in()
            self._begin([])
        except StoreError as error:
            self.close()
            raise StoreError(_in_words(str(error))) from None
        status = self._status()
        self.info = {
            "redis_mode": "standalone",
            "store": f"etcd {status.get('version', '')}".strip(),
            "role": "master",
            "encrypted": "yes" if protocol == "https" else "no",
            "denied": self._denied(),
            "database_bytes": status.get("dbSize", ""),
            "database_quota": self._quota(int(status.get("dbSize", 0))),
        }

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return ``host:port`` of all members, sorted, with a plus between."""
        _files(url)
        return "+".join(sorted(f"{host}:{port}" for host, port in _members(url)))

    @classmethod
    def hosts_of(cls, url: str) -> list[str]:
        """Return the hosts of all members."""
        return [host for host, _ in _members(url)]

    @classmethod
    def prepare(cls, url: str, timeout: float) -> None:
        """See that the cluster can be used; there is nothing to make."""
        cls(url, timeout).close()

    def _denied(self) -> str:
        """Return that our user may not write, or ``""``.

        etcd looks at the permissions of a transaction, also of what it will not do.
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
            raise
        return ""

    # -- a transaction ---------------------------------------------------------------

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out, and return the replies. A refusal is one, too."""
        if len(commands) == 1:
            parts = split_release(commands[0], _MOST_RELEASED)
            if len(parts) > 1:
                replies = [self.run([part])[0] for part in parts]
                errors = [one for one in replies if isinstance(one, ErrorReply)]
                return [errors[0] if errors else max(replies)]
        try:
            return super().run(commands)
        except StoreError as error:
            if _NO_PERMISSION not in str(error):
                raise
            denied = "NOPERM our user may not read and write below redlock/"
            return [ErrorReply(denied) for _ in commands]

    def _fits(self, needs: Needs) -> bool:
        return len(needs.exclusive) <= _MOST_READ

    def _snapshot(self, needs: Needs) -> StoreKeyspace:
        ranges = [_range_of(name) for name in needs.names]
        parts = {
            name: [HEAD, *(b"." + one for one in fields)]
            for name, fields in needs.fields.items()
            if name not in needs.names
        }
        ranges += [{"key": _text(_key(n, f))} for n, fs in parts.items() for f in fs]
        cells = self._begin(ranges)
        keys = StoreKeyspace(self, run_id=self._run_id, time=self._time())
        keys.enter([*needs.names, *parts], cells)
        return keys

    def _begin(self, ranges: list[dict[str, Any]]) -> list[Cell]:
        """Read these ranges at one revision, and keep the versions of their cells."""
        self._versions: dict[tuple[bytes, bytes], str] = {}
        self._with_members: set[bytes] = set()
        self._revision = ""
        cells: list[Cell] = []
        for part in _chunks(ranges, _MOST_READ) or [[]]:
            cells += self._read(part)
        return cells

    def _read(self, ranges: list[dict[str, Any]]) -> list[Cell]:
        at = {"revision": self._revision} if self._revision else {}
        ranges = ranges or [{"key": _text(_CELLS)}]
        ops = [{"request_range": {**one, **at}} for one in ranges]
        reply = self._call("/kv/txn", {"success": ops})
        if not self._revision:
            self._revision = reply["header"]["revision"]
            self._run_id = reply["header"]["cluster_id"].encode()
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

    def _commit(self, keys: StoreKeyspace, needs: Needs) -> bool:
        changes = keys.changes
        ops = [self._delete(name, field) for name, field in changes.removed]
        touched = {name for name, _ in changes.removed} - changes.wiped
        for name, field in self._versions:
            is_written = (name, field) in changes.written
            if name in changes.wiped and not is_written:
                ops.append(self._delete(name, field))
            elif name in touched and field == HEAD and not is_written:
                ops.append(self._write_again(name))
        written = changes.written.values()
        ops += [_put(_key(c.name, c.field), encoded(c)) for c in written]
        for place, (channel, message) in enumerate(changes.messages):
            key = _MESSAGES + _escaped(channel) + b"%d" % place
            ops.append(_put(key, message, self._leases[channel]))
        compare = self._comparisons(changes, needs)
        body = {"compare": compare, "success": _nested(ops, _TXN_OPS - len(compare))}
        try:
            is_done: bool = self._call("/kv/txn", body).get("succeeded", False)
        except StoreError as error:
            if "lease not found" in str(error):  # a listener has ended
                return False
            raise
        # An error of the sweep must not hide what the commit has done.
        with contextlib.suppress(StoreError):
            self._sweep()
        return is_done

    def _comparisons(self, changes: Changes, needs: Needs) -> list[dict[str, Any]]:
        """Return what must hold for the changes, in `_MOST_COMPARED` at most."""
        changed = {n for n, _ in (*changes.removed, *changes.written)} | changes.wiped
        parts = {n: fs for n, fs in needs.fields.items() if n not in needs.names}
        whole = needs.exclusive | changed
        whole -= {b"%b\n%b" % (n, one) for n, fs in needs.fields.items() for one in fs}
        whole -= parts.keys()
        present = {name for name in whole if (name, HEAD) in self._versions}
        heads = [self._is_unchanged(name, HEAD) for name in present | parts.keys()]
        fields = [
            self._is_unchanged(name, b"." + field)
            for name, fields in parts.items()
            for field in fields
        ]
        ranges = (whole - present) | (whole & self._with_members)
        if len(heads) + len(fields) + len(ranges) > _MOST_COMPARED:
            fields, ranges = [], ranges | parts.keys()
        room = _MOST_COMPARED - len(heads) - len(fields)
        if ranges and room < 1:
            raise StoreError(f"cannot compare {len(heads)} keys at once")
        starts = sorted(_key(name, HEAD) for name in ranges)
        groups = _chunks(starts, math.ceil(len(starts) / max(1, room)) or 1)
        later = str(int(self._revision) + 1)
        return (
            heads
            + fields
            + [
                {
                    "target": "MOD",
                    "result": "LESS",
                    "mod_revision": later,
                    "key": _text(group[0]),
                    "range_end": _text(_end_of(group[-1])),
                }
                for group in groups
            ]
        )

    def _is_unchanged(self, name: bytes, field: bytes) -> dict[str, Any]:
        return {
            "target": "MOD",
            "result": "EQUAL",
            "mod_revision": self._versions.get((name, field), "0"),
            "key": _text(_key(name, field)),
        }

    def _delete(self, name: bytes, field: bytes) -> dict[str, Any]:
        return {"request_delete_range": {"key": _text(_key(name, field))}}

    def _write_again(self, name: bytes) -> dict[str, Any]:
        key = _text(_key(name, HEAD))
        return {"request_put": {"key": key, "ignore_value": True}}

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
            self._leases[channel] = kv["lease"]
        return bool(found.get("kvs"))

    def scan(self, head: bytes, now_ms: int) -> list[bytes]:
        """Return the names of the keys that begin so and have not ended by then."""
        start = _CELLS + head.replace(b"\0", b"\0\xff")
        # At the revision of the snapshot: other commands of the batch rest on it.
        return [
            cell.name
            for cell in self._read([_prefix(start)])
            if cell.field == HEAD
            and (cell.expires_at_ms is None or cell.expires_at_ms >= now_ms)
        ]

    def clear(self) -> None:
        """Delete all keys."""
        self._call("/kv/deleterange", _prefix(_CELLS))

    # -- listening -------------------------------------------------------------------

    def listen(self, channel: bytes, until_closed: socket.socket) -> Iterator[bytes]:
        """Yield the messages on a channel, until the socket can be read."""
        lease = self._call("/lease/grant", {"TTL": _LISTENER_TTL, "ID": 0})["ID"]
        key = _LISTENERS + _escaped(channel) + lease.encode()
        put = _put(key, b"", lease)["request_put"]
        revision = int(self._call("/kv/put", put)["header"]["revision"])
        watched = _prefix(_MESSAGES + _escaped(channel))
        create = {"create_request": {**watched, "start_revision": revision + 1}}
        member = self._members[0]  # the one that answered last
        ours, theirs = socket.socketpair()
        try:
            stream = member.session.post(
                member.get_url("/watch"),
                json=create,
                stream=True,
                timeout=(self._timeout, None),
            )
            args = (stream, theirs)
            threading.Thread(target=_follow, args=args, daemon=True).start()
            yield b""
            buffered = b""
            while True:
                ready = readable(ours, until_closed, timeout=_LISTENER_TTL / 3)
                if until_closed in ready:
                    return
                if not ready:
                    self._call("/lease/keepalive", {"ID": lease})
                    continue
                if not (data := ours.recv(_READ_SIZE)):
                    raise StoreError("lost its connection")
                *lines, buffered = (buffered + data).split(b"\n")
                for line in lines:
                    yield from map(_bytes, json.loads(line))
        except RequestException as error:
            raise StoreError(f"lost its connection: {_reason(error)}") from None
        finally:
            with contextlib.suppress(OSError):  # ends the thread that follows
                ours.shutdown(socket.SHUT_RDWR)
            ours.close()
            with contextlib.suppress(StoreError):  # else it ends by itself
                self._call("/lease/revoke", {"ID": lease})

    # -- members ---------------------------------------------------------------------

    def _log_in(self) -> None:
        """Ask for a token of our user, which all requests then carry.

        With one that etcd has forgotten, it would refuse this request, too.
        """
        for member in self._members:
            member.session.headers.pop("Authorization", None)
        token = self._ask("/auth/authenticate", self._user)["token"]
        for member in self._members:
            member.session.headers["Authorization"] = token

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for something; once more if etcd has forgotten our token.

        It does five minutes after the last use, when a member restarts, and when an
        operator has changed users or roles. The request was not carried out then.
        """
        try:
            return self._ask(path, body)
        except StoreError as refusal:
            if not (self._user["name"] and _has_forgotten(str(refusal))):
                raise
        self._log_in()
        return self._ask(path, body)

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the member that answered last, or else the next one that answers.

        While they elect a leader, members answer that they have none. So they are asked
        again until the timeout is over. A request may be carried out twice: each of
        ours has the same effect then, or compares, and is refused.
        """
        give_up_at = SYSTEM_CLOCK.monotonic() + self._timeout
        while True:
            is_up = False
            for _ in self._members:
                member = self._members[0]
                try:
                    reply = member.ask(path, body)
                except (Etcd3Exception, RequestException, OSError) as error:
                    reason = _reason(error)
                    for sign, words in _ALARMS.items():
                        if sign in reason:
                            raise StoreError(words) from None
                    if _is_refusal(reason):
                        raise StoreError(f"refused the request: {reason}") from None
                    is_up = is_up or reason not in {_UNREACHABLE, _NO_TLS}
                    self._members.append(self._members.pop(0))
                else:
                    return reply
            if not is_up or SYSTEM_CLOCK.monotonic() > give_up_at:
                raise StoreError(f"has no member that answers: {reason}")
            SYSTEM_CLOCK.sleep(jittered(_ELECTION_PAUSE, 0.0))

    def _time(self) -> ServerTime:
        """Return the time of the member that answered last."""
        return self._members[0].clock.read(SYSTEM_CLOCK.monotonic())

    def _status(self) -> dict[str, Any]:
        """Return what the member says of itself; nothing if a user is denied it."""
        try:
            return self._call("/maintenance/status", {})
        except StoreError:
            return {}

    def _quota(self, size: int) -> str:
        """Return how large the database of the member may become; "" if unknown.

        Up to etcd 3.5 only its metrics tell it: see --listen-metrics-urls.
        """
        if size < _LARGE:
            return ""
        member = self._members[0]
        metrics = member.get_url("/metrics").replace(member.api_path, "/")
        try:
            told = _QUOTA.search(
                member.session.get(metrics, timeout=self._timeout).text
            )
        except (RequestException, OSError):
            return ""
        return str(int(float(told[1]))) if told else ""

    def interrupt(self) -> None:
        """End what another thread waits for: each request ends by its timeout."""

    def close(self) -> None:
        """Close the connections to all members."""
        for member in self._members:
            member.session.close()


class _EtcdServer(Etcd3Client):
    """A member of the cluster, and its clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Or REQUESTS_CA_BUNDLE would count more than the file of the URL, and a .netrc
        # more than our token.
        self.session.trust_env = False
        self.session.hooks["response"].append(self._note_date)
        self.clock = ServerClock()
        self._date = ""

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, return the reply, and learn the time.

        Raises:
            StoreError: The reply does not tell the time.
        """
        sent_at = SYSTEM_CLOCK.monotonic()
        reply: dict[str, Any] = self.post(self.get_url(path), json=body)
        received_at = SYSTEM_CLOCK.monotonic()
        if (date := parsedate_tz(self._date)) is None:
            raise StoreError("sends no Date, so its time is unknown; is there a proxy?")
        second = mktime_tz(date)
        self.clock.observe(sent_at, received_at, second, second + 1)
        return reply

    def _note_date(self, response: Any, **_: Any) -> None:
        self._date = response.headers.get("Date", "")


def _members(url: str) -> list[tuple[str, int]]:
    """Return host and port of all members.

    Raises:
        ValueError: There is none, a port is no number, or the URL has a path.
    """
    if urlsplit(url).path.strip("/"):
        raise ValueError("an etcd has no path; all keys are below redlock/")
    hosts = urlsplit(url).netloc.rpartition("@")[2].split(",")
    members = []
    for one in hosts:
        host, _, port = one.strip().rpartition(":") if ":" in one else (one, "", "")
        if not host or (port and not port.isdecimal()):
            raise ValueError("write the members as host:port,host:port")
        members.append((host, int(port or _DEFAULT_PORT)))
    return members


def _files(url: str) -> dict[str, str]:
    """Return the files of the options of a URL.

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
    return files


def _follow(stream: Any, sock: socket.socket) -> None:
    """Send each group of messages of a watch to a socket, as a line of JSON."""
    try:
        with stream, sock:
            for line in stream.iter_lines(chunk_size=None):
                events = json.loads(line).get("result", {}).get("events", ())
                values = [e["kv"].get("value", "") for e in events if "type" not in e]
                if values:
                    sock.sendall(json.dumps(values).encode() + b"\n")
    except (OSError, ValueError):
        pass  # the reader sees that its socket is closed


def _in_words(refusal: str) -> str:
    """Return what a client that connects must know of a refusal."""
    words = (text for sign, text in _REFUSALS.items() if sign in refusal)
    return next(words, refusal)


def _is_refusal(reason: str) -> bool:
    return any(
        word in reason
        for word in (
            *("authentic", "user name", "permission", "lease not"),
            *("too many", "too large", *_FORGOTTEN),
        )
    )


def _has_forgotten(reason: str) -> bool:
    """Tell whether a request had no token, or one that etcd does not know."""
    return any(word in reason for word in (*_FORGOTTEN, "user name is empty"))


def _reason(error: Exception) -> str:
    """Return what etcd says, or what the connection lacks."""
    text = str(getattr(error, "detail_text", "") or "").strip()
    if text.startswith("{"):
        found = json.loads(text)
        return str(found.get("message") or found.get("error"))
    if isinstance(error, ConnectionTimeoutError):
        return "it did not answer in time"
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, SSLError) and any(one in str(cause) for one in _PLAIN):
        return _NO_TLS
    if isinstance(cause, SSLError):
        return "TLS failed: its certificate is not trusted, or it does not trust ours"
    if isinstance(error, (ConnectionFailedError, OSError)):
        return _UNREACHABLE
    return (text or type(error).__name__).splitlines()[0][:200]


def _nested(ops: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """Return the operations, split into transactions of a greatest size."""
    if len(ops) <= _TXN_OPS:
        return ops
    return [{"request_txn": {"success": part}} for part in _chunks(ops, room)]


def _chunks(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _put(key: bytes, value: bytes, lease: str = "0") -> dict[str, Any]:
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": lease}}


def _escaped(name: bytes) -> bytes:
    return name.replace(b"\0", b"\0\xff") + b"\0\x01"


def _key(name: bytes, field: bytes) -> bytes:
    return _CELLS + _escaped(name) + field


def _parts(key: bytes) -> tuple[bytes, bytes]:
    name, _, field = key[len(_CELLS) :].partition(b"\0\x01")
    return name.replace(b"\0\xff", b"\0"), field


def _end_of(head: bytes) -> bytes:
    """Return the first name after all names with this prefix."""
    return head[:-1] + bytes([head[-1] + 1])


def _prefix(head: bytes) -> dict[str, Any]:
    return {"key": _text(head), "range_end": _text(_end_of(head))}


def _range_of(name: bytes) -> dict[str, Any]:
    return _prefix(_key(name, HEAD))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
