"""The lease of a holder, and the holder as the nodes store it.

The value of a lock on a node is readable text::

    9f3c…c1a0.5d2e…77b1      token: base "." attempt, fixed length, the ownership
    1790000000000000         the node's fence counter when it granted
    send_invoice             task     ┐
    0c9d…                    task id  │ the holder's info, for display
    worker-1                 host     │
    4711                     pid      │
    1790000000.123           start, seconds since 1970 by the holder's clock │
    1789999999000000         µs since 1970 when its call was published, if known ┘
    limit 5 0 imports        of each limit that it has a permit of: how many permits
                             there are, the period, the key; see ``locks.limits``
    key account:1            of several keys that are taken together, each
    key account:2
    kept                     if this is a permit for a start: see ``locks.permits``
    cancelled send_invoice…  the newcomer that asked the holder to end, if any

The *base* is minted once per execution and the *attempt* for every try. So a delayed
release of one try cannot delete the vote of the next one. Locks that the body of a task
takes have bases of their own, which begin as that of the task (`family_of`).
"""

from __future__ import annotations

import enum
import functools
import math
import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.text import MOST_ID, line_of, number_in, seconds_in
from celery_redlock.errors import LockCancelled, LockLost
from celery_redlock.locks.limits import MOST_PERMITS, Limit
from celery_redlock.scripts.keys import keys_of, shown, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.locks.limits import Limits
    from celery_redlock.locks.permits import Choice
    from celery_redlock.wire.quorum import Ballot


_DRIFT_RATE, _DRIFT_FIXED = 0.01, 0.002
_BASE_BYTES, _ATTEMPT_BYTES = 16, 8
_CANCELLED = "cancelled "  # how the last line begins that REQUEST_CANCEL writes
_KEY = "key "  # how a line with one of several keys begins
_LIMIT = "limit "  # how a line with a limit begins
_KEPT = "kept"  # the last line of a permit for a start
_FIELDS = 7  # lines before these, at least
TOKEN_LENGTH = 2 * _BASE_BYTES + 1 + 2 * _ATTEMPT_BYTES

_body_of: tuple[int, str] = 0, ""  # the process, and the family of what it runs


