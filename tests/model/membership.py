"""Membership as a state machine: views, replacement of members, and founding.

The model comes before the code: it is the design that the code is to follow. Servers
answer for places (the labels of a deployment). Two servers may answer for one place: a
name that leads different clients to different servers, or a server that was replaced
and lives on. Clients and operators are not modelled. A message that any of them could
send, now or long ago, may arrive at any time, any number of times.

A server has an *identity*, which ends with its memory, and a *view*: an epoch, and the
identity of the member at each place. Every message carries a whole view; a server
compares it with its own::

          JOIN                NOTE              CONFIRM
    EMPTY ────► JOINED (no view) ────► JOINING ─────────► VOTING ◄──► CLOSED
      ▲                                                     │      see reconfiguration
      └──────── restart, wipe: from everywhere ─────────────┘

* A **ballot** (to acquire, or to renew with RESTORE) counts votes of one view only. A
  server votes if its own view is the same, and it is VOTING.
* **NOTE** raises the identity at one place of a view. The server remembers since when.
  Views only grow, so all clients that merge them come to the same view.
* A **newcomer** votes when it has waited for a whole quarantine, and when r = N − q + 1
  others confirm: they *vote*, have the *same view*, and have had this identity in it
  for a whole quarantine.
* **Founding** is for places of which fewer than r vote: a new deployment, and one whose
  majority has lost its memory. A client writes a view of the next epoch with the
  present identities of *all* places. A server that moves to it stops voting. It votes
  when *all* others have had this view for a whole quarantine.
* A server whose process has **never voted** has refused every view since it began. Its
  waits count from then: it votes at once if every ballot is over that had begun before.
* A server that has restarted **with its keys** counts for the renewal of a lock that it
  has, in its view of before and in the next ones, while it does not vote.
* An operator's **init** founds an epoch of servers without view, which vote at once.
  The operator promises that no lock lives.

The model has no clocks. A quarantine outlives the validity of every ballot that had
begun before it, and a key lives at least as long as the ballot that wrote it. So the
model counts, for each wait, the ballots that must be over.

The steps are chosen so that no history is lost that could end in a violation: a ballot
begins with its first vote, is granted with its last one, and its keys end with it. Each
of these is the worst moment. A NOTE may carry any identity that was ever given, so that
stale and late messages need no memory of their own.

The model changed the design in these points. `Rules` has each of them:

* Members that do not vote must not confirm a newcomer. Otherwise two members that both
  lost their memory admit each other with a view that names a displaced server.
* The confirming members must have the newcomer's whole view, and not only its identity.
* A server that does not vote must not count in a renewal: RESTORE is refused there.
* An identity is made for one JOIN message, which is never sent again.
* With one member no other member waits: its own quarantine is needed.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, TypeVar

Ids = tuple[int, ...]
Steps = "Iterator[tuple[str, State]]"
Item = TypeVar("Item")
NONE = -1  # no identity, or no epoch: each is a number from 0


class Phase(enum.IntEnum):
    """Whether a server has an identity, a view and a vote."""

    EMPTY = 0
    JOINED = 1
    JOINING = 2
    VOTING = 3
    CLOSED = 4


class Ballot(NamedTuple):
    """One ballot: a client asks all members for a lock, or renews it.

    Attributes:
        epoch: The epoch of its view; NONE when it was granted and is valid.
        ids: The identities of its view.
        places: The places that voted for it, as a set of bits.
    """

    epoch: int
    ids: Ids = ()
    places: int = 0


HELD = Ballot(NONE)


class Server(NamedTuple):
    """One server.

    Attributes:
        ident: Its identity.
        phase: Whether it votes.
        epoch: The epoch of its view.
        ids: The identity at each place in its view; NONE where is no member.
        since: For each place, the ballots that began before it had this identity.
        told: The places that have confirmed it.
        key: The ballots that wrote the key that it keeps.
        target: The epoch for which it is closed.
        waits: The ballots that began before it was closed; of a server without view,
            those that began before its process did.
        aborted: The epochs for which it never opens.
    """

    ident: int = NONE
    phase: Phase = Phase.EMPTY
    epoch: int = NONE
    ids: Ids = ()
    since: tuple[int, ...] = ()
    told: int = 0
    key: int = 0
    target: int = NONE
    waits: int = 0
    aborted: int = 0


class Plan(NamedTuple):
    """The first view of an epoch. All that is known of it are messages.

    Attributes:
        ids: The identities of its members.
        at_once: Whether its members vote at once, by the promise of an operator.
        source: The epoch before, for a reconfiguration.
        source_ids: The identities of the view before.
        seen: The places that said that they are closed and have waited.
        marked: The places that were marked as aborted.
        opened: The places that have opened.
    """

    ids: Ids
    at_once: bool = False
    source: int = NONE
    source_ids: Ids = ()
    seen: int = 0
    marked: int = 0
    opened: int = 0


class State(NamedTuple):
    """One state of the model.

    Attributes:
        servers: The servers.
        ballots: The ballots; None is one that has not begun, or is over.
        plans: The first view of each epoch.
        used: The identities that were given at each place, as sets of bits.
        wrong: What is wrong with the last step; "" if nothing is.
    """

    servers: tuple[Server, ...]
    ballots: tuple[Ballot | None, ...]
    plans: tuple[Plan, ...]
    used: tuple[int, ...]
    wrong: str = ""

    def __str__(self) -> str:
        return ", ".join(
            f"server {at} {server.phase.name.lower()} {server.epoch}{server.ids}"
            for at, server in enumerate(self.servers)
        )

    def with_server(self, at: int, **changes: object) -> State:
        """Return this state with one server changed."""
        server = self.servers[at]._replace(**changes)  # type: ignore[arg-type]
        return State(with_item(self.servers, at, server), *self[1:])

    def with_plan(self, epoch: int, **changes: object) -> State:
        """Return this state with another knowledge about one epoch."""
        plan = self.plans[epoch]._replace(**changes)  # type: ignore[arg-type]
        return self._replace(plans=with_item(self.plans, epoch, plan))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the design, each of which a test can take away.

    Attributes:
        compare_identity: A server compares identities, and not only names.
        one_view: A ballot counts votes of one view only.
        renew_needs_vote: A server that does not vote does not count in a renewal.
        note_compares: NOTE acts only on the view from which its new view was made.
        note_age: Notes confirm a newcomer when they are a quarantine old.
        enough_confirm: r others confirm a newcomer. Otherwise one.
        confirm_same_view: They have its whole view. Otherwise its identity.
        confirmers_vote: They vote themselves.
        own_wait: A newcomer waits for a quarantine itself.
        identity_is_new: A JOIN that arrives twice does not give one identity twice.
        vote_is_marked: A process that has voted proves no more that it has not.
        data_is_its_own: A server that restarts has no keys of another one.
        data_is_named: A server notices that an old memory of its own has come back.
        founders_wait: Founders wait for a quarantine.
        founders_all: All others confirm a founder. Otherwise r.
        init_promise: An operator runs init only when no lock lives.
        open_compares: OPEN acts only on a closed server with the planned identity.
        abort_marks: An abort marks members of the new view before it reopens the old.
        abort_majority: It marks a majority of them. Otherwise r.
        gone_is_gone: A server that an operator gives as gone is switched off.
    """

    compare_identity: bool = True
    one_view: bool = True
    renew_needs_vote: bool = True
    note_compares: bool = True
    note_age: bool = True
    enough_confirm: bool = True
    confirm_same_view: bool = True
    confirmers_vote: bool = True
    own_wait: bool = True
    identity_is_new: bool = True
    vote_is_marked: bool = True
    data_is_its_own: bool = True
    data_is_named: bool = True
    founders_wait: bool = True
    founders_all: bool = True
    init_promise: bool = True
    open_compares: bool = True
    abort_marks: bool = True
    abort_majority: bool = True
    gone_is_gone: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a search.

    Attributes:
        homes: The place of each server.
        members: The places of the first view, which is epoch 0; empty: there is none.
        strangers: The servers that have no memory at the start.
        identities: How many identities each place may give; one for each loss of
            memory, and one for the first member.
        leases: The lease of each ballot. The second ballot of a lease is its renewal.
        foundings: How many epochs clients may found.
        inits: How many epochs operators may found.
        targets: The places of the epochs to which operators reconfigure, one each.
        aborts: Whether operators abort reconfigurations.
        gone: The places of the first view whose servers an operator gives as gone.
        disks: Whether servers may restart with their keys, and without their vote.
    """

    homes: tuple[int, ...]
    members: tuple[int, ...]
    strangers: tuple[int, ...] = ()
    identities: tuple[int, ...] = ()
    leases: tuple[int, ...] = (0, 1)
    foundings: int = 0
    inits: int = 0
    targets: tuple[tuple[int, ...], ...] = ()
    aborts: bool = False
    gone: tuple[int, ...] = ()
    disks: bool = False


class Membership:
    """The steps of the state machine under some rules."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self.rules = rules
        self.bounds = bounds
        self.places = range(max(bounds.homes) + 1)
        self.homes = bounds.homes
        self.empty = Server(
            ids=(NONE,) * len(self.places), since=(0,) * len(self.places)
        )
        self._given = bounds.identities or (1,) * len(self.places)
        self._by_lease = {
            lease: [n for n, other in enumerate(bounds.leases) if other == lease]
            for lease in bounds.leases
        }

    def start(self, *history: str) -> State:
        """Return the first state, or the state after a history from it.

        Raises:
            LookupError: The history is not possible.
        """
        bounds = self.bounds
        ids = tuple(0 if place in bounds.members else NONE for place in self.places)
        member = self.empty._replace(ident=0, phase=Phase.VOTING, epoch=0, ids=ids)
        servers = []
        used = [0] * len(self.places)
        for at, home in enumerate(self.homes):
            if at not in bounds.strangers:
                used[home] = 1
                servers.append(member)
            elif bounds.targets:  # reconfigure has given it an identity
                used[home] = 1
                servers.append(self.empty._replace(ident=0, phase=Phase.JOINED))
            else:
                servers.append(self.empty)
        plans = (Plan(ids),) if bounds.members else ()
        none = (None,) * len(bounds.leases)
        state = State(tuple(servers), none, plans, tuple(used))
        for wanted in history:
            found = [after for what, after in self.steps(state) if what == wanted]
            if not found:
                message = f"not possible: {wanted}"
                raise LookupError(message)
            state = found[0]
        return state

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step: a sentence, and the state after it."""
        active = sum(1 << n for n, ballot in enumerate(state.ballots) if ballot)
        for n in range(len(state.ballots)):
            yield from self._vote(state, n)
            yield from self._end(state, n)
        for at in range(len(state.servers)):
            yield from self._lose(state, at, active)
            yield from self._join(state, at)
            yield from self._note(state, at, active)
            yield from self._confirm(state, at)
            yield from self._move(state, at, active)
        yield from self._found(state, active)

    def violation(self, state: State) -> str:
        """Return what is wrong with a state, or ""."""
        if state.wrong:
            return state.wrong
        holding = {
            lease
            for lease, ballot in zip(self.bounds.leases, state.ballots, strict=True)
            if ballot == HELD
        }
        return "two hold the lock" if len(holding) > 1 else ""

    def key(self, state: State) -> Hashable:
        """Return a name that is equal for states which go on in the same way.

        The age of a note matters only while a newcomer asks for it.
        """
        if not any(map(any, [server.since for server in state.servers])):
            return state
        asking = {
            (self.homes[at], server.epoch, server.ident)
            for at, server in enumerate(state.servers)
            if server.phase == Phase.JOINING
        }
        servers = [
            server._replace(
                since=tuple(
                    [
                        waits if (place, server.epoch, ident) in asking else 0
                        for place, (waits, ident) in enumerate(
                            zip(server.since, server.ids, strict=True)
                        )
                    ]
                )
            )
            if any(server.since)
            else server
            for server in state.servers
        ]
        return (tuple(servers), *state[1:])

    # -- Numbers ---------------------------------------------------------

    @staticmethod
    def quorum(ids: Ids) -> int:
        """Return q, a majority of the members of a view."""
        return sum(ident != NONE for ident in ids) // 2 + 1

    def needed(self, ids: Ids) -> int:
        """Return r = N - q + 1: every majority has a member among so many."""
        return sum(ident != NONE for ident in ids) - self.quorum(ids) + 1

    # -- Ballots ---------------------------------------------------------

    def _vote(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        """Let a server execute ACQUIRE, or EXTEND and RESTORE for a valid lease."""
        ballot = state.ballots[n]
        same_lease = self._by_lease[self.bounds.leases[n]]
        others = [state.ballots[i] for i in same_lease if i != n]
        renews = HELD in others
        if ballot == HELD or any(other not in (None, HELD) for other in others):
            return
        if not ballot and None in [state.ballots[i] for i in same_lease if i < n]:
            return  # the first of equal ballots begins first
        ours = sum(1 << i for i in same_lease)
        for at, server in enumerate(state.servers):
            home = self.homes[at]
            if server.key and not (renews and server.key & ours):
                continue
            has_it = bool(renews and server.key & ours)
            if not self._grants(server, ballot, renews=renews, has_it=has_it):
                continue
            asked = ballot or Ballot(server.epoch, server.ids)
            if asked.places >> home & 1 or asked.ids[home] == NONE:
                continue
            asked = asked._replace(places=asked.places | 1 << home)
            after = state.with_server(at, key=server.key | 1 << n)
            what = f"server {at} votes for ballot {n}"
            wrong = ""
            if asked.places.bit_count() >= self.quorum(asked.ids):
                wrong = self._wrong_grant(state, asked)
                what = f"{what}, which is granted"
                asked = HELD
            ballots = with_item(state.ballots, n, asked)
            yield what, after._replace(ballots=ballots, wrong=wrong)

    def _grants(
        self, server: Server, ballot: Ballot | None, *, renews: bool, has_it: bool
    ) -> bool:
        rules = self.rules
        same = not ballot or (server.epoch, server.ids) == ballot[:2]
        if server.phase == Phase.VOTING:
            if not rules.one_view:
                return True
            if not rules.compare_identity:
                return not ballot or server.epoch == ballot.epoch
            return same
        if has_it and server.epoch != NONE and server.phase != Phase.CLOSED:
            return same  # it has not voted since it wrote this key
        if rules.renew_needs_vote or not renews or not ballot:
            return False
        return server.epoch == NONE or (same and server.phase == Phase.JOINING)

    def _wrong_grant(self, state: State, ballot: Ballot) -> str:
        """Return what is wrong with a grant, or ""."""
        rules = self.rules
        if rules.one_view and rules.compare_identity:
            for home, server in zip(self.homes, state.servers, strict=True):
                counted = ballot.places >> home & 1
                if (
                    counted
                    and server.phase == Phase.VOTING
                    and server.epoch == ballot.epoch
                    and server.ident > ballot.ids[home]
                ):
                    return "an old vote counts after its replacement votes"
        for plan in state.plans:
            done = plan.opened.bit_count() >= self.quorum(plan.ids)
            if plan.source == ballot.epoch and done:
                return "a lock is granted by members that were replaced"
        return ""

    def _end(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        """End a ballot: the lease is not valid any more, or the client gives up."""
        ballot = state.ballots[n]
        if not ballot:
            return
        over = 1 << n
        if ballot == HELD:  # a renewal that is not confirmed now is too late
            for other in self._by_lease[self.bounds.leases[n]]:
                if state.ballots[other] not in (None, HELD):
                    over |= 1 << other
        ballots = tuple(
            None if over >> i & 1 else other for i, other in enumerate(state.ballots)
        )
        servers = tuple([_without_ballots(server, over) for server in state.servers])
        yield f"ballot {n} ends", state._replace(servers=servers, ballots=ballots)

    # -- Replacement -----------------------------------------------------

    def _lose(self, state: State, at: int, active: int) -> Iterator[tuple[str, State]]:
        """Let a server lose its memory. It gets a new identity, or never acts again."""
        server = state.servers[at]
        if server.phase == Phase.EMPTY:
            return
        what = f"server {at} loses its memory"
        if not self.rules.identity_is_new and server.phase == Phase.VOTING:
            again = state.with_server(at, phase=Phase.JOINING, key=0)
            yield f"{what}; an old JOIN arrives again", again
        if not self.rules.data_is_named and server.phase == Phase.VOTING:
            again = state.with_server(at, key=0)
            yield f"server {at} gets back the memory from before its key", again
        # A process that begins now. One that has only lost its keys waits for longer.
        began = active if self.rules.vote_is_marked else 0
        empty = self.empty._replace(waits=began)
        lost = state._replace(servers=with_item(state.servers, at, empty))
        if not self.rules.renew_needs_vote:
            yield what, lost
        for then, after in self._join(lost, at):
            yield f"{what}; {then}", after
        if self.bounds.disks:
            yield from self._restart(state, at, began)

    def _restart(
        self, state: State, at: int, began: int
    ) -> Iterator[tuple[str, State]]:
        """Let a server restart with its keys: it has its view, and no vote."""
        server = state.servers[at]
        home = self.homes[at]
        if server.key and server.phase in (Phase.JOINING, Phase.VOTING):
            yield (
                f"server {at} restarts with its keys",
                state.with_server(at, phase=Phase.EMPTY, told=0, waits=began),
            )
        for other, twin in enumerate(state.servers):
            is_copy = not self.rules.data_is_its_own and self.homes[other] == home
            if is_copy and other != at and twin.key and not server.key:
                copy = twin._replace(phase=Phase.EMPTY, told=0, waits=began)
                servers = with_item(state.servers, at, copy)
                what = f"server {at} starts with the keys of server {other}"
                yield what, state._replace(servers=servers)

    def _join(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a server without memory execute JOIN, or one without view a NOTE."""
        server = state.servers[at]
        home = self.homes[at]
        if server.phase == Phase.JOINED:
            yield from self._enter(state, at, server.ident, server.waits)
        if server.phase != Phase.EMPTY:
            return
        used = state.used[home]
        free = [ident for ident in range(self._given[home]) if not used >> ident & 1]
        if self.homes.count(home) == 1:
            free = free[:1]
        bounds = self.bounds
        for ident in free:
            given = with_item(state.used, home, used | 1 << ident)
            after = state._replace(used=given)
            if bounds.foundings or bounds.inits or bounds.targets:
                what = f"server {at} gets identity {ident}"
                joined = self.empty._replace(
                    ident=ident, phase=Phase.JOINED, waits=server.waits, key=server.key
                )
                yield (
                    what,
                    after._replace(servers=with_item(after.servers, at, joined)),
                )
            yield from self._enter(after, at, ident, server.waits)

    def _enter(
        self, state: State, at: int, ident: int, waits: int
    ) -> Iterator[tuple[str, State]]:
        """Give a newcomer a view: the first of an epoch, with itself in its place.

        Its process has refused all others since it began: so long it has waited.
        """
        home = self.homes[at]
        for epoch, plan in enumerate(state.plans):
            if NONE < plan.ids[home] < ident:
                ids = with_item(plan.ids, home, ident)
                joining = self._joining(ident, epoch, ids, waits)
                after = state.with_server(at, **joining)
                yield f"server {at} joins as {ident} in view {epoch}{ids}", after

    def _joining(
        self, ident: int, epoch: int, ids: Ids, waits: int
    ) -> dict[str, object]:
        since = (waits,) * len(self.places)
        return {
            "ident": ident,
            "phase": Phase.JOINING,
            "epoch": epoch,
            "ids": ids,
            "since": since,
            "told": 0,
            "waits": 0,
        }

    def _note(self, state: State, at: int, active: int) -> Iterator[tuple[str, State]]:
        """Let a server execute NOTE: another identity at another place."""
        server = state.servers[at]
        if server.phase not in (Phase.JOINING, Phase.VOTING):
            return
        for place, present in enumerate(server.ids):
            if place == self.homes[at] or present == NONE:
                continue
            for ident in range(self._given[place]):
                older = ident < present and self.rules.note_compares
                if ident == present or older or not state.used[place] >> ident & 1:
                    continue
                yield (
                    f"server {at} notes {ident} at place {place}",
                    state.with_server(
                        at,
                        ids=with_item(server.ids, place, ident),
                        since=with_item(server.since, place, active),
                        told=0,
                    ),
                )

    def _confirm(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let another server tell a newcomer, by a client, that it may vote."""
        server = state.servers[at]
        if server.phase != Phase.JOINING:
            return
        rules = self.rules
        home = self.homes[at]
        founds = state.plans[server.epoch].ids[home] == server.ident
        others = sum(ident != NONE for ident in server.ids) - 1
        need = others if founds and rules.founders_all else self.needed(server.ids)
        if not rules.enough_confirm:
            need = 1
        waits = server.since[home] and rules.own_wait and rules.note_age
        if founds and not rules.founders_wait:
            waits = False
        if server.told.bit_count() >= need:
            if not waits:
                votes = state.with_server(at, told=0, phase=Phase.VOTING)
                yield f"server {at} votes", votes
            return
        for other, source in enumerate(state.servers):
            place = self.homes[other]
            if place == home or server.told >> place & 1:
                continue
            if self._confirms(source, server, home, founds=founds):
                told = server.told | 1 << place
                what = f"server {other} confirms server {at}"
                yield what, state.with_server(at, told=told)

    def _confirms(
        self, source: Server, server: Server, home: int, *, founds: bool
    ) -> bool:
        rules = self.rules
        if source.epoch != server.epoch:
            return False
        if source.phase == Phase.JOINING:
            if rules.confirmers_vote and not founds:
                return False
        elif source.phase != Phase.VOTING:
            return False
        waits = rules.founders_wait if founds else rules.note_age
        if source.since[home] and waits:
            return False
        if rules.confirm_same_view:
            return source.ids == server.ids
        return source.ids[home] == server.ident

    # -- Founding --------------------------------------------------------

    def _found(self, state: State, active: int) -> Iterator[tuple[str, State]]:
        """Let a client, or an operator, write down the first view of an epoch."""
        bounds = self.bounds
        made = [
            plan for plan in state.plans[bool(bounds.members) :] if not plan.source_ids
        ]
        members = bounds.members or tuple(self.places)
        epoch = len(state.plans)
        if sum(not plan.at_once for plan in made) < bounds.foundings:
            phases = set(Phase) - {Phase.EMPTY, Phase.CLOSED}
            for ids in self.candidates(state, members, phases):
                plans = (*state.plans, Plan(ids))
                yield f"epoch {epoch} is founded by {ids}", state._replace(plans=plans)
        promise = not active or not self.rules.init_promise
        if sum(plan.at_once for plan in made) < bounds.inits and promise:
            for ids in self.candidates(state, members, {Phase.JOINED}):
                plans = (*state.plans, Plan(ids, at_once=True))
                what = f"an operator's init founds epoch {epoch} by {ids}"
                yield what, state._replace(plans=plans)

    def candidates(
        self, state: State, members: Iterable[int], phases: Iterable[Phase]
    ) -> Iterator[Ids]:
        """Yield every view of these places by identities of servers in these phases."""
        choices = [
            sorted(
                {
                    server.ident
                    for home, server in zip(self.homes, state.servers, strict=True)
                    if home == place and server.phase in phases
                }
            )
            if place in members
            else [NONE]
            for place in self.places
        ]
        yield from product(*choices)

    def _move(self, state: State, at: int, active: int) -> Iterator[tuple[str, State]]:
        """Let a server execute the NOTE that moves it to an epoch that it founds."""
        server = state.servers[at]
        if server.phase in (Phase.EMPTY, Phase.CLOSED):
            return
        for epoch, plan in enumerate(state.plans):
            mine = plan.ids[self.homes[at]] == server.ident
            if epoch <= server.epoch or plan.source_ids or not mine:
                continue
            if self.bounds.members and not epoch:
                continue  # these votes are not founded, they are there
            waits = server.waits if server.phase == Phase.JOINED else active
            joining = self._joining(server.ident, epoch, plan.ids, waits)
            if not plan.at_once:
                after = state.with_server(at, **joining)
                yield f"server {at} moves to epoch {epoch}", after
            elif server.phase == Phase.JOINED:
                joining["phase"] = Phase.VOTING
                after = state.with_server(at, **joining)
                yield f"server {at} votes in epoch {epoch}", after


def with_item(items: tuple[Item, ...], at: int, item: Item) -> tuple[Item, ...]:
    """Return these items with one of them changed."""
    return (*items[:at], item, *items[at + 1 :])


def _without_ballots(server: Server, over: int) -> Server:
    """Return a server that waits for these ballots no more, and without their keys."""
    if not (server.key or server.waits or any(server.since)):
        return server
    return server._replace(
        since=tuple([waits & ~over for waits in server.since]),
        key=server.key & ~over,
        waits=server.waits & ~over,
    )
