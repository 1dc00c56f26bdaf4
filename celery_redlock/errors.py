"""What can go wrong, grouped by what the caller can do about it.

::

    RedlockError
    ├── ConfigurationError      a setting or option is wrong: fix it
    ├── FingerprintError        this call cannot be reduced to a key: name one
    ├── LockUnavailable         no majority, nothing is held: try later
    │   ├── LockHeld            a majority names another holder
    │   │   └── DuplicateTask   the same, as a task's outcome
    │   ├── LockContended       votes split, nobody won
    │   └── QuorumUnreachable   too few nodes answered, or are quarantined
    ├── LeaseError              about a lease that you had: stop writing
    │   ├── LockLost            its validity ended
    │   │   └── LockCancelled   a newcomer asked for it
    │   └── NotHolder           the nodes do not name you
    └── StaleFence              a write came with an older fence: drop it

A message is a fact with numbers, what holds now, and the remedy. Every error is
built as ``E(message, *, extras=None)``, so that ``type(e)(*e.args)`` works: it
survives pickling *and* Celery's JSON results, which rebuild an exception from
its ``args`` alone. (An exception that cannot be rebuilt stops a Celery worker.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_redlock.core.ballot import Ballot
    from celery_redlock.core.lease import Holder

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "FingerprintError",
    "LeaseError",
    "LockCancelled",
    "LockContended",
    "LockHeld",
    "LockLost",
    "LockUnavailable",
    "NotHolder",
    "QuorumUnreachable",
    "RedlockError",
    "StaleFence",
]


class RedlockError(Exception):
    """Anything that this package raises on purpose.

    The extras of a subclass are keyword-only and optional: they are carried by
    pickle, and are ``None`` after a round trip through a JSON result backend.
    """

    def __init__(self, message: str = "", **extras: Any) -> None:
        super().__init__(message)
        for name, value in extras.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, self.__dict__ or None)

    def __setstate__(self, state: dict[str, Any] | None) -> None:
        self.__dict__.update(state or {})


class ConfigurationError(RedlockError):
    """A setting, an option or a node is wrong. Nothing was sent or locked."""


class FingerprintError(RedlockError, TypeError):
    """A call cannot be reduced to a key. Nothing was sent or locked.

    Also a ``TypeError``, as Celery raises for a call that fits no signature.
    """


class LockUnavailable(RedlockError):
    """No majority granted the lock. Nothing is held.

    Attributes:
        key: The name that was to be locked.
        ballot: How each node voted (``core.ballot.Ballot``).
    """

    key: str | None = None
    ballot: Ballot | None = None

    def __init__(
        self,
        message: str = "",
        *,
        key: str | None = None,
        ballot: Ballot | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(message, key=key, ballot=ballot, **extras)


class LockHeld(LockUnavailable):
    """A majority of the nodes names one other holder.

    Attributes:
        holder: Who it is (``core.lease.Holder``).
        retry_after: Seconds until the lock ends by itself if nobody renews it.
    """

    holder: Holder | None = None
    retry_after: float | None = None

    def __init__(
        self,
        message: str = "",
        *,
        holder: Holder | None = None,
        retry_after: float | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(message, holder=holder, retry_after=retry_after, **extras)


class DuplicateTask(LockHeld):
    """A task did not run, because the same call is running elsewhere."""


class LockContended(LockUnavailable):
    """The votes were split and nobody won. An attempt a moment later may win."""


class QuorumUnreachable(LockUnavailable):
    """Fewer nodes than a quorum answered, or too many are in quarantine.

    Attributes:
        retry_after: Seconds after which the nodes said they will vote again;
            ``None`` when none of them said so.
    """

    retry_after: float | None = None

    def __init__(
        self, message: str = "", *, retry_after: float | None = None, **extras: Any
    ) -> None:
        super().__init__(message, retry_after=retry_after, **extras)


class LeaseError(RedlockError):
    """About a lease that you had.

    Attributes:
        key: The name that was locked.
        fence: The fence of that lease.
    """

    key: str | None = None
    fence: int | None = None

    def __init__(
        self,
        message: str = "",
        *,
        key: str | None = None,
        fence: int | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(message, key=key, fence=fence, **extras)


class LockLost(LeaseError):
    """The lease can no longer be proven. Somebody else may hold the key by now."""


class LockCancelled(LockLost):
    """A newcomer asked for the lock (``on_conflict="cancel_running"``).

    Nobody else holds it before this run has ended.

    Attributes:
        by: Who asked: the task's name and id.
    """

    by: str | None = None

    def __init__(
        self, message: str = "", *, by: str | None = None, **extras: Any
    ) -> None:
        super().__init__(message, by=by, **extras)


class NotHolder(LeaseError):
    """A majority of the nodes does not name this lease as the holder."""


class StaleFence(RedlockError):
    """Storage has already seen a greater fence. Nothing was written.

    Attributes:
        fence: The fence that this write came with.
        latest: The fence that the storage holds.
    """

    fence: int | None = None
    latest: int | None = None

    def __init__(
        self,
        message: str = "",
        *,
        fence: int | None = None,
        latest: int | None = None,
        **extras: Any,
    ) -> None:
        super().__init__(message, fence=fence, latest=latest, **extras)
