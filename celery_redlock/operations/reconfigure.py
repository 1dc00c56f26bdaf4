"""Changes the list of nodes, or max_ttl, without two holders and without old fences.

::

    look ──► plan ──► close ──► wait ──► read the fences ──► open the planned nodes
                      │ a majority      (N − q + 1 of        (with those fences)
                      │ of the old,      the old)
                      │ all the new
                      └──► abort: mark a majority of the planned nodes, reopen the old

The *plan* is the first view of the next epoch (``members.view``): the identity of the
server at each place. Every closed node stores it. So an operator who runs the command
again, after an interruption or beside another operator, goes on with the same plan.

While a majority of the old nodes is closed, no client gets a lock, and no lease is
renewed: leases expire, or are released, within their ttl. A closed node says so to
clients of either configuration. Only a server that was planned, that is closed for this
plan, and that has waited, is opened. So a node that lost its memory meanwhile is not;
it joins later, like any server that restarted. A node that votes already is left alone.

An abort must not leave two deployments. So it first marks a majority of the planned
nodes, which never open for this plan from then on, and then lets the old nodes vote
again. At once, if those cannot have opened before; a planned node that has lost its
memory may have, and may have granted locks. So if such nodes are needed, the abort
first waits until these locks have ended, and the old nodes start above its own clock.

Clients whose settings are the new ones follow by themselves. Shut down the nodes that
were removed, if nothing else uses them: clients with the old settings could use them
again once they have been wiped.

Source: the model in ``tests/model/reconfiguration.py``.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from celery_redlock.basics.command import COMMAND
from celery_redlock.errors import ConfigurationError, RedlockError
from celery_redlock.members.restart_guard import counters_in, greatest
from celery_redlock.members.view import CLOSED, JOINED, View, refusal, steps_by_hand
from celery_redlock.operations.words import votes_text
from celery_redlock.scripts import ABORT, CLOSE, COUNTERS, OPEN, REOPEN
from celery_redlock.stores.connection import store_of
from celery_redlock.wire.quorum import VoteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from celery_redlock.locks.redlock import Redlock
    from celery_redlock.members.restart_guard import NodeMembership
    from celery_redlock.wire.quorum import Ballot

log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two tries of a step
_MARGIN = 0.01  # seconds, for the rounding of milliseconds
_ABORTED = "aborted"  # what CLOSE replies then
_WAITS = VoteKind.QUARANTINED  # what CLOSE replies while old locks may live
_INTERRUPTED = (
    "Nothing is granted until {it} is done: run it again, with the same arguments, "
    "when the nodes are up"
)


def reconfigure(  # noqa: PLR0913  (keyword-only, one line each in the docstring)
    old: Redlock,
    new: Redlock,
    *,
    abort: bool = False,
    gone: Iterable[str] = (),
    on_step: Callable[[str], None] = lambda _: None,
    patience: float = 30.0,
) -> None:
    """Move a deployment from one configuration to another. Blocks until it is done.

    Args:
        old: A lock service with the present nodes and max_ttl.
        new: A lock service with the future nodes and max_ttl.
        abort: Take back an interrupted move from `old` to `new` instead. Possible
            until a majority of the planned nodes may have opened.
        gone: Names of old nodes that are switched off for good. They count as closed:
            the caller promises that no client ever reaches them again.
        on_step: Called with a sentence for the operator after each step.
        patience: Seconds to keep trying to reach enough nodes in each step.

    Raises:
        ConfigurationError: Nothing would change, prefixes differ, a name in `gone` is
            no old node, or the restart guard is off. Nothing was changed.
        RedlockError: Not enough nodes could be closed, read or opened, or a node
            belongs to another deployment. The message says what holds now. Run it again
            with the same arguments: it goes on where it stopped.
    """
    if not (old.guard.enabled and new.guard.enabled):
        raise ConfigurationError(
            "The restart guard is off, so nodes cannot delay their votes. Nothing was "
            "changed. Move the nodes by hand: "
            f"{steps_by_hand(is_guarded=new.guard.enabled)}."
        )
    if old.guard.configuration == new.guard.configuration:
        raise ConfigurationError(
            f"Both configurations are the same ({new.guard.configuration}). Nothing to "
            "do."
        )
    if old.keys.prefix != new.keys.prefix:
        raise ConfigurationError(
            "A reconfiguration cannot change redlock_prefix: a new prefix is a new "
            f"deployment. Stop all workers, and start it with `{COMMAND} init`."
        )
    switched_off = set(gone)
    unknown = switched_off - (set(old.labels) - set(new.labels))
    if unknown:
        raise ConfigurationError(
            f"{', '.join(sorted(unknown))} cannot be given as gone: only an old node "
            f"that is not among the future nodes can ({', '.join(old.labels)})."
        )
    new.prepare()
    move = _Move(old, new, switched_off, on_step, patience)
    if abort:
        move.abort()
    else:
        move.run()


class _Move:
    """One move in progress; its arguments are those of `reconfigure`."""

    def __init__(
        self,
        old: Redlock,
        new: Redlock,
        gone: set[str],
        on_step: Callable[[str], None],
        patience: float,
    ) -> None:
        self._old, self._new = old, new
        self._gone = gone
        self._on_step = on_step
        self._patience = patience
        self._clock = new.clock
        self._before = ""  # the view that is left
        self._plan: View  # the view that is entered

    @property
    def _closed(self) -> str:
        return f"{CLOSED}{self._plan}"

    @property
    def _wait_ms(self) -> int:
        """For how long a closed node waits for the end of old locks."""
        return max(self._old.guard.quarantine_ms, self._new.guard.quarantine_ms)

    def run(self) -> None:
        olds, news = self._look()
        opened = self._opened(news)
        plan = self._plan_of([*olds, *news], opened)
        self._check_deployment(olds, opened)
        is_left = any(look.config.startswith(CLOSED) for look in news)
        if len(opened) >= self._new.quorum and not is_left:
            self._on_step("The nodes have the new configuration already.")
            return
        if plan is None:
            self._plan = self._planned(olds, news)
        else:
            self._before, self._plan = plan
            self._refuse_if_done(self._plan, news)
        # A node opens when a majority has been closed for a whole wait, and not before.
        if not any(it.view and it.view.is_same_epoch(self._plan) for it in opened):
            self._prepare(self._lost(news))
            self._close()
        self._open(self._read_fences(opened))
        self._new.guard.use(self._plan)

    def _check_deployment(
        self, olds: Sequence[NodeMembership], opened: Sequence[NodeMembership]
    ) -> None:
        """Refuse nodes that vote with the new settings in a deployment of their own.

        Clients with the new settings were started too early, and have founded it.
        """
        views = [View.parse(look.left or look.config) for look in olds]
        known = {view.deployment for view in views if view}
        for look in opened:
            if known and look.view and look.view.deployment not in known:
                self._refuse(
                    f"Node {look.label} votes with the new settings in another "
                    f"deployment, {look.view.deployment}. Stop the clients that have "
                    f"the new settings already. {self._emptied()}"
                )

    def _refuse_if_done(self, plan: View, news: Sequence[NodeMembership]) -> None:
        """Refuse a plan after which a majority of the future nodes founded an epoch."""
        for look in news:
            view = look.view
            if (
                (view and view.is_founded and self._is_new(view))
                and view.deployment == plan.deployment
                and view.order > plan.order
            ):
                self._refuse(
                    f"This reconfiguration was done: {look.label} has come to epoch "
                    f"{view.epoch} with the new settings. Wait until the nodes vote "
                    f"again (`{COMMAND} doctor`)"
                )

    def _lost(self, news: Sequence[NodeMembership]) -> set[str]:
        """Return the planned nodes that have lost their memory since. They never open.

        Raises:
            RedlockError: Those that are left are no majority.
        """
        plan = self._plan
        lost = {x.label for x in news if plan.member(x.label).identity != x.identity}
        if len(news) - len(lost) < self._new.quorum:
            raise RedlockError(
                f"{', '.join(sorted(lost))} restarted since this reconfiguration was "
                "begun, and the other future nodes are no majority. Take it back with "
                "--abort, then run it again."
            )
        return lost

    def _is_new(self, view: View | None) -> bool:
        new = self._new.guard.configuration
        return view is not None and view.configuration == new

    # -- look and plan ---------------------------------------------------------------

    def _look(self) -> tuple[list[NodeMembership], list[NodeMembership]]:
        """Check that the move can be finished, before anything is closed."""
        old, new = self._old, self._new
        olds, news = self._looks(old), self._looks(new)
        present = [look.view for look in olds if look.votes and look.view]
        for look in (*olds, *news):
            if not self._may_move(look):
                why = self._why(look, present)
                self._refuse(f"Node {look.label} cannot be moved: {why}")
        up = {look.label for look in olds}
        if len(up | self._gone) < old.quorum:
            fact = "The node that is to be closed does not answer"
            if len(old.labels) > 1:
                fact = (
                    f"Only {len(up)} of the {len(old.labels)} nodes that are to be "
                    f"closed answer, and {old.quorum} are needed"
                )
            self._refuse(f"{fact}: {_silence(old, up)}")
        up = {look.label for look in news}
        if len(up) < len(new.labels):
            self._refuse(f"Every future node must be up: {_silence(new, up)}")
        identities = {look.identity: look.label for look in news}
        for look in news:
            if identities[look.identity] != look.label:
                self._refuse(
                    f"The nodes {look.label} and {identities[look.identity]} are one "
                    "server"
                )
        return olds, news

    def _looks(self, redlock: Redlock) -> list[NodeMembership]:
        """Ask the nodes what they know of themselves; wait for slow ones."""
        looks: list[NodeMembership] = []
        for _ in self._tries(redlock.timing.connect_timeout, pause=_MARGIN):
            looks = [look for look in redlock.guard.look() if look]
            if len(looks) == len(redlock.labels):
                break
        return looks

    def _may_move(self, look: NodeMembership) -> bool:
        if plan := _plan_in(look.config):
            return self._is_new(plan)
        old = self._old.guard.configuration
        view = View.parse(look.config)
        return (
            look.config == JOINED
            if view is None
            else (self._is_new(view) or view.configuration == old)
        )

    def _why(self, look: NodeMembership, present: Iterable[View]) -> str:
        """Say why a node cannot be moved; ``present`` is how old nodes vote."""
        if not look.config.startswith(CLOSED):
            difference, _ = refusal(look.config, self._old.guard.config)
            return f"the nodes {difference}"
        plan = _plan_in(look.config)
        place = str(plan.configuration) if plan else "others"
        if plan and any(_is_not_before(view, plan) for view in present):
            return (
                f"the deployment has moved to {place}, and has left this node. "
                f"{self._emptied()}"
            )
        return (
            f"it is closed, moving to {place}. If that reconfiguration is not done, "
            "finish it first, or abort it with --abort and its arguments. If it is "
            "done, move from there (--from)"
        )

    def _emptied(self) -> str:
        """Return the remedy for a future node that remembers another deployment.

        All its keys must go: a claim of a call that has run elsewhere meanwhile would
        refuse the next calls for an hour.
        """
        (first, *_) = self._new.addresses
        prefix = self._new.keys.prefix
        if first.is_store:
            command = store_of(first.url).emptied(prefix)
            return f"Empty it (`{command}`), and run it again"
        return f"Delete its keys that begin with {prefix}:, and run it again"

    def _plan_of(
        self, looks: Sequence[NodeMembership], opened: Sequence[NodeMembership]
    ) -> tuple[str, View] | None:
        """Return the view that is left, and the plan, of a move that has begun.

        It has if an old node is closed. Then the others are closed for the same plan.
        When all old nodes have opened, those that are new still tell the plan.
        """
        entered = [look.view for look in opened if look.view]
        for look in looks:
            plan = _plan_in(look.config)
            if (
                plan
                and self._is_new(plan)
                and (look.left or any(map(plan.is_same_epoch, entered)))
            ):
                return look.left, plan
        return None

    def _planned(
        self, olds: Sequence[NodeMembership], news: Sequence[NodeMembership]
    ) -> View:
        """Make a plan from the view that a majority of the old nodes has."""
        self._before, view = self._present_view(olds)
        identities = {look.label: look.identity for look in news}
        for label, identity in identities.items():
            stays = label in view.configuration.labels
            if stays and view.member(label).identity != identity:
                self._refuse(f"Node {label} was replaced just now. Run it again")
        self._refuse_if_too_few_open(news, view)
        # Two operators with one intent make one plan; an aborted epoch is not reused.
        plan = View.first_of_epoch(
            self._new.guard.configuration, identities, before=view, is_founded=False
        )
        aborted = [
            _plan_in(line)
            for look in (*olds, *news)
            for line in look.aborted.splitlines()
        ]
        burnt = [it.epoch for it in aborted if it and it.deployment == view.deployment]
        plan = replace(plan, epoch=max([view.epoch, *burnt]) + 1, nonce="0")
        digest = hashlib.sha256(f"{self._before}\n{plan}".encode()).hexdigest()
        return replace(plan, nonce=digest[:8])

    def _present_view(self, olds: Sequence[NodeMembership]) -> tuple[str, View]:
        """Return the view that a majority of the old nodes has, as text and parsed."""
        configuration = self._old.guard.configuration
        texts = [
            look.config
            for look in olds
            if look.votes and look.view and look.view.configuration == configuration
        ]
        present = max(set(texts), key=texts.count, default="")
        view = View.parse(present)
        if view is None or texts.count(present) + len(self._gone) < self._old.quorum:
            if len(self._old.labels) == 1:
                self._refuse(
                    "The present node does not vote: wait until it votes again "
                    f"(`{COMMAND} doctor`)"
                )
            self._refuse(
                f"Only {texts.count(present)} of the {len(self._old.labels)} present "
                f"nodes vote, and {self._old.quorum} are needed: wait until they vote "
                f"again (`{COMMAND} doctor`), or give nodes that are switched off for "
                "good with --gone"
            )
        return present, view

    def _refuse_if_too_few_open(
        self, news: Sequence[NodeMembership], view: View
    ) -> None:
        """Refuse the move if the future nodes that would open are no majority.

        Present nodes that do not vote would not.
        """
        waiting = [
            look.label
            for look in news
            if look.view
            and look.view.configuration == view.configuration
            and not (look.votes and look.config == self._before)
        ]
        if len(news) - len(waiting) < self._new.quorum:
            self._refuse(
                f"{', '.join(waiting)} would not open, because they do not vote, and "
                "the other future nodes are no majority: wait until they vote again "
                f"(`{COMMAND} doctor`)"
            )

    def _refuse(self, reason: str) -> NoReturn:
        raise RedlockError(f"{reason}. Nothing was changed.")

    # -- close and wait ------------------------------------------------------------

    def _prepare(self, lost: set[str]) -> None:
        """Close the nodes that are new. The old ones still vote."""
        wanted = set(self._new.labels) - set(self._old.labels) - lost
        for is_last in self._tries():
            ballot = self._ask_to_close(self._new, before="")
            if wanted <= _closed(ballot):
                return
            if is_last:
                raise RedlockError(
                    f"Too few nodes could be prepared ({ballot.reasons()}). The old "
                    "nodes still vote. A node that is closed for another plan is freed "
                    "with --abort and the arguments of that plan."
                )

    def _close(self) -> None:
        """Close the old nodes, and return when all their locks have ended.

        A node counts only while it says that it is closed, and that its wait is over.
        So one that falls silent, or loses its memory, is waited for again.
        """
        longest = -1.0
        while waits := (ballot := self._close_majority()).numbers(_WAITS):
            if max(waits) > self._wait_ms:  # an instant of a clock that was ahead
                self._old.guard.look()  # its wait begins anew
            left = min(max(waits), self._wait_ms) / 1000
            if longest < 0:
                some, nodes = len(_closed(ballot)), len(self._old.labels)
                closed = f"{some} of {nodes} nodes are closed"
                if nodes == 1:
                    closed = "The node is closed"
                self._on_step(f"{closed}: nothing is granted or renewed from now on.")
            if left > longest:
                self._on_step(
                    f"Waiting {math.ceil(left)} s until the last lock expires."
                )
            longest = left
            self._clock.sleep(left + _MARGIN)

    def _close_majority(self) -> Ballot:
        """Close a majority of the old nodes, and return their answers.

        If no old lock may live on them, every new node is up as well: until one opens,
        an abort is possible.
        """
        new = self._new
        for is_last in self._tries():
            ballot = self._ask_to_close(self._old, before=self._before)
            fact = f"Too few nodes could be closed ({ballot.reasons()})"
            up = {*new.labels}
            if len(_closed(ballot) | self._gone) >= self._old.quorum:
                if ballot.numbers(_WAITS):
                    return ballot
                looks = new.guard.look()
                self._end_if_aborted(self._marked(looks))
                up = {look.label for look in looks if look}
                if len(up) == len(looks):
                    return ballot
                fact = f"Every future node must be up: {_silence(new, up)}"
            if is_last:
                break
        raise RedlockError(f"{fact}. {self._remedy(len(up))}")

    def _end_if_aborted(self, marked: Sequence[str]) -> None:
        """End, if nodes say that another operator aborts this reconfiguration."""
        if marked:
            raise RedlockError(
                f"Another operator aborts this reconfiguration: {', '.join(marked)} "
                "never open for it. If the nodes do not vote in the old configuration "
                "again, finish the abort: run it with --abort and the same arguments."
            )

    def _marked(self, looks: Sequence[NodeMembership | None]) -> list[str]:
        """Return the future nodes that an abort has marked."""
        return [x.label for x in looks if x and self._closed in x.aborted.splitlines()]

    def _ask_to_close(self, redlock: Redlock, *, before: str) -> Ballot:
        args = (before, self._closed, str(self._plan), self._wait_ms)
        ballot = redlock.guard.ask(CLOSE, args).ballot
        self._end_if_aborted(_aborted(ballot))
        return ballot

    # -- read and open -------------------------------------------------------------

    def _read_fences(self, opened: Sequence[NodeMembership]) -> list[Any]:
        configs = {self._closed, str(self._plan), *(look.config for look in opened)}
        pairs: list[Any] = []
        source = self._old
        needed = len(source.labels) - source.quorum + 1

        def read() -> int:
            pairs.clear()
            sources = set()
            for config in configs:
                request = source.guard.ask(COUNTERS, [config])
                for index, reply in enumerate(request.replies):
                    if isinstance(reply, list) and reply[2:]:
                        sources.add(index)
                        pairs.extend(counters_in(reply[2:]))
            return len(sources)

        for _ in self._tries():
            if read() >= needed:
                nodes = "the node" if needed == 1 else f"at least {needed} nodes"
                self._on_step(f"The fences were read from {nodes}.")
                return greatest(pairs)
        log.warning(
            "Too few old nodes still know the fences that were granted. The new "
            "nodes start above their time and ours: the order of fences across this "
            "reconfiguration depends on clocks."
        )
        self._on_step(
            "Too few old nodes know their fences: their order depends on clocks."
        )
        return greatest([*pairs, *self._floor()])

    def _open(self, counters: Sequence[Any]) -> None:
        new = self._new
        args = (self._closed, str(self._plan), *counters)
        for is_last in self._tries():
            new.guard.ask(OPEN, args)
            looks = new.guard.look()
            voting, marked = self._opened(looks), self._marked(looks)
            if len(new.labels) - len(marked) < new.quorum:
                self._end_if_aborted(marked)
            late = [
                label
                for label, look in zip(new.labels, looks, strict=True)
                if look is None or (look.config == self._closed and label not in marked)
            ]
            fact = f"{_votes(len(voting), len(looks))} for the new configuration"
            if len(voting) >= new.quorum and not late:
                break
            if is_last:
                self._give_up_opening(fact, looks, late)
        self._on_step(
            f"{fact}: {self._plan.configuration}, at epoch {self._plan.epoch}."
        )
        if marked:  # by an abort that came too late: they join like restarted nodes
            new.guard.look(forget=self._closed)
        restarted = [it.label for it in looks if it and it not in voting]
        if restarted:
            self._on_step(
                f"{', '.join(restarted)} restarted meanwhile: the clients bring them "
                "back to the vote."
            )

    def _give_up_opening(
        self, fact: str, looks: Sequence[NodeMembership | None], late: Sequence[str]
    ) -> NoReturn:
        voting = self._opened(looks)
        if late:
            fact += f"; not opened yet: {', '.join(late)}"
        remedy = self._remedy(sum(x is not None and x not in voting for x in looks))
        if len(voting) >= self._new.quorum:
            remedy = (
                "Locks are granted again. Run it again, with the same arguments, when "
                "these nodes are up."
            )
        raise RedlockError(f"{fact}. {remedy}")

    def _opened(self, looks: Iterable[NodeMembership | None]) -> list[NodeMembership]:
        """Return the nodes that vote for the new configuration."""
        return [
            look for look in looks if look and look.votes and self._is_new(look.view)
        ]

    def _remedy(self, can_be_marked: int) -> str:
        """Return what to do when too few nodes are closed or open.

        An abort marks a majority of the future nodes: those that do not vote yet.
        """
        remedy = _INTERRUPTED.format(it="the reconfiguration")
        if can_be_marked < self._new.quorum:
            return f"{remedy}."
        return f"{remedy}, or take it back with --abort."

    # -- abort -----------------------------------------------------------------------

    def abort(self) -> None:
        """Let the old nodes vote again in the view that they had."""
        olds, news = self._looks(self._old), self._looks(self._new)
        plans = {
            look.config: plan
            for look in (*olds, *news)
            if (plan := _plan_in(look.config)) and self._is_new(plan)
        }
        if self._is_opened(self._opened(news)):
            self._refuse(self._too_late())
        if not plans:
            self._refuse("No reconfiguration with these arguments is under way")
        left = [view for look in news if (view := View.parse(look.left))]
        for plan in plans.values():
            self._refuse_if_done(plan, news)
            if any(_is_not_before(view, plan) for view in left):
                self._refuse("A later reconfiguration leaves the new settings already")
        for _, self._plan in sorted(plans.items()):
            self._take_back(news)

    def _take_back(self, news: Sequence[NodeMembership]) -> None:
        old, new, plan = self._old, self._new, self._plan
        lost = {x.label for x in news if plan.member(x.label).identity != x.identity}
        done: set[str] = set()
        # A majority must never open. Nodes that have lost their memory never do.
        for is_last in self._tries():
            ballot = new.guard.ask(ABORT, (self._closed, str(plan))).ballot
            self._end_if_opened(ballot, lost)
            done.update(ballot.labels[i] for i in ballot.indexes(VoteKind.GRANTED))
            if len(done | lost) >= new.quorum:
                break
            if is_last:
                fact = f"Too few nodes could be marked as aborted ({ballot.reasons()})"
                raise RedlockError(f"{fact}. {_INTERRUPTED.format(it='the abort')}.")
        self._on_step(f"A majority of the {len(new.labels)} future nodes is marked.")
        for look in new.guard.look():  # those that have opened; they are no majority
            if look and look.view and look.view.is_same_epoch(plan):
                new.guard.look(forget=look.config)
        fences: list[Any] = []
        if len(new.labels) - len(done) >= new.quorum:
            fences = self._outlast_forgotten_locks()
        self._reopen(fences)
        votes = _votes(self._voting_again(), len(old.labels))
        self._on_step(f"{votes} in the old configuration again.")

    def _voting_again(self) -> int:
        """Return how many old nodes vote in the old configuration."""
        old = self._old.guard
        views = [look.view for look in old.look() if look and look.votes]
        present = old.configuration
        return sum(view is not None and view.configuration == present for view in views)

    def _reopen(self, fences: Sequence[Any]) -> None:
        """Let the old nodes vote again: all that are closed and have their memory."""
        unknown = {None, VoteKind.SILENT, VoteKind.REFUSED}
        for is_last in self._tries():
            ballot = self._old.guard.ask(REOPEN, (self._closed, *fences)).ballot
            if unknown.isdisjoint(vote and vote.kind for vote in ballot.votes):
                return
            if is_last and self._voting_again() >= self._old.quorum:
                raise RedlockError(
                    f"Not all nodes were reopened ({ballot.reasons()}). The others "
                    "vote in the old configuration. Run it again when these can be "
                    "reopened."
                )
            if is_last:
                fact = f"Too few nodes could be reopened ({ballot.reasons()})"
                raise RedlockError(f"{fact}. {_INTERRUPTED.format(it='the abort')}.")

    def _outlast_forgotten_locks(self) -> list[Any]:
        """Wait for the end of locks that planned nodes may have granted and forgotten.

        Returns:
            A fence that is greater than those of these locks, if clocks agree.
        """
        wait = self._wait_ms / 1000
        self._on_step(
            "A majority of the future nodes may have voted, and forgotten it: waiting "
            f"{wait:.0f} s until the last lock expires. The order of fences across "
            "this abort depends on clocks."
        )
        self._clock.sleep(wait + _MARGIN)
        if self._is_opened(self._opened(self._new.guard.look())):
            raise RedlockError(f"{self._too_late()}.")
        return self._floor()

    def _is_opened(self, some: Sequence[Any]) -> bool:
        """Tell whether so many future nodes have opened that no majority is left."""
        return len(self._new.labels) - len(some) < self._new.quorum

    def _too_late(self) -> str:
        one = len(self._new.labels) == 1
        return (
            f"{'The node votes' if one else 'Too many nodes vote'} for the new "
            "configuration already. If the reconfiguration is not done, run it again "
            "without --abort"
        )

    def _floor(self) -> list[Any]:
        """Return a counter above all hints that counted, by this clock and the nodes'.

        An operator's clock may be wrong. What raises the floor above the TIME of the
        nodes does not depend on it.
        """
        tolerance_us = self._old.guard.clocks_apart_us
        now_us = round(self._clock.wall() * 1e6)
        return [b"floor", now_us + tolerance_us, b"time", 2 * tolerance_us]

    def _end_if_opened(self, ballot: Ballot, lost: set[str]) -> None:
        """End, if too many nodes have opened since the abort looked at them."""
        stored = [
            View.parse(vote.value)
            for label, vote in zip(ballot.labels, ballot.votes, strict=True)
            if vote and label not in lost
        ]
        opened = [view for view in stored if view and view.is_same_epoch(self._plan)]
        if self._is_opened(opened):
            raise RedlockError(f"{self._too_late()}.")

    def _tries(
        self, seconds: float | None = None, *, pause: float = _PAUSE
    ) -> Iterator[bool]:
        """Yield before each try of a step whether the time is over: it is the last."""
        seconds = self._patience if seconds is None else seconds
        give_up_at, is_last = self._clock.monotonic() + seconds, False
        while True:
            yield is_last
            if is_last:
                return
            self._clock.sleep(pause)
            is_last = self._clock.monotonic() > give_up_at


def _plan_in(config: str) -> View | None:
    """Return the plan for which a node is closed; None if it is not closed."""
    closed = config.startswith(CLOSED)
    return View.parse(config.removeprefix(CLOSED)) if closed else None


def _is_not_before(view: View, plan: View) -> bool:
    """Tell whether a view of the deployment is of the epoch of a plan, or later."""
    return view.deployment == plan.deployment and view.order >= plan.order


def _silence(redlock: Redlock, up: set[str]) -> str:
    """Return a clause for each other node, with the reason why it does not answer."""
    votes = redlock.guard.ask(COUNTERS, [redlock.guard.config]).ballot.votes
    clauses = {
        label: f"{label} {(vote and vote.reason) or 'did not answer'}"
        for label, vote in zip(redlock.labels, votes, strict=True)
    }
    return ", ".join(text for label, text in clauses.items() if label not in up)


def _votes(votes: int, nodes: int) -> str:
    """Say at the start of a sentence how many nodes vote."""
    text = votes_text(votes, nodes)
    return text[0].upper() + text[1:]


def _aborted(ballot: Ballot) -> list[str]:
    """Return the nodes that are not closed, because the plan is aborted there."""
    votes = zip(ballot.labels, ballot.votes, strict=True)
    return [label for label, vote in votes if vote and vote.value == _ABORTED]


def _closed(ballot: Ballot) -> set[str]:
    """Return the nodes that are closed, or have the new configuration already."""
    kinds = (_WAITS, VoteKind.FREE, VoteKind.GRANTED)
    return {ballot.labels[index] for kind in kinds for index in ballot.indexes(kind)}
