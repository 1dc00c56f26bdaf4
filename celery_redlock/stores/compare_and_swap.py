"""The part that stores share which decide by compare-and-swap.

::

    read a snapshot ──► the scripts run ──► commit, if nothing that was read has changed
         ▲                                                        │ it has changed
         └────────────────── a short random pause ◄───────────────┘

A key ends by the clock of the servers, and not by those of the clients. These systems
have no request for their time, but some of their replies tell it: see ``server_clock``.
The fence does not depend on clocks: it is a counter in the store. The pauses between
the tries are random, so that processes that met once do not meet again.

If the connection breaks during a commit, it is not known whether the commit was done.
The scripts then run again, on a new snapshot, as after a lost reply of a Redis node: a
lock is granted again to the same token. A release that was done replies that nothing
was held.

A store may remember what it wrote itself. A holder's scripts, which extend and release,
then run on this first, without a read. It may also take a key that it has not seen for
free, so that scripts that acquire read little. Both are assumptions, which the
commit checks as it checks each snapshot. Their replies count only if the commit was
done. If it was refused, or if they would change nothing, they run again on a snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from celery_redlock.basics.backoff import doubled, jittered
from celery_redlock.basics.clock import SYSTEM_CLOCK
from celery_redlock.basics.resp import ErrorReply
from celery_redlock.basics.text import is_port
from celery_redlock.scripts.keyspace import STRING
from celery_redlock.stores.commands import needs_of, run
from celery_redlock.stores.connection import StoreError
from celery_redlock.stores.keyspace import Cell, Loader, NotRemembered, StoreKeyspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_redlock.stores.connection import Command
    from celery_redlock.stores.keyspace import Changes
    from celery_redlock.stores.needs import Needs
    from celery_redlock.stores.server_clock import ServerTime

_TRIES, _TRIES_TOGETHER = 30, 3
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05  # seconds
# Bytes of a transaction of several commands: ZooKeeper takes 1 MB, and etcd 1.5 MB. A
# name is in it up to four times, and as a path up to three times as long.
_MOST_BYTES, _TIMES = 800_000, 12


class CompareAndSwapStore(Loader, Protocol):
    """Runs commands on a snapshot, and again if another commit came between.

    A store adds ``_servers``, ``_snapshot`` and ``_commit``, and what `Loader` asks.

    Attributes:
        _replid: The name of the memory of the store, as in `StoreKeyspace`.
        _may_be_done: Whether a commit was sent for the commands that run, and not
            refused.
        _reads_newest: Whether the next snapshot has all commits of before. If not,
            scripts that might change something, and do not, run again on one that has.
    """

    _replid: bytes
    _may_be_done: bool = False
    _reads_newest: bool = True

    @classmethod
    def name_of(cls, url: str) -> str:
        """Return ``host:port`` of all servers, sorted, with a plus between."""
        return "+".join(sorted(f"{host}:{port}" for host, port in cls._servers(url)))

    @classmethod
    def hosts_of(cls, url: str) -> list[str]:
        """Return the hosts of all servers."""
        return [host.strip("[]") for host, _ in cls._servers(url)]

    @classmethod
    def members_of(cls, url: str) -> dict[str, str]:
        """Return the URL of each server alone, by its name; none if there is one."""
        parts, servers = urlsplit(url), cls._servers(url)
        login = "".join(parts.netloc.rpartition("@")[:2])
        names = [f"{host}:{port}" for host, port in servers] if servers[1:] else []
        return {one: parts._replace(netloc=login + one).geturl() for one in names}

    @classmethod
    def _servers(cls, url: str) -> list[tuple[str, int]]:
        """Return host and port of all servers.

        Raises:
            ValueError: The URL cannot be used. The text says why, without it.
        """

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out, and return the replies. A refusal is one, too."""
        self._may_be_done = False
        try:
            return self._run(commands)
        except StoreError as error:
            error.may_be_done = self._may_be_done
            raise

    def _run(self, commands: Sequence[Command]) -> list[Any]:
        """Carry commands out, and return the replies.

        All in one transaction; but if they are too many for one, or meet changes of
        other clients again and again, in halves, one after the other.
        """
        needs = needs_of(commands)
        if done := self._run_remembered(commands, needs):
            return done
        is_one = len(commands) == 1
        tries = _TRIES if is_one else _TRIES_TOGETHER if self._fits(needs) else 0
        conflicts, is_newest = 0, False
        while conflicts < tries:
            if conflicts:
                pause = doubled(_FIRST_PAUSE, conflicts, _LONGEST_PAUSE)
                SYSTEM_CLOCK.sleep(jittered(pause, 0.0))
            is_newest = is_newest or self._reads_newest
            keys = self._snapshot(needs, is_newest=is_newest)
            replies = [run(command, keys) for command in commands]
            if keys.changes:
                if not is_one and _is_large(keys.changes):
                    break
                if self._commit(keys, needs):
                    return replies
                conflicts += 1
            elif is_newest or needs.is_read:
                return replies
            else:
                is_newest = True
        if is_one:
            return [ErrorReply("BUSY other processes change the same keys")]
        half = len(commands) // 2
        return [*self._run(commands[:half]), *self._run(commands[half:])]

    def _run_remembered(
        self, commands: Sequence[Command], needs: Needs
    ) -> list[Any] | None:
        """Run on what the store remembers; return None if nothing was changed so."""
        keys = self._remembered(needs)
        if keys is None:
            return None
        try:
            replies = [run(command, keys) for command in commands]
            if not keys.changes or (commands[1:] and _is_large(keys.changes)):
                return None
            return replies if self._commit(keys, needs) else None
        except NotRemembered:
            return None

    def _remembered(self, _needs: Needs) -> StoreKeyspace | None:
        """Return the cells as this client wrote them last; None if unsure.

        It has no loader.
        """
        return None

    def _keyspace(
        self,
        needs: Needs,
        cells: Iterable[Cell],
        time: ServerTime,
        loader: Loader | None,
    ) -> StoreKeyspace:
        """Return what is needed, of which there are these cells at this time."""
        keys = StoreKeyspace(loader, replid=self._replid, time=time)
        keys.enter({*needs.names, *needs.states}, cells)
        return keys

    def _fits(self, _needs: Needs) -> bool:
        """Tell whether one transaction can do all that is needed."""
        return True

    def _snapshot(self, needs: Needs, *, is_newest: bool) -> StoreKeyspace:
        """Load what is needed, as it was at one moment.

        Args:
            needs: What is needed.
            is_newest: Whether all commits of before must be in it.
        """

    def _commit(self, keys: StoreKeyspace, needs: Needs) -> bool:
        """Write the changes if what they depend on is unchanged; else return False."""


