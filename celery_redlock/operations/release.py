"""The release by an operator of a lock, of claims or of cool-downs.

::

    ask ──► Question: holders, risk ──► the operator confirms ──► release ──► Released

The command, the page and the Django admin go this way. Only what the operator was
shown is released: each node compares the value before it deletes the key, so a client
that has acquired the lock meanwhile keeps it. A page does not remember what it has
shown. So the operator's answer names the holders by a digest of their tokens, and the
page shows no token. A token is random, so nothing can be learned from its digest; and
no secret of the page is in it, which readers could then try to guess.

The release does not stop a live holder at once. The holder learns of it at its next
renewal, and has lost its lock then. Until that moment, two can run. The release is
recorded on all nodes that it reaches: ``records.forced_releases``.

A claim ends when its job begins, is revoked, or expires. A job that was deleted from
its queue does none of these, so its claim lasts for ``claim_ttl`` unless it is released
here.
"""

from __future__ import annotations

import getpass
import hashlib
import math
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.text import on_nodes, printable, printable_line
from celery_redlock.basics.timing import duration
from celery_redlock.errors import RedlockError
from celery_redlock.locks.forced_release import MOST_FIELD, ForcedRelease
from celery_redlock.operations.inspect import (
    NodeState,
    each_answering,
    holder_in,
    holder_text,
    lock_status,
)
from celery_redlock.operations.scan import other_permits
from celery_redlock.operations.words import (
    few_can_tell,
    instant,
    keys_beside,
    permit_text,
    since,
)
from celery_redlock.records.forced_releases import force_release_words
from celery_redlock.scripts import FORCE_RELEASE, GRANTED, RELEASE_CLAIM
from celery_redlock.wire.client import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_redlock.locks.lease import Holder
    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.operations.inspect import LockStatus
    from celery_redlock.operations.scan import Scan, SeenHolder
    from celery_redlock.wire.client import NodeClient, PerNode

_LIVE_HOLDER = (
    "The holder learns of the release at its next renewal, within a third of its ttl. "
    "Then it has lost its lock, and its on_lock_lost decides whether it stops. Its log "
    "names you and the reason."
)
_NO_HOLDER = (
    "Another program has written this value, and does not learn of the release."
)
OF_OTHERS = "Nothing was released. {settings}"
_GONE = "{key} expired or has another holder: nothing was released."
_MOST_NAMED = 10  # permits
_START = (
    "Then the period has one more start than the limit. A run that is under way goes "
    "on, and keeps its lock."
)


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator of a release, as its record has it: see `ForcedRelease`."""

    who: str
    tool: str
    reason: str = ""
    host: str = field(default_factory=socket.gethostname)
    killed: bool = False

    def __post_init__(self) -> None:
        # A user types them; they are logged, and kept on the nodes for a month.
        for name in ("who", "tool", "reason", "host"):
            text = printable_line(getattr(self, name), MOST_FIELD)
            object.__setattr__(self, name, text)

    @classmethod
    def here(cls, tool: str, reason: str = "", *, killed: bool = False) -> Operator:
        """Return the user of the system who runs this process."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError, ImportError):  # no entry in /etc/passwd, or Windows
            who = f"uid {os.getuid()}" if hasattr(os, "getuid") else ""
        sudo = os.environ.get("SUDO_USER", "")
        who = f"{sudo} (sudo)" if sudo and sudo != who else who
        return cls(who, tool, reason, killed=killed)


