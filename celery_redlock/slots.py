"""Which slots of a schedule were sent, as a majority of the nodes knows it.

A *slot* is one due time of one schedule entry: "nightly-import, 04:00 on Tuesday".
Whoever sends it notes on the nodes, after it was sent, up to which instant it has
seen to that entry; whoever leads next reads that and goes on from there::

    leader A    send 12:00 ──► note 12:00 ──► send 12:01 ──► killed
    leader B                                                   reads 12:00,
                                                               sends 12:01

The nodes keep one number for each entry, which only grows. A note is on a
majority and so is what is read, so that the two have a node in common; a node
that may have forgotten (``core.guard``) is not read. It stays out of the vote for
longer than a ``max_ttl``, and a slot older than the catch-up window is nobody's
concern any more: keep the window below ``max_ttl``, or a slot may be sent again
after a node lost its memory and enough others are away.

A leader that dies between the two steps leaves a slot that is sent twice. Both
messages carry the slot's name; the first task that begins stands for it, and a
second one can be told apart: ``stand_for``.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_redlock.core.ballot import VoteKind
from celery_redlock.core.failure import unreachable
from celery_redlock.core.guard import greatest
from celery_redlock.core.question import (
    Question,
    by_everyone,
    by_majority,
    verdict_certain,
)
from celery_redlock.core.scripts import MARK_SLOT, READ_SLOTS, RECORD_SLOTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.core.redlock import Redlock

__all__ = ["SlotRecord", "slot_name", "stand_for"]

log = logging.getLogger("celery_redlock.slots")

_MS, _US = 1000, 1_000_000
_KEPT = 90 * 24 * 3600  # seconds without a note after which nodes forget them all
_MOST = 10_000  # entries; the tenth that was seen to longest ago goes first
_AHEAD = 60.0  # seconds by which another leader's clock may have been before ours
_MARKED = 3600.0  # seconds for which a slot is known to have begun
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def slot_name(entry: str, due_us: int) -> str:
    """Return what a slot is called: the same, whoever sends it."""
    due = _EPOCH + timedelta(microseconds=due_us)
    return f"{entry}@{due.isoformat()}"


def stand_for(redlock: Redlock, slot: str, task_id: str) -> str | None:
    """Let this task stand for the slot, from its beginning on.

    Two that begin at the same instant may both be told that they may; they still
    have a lock between them.

    Returns:
        The id of the task that stands for it already, as a majority says; None if
        there is none, or too few nodes answer.
    """
    question = Question(
        MARK_SLOT,
        [f"{redlock.guard.prefix}:ran:{slot}"],
        [task_id, round(_MARKED * _MS)],
        labels=redlock.labels,
        settle=verdict_certain,
    )
    redlock.transport.ask(question)
    first, votes = question.ballot.top_taker
    return first if votes >= redlock.quorum else None


class SlotRecord:
    """Up to which instant each entry of one schedule was seen to. For one thread.

    Instants are whole microseconds since 1970.

    Args:
        redlock: The lock service.
        key: Whose schedule it is: the key of the election.
    """

    def __init__(self, redlock: Redlock, key: str) -> None:
        self._redlock = redlock
        self._slots_key = f"{redlock.guard.prefix}:slots:{key}"
        self._known: dict[str, int] = {}
        self._to_note: dict[str, int | str] = {}

    def __iter__(self) -> Any:
        return iter(list(self._known))

    def upto(self, entry: str) -> int | None:
        """Return the instant up to which an entry was seen to, if it ever was."""
        return self._known.get(entry)

    @property
    def is_behind(self) -> bool:
        """Whether something is known here that a majority has not confirmed."""
        return bool(self._to_note)

    def load(self) -> None:
        """Learn what others have noted, as a new leader must before it sends.

        Raises:
            QuorumUnreachable: Too few nodes told. Nothing was learnt.
        """
        guard, redlock = self._redlock.guard, self._redlock
        question = Question(
            READ_SLOTS,
            [self._slots_key, guard.meta_key, guard.quarantine_key],
            [guard.config],
            labels=redlock.labels,
            settle=by_everyone,
        )
        redlock.transport.ask(question)
        ballot = question.ballot
        told = [question.replies[i][1:] for i in ballot.indexes(VoteKind.GRANTED)]
        if len(told) < redlock.quorum:
            timeout = redlock.timing.node_timeout
            raise unreachable(self._slots_key, ballot, node_timeout=timeout)
        everything = greatest([item for pairs in told for item in pairs])
        now = redlock.clock.wall_us()
        for name, instant in _pairs(everything).items():
            ahead = (instant - now) / _US
            if ahead > _AHEAD:
                log.warning(
                    "The slots of %r were noted up to %.0f s ahead of this clock, and "
                    "are sent from now on. Look at the clocks of your beats.",
                    name,
                    ahead,
                )
            seen = now if ahead > _AHEAD else instant
            self._known[name] = max(seen, self._known.get(name, 0))
        # A node that was away, or has forgotten, is told with the next note.
        for pairs in told:
            known = _pairs(pairs)
            for name, instant in self._known.items():
                if known.get(name, 0) < instant:
                    self._to_note[name] = instant

    def note(self, seen: Mapping[str, int]) -> None:
        """Note that all slots of these entries up to these instants were seen to.

        It is known here at once. Where a majority does not confirm it, it is noted
        again with the next one, or by ``flush``.
        """
        for entry, instant in seen.items():
            if instant > self._known.get(entry, 0):
                self._known[entry] = self._to_note[entry] = instant
        self._forget_oldest()
        self.flush()

    def flush(self) -> bool:
        """Note what is not on a majority yet. Return whether all of it is now."""
        if not self._to_note:
            return True
        items = [item for pair in self._to_note.items() for item in pair]
        question = Question(
            RECORD_SLOTS,
            [self._slots_key],
            [_KEPT * _MS, *items],
            labels=self._redlock.labels,
            settle=by_majority,
        )
        self._redlock.transport.ask(question)
        is_noted = question.ballot.granted >= self._redlock.quorum
        if is_noted:
            self._to_note.clear()
        return is_noted

    def _forget_oldest(self) -> None:
        if len(self._known) > _MOST:
            by_age = sorted(self._known, key=lambda name: self._known[name])
            for name in by_age[: _MOST // 10]:
                del self._known[name]
                self._to_note[name] = ""


def _pairs(items: list[Any]) -> Mapping[str, int]:
    """Return field, number, field, number, ... as a mapping."""
    return {
        name.decode(errors="replace"): int(number)
        for name, number in zip(items[::2], items[1::2], strict=True)
    }
