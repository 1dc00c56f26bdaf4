"""Count votes: pure arithmetic, no I/O.

Of N nodes, a quorum is ``q = N // 2 + 1``: two quorums always share a node. An
attempt ends in one of four ways, tested in this order:

===========  =====================================================
won          at least q nodes granted
held         at least q nodes name one and the same other token on one key
unreachable  fewer than q nodes either granted or named a holder
contended    anything else: the votes are split, no client won
===========  =====================================================

While votes are outstanding, the verdict is *open* unless none of them can change it.
Only *held* says that another client has the lock. If a split vote counted as "held",
every contender would give up, and then none would run.
"""

from __future__ import annotations

import enum
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from celery_redlock.basics.timing import seconds_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


INTERRUPTED = "lost its connection, because a request was interrupted"
"""The reason of nodes whose connections this very process has closed."""

LOST_SCRIPTS = "had lost its scripts"
"""The reason of nodes that get the scripts again, with the next request."""

SAME_SERVER = "is the same server as"
"""Begins the reason of a node that is listed under another name, too."""

UNSURE = "is new or may have forgotten locks"
"""The reason of nodes without memory: new, restarted, emptied, promoted or evicting."""


def quorum_of(nodes: int) -> int:
    """Return the smallest majority of this many nodes: 1 of 1, 2 of 2, 2 of 3."""
    return nodes // 2 + 1


class VoteKind(enum.Enum):
    """The kinds of votes. The value is the word used in errors and tables."""

    GRANTED = "granted"
    TAKEN = "taken"
    FREE = "free"
    QUARANTINED = "quarantined"
    UNSYNCED = "not yet confirmed"
    REFUSED = "refused"
    SILENT = "silent"


class Vote(NamedTuple):
    """One node's answer.

    Attributes:
        kind: The kind of vote.
        number: The node's fence counter (granted), or the milliseconds that the lock
            (taken) or the quarantine (quarantined) still lasts there.
        value: The holder's value (taken): see ``locks.lease.Holder``; the identity of
            the node (not yet confirmed); what the node has stored (refused).
        reason: Why there is no vote (refused, silent), in words.
        place: Which of several keys is taken, counted from 0.
        more: Of several keys, the others that are taken on this node, too.
        was_asked: Whether a silent node got the request, and may have carried it out.
    """

    kind: VoteKind
    number: int = 0
    value: str = ""
    reason: str = ""
    place: int = 0
    more: tuple[Vote, ...] = ()
    was_asked: bool = False

    @property
    def token(self) -> str:
        """The token that the node names as the holder; empty if it names none."""
        return self.value.partition("\n")[0]


_NO_TAKERS: Mapping[tuple[int, str], int] = {}  # shared by leases, in their ballots
_NO_TAKER = (0, ""), 0


class Verdict(enum.Enum):
    """The end of an attempt, or ``OPEN`` while it has not ended."""

    OPEN = "open"
    WON = "won"
    HELD = "held"
    UNREACHABLE = "unreachable"
    CONTENDED = "contended"


