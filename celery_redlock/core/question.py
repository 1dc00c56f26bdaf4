"""One script call put to every node, and the ballot of what they answered.

A question is packed once, sent to all nodes, and filled in as replies arrive, in
whatever order. A reply always finds the question that it belongs to, however
late it is: it can never be taken for the answer to a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_redlock.core import scripts
from celery_redlock.core.ballot import Ballot, Verdict, Vote, VoteKind
from celery_redlock.core.wire import ErrorReply, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.core.scripts import Script

__all__ = [
    "Lesson",
    "Question",
    "UnreadableReply",
    "by_everyone",
    "by_majority",
    "granted_or_hopeless",
    "verdict_certain",
    "vote_of",
]


def verdict_certain(ballot: Ballot) -> bool:
    """Settle as soon as no outstanding answer can change the verdict."""
    return ballot.verdict() is not Verdict.OPEN


def granted_or_hopeless(ballot: Ballot) -> bool:
    """Settle when a majority granted, or cannot any more."""
    granted = ballot.granted
    return granted >= ballot.quorum or granted + ballot.pending < ballot.quorum


def by_majority(ballot: Ballot) -> bool:
    """Settle when a majority has answered, whatever it says."""
    return ballot.answered >= ballot.quorum or not ballot.pending


def by_everyone(ballot: Ballot) -> bool:
    """Settle when every node has answered or failed."""
    return not ballot.pending


_YES, _NO = Vote(VoteKind.GRANTED), Vote(VoteKind.FREE)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


_VOTE_OF_STATUS: dict[int, Callable[[list[Any]], Vote]] = {
    scripts.GRANTED: lambda r: Vote(VoteKind.GRANTED, r[1]) if any(r[1:]) else _YES,
    scripts.TAKEN: lambda r: Vote(VoteKind.TAKEN, r[2], _text(r[1])),
    scripts.FREE: lambda _: _NO,
    scripts.QUARANTINED: lambda r: Vote(VoteKind.QUARANTINED, max(0, r[1])),
    scripts.UNSYNCED: lambda r: Vote(VoteKind.UNSYNCED, value=_text(r[1])),
    scripts.MISCONFIGURED: lambda r: Vote(
        VoteKind.REFUSED, value=_text(r[1]), reason="is set up differently"
    ),
}


class UnreadableReply(Exception):  # noqa: N818  (ends a connection; nobody sees it)
    """No script of ours says this. So it may be the answer to something else."""


def vote_of(reply: Any) -> Vote:
    """Read a script's reply: see the table of statuses in ``core.scripts``.

    Raises:
        UnreadableReply: It is not in the table.
    """
    if isinstance(reply, ErrorReply):
        return Vote(VoteKind.REFUSED, reason=f"answered {reply}")
    if isinstance(reply, int):
        return _YES if reply else _NO
    try:
        return _VOTE_OF_STATUS[reply[0]](reply)
    except (LookupError, TypeError):
        raise UnreadableReply(f"{reply!r:.60}") from None


class Lesson:
    """A script that a node is to keep in mind. Nobody waits for the answer."""

    __slots__ = ("_script", "call")

    insist_since = insist_until = 0.0

    def __init__(self, script: Script) -> None:
        self._script = script
        self.call: tuple[Script, Sequence[str], Sequence[Any]] = (script, [""], [])

    def packed(self) -> bytes:
        """Return the command."""
        return pack("SCRIPT", "LOAD", self._script.source)

    def answer(self, index: int, reply: Any) -> None:
        """Nothing depends on it."""

    def fail(self, index: int, reason: str) -> None:
        """Nothing depends on it."""


class Question:
    """A script, its keys and arguments, and the votes on it so far.

    Attributes:
        ballot: The votes; those of late nodes are still entered.
        replies: What the nodes said, in node order; None while one is silent.
        withdrawn: Asked just before sending; when it says True, nothing is sent.
        observer: Told of each vote, with the node's place. Must not raise.
        insist_until: Instant until which a node that could not be reached is
            asked again when it is back. 0 for a question that can be dropped.
        insist_since: Instant; nodes that were away ever since are not asked again.
    """

    __slots__ = (
        "_args",
        "_eval",
        "_evalsha",
        "_keys",
        "_settle",
        "ballot",
        "insist_since",
        "insist_until",
        "observer",
        "replies",
        "script",
        "withdrawn",
    )

    def __init__(  # noqa: PLR0913  (made in a few places, by name)
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        labels: Sequence[str],
        settle: Callable[[Ballot], bool],
        insist_since: float = 0.0,
        insist_until: float = 0.0,
        withdrawn: Callable[[], bool] | None = None,
    ) -> None:
        self.script = script
        self._keys = keys
        self._args = args
        self._settle = settle
        self._evalsha: bytes | None = None
        self._eval: bytes | None = None
        self.ballot = Ballot(labels)
        self.replies: list[Any] = [None] * len(labels)
        self.insist_since = insist_since
        self.insist_until = insist_until
        self.withdrawn = withdrawn
        self.observer: Callable[[int, Vote], None] | None = None

    @property
    def call(self) -> tuple[Script, Sequence[str], Sequence[Any]]:
        """Script, keys and arguments, for nodes that are not reached by bytes."""
        return self.script, self._keys, self._args

    def packed(self) -> bytes:
        """Return the command, by SHA as a rule, packed on first use."""
        if self.script.whole:
            return self.packed_source()
        if self._evalsha is None:
            self._evalsha = pack(
                "EVALSHA", self.script.sha, len(self._keys), *self._keys, *self._args
            )
        return self._evalsha

    def packed_source(self) -> bytes:
        """Return the command with its source, for a node that forgot the script."""
        if self._eval is None:
            self._eval = pack(
                "EVAL", self.script.source, len(self._keys), *self._keys, *self._args
            )
        return self._eval

    def answer(self, index: int, reply: Any) -> None:
        """Enter the reply of one node."""
        vote = vote_of(reply)
        self.replies[index] = reply
        self._cast(index, vote)

    def fail(self, index: int, reason: str) -> None:
        """Enter that there is no answer from this node, and why."""
        self._cast(index, Vote(VoteKind.SILENT, reason=reason))

    def _cast(self, index: int, vote: Vote) -> None:
        self.ballot.cast(index, vote)
        if self.observer is not None:
            self.observer(index, vote)

    def is_settled(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self._settle(self.ballot)

    def again(self) -> Question:
        """Return the same question with no votes, to be asked once more."""
        copy = Question(
            self.script,
            self._keys,
            self._args,
            labels=self.ballot.labels,
            settle=self._settle,
            insist_since=self.insist_since,
            insist_until=self.insist_until,
        )
        copy._evalsha, copy._eval = self._evalsha, self._eval
        return copy
