"""Releases of locks by operators who look at a page.

The page first asks: it shows the holders and the risk (`ask`). The answer names the
holders that were shown, by a digest of their tokens, so that the page shows no token. A
token is random, so nothing can be learned from its digest; and no secret of the page is
in it, which readers could then try to guess. Only these holders are released
(`Question.confirmed`, `carry_out`): a client that has acquired the lock meanwhile keeps
it.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.basics.text import on_nodes
from celery_redlock.locks.lease import Holder
from celery_redlock.operations.force_release import is_ours, release_lock, values_on
from celery_redlock.operations.inspect import lock_status
from celery_redlock.operations.scan import other_permits
from celery_redlock.wire.quorum import quorum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.force_release import Operator
    from celery_redlock.operations.inspect import LockStatus

__all__ = ["Question", "Released", "ask", "carry_out", "digest", "holders_text"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """A lock that an operator is asked about.

    Attributes:
        key: The name of the lock.
        found: The answers of the nodes.
        values: Each value of the lock, with the nodes that have it.
        other_permits: The names of other permits of the key that are in use.
    """

    key: str
    found: LockStatus
    values: dict[str, list[str]]
    other_permits: list[str]

    @property
    def refusal(self) -> str:
        """Why there is nothing to ask; "" if there is a lock."""
        if self.values:
            return ""
        fact = f"No node that answered has a lock for {self.key}."
        if self.found.is_held is None:
            fact += " It cannot be told whether it is held: too few nodes can tell."
        return fact

    @property
    def is_permit(self) -> bool:
        """Whether a holder has a permit of a key with a limit."""
        return any(holder.permit(self.key) for holder in self._holders)

    @property
    def is_kept(self) -> bool:
        """Whether it is a permit for a start."""
        return any(holder.is_kept for holder in self._holders)

    def holder(self, value: str) -> Holder | None:
        """Return the holder in this value; None if it is of another program."""
        return Holder.parse(value) if is_ours(value) else None

    def digests(self) -> list[str]:
        """Return what a form contains instead of the values."""
        return list(map(digest, self.values))

    def confirmed(self, shown: Iterable[str]) -> list[str]:
        """Return the values whose digests an operator was shown."""
        known = {*shown}
        return [value for value in self.values if digest(value) in known]

    @property
    def _holders(self) -> list[Holder]:
        return [holder for value in self.values if (holder := self.holder(value))]


def ask(redlock: Redlock, key: str) -> Question:
    """Ask the nodes who holds this lock."""
    found = lock_status(redlock, key)
    values = values_on(found.seen.ballot)
    return Question(key, found, values, other_permits(redlock, key) if values else [])


def digest(value: str) -> str:
    """Identify a value without its token, which proves ownership."""
    token = value.partition("\n")[0]
    return hashlib.sha256(f"celery_redlock.release {token}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Released:
    """The end of a release.

    Attributes:
        key: The name of the lock.
        holders: The holders, for display.
        nodes: On how many nodes it was deleted.
        unseen: Why nodes could not be asked, by name.
        total: The number of all nodes.
        reason: The reason that the operator gave, or "".
    """

    key: str
    holders: str
    nodes: int
    unseen: dict[str, str]
    total: int
    reason: str

    @property
    def fact(self) -> str:
        """The release, for a log: reads on after "Released", without a space."""
        why = f" Reason: {self.reason}" if self.reason else ""
        return f"{self._where}.{why}"

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The sentences for the operator: a level, and a text.

        The levels are those of Django: ``success``, ``warning``, ``error``.
        """
        if len(self.unseen) >= quorum_of(self.total):
            few = f"The lock {self.key} may still be held: too few nodes were reached."
            first = ("error", few)
        elif self.nodes:
            first = ("success", f"Released {self.key}{self._where}.")
        else:
            first = ("warning", f"{self.key} had expired: nothing was released.")
        kept = "It keeps the lock until its ttl has ended."
        others = [
            ("warning", f"Node {label} {why}. {kept}")
            for label, why in self.unseen.items()
        ]
        return [first, *others]

    @property
    def _where(self) -> str:
        where = f" {on_nodes(self.nodes, self.total)}" if self.total > 1 else ""
        return f"{where}, held by {self.holders}"


def holders_text(values: Iterable[str]) -> str:
    """Return the holders in these values, for display."""
    return ", ".join(str(Holder.parse(v)) if is_ours(v) else "?" for v in values)


def carry_out(
    redlock: Redlock, key: str, values: Sequence[str], operator: Operator
) -> Released:
    """Release a lock of which an operator has confirmed these values, and log that."""
    nodes = release_lock(redlock, key, values, operator)
    done = Released(
        key,
        holders_text(values),
        sum(nodes.results.values()),
        nodes.unseen,
        len(redlock.labels),
        operator.reason,
    )
    log.warning("%s released the lock %r%s", operator.who, key, done.fact)
    return done
