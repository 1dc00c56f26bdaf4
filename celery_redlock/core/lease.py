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
    cancelled send_invoice…  the newcomer that asked the holder to end, if any

The *base* is minted once per execution and the *attempt* for every try. So a delayed
release of one try cannot delete the vote of the next one.
"""

from __future__ import annotations

import enum
import functools
import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_redlock.errors import LockCancelled, LockLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.clock import Clock
    from celery_redlock.core.quorum import Ballot

__all__ = [
    "TOKEN_LENGTH",
    "Holder",
    "Inspection",
    "Lease",
    "LeaseState",
    "drift_of",
    "end_of_validity",
    "new_base",
    "new_token",
]

_BASE_BYTES, _ATTEMPT_BYTES = 16, 8
_DRIFT_RATE, _DRIFT_FIXED = 0.01, 0.002
_CANCELLED = "\ncancelled "  # as REQUEST_CANCEL of core.scripts writes it
TOKEN_LENGTH = 2 * _BASE_BYTES + 1 + 2 * _ATTEMPT_BYTES


def new_base() -> str:
    """Mint the part of a token that stays the same for one execution."""
    return secrets.token_hex(_BASE_BYTES)


def new_token(base: str) -> str:
    """Mint the token of one attempt of this execution."""
    return f"{base}.{secrets.token_hex(_ATTEMPT_BYTES)}"


def drift_of(ttl: float) -> float:
    """Return the seconds by which two clocks may part over one ttl: 1 % + 2 ms."""
    return ttl * _DRIFT_RATE + _DRIFT_FIXED


def end_of_validity(started_at: float, ttl: float) -> float:
    """Return the instant until which a majority certainly keeps a lock.

    Args:
        started_at: Instant before the first node was asked.
        ttl: Seconds for which nodes keep the lock.
    """
    return started_at + ttl - drift_of(ttl)


_host = functools.cache(socket.gethostname)


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
        value, _, by = value.partition(_CANCELLED)
        token, fence, task, task_id, host, pid, started, published, *_ = (
            *value.split("\n"),
            *[""] * 8,
        )
        return cls(
            token,
            _number(fence),
            task,
            task_id,
            host,
            _number(pid),
            _seconds(started),
            _number(published),
            by,
        )

    @property
    def base(self) -> str:
        """The part of the token that names the execution."""
        return self.token.partition(".")[0]

    def info(self) -> str:
        """Return the text that follows token and fence in the value of a lock."""
        fields = (self.task, self.task_id, self.host, str(self.pid))
        clean = (field.replace("\n", " ") for field in fields)
        published = (str(self.published),) if self.published else ()
        return "\n".join((*clean, f"{self.started:.3f}", *published))

    def __str__(self) -> str:
        task = self.task or "a lock taken outside of a task"
        name = f"{task}[{self.task_id}]" if self.task_id else task
        return f"{name} on {self.host or 'an unknown host'} (pid {self.pid})"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """The lock of one key, as the nodes see it at one moment. It promises nothing.

    Attributes:
        key: The name of the lock.
        holder: The holder on a majority of the nodes, or None.
        votes: How many nodes name the token that most of them name.
        ttl_left: Seconds until the lock expires on a majority, unless its holder
            renews it; 0 where there is no holder.
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
        key: The name of the lock.
        token: Proof of ownership, unique to the attempt that won.
        fence: A number greater than that of every earlier grant of this key. Pass it
            to storage that refuses a lesser one. Renewal keeps it.
        holder_info: The text that the nodes store beside the token, for display.
        ttl: Seconds for which each acquire and renewal sets the lock.
        started_at: Instant before the attempt's first send.
        until: Instant at which the validity ends.
        votes: How many nodes granted it, at acquire or at the last renewal.
        clock: Reads time.
        confirm: Asks the nodes whether the lease is still the holder, or raises.
        state: Held, released or lost.
        renewal_ballot: The votes at the last renewal, late ones included.
        cancelled_by: The newcomer that asked the holder to end; ``""`` if none did.
            The lease stays valid until its holder releases it.
        pid: The process that acquired it.
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
    confirm: Callable[[Lease], None]
    state: LeaseState = LeaseState.HELD
    renewal_ballot: Ballot | None = None
    cancelled_by: str = ""
    pid: int = field(default_factory=lambda: os.getpid())  # noqa: PLW0108  (tests fork)

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

    def ensure(self, *, network: bool = False) -> None:
        """Raise unless the lock is still ours. Call it before a side effect.

        Without ``network`` this compares numbers and costs nothing. With it a
        majority of the nodes is asked, which costs one round trip and also notices a
        lock that an operator released. Neither can see the future: a process can be
        paused between this line and the next one. The fence protects from that.

        Raises:
            LockLost: The validity ended, or (``network``) the nodes name another
                holder, or this is a forked child of the holder. Another run may be
                under way: write nothing.
            LockCancelled: A newcomer asked the holder to end. No other run begins
                before this one has ended.
            QuorumUnreachable: (``network``) too few nodes answered to tell.
        """
        if not self.is_valid():
            raise self.lost_error()
        if self.cancelled_by:
            raise self.cancelled_error()
        if network:
            self.confirm(self)

    def lost_error(self) -> LockLost:
        """Build the error for a lease that cannot be proven any more."""
        if self.is_inherited():
            fact = (
                f"The lock {self.key!r} is held by process {self.pid}, or was, and not "
                f"by its child {os.getpid()}, which must acquire a lock of its own"
            )
        elif self.state is LeaseState.RELEASED:
            fact = f"The lock {self.key!r} was already released"
        else:
            late = self.clock.monotonic() - self.until
            fact = f"The lock {self.key!r} (ttl {self.ttl:g} s) was lost"
            if late >= 0:
                fact += f": it was last confirmed {late + self.ttl:.1f} s ago"
        return LockLost(
            f"{fact}. Another client may hold it now: write nothing more under fence "
            f"{self.fence}.",
            key=self.key,
            fence=self.fence,
        )

    def cancelled_error(self) -> LockCancelled:
        """Build the error for a lease whose holder was asked to end."""
        return LockCancelled(
            f"{self.cancelled_by} asked for the lock {self.key!r} and cancelled the "
            "run that holds it (on_conflict: cancel_running). This run holds the lock "
            f"under fence {self.fence} until it ends.",
            key=self.key,
            fence=self.fence,
            by=self.cancelled_by,
        )

    def __repr__(self) -> str:
        return (
            f"<Lease {self.key!r} {self.state.value} fence={self.fence} "
            f"{self.remaining():.1f} s left>"
        )
