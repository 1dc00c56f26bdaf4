"""Admit servers to the vote: identity, quarantine, confirmation, recovery of fences.

A server that lost its memory, or another one at its address, must not vote at once.
Otherwise it admits a second holder beside one that it forgot. It takes the place of the
member that was there without an operator, and without consensus: the others remember
who the member is (``members.view``)::

      JOIN                NOTE                       SYNC, when r others
     identity           the new view               confirm and it has waited
    ──────────► joined ─────────────► joining ──────────────────────────────► voting
    ▲                                                                           │
    └────────────────────── restart, wipe, FLUSHALL ────────────────────────────┘

1. The server gets an identity, and the others **note** the view in which it takes the
   place. From then on they refuse clients that count on the old identity, in grants and
   in renewals.
2. The server votes when it has waited for one quarantine, and when r = N − q + 1 others
   **confirm**: they vote, have the same view, and have known this member for one
   quarantine, by their own clocks. Any majority that counted the old one's vote shares
   a node with those r, so every lock that was granted with it has ended.
3. The fence counters are read with the same answers. So an attempt that was under way
   when the server was replaced is over by then, and any quorum of the past shares one
   of the r. If too few can be had, the server sets a *floor* under all of its counters,
   its own TIME and the tolerance for the clocks of clients.

Where fewer than r members are left to confirm others, in a new deployment or when a
majority has restarted, a client **founds** the next epoch with the servers that are
there, all of them. Each of them votes when it, and all others, have known this view for
one quarantine. A server that was silent for a whole max_ttl is not waited for: it is
taken to be gone for good. Then the log warns, and
docs/explanation/why-it-is-safe.md says what that rests on.

The server judges itself, inside the script that votes, so all of this holds through
proxies and connection pools. Everything it knows of itself is one hash: to lose a part
of it is to lose all. The hash may come back with an old memory. So it names what no key
can hold: the memory of a master (``master_replid``), which a server names anew when it
starts and when it is promoted. And it has the number of keys that the process had
evicted: another one may have been a lock.

The waits begin when the change is noted. Of a process that proves that it has never
voted they begin with the process: it has refused every view since then, and what an
earlier process granted has ended one quarantine later. So a first lock on servers that
run for a minute is granted at once, and so is one on idle servers that restarted one
by one a while ago. The proof is the server's own count of the commands that it ran,
which no loss of keys resets: ``scripts/shared/proof.lua``.

Whether nodes guard is part of the view, and so the same for all clients. Where they
do not, the same happens without any wait.

Source: the model in ``tests/model/membership.py``, which is checked in all of its
states. The recovery is that of crash-consistent quorums, Michael et al., "Recovering
shared objects without stable storage", DISC 2017.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock import scripts
from celery_redlock.basics.command import COMMAND
from celery_redlock.basics.log_fields import log_fields
from celery_redlock.members.configuration import Configuration
from celery_redlock.members.view import JOINED, UNKNOWN, View
from celery_redlock.wire.quorum import Ballot, Vote, VoteKind
from celery_redlock.wire.requests import all_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.basics.timing import Timing
    from celery_redlock.scripts.keys import Keys
    from celery_redlock.wire.requests import Nodes, ScriptRequest

log = logging.getLogger(__name__)

_MS = 1000
_PAUSE_BETWEEN_RECOVERIES = 0.2  # seconds
_ONE_IS_GONE = (
    "Node %s was silent for %g s, and too few other nodes vote to wait for it: the "
    "others found epoch %d without it. If it is gone, replace it with "
    f"`{COMMAND} reconfigure`."
)
_SOME_ARE_GONE = (
    "Nodes %s were silent for %g s, and too few other nodes vote to wait for them: the "
    "others found epoch %d without them. If they are gone, replace them with "
    f"`{COMMAND} reconfigure`."
)


class NodeMembership(NamedTuple):
    """A node's own account of its membership.

    Attributes:
        label: The name of the node.
        config: What it has stored: a view, or why it has none.
        identity: Its identity.
        votes: Whether it votes for clients with its view.
        view: Its view, if it has one.
        left: The text of the view that it had before it was closed; "" if it was not.
        aborted: What it was closed for and never opens for, one per line.
    """

    label: str
    config: str
    identity: str
    votes: bool
    view: View | None
    left: str
    aborted: str


class RestartGuard:
    """Knows the view of this client, and brings nodes back to the vote.

    Args:
        nodes: The nodes of the deployment.
        keys: The names of the keys on the nodes.
        timing: The deployment's durations.
        enabled: ``redlock_restart_guard``. When off, a node votes at once after
            a restart: two clients may hold a lock, and fences may repeat.

    Attributes:
        configuration: The settings of this client.
        view: The view that its requests carry; None until a node has told one.
        config: The text of that view, or of the settings as long as there is none.
        quarantine_ms: For how many ms a node without memory does not vote.
        decides_alone: Whether there is one node. It numbers its grants by its own time,
            so that two of them never have one number where it has lost a grant and
            has not noticed. Several nodes need the same number: the time of the client.
        clocks_apart_us: By how many µs the clock of a client may differ from a node's.
        hint_tolerance_us: The same; 0 for one node, which numbers its grants itself.
    """

    def __init__(
        self, nodes: Nodes, *, keys: Keys, timing: Timing, enabled: bool
    ) -> None:
        self.enabled = enabled
        self.keys = keys
        labels = tuple(sorted(nodes.labels))
        self.configuration = Configuration(labels, timing.max_ttl, is_guarded=enabled)
        self.view: View | None = None
        self.config = str(self.configuration)
        self.quarantine_ms = round(timing.quarantine * _MS) if enabled else 0
        self.decides_alone = len(labels) == 1
        self.clocks_apart_us = round(timing.max_ttl / 4 * 1_000_000)
        self.hint_tolerance_us = 0 if self.decides_alone else self.clocks_apart_us
        self._nodes = nodes
        self._max_ttl = timing.max_ttl
        self._next_recovery_at = 0.0
        self._said: list[tuple[VoteKind, str]] = []
        self._silent: dict[int, tuple[float, float]] = {}  # index: first, last look

    def ask(self, script: scripts.Script, args: Sequence[Any]) -> ScriptRequest:
        """Ask all nodes by a script about their membership."""
        return self._nodes.ask(script, (self.keys.meta,), args, done_when=all_answered)

    def look(self, *, forget: str = "") -> list[NodeMembership | None]:
        """Ask all nodes what they know of themselves; give identities to new servers.

        Args:
            forget: A view. Nodes that have it forget it, as if they had restarted.

        Returns:
            What each node said; None for those that did not answer.
        """
        return self._looks_in(self._join(forget))

    def _join(self, forget: str = "") -> ScriptRequest:
        return self.ask(scripts.JOIN, [f"s{secrets.token_hex(4)}", forget])

    def _looks_in(self, joined: ScriptRequest) -> list[NodeMembership | None]:
        return [
            _look_at(label, reply)
            for label, reply in zip(self._nodes.labels, joined.replies, strict=True)
        ]

    # -- for every request -----------------------------------------------------------

    def adopt(self, ballot: Ballot) -> bool:
        """Take over the view that nodes refused us with, if it has our settings.

        One of another epoch is taken over if a majority has it, or if this client has
        no view yet. Views of our epoch are merged, and the nodes are told to note it.

        Returns:
            Whether asking again helps: the view of this client is another one than the
            request had. Another thread may have taken it over meanwhile.
        """
        told = Counter(vote.value for vote in ballot.votes if vote and vote.value)
        views = {text: view for text in told if (view := self._view_in(text))}
        text = max(views, key=lambda text: (told[text], text), default="")
        if not text:
            return False
        if text == self.config:
            return True
        if self.view is None:
            return self.use(views[text])
        merged = self.view
        for view in views.values():
            merged = merged.merged(view) if view.is_same_epoch(merged) else merged
        if self.use(merged):
            self._tell_view()
            return True
        is_other = not views[text].is_same_epoch(merged)
        return is_other and told[text] >= ballot.quorum and self.use(views[text])

    def _tell_view(self) -> None:
        args = (self.config, self.quarantine_ms)
        self._nodes.tell(scripts.NOTE, (self.keys.meta,), args)

    def _view_in(self, text: str) -> View | None:
        """Return the view that a node has refused us with, if it has our settings."""
        view = View.parse(text) if text.startswith("format") else None
        return view if view and view.configuration == self.configuration else None

    def was_unknown(self, vote: Vote) -> bool:
        """Tell whether a node has refused a request from before this client had a view.

        So it is with the first request of each process: the node is well, and this
        client asks again.
        """
        if vote.kind is not VoteKind.REFUSED or not vote.value:
            return False
        is_first = self.view is None and self._view_in(vote.value) is not None
        return is_first or vote.value == self.config

    def has_work(self, ballot: Ballot) -> bool:
        """Tell whether nodes that did not vote on this ballot can be helped.

        A node that waits for longer than a whole quarantine has stored an instant of a
        clock that was ahead. When it is looked at, its wait begins anew.
        """
        return ballot.leaves_work or ballot.longest_wait_ms > self.quarantine_ms

    def recover(self, ballot: Ballot) -> bool:
        """Bring the nodes that did not vote on this ballot for us back to the vote.

        Returns:
            Whether asking again helps. While the nodes say the same as before, there is
            one try in 0.2 s; other calls in that time return False at once.
        """
        helps = self.recover_at_once(ballot)
        return self.reconcile() if helps is None else helps

    def recover_at_once(self, ballot: Ballot) -> bool | None:
        """Do what ``recover`` does, as far as it waits for no node.

        Returns:
            What ``recover`` returns. None: it is time to ask the nodes, by `reconcile`.
        """
        if not self.has_work(ballot):
            return False
        if self.adopt(ballot):
            return True
        said = [(vote.kind, vote.value) for vote in ballot.votes if vote is not None]
        now = self._nodes.clock.monotonic()
        if now < self._next_recovery_at and said == self._said:
            return False
        self._said = said
        self._next_recovery_at = now + _PAUSE_BETWEEN_RECOVERIES
        return None

    def votes(self, *, brings_back: bool = True) -> Ballot:
        """Return the votes of all nodes at this moment; lock nothing.

        Args:
            brings_back: Bring nodes to the vote as a request for a lock does. A
                quarantine begins now, and not with the next task.
        """
        while True:
            ballot = self.ask(scripts.COUNTERS, [self.config]).ballot
            if not brings_back:
                is_new = self.view is None and self.adopt(ballot)
                return self.votes(brings_back=False) if is_new else ballot
            if not self.recover(ballot):
                return ballot

    def use(self, view: View) -> bool:
        """Use a view with our settings. Return whether the view is new."""
        if view.configuration != self.configuration or view == self.view:
            return False
        if self.view and self.view.deployment != view.deployment:
            self._tell_view()  # that they were in use: see `deployment.check_new`
        self.view, self.config = view, str(view)
        return True

    # -- new deployments -------------------------------------------------------------

    def initialize(self) -> Ballot:
        """Let the nodes vote at once that have an identity and no view.

        The caller promises that no lock lives on them, and has looked at them.
        """
        joined = self._join()
        looks = self._looks_in(joined)
        ours = [look for look in looks if look and self._is_ours(look)]
        view = next((look.view for look in ours if look.view), None)
        if view is None:
            if len(ours) < len(looks):  # a view without one of them would never have it
                if joined.ballot.granted < len(looks):
                    return joined.ballot  # it has the reasons
                return self.ask(scripts.COUNTERS, [self.config]).ballot
            identities = {look.label: look.identity for look in ours}
            view = View.first_of_epoch(self.configuration, identities, before=None)
        now_us = round(self._nodes.clock.wall() * 1_000_000)
        args = (str(view), now_us, self.hint_tolerance_us)
        ballot = self.ask(scripts.INITIALIZE, args).ballot
        if ballot.granted >= ballot.quorum:
            self.use(view)
        return ballot

    # -- replacement and founding ------------------------------------------------------

    def reconcile(self) -> bool:
        """Take the nodes one step nearer to voting in one view."""
        before = self.config
        looks = self.look()
        seen = [look for look in looks if look is not None]
        ours = [look for look in seen if self._is_ours(look)]
        view = self._current(ours)
        later = {look.config for look in seen if _is_after(look.view, view)}
        if view and later:
            looks = self.look()
            seen = [look for look in looks if look is not None]
            if self._voting(view, seen) < self._nodes.quorum:
                return False  # the deployment has moved on to other settings
            # A majority that was closed comes back only when the move is aborted.
            for config in later:
                self.look(forget=config)
            looks = self.look()
            seen = [look for look in looks if look is not None]
            ours = [look for look in seen if self._is_ours(look)]
        gone = self._gone(looks)
        is_hopeless = view is None or self._is_hopeless(view, ours)
        if view and self._forget_lesser(view, seen, is_hopeless=is_hopeless):
            # Before clients with other settings take them back to theirs.
            ours = [look for look in self.look() if look and self._is_ours(look)]
        view = self._grown(view, ours)
        # Of a minority alone no lock is granted, and a node that is closed, or in
        # other use, remembers.
        can_found = len(ours) >= self._nodes.quorum
        if is_hopeless and can_found and len(ours) + len(gone) == len(looks):
            view = self._found(view, ours)
        if view is None:
            return False
        if any(look.config != str(view) for look in ours):
            self.ask(scripts.NOTE, [str(view), self.quarantine_ms])
        self.use(view)
        admitted = self._admit(view, gone)
        return bool(admitted) or self.config != before

    def _is_ours(self, look: NodeMembership) -> bool:
        """Tell whether a node has a view with our settings, or none."""
        if look.view is None:
            return look.config == JOINED
        return look.view.configuration == self.configuration

    def _current(self, looks: Sequence[NodeMembership]) -> View | None:
        """Return the view that the members come to: that of the epoch with most votes.

        Of equals it is the greatest, and one that a node has goes before our own.
        """
        views = [look.view for look in looks if look.view]
        votes = Counter(
            (look.view.deployment, look.view.order)
            for look in looks
            if look.view and look.votes
        )
        if not views:
            return self.view
        best = max(views, key=lambda v: (votes[v.deployment, v.order], v.order))
        if self.view and not votes and self.view.order > best.order:
            best = self.view
        for view in (*views, self.view):
            if view is not None and view.is_same_epoch(best):
                best = best.merged(view)
        return best

    def _grown(self, view: View | None, looks: Sequence[NodeMembership]) -> View | None:
        """Return the view with the servers that are in no view at their places."""
        for look in looks:
            if view and look.config == JOINED:
                member = view.member(look.label)
                is_first = member.number == 0 and not view.is_founded
                if member.identity != look.identity or is_first:
                    view = view.with_newcomer(look.label, look.identity)
        return view

    def _forget_lesser(
        self, view: View, looks: Sequence[NodeMembership], *, is_hopeless: bool
    ) -> bool:
        """Let nodes that were left behind at an epoch of this deployment start anew.

        With other settings these are members that had no vote at a reconfiguration, or
        servers that were replaced before it and still vote in the view of then. Once r
        members vote in a planned view, the epochs before it are over.

        Returns:
            Whether there were such nodes.
        """
        left_behind = {
            look.config
            for look in looks
            if look.view
            and look.view.deployment == view.deployment
            and not look.view.is_same_epoch(view)
            and (
                not is_hopeless
                if self._is_ours(look)
                else look.view.order < view.order and not (look.votes and is_hopeless)
            )
        }
        for config in left_behind:
            self.look(forget=config)
        return bool(left_behind)

    @staticmethod
    def _voting(view: View, looks: Sequence[NodeMembership]) -> int:
        """Return how many members vote in the epoch of a view."""
        return sum(
            look.votes
            and look.view is not None
            and look.view.is_same_epoch(view)
            and view.member(look.label).identity == look.identity
            for look in looks
        )

    def _is_hopeless(self, view: View, looks: Sequence[NodeMembership]) -> bool:
        """Tell whether too few members vote, or will as founders, to admit others."""
        hopeful = 0
        for look in looks:
            if look.view and look.view.is_same_epoch(view):
                member = view.member(look.label)
                is_founder = view.is_founded and member.number == 0
                is_member = member.identity == look.identity
                hopeful += is_member and (look.votes or is_founder)
        return hopeful < self._needed

    def _gone(self, looks: Sequence[NodeMembership | None]) -> set[int]:
        """Return the indexes of the nodes that were silent for one max_ttl on end.

        That is, at every look in that time. Looks that are more than half a max_ttl
        apart do not count as one time: the nodes may have been there in between.
        """
        now = self._nodes.clock.monotonic()
        gone = set()
        for index, look in enumerate(looks):
            if look is not None:
                self._silent.pop(index, None)
                continue
            first, last = self._silent.get(index, (now, now))
            if now - last > self._max_ttl / 2:
                first = now
            self._silent[index] = first, now
            if now - first > self._max_ttl:
                gone.add(index)
        return gone

    def _found(self, view: View | None, looks: Sequence[NodeMembership]) -> View:
        """Return the first view of the next epoch, with the servers that are there."""
        known = dict.fromkeys(self.configuration.labels, UNKNOWN)
        for label in known:
            if view:
                known[label] = view.member(label).identity
        known |= {look.label: look.identity for look in looks}
        views = [look.view for look in looks if look.view]
        views += [view] if view else []
        # Nodes that vote leave no deployment, so it is theirs that goes on.
        newest = max((it.epoch for it in views), default=0)
        before = replace(view, epoch=newest) if view else None
        founded = View.first_of_epoch(self.configuration, known, before=before)
        gone = sorted(set(known) - {look.label for look in looks})
        if gone:
            log.warning(
                _ONE_IS_GONE if len(gone) == 1 else _SOME_ARE_GONE,
                " and ".join(gone),
                self._max_ttl,
                founded.epoch,
                extra=log_fields("nodes-gone", nodes=gone),
            )
        return founded

    def _admit(self, view: View, gone: set[int]) -> int:
        """Let the members vote that enough others confirm; return how many."""
        counters = self.ask(scripts.COUNTERS, [str(view)])
        ballot, admitted = counters.ballot, 0
        for index in ballot.indexes(VoteKind.UNSYNCED):
            vote, label = ballot.votes[index], ballot.labels[index]
            if vote is None or not vote.value:
                continue
            member = view.member(label)
            if member.identity != vote.value:
                continue
            known = f"known:{label}".encode()
            confirming = [
                i
                for i, reply in enumerate(counters.replies)
                if i != index and _age(reply, known) >= self.quarantine_ms
            ]
            voting = [i for i in confirming if _kind(ballot, i) is VoteKind.GRANTED]
            is_founder = view.is_founded and member.number == 0
            if is_founder:
                others = {*range(len(ballot.votes))} - {index}
                is_confirmed = others <= {*confirming, *gone}
            else:
                is_confirmed = len(voting) >= self._needed
            if is_confirmed:
                sources = confirming if is_founder else voting
                pairs = [x for i in sources for x in counters.replies[i][2:]]
                identity = vote.value
                admitted += self._sync(index, view, identity, pairs, floor=is_founder)
        return admitted

    def _sync(
        self, index: int, view: View, identity: str, pairs: list[Any], *, floor: bool
    ) -> bool:
        """Let one member vote, above these counters, in the view that was confirmed.

        This client may have learned a later view meanwhile, in another thread.
        """
        args = (str(view), identity, int(floor), self.hint_tolerance_us)
        known = counters_in(pairs)
        ballot = self.ask(scripts.SYNC, [*args, *greatest(known)]).ballot
        label = ballot.labels[index]
        if _kind(ballot, index) is not VoteKind.GRANTED:
            return False
        if floor and self.enabled and not view.had_others:
            log.info(
                "Node %s votes. No client has told of earlier fences: its first ones "
                "are greater than its own time.",
                label,
                extra=log_fields("node-founded", node=label),
            )
        elif floor and self.enabled:
            log.warning(
                "Node %s votes%s. Its next fences are greater than its own time, so "
                "their order depends on clocks.",
                label,
                ""
                if self.decides_alone
                else " again, but too few other nodes knew which fences were granted",
                extra=log_fields("node-floor", node=label),
            )
        else:
            log.info(
                "Node %s votes again, and has the fences of the other nodes.",
                label,
                extra=log_fields("node-recovered", node=label),
            )
        return True

    @property
    def _needed(self) -> int:
        """The smallest number of members that intersects every majority: r."""
        return len(self._nodes.labels) - self._nodes.quorum + 1


def _is_after(other: View | None, view: View | None) -> bool:
    """Tell whether a reconfiguration leads from this epoch to other settings.

    Unless it was aborted, clients with the old settings must not take nodes that
    restart back to this epoch.
    """
    return (
        other is not None
        and view is not None
        and other.configuration != view.configuration
        and other.deployment == view.deployment
        and other.order > view.order
    )


def greatest(pairs: list[Any]) -> list[Any]:
    """Merge field, counter, field, counter, ... keeping the greatest counters."""
    merged: dict[bytes, int] = {}
    for field, counter in zip(pairs[::2], pairs[1::2], strict=True):
        merged[field] = max(merged.get(field, 0), int(counter))
    return [item for pair in merged.items() for item in pair]


def counters_in(pairs: list[Any]) -> list[Any]:
    """Return the fence counters of what COUNTERS tells."""
    return [
        item
        for pair in zip(pairs[::2], pairs[1::2], strict=True)
        if not pair[0].startswith(b"known:")
        for item in pair
    ]


def _look_at(label: str, reply: Any) -> NodeMembership | None:
    if not isinstance(reply, list) or reply[0] != scripts.GRANTED:
        return None
    texts = (reply[2], reply[3], reply[5], reply[6])
    config, identity, left, aborted = (text.decode(errors="replace") for text in texts)
    view = View.parse(config)
    return NodeMembership(label, config, identity, bool(reply[4]), view, left, aborted)


def _kind(ballot: Ballot, index: int) -> VoteKind | None:
    vote = ballot.votes[index]
    return vote.kind if vote is not None else None


def _age(reply: Any, known: bytes) -> int:
    """Return for how many ms a node has known a member; -1 if it does not tell."""
    fields = reply[2:] if isinstance(reply, list) else []
    ages = dict(zip(fields[::2], fields[1::2], strict=True))
    return int(ages.get(known, -1))
