"""What a node that was away has to be told when it is back: releases.

Told once when there is a connection again, and once more a second later: the
node may still find an acquire or a renewal in the buffers of the connection that
broke, and carry it out after the first telling. What remains even so ends by
itself after one ttl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_redlock.core.question import Question

__all__ = ["Debts"]

_SECOND_TELLING = 1.0  # seconds after the first


class _Debt(NamedTuple):
    question: Question
    node: int
    due_at: float
    is_last: bool


class Debts(dict[tuple[object, ...], _Debt]):
    """Questions that insist on being heard, each once, oldest first."""

    __slots__ = ()

    def owe(self, question: Question, node: int, now: float) -> None:
        """Note that this question did not get through, unless it may be dropped."""
        while self:
            name, oldest = next(iter(self.items()))
            if oldest.question.insist_until > now:
                break
            del self[name]
        if question.insist_until > now:
            script, keys, args = question.call
            name = (script.name, *keys, *args)
            self[name] = _Debt(question, node, now, is_last=False)

    def due(self, now: float) -> Iterator[tuple[Question, int]]:
        """Yield what is to be told now, as new questions."""
        for name, debt in list(self.items()):
            if debt.question.insist_until <= now:
                self.pop(name, None)
            elif debt.due_at <= now:
                self.pop(name, None)  # a telling that failed may have dropped it
                if not debt.is_last:
                    later = now + _SECOND_TELLING
                    self[name] = debt._replace(due_at=later, is_last=True)
                yield debt.question.again(), debt.node
