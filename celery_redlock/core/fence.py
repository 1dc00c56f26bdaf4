"""A number greater than every number granted before.

Each node keeps counters; a grant there adds one, or jumps to a hint (the
client's wall clock in microseconds) when that is greater. The fence of a grant
is ``t = max`` over the nodes that granted. If a quorum of them returned exactly
t, that is all. Otherwise a second round raises them to t, where

1.  a raise acts only while that node's key still holds *my* token, in the same
    script, and
2.  it counts only on nodes whose own number was part of the max.

Why it holds. On one node, tenures of a key are disjoint and each begins with a
greater counter than the last ended with. Grant g leaves counter ≥ t on a quorum
W during its own tenure there. Any later attempt reads a quorum R of numbers; W
and R share a node, and its number there is at least t + 1. So fences are unique,
and one that was begun after another was granted is greater, whatever the clocks
do. Without (1) or (2) there are counterexamples; ``docs/safety.md`` has them.

Counters are striped (field = CRC-32 of the key, mod 4096), so that their memory
is bounded for any number of keys; a key's fences are a part of its stripe's
sequence, which changes nothing above.

Source: the second round is the write-back of a multi-writer register: Attiya,
Bar-Noy, Dolev, "Sharing memory robustly in message-passing systems", JACM 1995.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from celery_redlock.core.ballot import Ballot, VoteKind
from celery_redlock.core.question import Question
from celery_redlock.core.scripts import RAISE_FENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.core.fanout import Transport

__all__ = ["STRIPES", "Fence", "stripe_of"]

STRIPES = 4096


def stripe_of(key: str) -> int:
    """Return the number of the counter that this key shares."""
    return zlib.crc32(key.encode()) % STRIPES


class Fence:
    """Turns the numbers of a won ballot into one fence."""

    def __init__(self, transport: Transport, fence_key: str) -> None:
        self._transport = transport
        self._fence_key = fence_key

    def settle(
        self, ballot: Ballot, *, lock_key: str, token: str, facts: str, stripe: int
    ) -> int | None:
        """Return the fence of this grant, or None when it could not be agreed on.

        Costs nothing where a quorum returned the same number, and one round
        trip where they differ.
        """
        numbers = ballot.numbers(VoteKind.GRANTED)
        fence = max(numbers)
        if numbers.count(fence) >= ballot.quorum:
            return fence
        counted = ballot.indexes(VoteKind.GRANTED)
        return self._raise(
            ballot.quorum,
            set(counted),
            {i for i, number in zip(counted, numbers, strict=True) if number == fence},
            [lock_key, self._fence_key],
            [token, facts, stripe, fence],
        )

    def _raise(
        self,
        quorum: int,
        counted: set[int],
        agreed: set[int],
        keys: Sequence[str],
        args: Sequence[str | int],
    ) -> int | None:
        def raised(ballot: Ballot) -> set[int]:
            return agreed | (set(ballot.indexes(VoteKind.GRANTED)) & counted)

        def settled(ballot: Ballot) -> bool:
            out = {index for index in counted if ballot.votes[index] is None}
            done = raised(ballot)
            return len(done) >= quorum or len(done | out) < quorum

        question = Question(
            RAISE_FENCE, keys, args, labels=self._transport.labels, settle=settled
        )
        self._transport.ask(question)
        fence = int(args[-1])
        return fence if len(raised(question.ballot)) >= quorum else None
