"""Agree on a fence: a number greater than every number granted before.

Each node keeps counters. A grant adds one to a counter there, or raises it to a hint
(the client's wall clock in microseconds) if that is greater. The fence of a grant is
``t = max`` over the nodes that granted. If a quorum of them returned exactly t, that
is all: ``Ballot.agreed_number``. Otherwise a second round raises the counters to t:

1.  A raise acts only while that node's key still holds *my* token, in the same
    script: for several keys, each of them.
2.  A raise counts only on nodes whose own number was part of the max.

Why it holds. On one node, tenures of a key are disjoint, and each begins with a
greater counter than the last one ended with. Grant g leaves counter ≥ t on a quorum
W during its own tenure there. Any later attempt reads a quorum R of numbers. W and
R share a node, and its number there is at least t + 1. So fences are unique. A fence
whose attempt began after another grant is greater, however wrong clocks are. Without
(1) or (2) there are counterexamples: see ``docs/explanation/why-it-is-safe.md``.

One node that decides alone, such as a store, raises a counter to its own time instead
of a hint. If old data come back and nothing tells so, two grants have two numbers.
Several nodes do not: their times differ, and each grant would need a second round.

Counters are striped (``scripts.keys.stripes_of``), so that their memory is bounded for
any number of keys. The fences of a key are a part of the sequence of its stripe,
which changes nothing above.

Several keys that are taken together get one fence. A node grants all of them or none,
with one number above the counters of all, to which it sets these. Two grants that share
a key are ordered by the tenures of that key, as above.

Source: the second round is the write-back of a multi-writer register: Attiya,
Bar-Noy, Dolev, "Sharing memory robustly in message-passing systems", JACM 1995.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_redlock.scripts import RAISE_FENCE
from celery_redlock.wire.quorum import VoteKind
from celery_redlock.wire.steps import Ask

if TYPE_CHECKING:
    from celery_redlock.wire.quorum import Ballot
    from celery_redlock.wire.requests import Nodes
    from celery_redlock.wire.steps import Steps


def raise_fence(
    won: Ballot,
    nodes: Nodes,
    keys: list[str],
    args: tuple[str, str],
    stripes: list[int],
) -> Steps[int | None]:
    """Raise the counters of a won ballot to its greatest number: one round trip.

    Args:
        won: The ballot of the grant.
        nodes: The nodes of the deployment.
        keys: The names of the locks, then that of the fence counters.
        args: Token and holder_info of the grant.
        stripes: The stripe of each of its keys.

    Returns:
        Steps. Their result is the fence of the grant; None if fewer than a quorum
        confirmed it.
    """
    numbers = _numbers_of(won)
    fence, counted = max(numbers.values()), set(numbers)
    agreed = {index for index, number in numbers.items() if number == fence}

    def raised(ballot: Ballot) -> set[int]:
        return agreed | (set(ballot.indexes(VoteKind.GRANTED)) & counted)

    def decided(ballot: Ballot) -> bool:
        outstanding = {index for index in counted if ballot.votes[index] is None}
        done = raised(ballot)
        return len(done) >= won.quorum or len(done | outstanding) < won.quorum

    request = nodes.request(
        RAISE_FENCE, keys, (*args, fence, *stripes), done_when=decided
    )
    yield Ask(request)
    return fence if len(raised(request.ballot)) >= won.quorum else None


def _numbers_of(won: Ballot) -> dict[int, int]:
    """Return the numbers of the nodes that granted; the raise counts on these nodes.

    The ballot is read once: another thread may enter a late vote at any time.
    """
    return {
        index: vote.number
        for index, vote in enumerate(won.votes)
        if vote and vote.kind is VoteKind.GRANTED
    }