def new_base() -> str:
    """Mint the part of a token that stays the same for one execution.

    In the body of a task, it begins with the family of the task.
    """
    process, family = _body_of
    if family and process != os.getpid():  # also a process that a body has forked
        family = ""
    return family + secrets.token_hex(_BASE_BYTES - len(family) // 2)


def family_of(base: str) -> str:
    """Return the common prefix of the bases of an execution and its body's locks.

    By it, the worker's main process finds all locks of a child that is gone.
    """
    return base[:_BASE_BYTES]


def note_body(base: str) -> None:
    """Note the execution whose body this process runs; "" when the body has ended."""
    global _body_of  # noqa: PLW0603  (one of each process: threads of a body take locks)
    _body_of = os.getpid(), family_of(base)


def new_token(base: str) -> str:
    """Mint the token of one attempt of this execution."""
    return f"{base}.{secrets.token_hex(_ATTEMPT_BYTES)}"


def drift_of(seconds: float) -> float:
    """Return the seconds by which two clocks may part in this time: 1 % + 2 ms."""
    return seconds * _DRIFT_RATE + _DRIFT_FIXED


def end_of_validity(started_at: float, ttl: float) -> float:
    """Return the instant until which a majority certainly keeps a lock.

    Args:
        started_at: Instant before the first node was asked.
        ttl: Seconds for which nodes keep the lock.
    """
    return started_at + ttl - drift_of(ttl)


_host = functools.cache(socket.gethostname)


def together_lines(key: str) -> str:
    """Return the lines in the value of a lock that name several keys; "" for one."""
    keys = keys_of(key)
    return "\n".join(f"{_KEY}{one}" for one in keys) if keys[1:] else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a lock, as a node stores it.

    Attributes:
        token: Proof of ownership.
        fence: The counter of the node that was asked. The fence of the lease is the
            greatest among a quorum of nodes.
        task: Task name, or ``""`` where the lock was taken without a task.
        task_id: Celery's id of the execution, or ``""``.
        host: Host name of the holder.
        pid: Process id of the holder on its host.
        started: Seconds since 1970, by the holder's clock, at its acquire.
        published: Microseconds since 1970, by the publisher's clock, when the call
            was published; 0 if unknown.
        cancelled_by: The newcomer that asked the holder to end, or ``""``.
        keys: The keys that were taken together, if several were.
        is_kept: Whether this is a permit for a start: it is kept for its period,
            whether its holder still runs or not.
        limits: The limits of which it has a permit, without those of one holder.
    """

    token: str
    fence: int = 0
    task: str = ""
    task_id: str = ""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    published: int = 0
    cancelled_by: str = ""
    keys: tuple[str, ...] = ()
    is_kept: bool = False
    limits: Limits = ()

    @classmethod
    def here(
        cls,
        *,
        task: str = "",
        task_id: str = "",
        started: float = 0.0,
        published: int = 0,
    ) -> Holder:
        """Return this process as a holder, before there is a token."""
        host, pid = _host(), os.getpid()
        return cls("", 0, task, task_id, host, pid, started, published)

    @classmethod
    def parse(cls, value: str) -> Holder:
        """Read the value of a lock. Parts that are missing or foreign stay empty."""
        lines, by = value.split("\n"), ""
        if lines[_FIELDS:] and lines[-1].startswith(_CANCELLED):
            by = lines.pop().removeprefix(_CANCELLED)
        more = lines[_FIELDS:]
        keys = tuple(line.removeprefix(_KEY) for line in more if line.startswith(_KEY))
        limits = _limits([line for line in more if line.startswith(_LIMIT)])
        token, fence, task, task_id, host, pid, started, published, *_ = (
            *lines,
            *[""] * 8,
        )
        return cls(
            token,
            number_in(fence),
            task,
            task_id,
            host,
            number_in(pid),
            seconds_in(started),
            number_in(published),
            by,
            keys,
            lines[-1] == _KEPT,
            limits,
        )

    def whole_key(self, key: str) -> str:
        """Return the text of all keys that the holder of this key took together.

        A permit for a start is none of it, and a value that names others without this
        key is not ours.
        """
        return text_of(self.keys) if key in self.keys and not self.is_kept else key

    def permit(self, name: str) -> tuple[Limit, int] | None:
        """Return the limit and the number of the permit that this holder has.

        Args:
            name: The name of a lock of this holder.

        Returns:
            None for a plain lock.
        """
        for limit in self.limits:
            number = limit.number(name)
            if number and bool(limit.period) == self.is_kept:
                return limit, number
        return None

    @property
    def is_ours(self) -> bool:
        """Whether this package wrote the value: its token has our form."""
        return len(self.token) == TOKEN_LENGTH and self.token[2 * _BASE_BYTES] == "."

    @property
    def base(self) -> str:
        """The part of the token that names the execution."""
        return self.token.partition(".")[0]

    def info(self, key: str = "", limits: Limits = ()) -> str:
        """Return the text that follows token and fence in the value of a lock.

        Args:
            key: The name of the lock, which names the keys if there are several.
            limits: The limits of the permits that it is of.
        """
        names = task, task_id, host = self.task, self.task_id, self.host
        if not "".join(names).isprintable():  # most are
            task, task_id, host = (line_of(name, MOST_ID) for name in names)
        published = f"\n{self.published}" if self.published else ""
        together = f"\n{together_lines(key)}" if "\n" in key else ""
        permits = "".join(map(_limit_line, limits)) if limits else ""
        return (
            f"{task}\n{task_id}\n{host}\n{self.pid}\n{self.started:.3f}"
            f"{published}{permits}{together}"
        )

    def __str__(self) -> str:
        task = self.task or "code outside of a task"
        name = f"{task}[{self.task_id}]" if self.task_id else task
        return f"{name} on {self.host or 'an unknown host'} (pid {self.pid})"


def _limit_line(limit: Limit) -> str:
    if limit.most == 1 and not limit.period:
        return ""  # a plain lock
    return f"\n{_LIMIT}{limit.most} {limit.period!r} {limit.key}"


def _limits(lines: Sequence[str]) -> Limits:
    """Return the limits in the lines of a value; none that cannot be one."""
    limits = []
    for line in lines:
        _, most, period, key, *_ = (*line.split(" ", 3), "", "")
        limit = Limit(key, number_in(most), seconds_in(period))
        if limit.key and 0 < limit.most <= MOST_PERMITS:
            limits.append(limit)
    return tuple(limits)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The lock of one key, as the nodes see it at one moment. It promises nothing.

    Attributes:
        key: The name of the lock.
        holder: The holder on a majority of the nodes, or None.
        votes: How many nodes name the token that most of them name.
        ttl_left: Seconds until the lock expires on a majority, unless its holder
            renews it; infinity for one that never expires; 0 where there is no holder.
        ballot: The votes of the nodes.
    """

    key: str
    holder: Holder | None
    votes: int
    ttl_left: float
    ballot: Ballot


class LeaseState(enum.Enum):
    """The states of a lease. It only moves down this list."""

    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Lease:
    """The result of a successful acquire: a lock, and until when to trust it.

    A lease is valid while it is held and its validity has not ended, by this machine's
    monotonic clock. Asking is free and local. It belongs to the process that acquired
    it: a forked child has a copy, which no renewal, loss or release reaches. There the
    lease is never valid, and cannot be renewed or released.

    Attributes:
        key: The name of the lock; of several keys, one a line. Of a limit, it is the
            permit: ``imports##3``.
        token: Proof of ownership, unique to the attempt that won.
        fence: A number greater than that of every earlier grant of this key. Pass it
            to storage that refuses a lesser one. Renewal keeps it.
        holder_info: The text that the nodes store beside the token, for display.
        ttl: Seconds for which each acquire and renewal sets the lock.
        started_at: Instant before the attempt's first send.
        until: Instant at which the validity ends.
        votes: How many nodes granted it, at acquire or at the last renewal.
        clock: Reads time.
        confirm: Asks the nodes whether the lease is still the holder, or raises. With
            a connection it also keeps others out until its transaction has ended.
        state: Held, released or lost.
        renewal_ballot: The votes at the last renewal, late ones included.
        cancelled_by: The newcomer that asked the holder to end; ``""`` if none did.
            The lease stays valid until its holder releases it.
        released_by: The operator that released the lock of this lease, from where and
            why; ``""`` if none did. The lease is lost.
        pid: The process that acquired it.
        choice: The permits that it has, where keys have limits; None for a plain lock.
        began_at: Instant at which the work began, by ``begin``; None before.
        begin_by: Instant by which it must begin, if it needs a permit for a start.
        on_begin: Called when the work begins.
    """

    key: str
    token: str
    holder_info: str
    fence: int
    ttl: float
    started_at: float
    until: float
    votes: int
    clock: Clock
    confirm: Callable[..., None]
    state: LeaseState = LeaseState.HELD
    renewal_ballot: Ballot | None = None
    cancelled_by: str = ""
    released_by: str = ""
    pid: int = field(default_factory=lambda: os.getpid())  # noqa: PLW0108  (tests fork)
    choice: Choice | None = None
    began_at: float | None = None
    begin_by: float = math.inf
    on_begin: Callable[[Lease], None] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of this lease."""
        return tuple(keys_of(self.key))

    @property
    def wanted(self) -> str:
        """The keys that it was acquired for: of a permit, the key with the limit."""
        if self.choice is None:
            return self.key
        return text_of(limit.key for limit in self.choice.limits if not limit.is_call)

    def covers(self, key: str) -> bool:
        """Tell whether this lease holds these keys, or permits of them."""
        if key == self.key:
            return True
        limits = self.choice.limits if self.choice else ()
        held = {*self.keys, *(limit.key for limit in limits if not limit.is_call)}
        return held.issuperset(keys_of(key))

    def is_enough_for(self, key: str, limits: Limits) -> bool:
        """Tell whether this lease alone is enough for these keys."""
        if limits:
            needed = {limit for limit in limits if not limit.is_call}
            return self.choice is not None and needed <= {*self.choice.limits}
        if self.choice is None:
            return self.covers(key)
        # The first permit has the name of the lock, but others have the other ones.
        permits = {limit.key for limit in self.choice.limits if limit.most > 1}
        return {*keys_of(key)} <= {*self.keys} - permits

    def begin(self) -> None:
        """Note that the work begins now. A permit for a start is kept for one period.

        Raises:
            LockLost: It begins so late that the permit may have ended before.
        """
        choice = self.choice
        if choice is None or not choice.starts or self.began_at is not None:
            return
        now = self.clock.monotonic()
        if now > self.begin_by:
            raise self.lost_error()
        self.began_at = now
        if self.on_begin:
            self.on_begin(self)

    def remaining(self) -> float:
        """Return the seconds of validity that are left; 0 once it is not held."""
        if self.state is not LeaseState.HELD or self.is_inherited():
            return 0.0
        return max(0.0, self.until - self.clock.monotonic())

    def is_valid(self) -> bool:
        """Tell whether this process holds the lock and can prove it."""
        return (
            self.state is LeaseState.HELD
            and self.until > self.clock.monotonic()
            and self.pid == os.getpid()
        )

    def is_inherited(self) -> bool:
        """Tell whether this is a forked child's copy of the lease of its parent."""
        return self.pid != os.getpid()

    def age(self) -> float:
        """Return the seconds since the attempt that won began."""
        return self.clock.monotonic() - self.started_at

    def held_for(self) -> float:
        """Return the seconds until now, or until its loss, since it was acquired."""
        is_lost = self.state is LeaseState.LOST
        return self.until - self.started_at if is_lost else self.age()

    def ensure(self, connection: Any = None, *, network: bool = False) -> None:
        """Raise unless the lock is still ours. Call it before a side effect.

        Without ``network`` this compares numbers and costs nothing. With it a
        majority of the nodes is asked, which costs one round trip and also notices a
        lock that an operator released. Neither can see the future: a process can be
        paused between this line and the next one. The fence protects from that.

        With ``connection`` no pause matters, where the node is a PostgreSQL and the
        connection leads to the same database: no other client gets the lock until this
        transaction has ended, also after the ttl. Only what is written by the
        transaction is protected so.

        Args:
            connection: A connection that is in a transaction: of psycopg, Django or
                SQLAlchemy, or a session of SQLAlchemy.
            network: Whether to ask the nodes.

        Raises:
            LockLost: The validity ended, or (``network``) the nodes name another
                holder, or this is a forked child of the holder. Another run may be
                under way: write nothing.
            LockCancelled: A newcomer asked the holder to end. No other run begins
                before this one has ended.
            QuorumUnreachable: (``network``) too few nodes answered to tell.
            ConfigurationError: (``connection``) it is in no transaction, or leads to
                another database, or the node is no PostgreSQL.
        """
        if not self.is_valid():
            raise self.lost_error()
        if self.cancelled_by:
            raise self.cancelled_error()
        if connection is not None:
            self.confirm(self, connection)
        if network:
            self.confirm(self)
            if not self.is_valid():  # the answers came late
                raise self.lost_error()

    def lost_error(self) -> LockLost:
        """Build the error for a lease that cannot be proven any more."""
        if self.is_inherited():
            fact = (
                f"Process {self.pid} acquired the lock {shown(self.key)}. Its child "
                f"{os.getpid()} does not hold it, and must acquire a lock of its own"
            )
        elif self.released_by:
            fact = f"The lock {shown(self.key)} was released by {self.released_by}"
        elif self.state is LeaseState.RELEASED:
            fact = f"The lock {shown(self.key)} was already released"
        else:
            late = self.clock.monotonic() - self.until
            fact = f"The lock {shown(self.key)} (ttl {self.ttl:g} s) was lost"
            if late >= 0:
                ago = late + self.ttl - drift_of(self.ttl)
                fact += f": it was last confirmed {ago:.1f} s ago"
        return LockLost(
            f"{fact}. Another client may hold it now: write nothing more under fence "
            f"{self.fence}.",
            key=self.key,
            fence=self.fence,
        )

    def cancelled_error(self) -> LockCancelled:
        """Build the error for a lease whose holder was asked to end."""
        return LockCancelled(
            f"{self.cancelled_by} asked for the lock {shown(self.key)} and cancelled "
            "the run that holds it (on_conflict: cancel_running). This run holds the "
            f"lock under fence {self.fence} until it ends.",
            key=self.key,
            fence=self.fence,
            by=self.cancelled_by,
        )

    def __repr__(self) -> str:
        return (
            f"<Lease {shown(self.key)} {self.state.value} fence={self.fence} "
            f"{self.remaining():.1f} s left>"
        )
