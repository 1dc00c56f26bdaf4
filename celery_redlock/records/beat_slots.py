"""The record of a schedule: which slots were sent, as a majority of the nodes knows.

A *slot* is one due time of one schedule entry: "nightly-import, 04:00 on Tuesday".
After beat has sent a slot, it notes on the nodes until which instant it has handled
that entry. The next leader reads the notes and goes on from there::

    leader A    send 12:00 ──► note 12:00 ──► send 12:01 ──► killed
    leader B                                                   reads 12:00,
                                                               sends 12:01

The nodes keep one number for each entry, which only grows. A note is on a majority, and
a majority is read, so the two have a node in common. A node that may have forgotten
(``members.restart_guard``) is not read: it stays out for longer than a ``max_ttl``. A
slot older than the catch-up window is never sent, so keep the window below ``max_ttl``.
Otherwise a slot may be sent again after a node lost its memory while enough others are
away.

A leader that dies between the two steps leaves a slot that is sent twice. Both messages
carry the name of the slot. The first task that begins marks it (``mark_slot``), so that
the second one can be told apart. The name has the election in it: the schedules of two
apps may have an entry of the same name, and these are two slots.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from celery_redlock.basics.text import is_line, line_of
from celery_redlock.locks.failure import unreachable
from celery_redlock.members.restart_guard import greatest
from celery_redlock.scripts import MARK_SLOT, READ_SLOTS, RECORD_SLOTS
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.requests import all_answered, majority_answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.locks.redlock import Redlock


log = logging.getLogger(__name__)

MOST_SLOT = 1024
"""The bytes of the longest name of a slot: nodes keep it for an hour."""

MOST_AHEAD = 60.0
"""The seconds by which the clock of another leader may be ahead of ours."""

_MOST_ENTRY, _MOST_ELECTION = 600, 300  # bytes of the name of each in it
_MS, _US = 1000, 1_000_000
_KEPT = 90 * 24 * 3600  # seconds without a note after which nodes forget all of them
_MOST = 10_000  # entries; above that, the tenth with the oldest notes is forgotten
_MARKED = 3600.0  # seconds for which a mark lasts
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _in_a_name(text: str, most: int) -> str:
    """Return a text as a line of about ``most`` bytes, cut where a digest follows."""
    if is_line(text, most):
        return text
    digest = blake2b(text.encode(errors="backslashreplace"), digest_size=8)
    return f"{line_of(text, most)}~{digest.hexdigest()}"


def mark_slot(
    redlock: Redlock, slot: str, task_id: str, *, only_looks: bool = False
) -> str | None:
    """Mark a slot as run by this task, unless another task marked it.

    Two tasks that begin at the same instant may both mark it on a few nodes, and both
    go on; they still have a lock between them. If it ``only_looks``, it marks nothing.

    Returns:
        The id of the other task, as a majority says. None if there is none, or if too
        few nodes answered.
    """
    ttl_ms = 0 if only_looks else round(_MARKED * _MS)
    request = redlock.nodes.ask(
        MARK_SLOT, [redlock.keys.slot_run(slot)], [task_id, ttl_ms]
    )
    first, votes = request.ballot.top_taker
    return first if votes >= redlock.quorum else None


class SlotRecord:
    """The instants up to which the entries of a schedule were handled. For one thread.

    Instants are whole microseconds since 1970. The key is that of the election.
    """

    def __init__(self, redlock: Redlock, key: str) -> None:
        self._redlock = redlock
        election = key.replace("%", "%25").replace("/", "%2F")
        self._election = _in_a_name(election, _MOST_ELECTION)
        self._slots_key = redlock.keys.slots(key)
        self._known: dict[str, int] = {}
        self._to_note: dict[str, int | str] = {}
        self._ahead: dict[str, int] = {}  # of a clock that was ahead

    def __iter__(self) -> Any:
        return iter(list(self._known))

    def slot_name(self, entry: str, due_us: int) -> str:
        """Return the name of a slot: the same in every beat of this election alone.

        It is one line of at most ``MOST_SLOT`` bytes.
        """
        due = (_EPOCH + timedelta(microseconds=due_us)).isoformat()
        return f"{self._election}/{_in_a_name(entry, _MOST_ENTRY)}@{due}"

    def upto(self, entry: str) -> int | None:
        """Return the instant until which an entry was handled; None if it never was."""
        return self._known.get(entry)

    def comes_again(self, entry: str, due: int) -> bool:
        """Tell whether a clock that was ahead may have sent this slot before its time.

        It is another run now, and not a second message of the same slot.
        """
        return due <= self._ahead.get(entry, 0)

    @property
    def is_behind(self) -> bool:
        """Whether a majority has yet to confirm notes of this process."""
        return bool(self._to_note)

    def load(self) -> None:
        """Read the notes of earlier leaders. A new leader must do so before it sends.

        Raises:
            QuorumUnreachable: Too few nodes answered. Nothing was learnt.
        """
        redlock = self._redlock
        keys = redlock.keys
        while True:
            request = redlock.nodes.ask(
                READ_SLOTS,
                [self._slots_key, keys.meta],
                [redlock.guard.config],
                done_when=all_answered,
            )
            ballot = request.ballot
            if not redlock.guard.recover(ballot):
                break
        notes = [request.replies[i][1:] for i in ballot.indexes(VoteKind.GRANTED)]
        if len(notes) < redlock.quorum:
            raise unreachable(
                self._slots_key,
                ballot,
                config=redlock.guard.config,
                state="No slot is sent",
            )
        merged = greatest([item for pairs in notes for item in pairs])
        latest = dict(self._known)
        for name, instant in _pairs(merged).items():
            latest[name] = max(instant, latest.get(name, 0))
        now = round(redlock.clock.wall() * _US)
        for name, instant in latest.items():
            ahead = (instant - now) / _US
            if ahead > MOST_AHEAD:
                log.warning(
                    "The last slot of %r is recorded with a time that is %.0f s ahead "
                    "of this clock. Its slots are sent from now on. Check the clocks "
                    "of the machines with beats.",
                    name,
                    ahead,
                )
                self._ahead[name] = instant
            self._known[name] = now if ahead > MOST_AHEAD else instant
        # A node that was away, or has forgotten, learns this with the next note.
        for pairs in notes:
            known = _pairs(pairs)
            for name, instant in self._known.items():
                if known.get(name, 0) < instant:
                    self._to_note[name] = instant

    def note(self, seen: Mapping[str, int]) -> None:
        """Mark the slots of these entries as handled, up to these instants.

        They are known here at once. If a majority does not confirm them, they are
        noted again with the next ones, or by ``flush``.
        """
        for entry, instant in seen.items():
            if instant > self._known.get(entry, 0):
                self._known[entry] = self._to_note[entry] = instant
        self._forget_oldest()
        self.flush()

    def flush(self) -> bool:
        """Send the notes that no majority has confirmed; tell whether one has now."""
        if not self._to_note:
            return True
        items = [item for pair in self._to_note.items() for item in pair]
        request = self._redlock.nodes.ask(
            RECORD_SLOTS,
            [self._slots_key],
            [_KEPT * _MS, *items],
            done_when=majority_answered,
        )
        is_noted = request.ballot.granted >= self._redlock.quorum
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
