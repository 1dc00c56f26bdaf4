"""What a holder has, and who holds what.

The value of a lock on a node is readable text::

    9f3c…c1a0.5d2e…77b1      token: base "." attempt, fixed length, the ownership
    1790000000000000         the node's fence counter when it granted
    send_invoice             task     ┐
    0c9d…                    task id  │ facts about the holder, for people
    worker-1                 host     │ and for one-read inspection
    4711                     pid      │
    1790000000.123           start, seconds since 1970 by the holder's clock │
    1789999999000000         µs since 1970 when its call was published, if known ┘
    cancelled send_invoice…  only when somebody has asked it to end, and who

The *base* is minted once per execution and the *attempt* for every try: a
delayed release of one try cannot delete the vote of the next one.
"""

from __future__ import annotations

import enum
import functools
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.errors import LockCancelled, LockLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.clock import Clock

__all__ = [
    "TOKEN_LENGTH",
    "Holder",
    "Inspection",
    "Lease",
    "LeaseState",
    "new_base",
    "new_token",
]

_BASE_BYTES, _ATTEMPT_BYTES = 16, 8
_CANCELLED = "\ncancelled "  # as CANCEL of core.scripts writes it
TOKEN_LENGTH = 2 * _BASE_BYTES + 1 + 2 * _ATTEMPT_BYTES


def new_base() -> str:
    """Mint the part of a token that stays the same for one execution."""
    return secrets.token_hex(_BASE_BYTES)


def new_token(base: str) -> str:
    """Mint the token of one attempt of this execution."""
    return f"{base}.{secrets.token_hex(_ATTEMPT_BYTES)}"