@dataclass(frozen=True, slots=True)
class Question:
    """A lock that an operator is asked about.

    Attributes:
        values: Each value of the lock, with the nodes that have it.
        other_permits: The other permits of the key that are in use, or may be.
    """

    key: str
    found: LockStatus
    values: dict[str, list[str]]
    other_permits: list[SeenHolder]

    @property
    def is_kept(self) -> bool:
        """Whether it is a permit for a start."""
        return any(holder.is_kept for holder in self.holders)

    @property
    def is_of_others(self) -> bool:
        """Whether a majority of the nodes belongs to clients with other settings."""
        states = [node.state for node in self.found.nodes]
        return states.count(NodeState.OTHER_CONFIG) >= self.found.seen.ballot.quorum

    @property
    def risk(self) -> tuple[str, str]:
        """The risk of a release in one sentence, and what follows from it."""
        if self.is_kept:
            return "Another run can start after the release.", _START
        has_limit = any(holder.permit(self.key) for holder in self.holders)
        more = "one more than the limit" if has_limit else "two"
        fact = f"If the holder is alive, {more} may run at the same time"
        why = _LIVE_HOLDER if self.holders else _NO_HOLDER
        return f"{fact} after the release.", why

    def holder_lines(self, at: Callable[[float], str] = instant) -> list[str]:
        """Return a line for each value: the holder, its permit, and all its keys.

        ``at`` returns the text of an instant, which is given in seconds since 1970.
        """
        nodes = len(self.found.nodes)
        return [
            self._holder_line(value, on_nodes(len(labels), nodes), at)
            for value, labels in self.values.items()
        ]

    def _holder_line(self, value: str, where: str, at: Callable[[float], str]) -> str:
        holder = holder_in(value)
        if holder is None:
            return f"{self.key} has a value of another program, {where}."
        where += f", since {begun}" if (begun := since(holder, at)) else ""
        how = "kept for" if holder.is_kept else "held by"
        facts = [f"{self.key} is {how} {holder}, {where}."]
        if permit := holder.permit(self.key):
            limit, _ = permit
            what = f"{permit_text(permit)} of {limit.key}"
            if limit.period:
                most = f"{limit.most} starts in {limit.period:g} s"
                what = f"a permit for a start of {limit.key}, which may have {most}"
            facts.append(f"It is {what}.")
        if together := " and ".join(keys_beside(holder, self.key)):
            facts.append(f"It was taken together with {together}: all are released.")
        return " ".join(facts)

    @property
    def facts(self) -> list[str]:
        """The other permits of the key, and when the lock ends without a release."""
        facts, left = [], self.found.seen.ttl_left
        if others := [seen.key for seen in self.other_permits]:
            named = ", ".join(others[:_MOST_NAMED])
            more = len(others) - _MOST_NAMED
            named += f" and {more:,} more" if more > 0 else ""
            is_certain = all(seen.is_held for seen in self.other_permits)
            are = "are" if is_certain else "may be"
            facts += [
                f"Other permits of {self.key} {are} in use, and stay: {named}.",
                f"To release one, name it: `{COMMAND} release '{others[0]}'`.",
            ]
        if not self.values:
            return facts
        if self.found.is_held is None:
            facts.append("It cannot be told whether the lock is held.")
        elif not self.found.is_held:
            facts.append("A lock on a minority of the nodes is not held.")
        if math.isinf(left):
            return [*facts, "It never expires: it has no ttl."]
        in_time = f" in {duration(left)}" if left else ""
        ends = f"It ends by itself{in_time}"
        if not self.is_kept:
            this = f": this one{in_time}, unless it is renewed" if left else ""
            ends = f"The lock of a dead holder expires by itself{this}"
        return [*facts, f"{ends}. Wait instead, if you can."]

    def digests(self) -> list[str]:
        """Return the digests of the values, for a form."""
        return list(map(_digest, self.values))

    def confirmed(self, shown: Iterable[str]) -> list[str]:
        """Return the values whose digests an operator was shown.

        Raises:
            RedlockError: The lock has none of them any more.
        """
        known = {*shown}
        values = [value for value in self.values if _digest(value) in known]
        if not values:
            raise RedlockError(_GONE.format(key=self.key))
        return values

    @property
    def holders(self) -> list[Holder]:
        """The holders that celery-redlock wrote."""
        return [holder for value in self.values if (holder := holder_in(value))]


def holders_text(values: Iterable[str]) -> str:
    """Return the holders in these values, for display."""
    return ", ".join(map(holder_text, values))


def ask(redlock: Redlock, key: str) -> Question:
    """Ask the nodes who holds this lock."""
    found = lock_status(redlock, key)
    return Question(key, found, found.values, other_permits(redlock, key, found.nodes))


def ask_for_page(redlock: Redlock, key: str) -> Question:
    """Ask the nodes who holds a lock that a reader of a page has named.

    Raises:
        RedlockError: There is nothing to release, or the nodes are of clients with
            other settings.
    """
    if not key or "\n" in key:
        raise RedlockError("No lock is named: nothing was released.")
    asked = ask(redlock, key)
    if not asked.values:
        fact = f"No node that answered has a lock for {key}."
        if asked.found.is_held is None:
            few = few_can_tell(len(asked.found.nodes))
            fact += f" It cannot be told whether it is held: {few}."
        raise RedlockError(fact)
    if asked.is_of_others:
        raise RedlockError(OF_OTHERS.format(settings=asked.found.nodes.settings))
    return asked


