"""All errors of the package, grouped by what the caller can do about them.

::

    RedlockError
    ├── ConfigurationError      a setting or option is wrong: fix it
    ├── FingerprintError        this call cannot be reduced to a key: name one
    ├── LockUnavailable         no majority: try later
    │   ├── LockHeld            a majority names another holder
    │   │   └── DuplicateTask   the same, as a task's outcome
    │   ├── LockContended       votes split, no candidate won
    │   └── QuorumUnreachable   too few nodes answered, or are quarantined
    ├── LeaseError              about a lease that you had: stop writing
    │   ├── LockLost            its validity ended
    │   │   └── LockCancelled   a newcomer asked for the lock
    │   └── NotHolder           the nodes do not name you
    └── StaleFence              a write came with an older fence: drop it

A message states a fact with its numbers, what holds now, and the remedy.

Every error is built as ``E(message, *, extras=None)``, so that ``type(e)(*e.args)``
works. It therefore survives pickling *and* Celery's JSON results, which rebuild an
exception from its ``args`` alone; those of a `DuplicateTask` have its facts, too. (An
exception that cannot be rebuilt stops a Celery worker.) This module imports nothing of
the package, so extras that are objects of other modules have the type ``Any``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
    """Base class of all errors that this package raises on purpose.

    The extras of a subclass are its attributes, and optional keywords of its
    constructor. Pickle keeps them; after a round trip through a JSON result backend
    they are ``None``, but for those of `DuplicateTask` that say so.
    """

    def __init__(self, message: str = "", **extras: Any) -> None:
        super().__init__(message)
        for name, value in extras.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no attribute {name!r}")
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
    """No majority granted the lock. This client holds nothing.

    Attributes:
        key: The name of the lock; of several keys, one a line.
        ballot: How each node voted (``wire.quorum.Ballot``).
    """

    key: str | None = None
    ballot: Any = None


class LockHeld(LockUnavailable):
    """A majority of the nodes names one other holder, or one of each permit.

    Attributes:
        held_key: The key that it holds: of several keys, one that it has.
        holder: The other holder (``celery_redlock.Holder``); where the key has a
            limit, one of them.
        retry_after: Seconds until the lock expires, unless its holder renews it; where
            starts are limited, until the next one is possible. ``None`` where the
            nodes have not told it, or the lock never expires.
        limit: The limit that is reached (``locks.permits.Limit``), if the key has one.
        due: Where starts are limited, the seconds until each of the permits is free,
            soonest first.
    """

    held_key: str | None = None
    holder: Any = None
    retry_after: float | None = None
    limit: Any = None
    due: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _StoredHolder:
    """The part of a ``Holder`` that a result backend keeps."""

    task: str = ""
    task_id: str = ""
    host: str = ""
    pid: int = 0
    started: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        return self.text


class DuplicateTask(LockHeld):
    """A task did not run, because the same call is running elsewhere.

    Its key, held_key, retry_after and holder survive each result backend. The holder
    from a JSON result has its task, task_id, host, pid and started. So the result of
    the call that runs is ``app.AsyncResult(error.holder.task_id)``.

    Args:
        message: The text.
        facts: These attributes, as a result backend stores them.
        **extras: The attributes.
    """

    def __init__(self, message: str = "", facts: Any = None, **extras: Any) -> None:
        super().__init__(message, **extras)
        if isinstance(facts, dict):
            self._restore(facts)
        else:
            facts = self._facts()
        if facts:
            self.args = (message, facts)

    def _facts(self) -> dict[str, Any]:
        holder = self.holder
        facts: dict[str, Any] = {"key": self.key, "held_key": self.held_key}
        facts["retry_after"] = self.retry_after
        if holder is not None:
            names = _StoredHolder.__slots__[:-1]
            kept = {name: getattr(holder, name, None) for name in names}
            facts["holder"] = {**kept, "text": str(holder)}
        return {name: value for name, value in facts.items() if value is not None}

    def _restore(self, facts: dict[str, Any]) -> None:
        """Take the attributes from what is stored, where they have the right type."""
        for name in ("key", "held_key"):
            if isinstance(facts.get(name), str):
                setattr(self, name, facts[name])
        if isinstance(facts.get("retry_after"), int | float):
            self.retry_after = facts["retry_after"]
        if isinstance(holder := facts.get("holder"), dict):
            usual = asdict(_StoredHolder())
            kept = {
                name: holder[name]
                for name, value in usual.items()
                if type(holder.get(name)) in (type(value), int)
            }
            self.holder = _StoredHolder(**kept)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class LockContended(LockUnavailable):
    """The votes were split and no client won. A try a moment later may win."""


class QuorumUnreachable(LockUnavailable):
    """Fewer nodes than a quorum answered, or too many are in quarantine.

    Attributes:
        retry_after: Seconds after which the nodes will vote again, by their own
            account; ``None`` where none of them said when.
    """

    retry_after: float | None = None


class LeaseError(RedlockError):
    """Base class of errors about a lease that you had.

    Attributes:
        key: The name of the lock.
        fence: The fence of that lease.
    """

    key: str | None = None
    fence: int | None = None


class LockLost(LeaseError):
    """The lease cannot be proven any more. Another client may hold the key by now."""


class LockCancelled(LockLost):
    """A newcomer asked for the lock (``on_conflict="cancel_running"``).

    No other client holds the lock before this run has ended.

    Attributes:
        by: The newcomer: its task name and id.
    """

    by: str | None = None


class NotHolder(LeaseError):
    """A majority of the nodes does not name this lease as the holder."""


class StaleFence(RedlockError):
    """The storage has already seen a greater fence. Nothing was written.

    Attributes:
        fence: The fence of the refused write.
        latest: The fence that the storage holds.
    """

    fence: int | None = None
    latest: int | None = None