def servers_in(url: str, port: int) -> list[tuple[str, int]]:
    """Return host and port of each server that a URL lists, by default this port.

    Raises:
        ValueError: There is none, or a port is no number.
    """
    servers = []
    for one in map(str.strip, urlsplit(url).netloc.rpartition("@")[2].split(",")):
        host, _, its_port = one.rpartition(":") if ":" in one else (one, "", "")
        if not host or (its_port and not is_port(its_port)):
            raise ValueError("write the servers as host:port,host:port")
        servers.append((host, int(its_port or port)))
    return servers


def login_in(url: str) -> tuple[str, str]:
    """Return the user and the password in a URL; ``""`` for what is missing."""
    name, _, password = urlsplit(url).netloc.rpartition("@")[0].partition(":")
    return unquote(name), unquote(password)


def _is_large(changes: Changes) -> bool:
    """Tell whether a server may refuse the changes, because they are too long."""
    cells = changes.written.values()
    names = [*changes.wiped, *[cell.name for cell in cells]]
    size = _TIMES * sum(map(len, names)) + sum(len(cell.value or b"") for cell in cells)
    return size > _MOST_BYTES


def writes_end(changes: Changes, needs: Needs) -> bool:
    """Tell whether the end of a lock is written.

    The reply of the commit tells the time. If that lies outside of the bounds, the end
    may have been written too early. Then the scripts run again, which is harmless for a
    holder, as after a lost reply.
    """
    return any(
        cell.expires_at_ms is not None and cell.name in needs.own
        for cell in changes.written.values()
    )


def has_ended(cells: Iterable[Cell], time: ServerTime) -> bool:
    """Tell whether one of these heads has ended by this time."""
    return any(
        cell.expires_at_ms is not None and cell.expires_at_ms * 1000 < time.earliest_us
        for cell in cells
    )


def alive_at(now_ms: int, heads: Iterable[Cell]) -> list[bytes]:
    """Return the names of the keys that have not ended by this time."""
    return [
        cell.name
        for cell in heads
        if cell.expires_at_ms is None or cell.expires_at_ms >= now_ms
    ]


def encoded(cell: Cell) -> bytes:
    """Return the bytes that a store keeps of a cell, besides its name and field."""
    ends = b"" if cell.expires_at_ms is None else b"%d" % cell.expires_at_ms
    score = b"" if cell.score is None else repr(cell.score).encode()
    head = b" ".join((cell.kind.encode(), ends, score, b"-" * (cell.value is None)))
    return head + b"\n" + (cell.value or b"")


def decoded(name: bytes, field: bytes, data: bytes) -> Cell:
    """Return the cell that was kept as these bytes."""
    head, _, value = data.partition(b"\n")
    kind, ends, score, is_none = [*head.split(b" "), b"", b"", b""][:4]
    return Cell(
        name,
        field,
        kind.decode() or STRING,
        None if is_none else value,
        float(score) if score else None,
        int(ends) if ends else None,
    )