def _digest(value: str) -> str:
    """Identify a value without its token, which proves ownership."""
    token = value.partition("\n")[0]
    return hashlib.sha256(f"celery_redlock.release {token}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Released:
    """The end of a release.

    Attributes:
        holders: The holders, for display.
        nodes: Whether it was deleted on each node.
    """

    asked: Question
    holders: str
    nodes: PerNode[bool]
    operator: Operator

    @property
    def number(self) -> int:
        """On how many nodes it was deleted."""
        return sum(self.nodes.results.values())

    @property
    def may_be_held(self) -> bool:
        """Whether a majority was not reached or refused, and may still have it."""
        return len(self.nodes.unseen) >= self.asked.found.seen.ballot.quorum

    @property
    def fact(self) -> str:
        """The release, for a log: reads on after "Released", without a space."""
        reason = self.operator.reason
        why = f" Reason: {reason}" if reason else ""
        return printable(f"{self._where}.{why}")  # a node may name any holder

    @property
    def messages(self) -> list[tuple[str, str]]:
        """The sentences for the operator: a level, and a text.

        The levels are those of Django: ``success``, ``warning``, ``error``.
        """
        key = self.asked.key
        if self.may_be_held:
            who, they = "too few nodes released it", "they"
            if len(self.asked.found.nodes) == 1:
                who, they = "the node did not release it", "it"
            fact = f"The lock {key} may still be held: {who}."
            told = [("error", f"{fact} Release it again when {they} can.")]
        elif self.number:
            told = [("success", f"Released {key}{self._where}.")]
        elif self.operator.killed:
            told = [("success", "Its lock was released when it ended.")]
        else:
            told = [("warning", _GONE.format(key=key))]
        stays = "If it has the lock, the lock stays there"
        kept = f"{stays} until its ttl has ended."
        if math.isinf(self.asked.found.seen.ttl_left):
            kept = f"{stays}: it has no ttl."
        for label, why in self.nodes.unseen.items():
            told.append(("warning", f"Node {label} {why}. {kept}"))
        return told

    @property
    def _where(self) -> str:
        nodes = len(self.nodes.results) + len(self.nodes.unseen)
        where = "" if nodes == 1 else f" {on_nodes(self.number, nodes)}"
        return f"{where if self.number else ' on no node'}, held by {self.holders}"


def release(
    redlock: Redlock, asked: Question, values: Iterable[str], operator: Operator
) -> Released:
    """Delete the lock on each node that has one of these values; write a record.

    All keys that were taken together with this one are released, but no permit for a
    start: that ends by itself, or is released by its own name. A node that refuses,
    or does not answer within ``connect_timeout``, keeps the lock until its ttl has
    ended. The values are those that the operator has confirmed: `Question.confirmed`.
    """
    key, values, calls = asked.key, [*values], []
    for value in values:
        # A value of another program has no holder that could look for the record.
        holder = holder_in(value)
        whole = holder.whole_key(key) if holder else key
        proof = holder.token if holder else value
        at, held_by = redlock.clock.wall(), holder_text(value)
        record = ForcedRelease(whole, held_by, at=at, **asdict(operator))
        names, args = force_release_words(redlock.keys, whole, holder, proof, record)
        calls.append((value, names, args))

    def visit(client: NodeClient) -> bool:
        commands = [
            (
                *("EVAL", FORCE_RELEASE.source, len(names), *names),
                _proof(client, names[0], value) or args[0],
                *args[1:],
            )
            for value, names, args in calls
        ]
        return [GRANTED, 0] in client.carry_out(*commands)

    nodes = each_answering(redlock, visit)
    return Released(asked, holders_text(values), nodes, operator)


def _proof(client: NodeClient, name: str, value: str) -> bytes:
    """Return the bytes of a value that is no text, and was shown as this one."""
    if "\ufffd" not in value:
        return b""
    (found,) = client.ask(("GET", name))
    is_shown = isinstance(found, bytes) and found.decode(errors="replace") == value
    return found if is_shown else b""


def release_found(redlock: Redlock, found: Scan) -> tuple[int, dict[str, str]]:
    """Delete the claims or cool-downs of a scan on every node that still has them.

    Returns:
        How many of them were still on a node; and why nodes could not be asked, by
        name. On these nodes they stay until their ttl ends.
    """
    name = getattr(redlock.keys, found.kind)
    calls = [
        ("EVAL", RELEASE_CLAIM.source, 1, name(seen.key), seen.holder.token)
        for seen in found.found
    ]

    def visit(client: NodeClient) -> set[int]:
        released = set()
        for start in range(0, len(calls), BATCH):
            replies = client.carry_out(*calls[start : start + BATCH])
            released |= {
                start + i for i, reply in enumerate(replies) if reply == [GRANTED, 0]
            }
        return released

    nodes = each_answering(redlock, visit)
    return len(set().union(*nodes.results.values())), nodes.unseen