_host = functools.cache(socket.gethostname)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock: what a node can tell of it in one read.

    Attributes:
        token: Proof of ownership.
        fence: The counter of the node that was asked; the lease's fence is the
            greatest among a quorum of nodes.
        task: Task name, or ``""`` where the lock was taken without a task.
        task_id: Celery's id of the execution, or ``""``.
        host: Host name of the holder.
        pid: Process id of the holder on its host.
        started: Seconds since 1970, by the holder's clock, at its acquire.
        published: Microseconds since 1970, by the publisher's clock, when the call
            was published; 0 where that is not known.
        cancelled_by: Who has asked it to end, or ``""``.
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
        """Return the facts of this process, before there is a token."""
        host, pid = _host(), os.getpid()
        return cls("", 0, task, task_id, host, pid, started, published)

    @classmethod
    def parse(cls, value: str) -> Holder:
        """Read a lock's value; what is missing or foreign in it stays empty."""
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

    def facts(self) -> str:
        """Return the text that follows token and fence in a lock's value."""
        fields = (self.task, self.task_id, self.host, str(self.pid))
        clean = (field.replace("\n", " ") for field in fields)
        published = (str(self.published),) if self.published else ()
        return "\n".join((*clean, f"{self.started:.3f}", *published))

    def __str__(self) -> str:
        what = self.task or "a lock taken outside of a task"
        who = f"{what}[{self.task_id}]" if self.task_id else what
        return f"{who} on {self.host or 'an unknown host'} (pid {self.pid})"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the nodes say about one key at one moment. Nothing is promised by it.

    Attributes:
        key: The name that was asked for.
        holder: Who holds it on a majority of the nodes, or None.
        votes: How many nodes name the one that most of them name.
        ttl_left: Seconds until the lock ends by itself on a majority, if nobody
            renews it; 0 where nobody holds it.
        ballot: What each node said.
    """

    key: str
    holder: Holder | None
    votes: int
    ttl_left: float
    ballot: Ballot


class LeaseState(enum.Enum):
    """Where a lease is in its life. It only moves down this list."""

    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class Lease:
    """What a successful acquire returns: a lock, and until when to trust it.

    A lease is valid while it is held and its validity has not ended, by this
    machine's monotonic clock. Asking is free and local.

    Attributes:
        key: The name that is locked.
        token: Proof of ownership, unique to the attempt that won.
        fence: A number greater than that of every earlier grant of this key;
            hand it to storage that refuses a lesser one. Renewal keeps it.
        facts: What the nodes store beside the token, for people.
        ttl: Seconds for which each acquire and renewal sets the lock.
        votes: How many nodes granted it, at acquire or at the last renewal.
        state: Held, released or lost.
        renewal_ballot: What nodes said at the last renewal, late ones included.
        cancelled_by: Who has asked the holder to end; ``""`` while nobody has. The
            lease stays valid: it is the holder who lets go of it.
    """

    __slots__ = (
        "_clock",
        "_confirm",
        "cancelled_by",
        "facts",
        "fence",
        "key",
        "renewal_ballot",
        "started_at",
        "state",
        "token",
        "ttl",
        "until",
        "votes",
    )

    def __init__(  # noqa: PLR0913  (made in one place, by name)
        self,
        *,
        key: str,
        token: str,
        facts: str,
        fence: int,
        ttl: float,
        started_at: float,
        until: float,
        votes: int,
        clock: Clock,
        confirm: Callable[[Lease], None],
    ) -> None:
        self.key = key
        self.token = token
        self.facts = facts
        self.fence = fence
        self.ttl = ttl
        self.started_at = started_at
        self.until = until
        self.votes = votes
        self.state = LeaseState.HELD
        self.renewal_ballot: Ballot | None = None
        self.cancelled_by = ""
        self._clock = clock
        self._confirm = confirm

    def remaining(self) -> float:
        """Return the seconds of validity that are left; 0 once it is not held."""
        if self.state is not LeaseState.HELD:
            return 0.0
        return max(0.0, self.until - self._clock.monotonic())

    def is_valid(self) -> bool:
        """Tell whether the lock is held and can still be proven."""
        return self.remaining() > 0

    def age(self) -> float:
        """Return the seconds since the attempt that won was begun."""
        return self._clock.monotonic() - self.started_at

    def ensure(self, *, network: bool = False) -> None:
        """Raise unless the lock is still ours. Call it before a side effect.

        Without ``network`` this compares two numbers and costs nothing. With it
        a majority of the nodes is asked, which costs one round trip and also
        notices a lock that an operator took away. Neither can see the future: a
        process can be paused between this line and the next one, which is what
        the fence is for.

        Raises:
            LockLost: The validity ended, or (``network``) the nodes name
                somebody else. Somebody else may be running; write nothing.
            LockCancelled: Somebody has asked the holder to end. Nobody else runs
                before it has.
            QuorumUnreachable: (``network``) too few nodes answered to tell.
        """
        if not self.is_valid():
            raise self.lost_error()
        if self.cancelled_by:
            raise self.cancelled_error()
        if network:
            self._confirm(self)

    def lost_error(self) -> LockLost:
        """Build the error that says that this lease cannot be proven any more."""
        if self.state is LeaseState.RELEASED:
            fact = f"The lock {self.key!r} was already released"
        else:
            late = self._clock.monotonic() - self.until
            fact = f"The lock {self.key!r} (ttl {self.ttl:g} s) was lost"
            if late >= 0:
                fact += f": it was last confirmed {late + self.ttl:.1f} s ago"
        return LockLost(
            f"{fact}. Somebody else may hold it now: write nothing more under "
            f"fence {self.fence}.",
            key=self.key,
            fence=self.fence,
        )

    def cancelled_error(self) -> LockCancelled:
        """Build the error that says who has asked the holder to end."""
        return LockCancelled(
            f"{self.cancelled_by} wants the lock {self.key!r} and has cancelled the "
            f"run that holds it (on_conflict: cancel_running). It is held under fence "
            f"{self.fence} until this run has ended.",
            key=self.key,
            fence=self.fence,
            by=self.cancelled_by,
        )

    def __repr__(self) -> str:
        return (
            f"<Lease {self.key!r} {self.state.value} fence={self.fence} "
            f"{self.remaining():.1f} s left>"
        )