class Ballot:
    """The votes of one attempt, one place per node, filled in any order.

    Not thread-safe: only the thread that polls the nodes casts votes.

    Args:
        labels: The names of the nodes.
        done_when: Tells whether there is nothing more to wait for. By default there is
            until all have voted.

    Attributes:
        labels: The names of the nodes.
        votes: The vote of each node; None while it is outstanding.
        quorum: How many nodes are a majority.
        pending: How many votes are outstanding.
        answered: How many nodes told of the lock: granted, taken or free. A verdict
            counts the first two.
        granted: How many nodes granted.
        taken: How many nodes name another holder, of any token.
        other_views: How many nodes have another view, or wait to be confirmed.
        longest_wait_ms: The longest quarantine that a node told.
        patience: Seconds that nodes have to answer; 0 before they are asked.
        delays: Why each node was not asked, when the patience had ended; "" if it was.
    """

    __slots__ = (
        "_done_when",
        "_takers",
        "answered",
        "delays",
        "granted",
        "labels",
        "longest_wait_ms",
        "other_views",
        "patience",
        "pending",
        "quorum",
        "taken",
        "votes",
    )

    def __init__(
        self,
        labels: Sequence[str],
        done_when: Callable[[Ballot], bool] | None = None,
    ) -> None:
        nodes = len(labels)
        self._done_when = done_when
        self.labels = labels
        self.quorum = quorum_of(nodes)
        self.votes: list[Vote | None] = [None] * nodes
        self.pending = nodes
        self.answered = self.granted = self.taken = self.other_views = 0
        self.longest_wait_ms = 0
        self.patience = 0.0
        self.delays: Sequence[str] = ("",) * nodes
        self._takers = _NO_TAKERS

    def cast(self, index: int, vote: Vote) -> None:
        """Record the vote of one node. A second vote of a node is an error."""
        if self.votes[index] is not None:
            message = f"{self.labels[index]} has already voted in this ballot"
            raise ValueError(message)
        self.votes[index] = vote
        self.pending -= 1
        kind = vote.kind
        if kind is VoteKind.GRANTED:
            self.answered += 1
            self.granted += 1
        elif kind is VoteKind.TAKEN:
            self.answered += 1
            self.taken += 1
            takers = dict(self._takers)
            for one in (vote, *vote.more):
                named = (one.place, one.token)
                takers[named] = takers.get(named, 0) + 1
            self._takers = takers
        elif kind is VoteKind.FREE:
            self.answered += 1
        elif kind is VoteKind.QUARANTINED:
            self.longest_wait_ms = max(self.longest_wait_ms, vote.number)
        elif kind is VoteKind.UNSYNCED or (kind is VoteKind.REFUSED and vote.value):
            self.other_views += 1

    def is_done(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self._done_when(self) if self._done_when else not self.pending

    @property
    def leaves_work(self) -> bool:
        """Whether nodes need the guard, or too few vote because of a quarantine."""
        is_short = self.answered < self.quorum
        return bool(
            self.other_views or (is_short and self.indexes(VoteKind.QUARANTINED))
        )

    @property
    def top_taker(self) -> tuple[str, int]:
        """The token that most nodes name as the holder of a key, and how many do."""
        (_, token), votes = self._top()
        return token, votes

    @property
    def top_place(self) -> int:
        """The number of the key that the top taker holds, counted from 0."""
        return self._top()[0][0]

    def _top(self, place: int | None = None) -> tuple[tuple[int, str], int]:
        if not self._takers:
            return _NO_TAKER
        takers: Iterable[tuple[tuple[int, str], int]] = self._takers.items()
        if place is not None:
            takers = [taker for taker in takers if taker[0][0] == place]
        return max(takers, key=lambda taker: taker[1], default=_NO_TAKER)

    def top_votes(self, place: int | None = None) -> list[Vote]:
        """Return the votes that name the top taker, with value and ttl of that key.

        Args:
            place: The number of the key, counted from 0; None: of any key.
        """
        named, _ = self._top(place)
        return [
            one
            for vote in self.votes
            if vote is not None and vote.kind is VoteKind.TAKEN
            for one in (vote, *vote.more)
            if (one.place, one.token) == named
        ]

    def verdict(self) -> Verdict:
        """Return the end of the attempt, or OPEN while a missing vote can change it."""
        return self._verdict(self.pending)

    def final_verdict(self) -> Verdict:
        """Return the end of the attempt if the silent nodes stay silent."""
        return self._verdict(0)

    def _verdict(self, pending: int) -> Verdict:
        quorum = self.quorum
        if self.granted >= quorum:
            return Verdict.WON
        top = self._top()[1]
        if top >= quorum:
            return Verdict.HELD
        voted = self.granted + self.taken
        if voted + pending < quorum:
            return Verdict.UNREACHABLE
        if voted < quorum or (pending and max(self.granted, top) + pending >= quorum):
            return Verdict.OPEN
        return Verdict.CONTENDED

    def agreed_number(self) -> int | None:
        """Return the greatest number that came with a grant, if a quorum gave it."""
        numbers = self.numbers(VoteKind.GRANTED)
        greatest = max(numbers)
        return greatest if numbers.count(greatest) >= self.quorum else None

    def holder_value(self) -> str:
        """Return the value of the holder that most nodes name, or ``""``."""
        return next((vote.value for vote in self.top_votes()), "")

    def indexes(self, kind: VoteKind) -> list[int]:
        """Return the indexes of the nodes that voted this way, in node order."""
        return [i for i, v in enumerate(self.votes) if v and v.kind is kind]

    def numbers(self, kind: VoteKind) -> list[int]:
        """Return the numbers that came with the votes of this kind."""
        return [v.number for v in self.votes if v and v.kind is kind]

    def votes_for(self, token: str, keys: int = 1) -> int:
        """Return how many nodes name this token as the holder of so many keys."""
        named = (
            sum(one.token == token for one in (vote, *vote.more))
            for vote in self.votes
            if vote is not None and vote.kind is VoteKind.TAKEN
        )
        return sum(times >= keys for times in named)

    def quarantine_ms(self) -> int | None:
        """Return after how many ms a majority may vote again, by the nodes' account.

        None when no node is in quarantine, or when waiting for them does not help.
        """
        missing = self.quorum - self.answered
        waits = sorted(self.numbers(VoteKind.QUARANTINED))
        return waits[missing - 1] if 0 < missing <= len(waits) else None

    def reasons(self) -> str:
        """Return in one line why nodes gave no vote: ``"redis-b refused, ..."``.

        Advice behind a ``;`` that goes for several nodes follows on the last of them.
        """
        told = [problem.partition("; ") for problem in self.problems()]
        following = [advice for _, _, advice in told[1:]]
        return ", ".join(
            fact if later == advice else f"{fact}{mark}{advice}"
            for (fact, mark, advice), later in zip_longest(told, following)
        )

    def problems(self) -> list[str]:
        """Return one clause per node that gave no vote; [] when all voted.

        A node whose vote cannot change the outcome was not waited for. This is no
        problem of the node, so it is not called silent.
        """
        problems = []
        delays = ["was not waited for"] * len(self.labels)
        if not self.is_done():
            delays = [delay or "had not answered" for delay in self.delays]
        for label, vote, delay in zip(self.labels, self.votes, delays, strict=True):
            if vote is None:
                problems.append(f"{label} {delay}")
            elif vote.kind is VoteKind.QUARANTINED:
                wait = seconds_text(vote.number / 1000)
                problems.append(f"{label} is in quarantine for {wait}")
            elif vote.kind is VoteKind.UNSYNCED:
                reason = "is not confirmed by other nodes yet"
                if len(self.labels) == 1:
                    reason = "does not vote yet"
                problems.append(f"{label} {reason if vote.value else UNSURE}")
            elif vote.kind in (VoteKind.REFUSED, VoteKind.SILENT):
                problems.append(f"{label} {vote.reason}")
        return problems

    @property
    def was_interrupted(self) -> bool:
        """Whether this very process has closed the connection to a node meanwhile."""
        return any(v is not None and v.reason == INTERRUPTED for v in self.votes)

    @property
    def is_passing(self) -> bool:
        """Whether a node gave no vote for a reason that ends with the next request."""
        passing = (INTERRUPTED, LOST_SCRIPTS)
        return any(v is not None and v.reason in passing for v in self.votes)

    @property
    def may_have_won(self) -> bool:
        """Whether a majority granted, if the nodes did whose answers were lost."""
        lost = sum(vote is not None and vote.was_asked for vote in self.votes)
        return lost > 0 and self.granted + lost >= self.quorum

    def __repr__(self) -> str:
        votes = (
            f"{label}={'?' if vote is None else vote.kind.value}"
            for label, vote in zip(self.labels, self.votes, strict=True)
        )
        return f"<Ballot {' '.join(votes)}>"
