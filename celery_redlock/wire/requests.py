"""Script requests: one script call to every node, and the ballot of the replies.

A request is packed when it is built. So one that cannot be packed fails alone, before
it is queued with others. It is sent to all nodes, and filled in as replies arrive, in
any order. A reply always finds the request that it belongs to, however late it is. It
can never be taken for the reply to a later request.

``Nodes`` builds all requests of a deployment; a ``Transport`` sends them.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any, Protocol

from celery_redlock import scripts
from celery_redlock.basics.resp import (
    ErrorReply,
    may_evict,
    pack_words,
    refusal_of,
    unsendable,
    word_of,
)
from celery_redlock.basics.text import MOST_TOLD, printable_line
from celery_redlock.errors import ConfigurationError
from celery_redlock.wire.quorum import Ballot, Verdict, Vote, VoteKind, quorum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_redlock.basics.clock import Clock
    from celery_redlock.scripts import Script


# -- when a request is done ----------------------------------------------------


def verdict_is_certain(ballot: Ballot) -> bool:
    """Tell whether no outstanding vote can change the verdict.

    If too few nodes vote, the others are waited for: the error says why each does not,
    and one that is there must not be called silent. They are not if a majority has
    another view: a client learns it with its first request, and asks again.
    """
    verdict = ballot.verdict()
    if verdict is Verdict.UNREACHABLE:
        return not ballot.pending or ballot.other_views >= ballot.quorum
    return verdict is not Verdict.OPEN


def grant_is_decided(ballot: Ballot) -> bool:
    """Tell whether a majority granted, or cannot grant any more."""
    granted = ballot.granted
    return granted >= ballot.quorum or granted + ballot.pending < ballot.quorum


def majority_answered(ballot: Ballot) -> bool:
    """Tell whether a majority answered, or every node answered or failed."""
    return ballot.answered >= ballot.quorum or not ballot.pending


def all_answered(ballot: Ballot) -> bool:
    """Tell whether every node answered or failed."""
    return not ballot.pending


# -- from replies to votes -----------------------------------------------------

_MOST_BYTES = 4_000_000  # of a request: less than what a node may leave unread
_ONE_TAKEN = 4  # items of a reply: status, value, ttl, and a record
_NO_KEY = -2  # the ttl of a key that has no other holder
_YES, _NO = Vote(VoteKind.GRANTED), Vote(VoteKind.FREE)
# The items after the status of a grant, where they are not one number: i is a number,
# and b are bytes.
_MORE_THAN_A_NUMBER = {
    "counters": re.compile("i(b[bi])*"),
    "extend": re.compile("ib"),
    "inspect_permits": re.compile("ib"),
    "join": re.compile("ibbibb"),
    "first_in_backlog": re.compile("ib"),
    "join_backlog": re.compile("iiib"),
    "join_permit_queue": re.compile("i+b"),
    "list_releases": re.compile("(bb)*"),
    "list_standbys": re.compile("b*"),
    "read_backlog": re.compile("ii"),
    "read_slots": re.compile("(bb)*"),
}
_SIGN_OF: dict[type, str] = {int: "i", bytes: "b"}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _number(item: Any) -> int:
    if type(item) is not int:
        raise TypeError
    return item


@functools.lru_cache(maxsize=1)
def _grant(number: int) -> Vote:
    """Return the vote with this number, which most nodes give alike."""
    return Vote(VoteKind.GRANTED, number)


def _granted(reply: list[Any], script: Script | None) -> Vote:
    """Read the fence counter, and check the kinds of all that follows."""
    if len(reply) == 1:
        return _YES
    number = reply[1]
    if len(reply) > 2 or type(number) is not int:  # noqa: PLR2004  (status and number)
        kinds = "".join([_SIGN_OF[type(item)] for item in reply[1:]])
        if not _MORE_THAN_A_NUMBER[script.name if script else ""].fullmatch(kinds):
            raise TypeError
        number = number if type(number) is int else 0
    if number < 0:
        raise TypeError
    return _grant(number) if number else _YES


def _taken(reply: list[Any], _: Script | None) -> Vote:
    """Read value and ttl of each key in turn. What follows them is not read here."""
    first = Vote(VoteKind.TAKEN, _number(reply[2]), _text(reply[1]))
    if len(reply) <= _ONE_TAKEN:
        return first
    places = range((len(reply) - 1) // 2)
    votes = [
        _taken(reply[2 * i : 2 * i + 3], None)._replace(place=i)
        for i in places
        if reply[2 * i + 2] != _NO_KEY
    ]
    return votes[0]._replace(more=tuple(votes[1:]))


def _quarantined(reply: list[Any], _: Script | None) -> Vote:
    return Vote(VoteKind.QUARANTINED, max(0, _number(reply[1])))


def _unsynced(reply: list[Any], _: Script | None) -> Vote:
    return Vote(VoteKind.UNSYNCED, value=_text(reply[1]))


def _misconfigured(reply: list[Any], _: Script | None) -> Vote:
    reason = "has another view of the deployment"
    return Vote(VoteKind.REFUSED, value=_text(reply[1]), reason=reason)


def _evicts(reply: list[Any], _: Script | None) -> Vote:
    policy = printable_line(_text(reply[1]), MOST_TOLD)
    return Vote(VoteKind.REFUSED, reason=may_evict(policy))


_VOTE_OF_STATUS: dict[int, Callable[[list[Any], Script | None], Vote]] = {
    scripts.GRANTED: _granted,
    scripts.TAKEN: _taken,
    scripts.FREE: lambda *_: _NO,
    scripts.QUARANTINED: _quarantined,
    scripts.UNSYNCED: _unsynced,
    scripts.MISCONFIGURED: _misconfigured,
    scripts.EVICTS: _evicts,
}


class UnreadableReply(Exception):  # noqa: N818  (ends a connection; never leaves wire)
    """No script of ours replies like this. It may be the reply to something else."""


def vote_of(reply: Any, script: Script | None = None) -> Vote:
    """Read a script's reply: see the table of statuses in ``scripts``.

    Args:
        reply: The reply.
        script: The script. Only RELEASE replies with a bare number, and an error in a
            script may be told better.

    Raises:
        UnreadableReply: The reply is not in the table, or an item has another kind.
    """
    if type(reply) is int and script is scripts.RELEASE:
        return _YES if reply else _NO
    try:
        return _VOTE_OF_STATUS[reply[0]](reply, script)
    except (AttributeError, LookupError, TypeError):
        if isinstance(reply, ErrorReply):
            source = script.source if script else ""
            return Vote(VoteKind.REFUSED, reason=refusal_of(str(reply), source))
        raise UnreadableReply(f"{reply!r:.60}") from None


# -- requests --------------------------------------------------------------------


class VoteListener(Protocol):
    """The call that a request is a part of.

    Attributes:
        has_news: Whether a vote came since its last look.
    """

    has_news: bool

    def note_vote(self) -> None:
        """Note that a vote was cast."""


class ScriptRequest:
    """A script, its keys and arguments, and the votes on it so far.

    Attributes:
        words: The command, with the SHA of the script.
        ballot: The votes. Those of late nodes are still entered.
        replies: The raw reply of each node, in node order; None until it answers.
        is_obsolete: Called just before sending. If it returns True, nothing is sent.
        observer: Called with each vote and the node's index. Must not raise.
        asked_by: The call of which it is a part, told of each vote.
        deadline: Instant until which nodes may answer; infinite before it is sent.
        resend_until: Instant until which the request is resent to a node that could
            not be reached, or that answered with an error. 0 for a request that can be
            dropped.
        resend_since: Instant. Nodes that were sent nothing since then are left out.
        resends: How many times it was sent before.

    Raises:
        ConfigurationError: It cannot be packed, or is longer than nodes take. Nothing
            was sent.
    """

    __slots__ = (
        "_args",
        "_done_when",
        "_eval",
        "_evalsha",
        "_keys",
        "_open",
        "asked_by",
        "ballot",
        "deadline",
        "is_obsolete",
        "observer",
        "replies",
        "resend_since",
        "resend_until",
        "resends",
        "script",
        "words",
    )

    def __init__(  # noqa: PLR0913  (made by `Nodes`, by name)
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        labels: Sequence[str],
        done_when: Callable[[Ballot], bool],
        resend_since: float = 0.0,
        resend_until: float = 0.0,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> None:
        self.script = script
        self._keys = keys
        self._args = args
        self._done_when = done_when
        try:
            words = [
                w if type(w) is str else str(w) if type(w) is int else word_of(w)
                for w in ("EVALSHA", script.sha, len(keys), *keys, *args)
            ]
            self.words = tuple(words)
            self._evalsha = pack_words(self.words)
        except ValueError as error:
            raise unsendable(error) from None
        self._eval: bytes | None = None
        if len(self._evalsha) > _MOST_BYTES:
            raise ConfigurationError(
                f"A request of {len(self._evalsha):,} bytes is too long for a node: at "
                f"most {_MOST_BYTES:,}. Nothing was sent; use shorter keys and texts."
            )
        self.ballot = Ballot(labels, done_when)
        # Nodes that have not voted. The thread that takes a node out enters its vote: a
        # driver that was presumed dead may go on beside its successor.
        self._open = dict.fromkeys(range(len(labels)), True)
        self.replies: list[Any] = [None] * len(labels)
        self.resend_since = resend_since
        self.resend_until = resend_until
        self.resends = 0
        self.is_obsolete = is_obsolete
        self.observer: Callable[[int, Vote], None] | None = None
        self.asked_by: VoteListener | None = None
        self.deadline = math.inf

    @property
    def call(self) -> tuple[Script, Sequence[str], Sequence[Any]]:
        """Script, keys and arguments."""
        return self.script, self._keys, self._args

    def packed(self) -> bytes:
        """Return the command, with the SHA of the script."""
        return self._evalsha

    def packed_source(self) -> bytes:
        """Return the command with its source, for a node that lacks the script."""
        if self._eval is None:
            words = "EVAL", self.script.source, *self.words[2:]
            self._eval = pack_words(words)
        return self._eval

    def answer(self, index: int, reply: Any) -> None:
        """Enter the reply of one node, unless the request has failed there.

        Raises:
            ValueError: It is the second one. It belongs to another request.
        """
        vote = vote_of(reply, self.script)
        if self._open.pop(index, None) is None:
            if self.replies[index] is None:
                return
            label = self.ballot.labels[index]
            raise ValueError(f"{label} has already voted in this ballot")
        self.replies[index] = reply
        self._cast(index, vote)

    def fail(self, index: int, reason: str, *, was_asked: bool = False) -> None:
        """Record a node without an answer and the reason, unless the node has voted.

        Args:
            index: The node.
            reason: Why, after its name.
            was_asked: Whether the request was sent, so that it may be carried out.
        """
        if self._open.pop(index, None) is not None:
            vote = Vote(VoteKind.SILENT, reason=reason, was_asked=was_asked)
            self._cast(index, vote)

    def _cast(self, index: int, vote: Vote) -> None:
        self.ballot.cast(index, vote)
        call = self.asked_by
        if call is not None and not call.has_news:
            call.note_vote()
        if self.observer is not None:
            self.observer(index, vote)

    def is_done(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self.ballot.is_done()

    def again(self) -> ScriptRequest:
        """Return a copy without votes, to be sent once more."""
        copy = ScriptRequest(
            self.script,
            self._keys,
            self._args,
            labels=self.ballot.labels,
            done_when=self._done_when,
            resend_since=self.resend_since,
            resend_until=self.resend_until,
        )
        copy._eval = self._eval
        copy.resends = self.resends + 1
        return copy


class Event(Protocol):
    """The event that a caller waits for: a lock that was acquired, for example."""

    def release(self) -> None:
        """Release the event, in any thread."""


class Transport(Protocol):
    """The way of requests to the nodes: the seam at which tests replace the network.

    Attributes:
        labels: The names of the nodes, in the order of their votes.
    """

    labels: tuple[str, ...]

    def send(self, *requests: ScriptRequest) -> None:
        """Send requests to all nodes, in this order; do not wait for replies."""

    def wait(self, *requests: ScriptRequest, until: float = math.inf) -> bool:
        """Return when all are done, at the first ``deadline``, or at ``until``.

        A reply that is there is read, also after a deadline. Returns False, with
        nothing read, when other threads still used the transport at ``until``.
        """

    def ask(self, request: ScriptRequest) -> None:
        """Send one request and wait for it as long as nodes may take."""

    def begin(self, request: ScriptRequest, event: Event) -> None:
        """Queue one request to be sent as ``ask`` does, and return at once.

        It is sent after the next `wake`, or before: at the latest within the time that
        nodes may take.

        Args:
            request: The request.
            event: Its ``release`` is called, in any thread, when the time of the
                request is over. Sometimes it is called twice.
        """

    def wake(self) -> None:
        """Send what was begun."""

    def drain(self) -> None:
        """Read the replies that are there, unless another thread does so."""

    @property
    def has_pending(self) -> bool:
        """Whether a request waits to be sent, or to be resent, or a reply is late."""

    @property
    def has_unanswered(self) -> bool:
        """Whether a request was sent of which some reply has not been read."""

    def close(self) -> None:
        """Close all connections. The next request opens them again."""


class Nodes:
    """All nodes of one deployment: builds script requests and sends them.

    Args:
        transport: How requests reach the nodes.
        clock: Reads time.

    Attributes:
        labels: The names of the nodes, in the order of their votes.
        quorum: How many of them are a majority.
        resender: Starts the thread that resends what has not arrived; None where there
            is no such thread.
    """

    __slots__ = ("clock", "labels", "quorum", "resender", "transport")

    def __init__(self, transport: Transport, *, clock: Clock) -> None:
        self.transport = transport
        self.clock = clock
        self.labels = transport.labels
        self.quorum = quorum_of(len(self.labels))
        self.resender: Callable[[], None] | None = None

    def request(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any] = (),
        *,
        done_when: Callable[[Ballot], bool] = verdict_is_certain,
        resend_for: float = 0.0,
        resend_since: float = 0.0,
        is_obsolete: Callable[[], bool] | None = None,
    ) -> ScriptRequest:
        """Build a request without sending it.

        Args:
            script: The script to run on every node.
            keys: Its KEYS.
            args: Its ARGV.
            done_when: Tells from the votes whether there is nothing to wait for.
            resend_for: Seconds for which a node that is away, or refuses it, gets it
                again; 0 for a request that can be dropped.
            resend_since: Instant. Nodes that were sent nothing since then are left out.
            is_obsolete: Called just before sending. If it returns True, nothing is
                sent.
        """
        return ScriptRequest(
            script,
            keys,
            args,
            labels=self.labels,
            done_when=done_when,
            resend_since=resend_since,
            resend_until=resend_for and self.clock.monotonic() + resend_for,
            is_obsolete=is_obsolete,
        )

    def ask(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any] = (),
        *,
        done_when: Callable[[Ballot], bool] = verdict_is_certain,
        resend_for: float = 0.0,
    ) -> ScriptRequest:
        """Build a request, send it, and wait until it is done or nodes are late."""
        request = self.request(
            script, keys, args, done_when=done_when, resend_for=resend_for
        )
        self.transport.ask(request)
        if resend_for:
            self.see_to(request)
        return request

    def tell(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Any] = (),
        *,
        resend_for: float = 0.0,
    ) -> None:
        """Build a request and send it, without waiting for replies."""
        self.send(self.request(script, keys, args, resend_for=resend_for))

    def send(self, request: ScriptRequest) -> None:
        """Send a request without waiting for replies."""
        self.transport.send(request)
        self.see_to(request)

    def see_to(self, request: ScriptRequest) -> None:
        """Have a request that was sent arrive where it must.

        The process may ask the nodes for nothing more. So the resender sees to what
        must arrive, and to what waits for a connection.
        """
        if self.resender and (request.resend_until or self.transport.has_pending):
            self.resender()
