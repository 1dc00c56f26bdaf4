"""The release of a lock by an operator: the command, the page and the Django admin.

::

    ask ──► Question: holders, risk ──► the operator confirms ──► release ──► Released

Only the holders that were shown are released: a client that has acquired the lock
meanwhile keeps it. A page does not remember what it has shown. So the operator's answer
names the holders by a digest of their tokens, and the page shows no token. A token is
random, so nothing can be learned from its digest; and no secret of the page is in it,
which readers could then try to guess.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.basics.text import on_nodes
from celery_redlock.locks.lease import Holder
from celery_redlock.operations.force_release import is_ours, release_lock, values_on
from celery_redlock.operations.inspect import lock_status
from celery_redlock.operations.scan import other_permits
from celery_redlock.scripts.keys import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.force_release import Operator
    from celery_redlock.operations.inspect import LockStatus
    from celery_redlock.wire.client import PerNode

_LIVE_HOLDER = (
    "The holder learns of the release at its next renewal, within a third of its ttl. "
    "Then it has lost its lock, and its on_lock_lost decides whether it stops. Its log "
    "names you and the reason."
)
_START = (
    "Then the period has one more start than the limit. A run that is under way goes "
    "on, and keeps its lock."
)


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
        return any(holder.permit(self.key) for holder in self.holders)

    @property
    def is_kept(self) -> bool:
        """Whether it is a permit for a start."""
        return any(holder.is_kept for holder in self.holders)

    @property
    def risk(self) -> tuple[str, str]:
        """The risk of a release in one sentence, and what follows from it."""
        if self.is_kept:
            return "Another run can start after the release.", _START
        more = "one more than the limit" if self.is_permit else "two"
        fact = f"If the holder is alive, {more} may run at the same time"
        return f"{fact} after the release.", _LIVE_HOLDER

    def facts(self, value: str) -> list[str]:
        """Return sentences: the permit of a holder, and the keys of its lock."""
        holder, facts = self.holder(value), []
        if holder is None:
            return []
        if permit := holder.permit(self.key):
            limit, number = permit
            most = f"{limit.most} starts in {limit.period:g} s"
            what = f"a permit for a start of {limit.key}, which may have {most}"
            if not limit.period:
                what = f"permit {number} of {limit.most} of {limit.key}"
            facts.append(f"It is {what}.")
        whole = keys_of(holder.whole_key(self.key))
        if together := " and ".join(one for one in whole if one != self.key):
            facts.append(f"It was taken together with {together}: all are released.")
        return facts

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
    def holders(self) -> list[Holder]:
        """The holders that celery-redlock wrote."""
        return [holder for value in self.values if (holder := self.holder(value))]


def ask(redlock: Redlock, key: str) -> Question:
    """Ask the nodes who holds this lock."""
    found = lock_status(redlock, key)
    values = values_on(found.seen.ballot)
    return Question(key, found, values, other_permits(redlock, key))


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
        nodes: Whether it was deleted on each node.
        quorum: How many nodes are a majority.
        reason: The reason that the operator gave, or "".
    """

    key: str
    holders: str
    nodes: PerNode[bool]
    quorum: int
    reason: str

    @property
    def number(self) -> int:
        """On how many nodes it was deleted."""
        return sum(self.nodes.results.values())

    @property
    def may_be_held(self) -> bool:
        """Whether a majority of the nodes was not reached, and may still have it."""
        return len(self.nodes.unseen) >= self.quorum

    @property
    def where(self) -> str:
        """The nodes on which it was deleted: ``"on 2 of 3 nodes"``."""
        return on_nodes(self.number, len(self.nodes.results) + len(self.nodes.unseen))

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
        if self.may_be_held:
            few = f"The lock {self.key} may still be held: too few nodes were reached."
            first = ("error", few)
        elif self.number:
            first = ("success", f"Released {self.key}{self._where}.")
        else:
            first = ("warning", f"{self.key} had expired: nothing was released.")
        kept = "It keeps the lock until its ttl has ended."
        others = [
            ("warning", f"Node {label} {why}. {kept}")
            for label, why in self.nodes.unseen.items()
        ]
        return [first, *others]

    @property
    def _where(self) -> str:
        is_one = len(self.nodes.results) + len(self.nodes.unseen) == 1
        return f"{'' if is_one else f' {self.where}'}, held by {self.holders}"


def holders_text(values: Iterable[str]) -> str:
    """Return the holders in these values, for display."""
    return ", ".join(str(Holder.parse(v)) if is_ours(v) else "?" for v in values)


def release(
    redlock: Redlock, key: str, values: Iterable[str], operator: Operator
) -> Released:
    """Release a lock of which an operator has confirmed these values."""
    values = [*values]
    nodes = release_lock(redlock, key, values, operator)
    holders = holders_text(values)
    return Released(key, holders, nodes, redlock.quorum, operator.reason)
