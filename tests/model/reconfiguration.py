"""Reconfiguration as a state machine: from one view to the members of the next epoch.

Steps of `membership` go on meanwhile: ballots, losses of memory, replacements. Any
number of operators send these messages, at any time and any number of times::

    plan ──► PREPARE new servers ──► CLOSE a majority ──► wait ──► OPEN
      │      (JOINED ─► CLOSED)      of the old view              (CLOSED ─► VOTING)
      └────► abort: MARK a majority of the NEW view ──► REOPEN the old members

* A **plan** is made from a view and from the identities of the new servers. It is the
  first view of the next epoch.
* **PREPARE** closes a server without view for the plan. **CLOSE** closes a *voting*
  server for the plan, if its view is the one that the plan was made from. A closed
  server neither grants nor renews. It refuses to be closed for another plan.
* **OPEN** follows when a majority of the old view have said that they are closed, and
  have been for a whole quarantine. It acts on a server that is closed for this plan,
  that has the planned identity, and that is not marked.
* A member that is in both views is closed like the others before it opens.
* **MARK** acts on a server with the planned identity that has not opened. The server
  remembers for good that this epoch is aborted: it refuses PREPARE, CLOSE and OPEN.
  **REOPEN** lets an old member vote again, and marks it.
* A new server that lost its memory joins the new view like any newcomer.
* A server that an operator gives as **gone** (switched off for good) counts as closed.

Once a majority of a view is closed at one moment, fewer than r of its members vote. So
no newcomer is confirmed there, and no majority ever comes back, even if closed members
lose their memory. This is why r closed members are not enough: with N = 4, two voting
members admit a third. For the same reason an abort marks a majority of the new view;
r marks are not enough with four new members. The model found this.

Founding needs all members, so one closed member that remembers prevents it. If all
closed members lose their memory, clients with the old list can found a deployment of
their own beside the new one. This is a limit: operators shut down what they remove.

``spec/reconfiguration.pml`` shows what goes wrong without each of the other rules. Here
are nodes that are gone, and several operators, with all rules.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.membership import NONE, Membership, Phase, Plan, Server, State


class Reconfiguration(Membership):
    """The steps of the state machine, with those of operators who reconfigure."""

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step: a sentence, and the state after it."""
        yield from super().steps(state)
        active = sum(1 << n for n, ballot in enumerate(state.ballots) if ballot)
        yield from self._plan(state)
        for epoch, plan in enumerate(state.plans):
            if not plan.source_ids:
                continue
            for at in range(len(state.servers)):
                yield from self._prepare(state, at, epoch)
                yield from self._close(state, at, epoch, active)
                yield from self._open(state, at, epoch)
                if self.bounds.aborts:
                    yield from self._mark(state, at, epoch)
                    yield from self._reopen(state, at, epoch)

    def _plan(self, state: State) -> Iterator[tuple[str, State]]:
        """Let an operator plan the next epoch from the view of a voting server."""
        bounds = self.bounds
        made = sum(bool(plan.source_ids) for plan in state.plans)
        if made == len(bounds.targets):
            return
        target = bounds.targets[made]
        gone = sum(1 << place for place in bounds.gone)
        views = {
            (server.epoch, server.ids)
            for server in state.servers
            if server.phase == Phase.VOTING
        }
        for source, old in sorted(views):
            added = [place for place in target if old[place] == NONE]
            for new in self.candidates(state, added, (Phase.JOINED, Phase.CLOSED)):
                ids = tuple(
                    old[place] if place in target and old[place] != NONE else ident
                    for place, ident in enumerate(new)
                )
                plan = Plan(ids, source=source, source_ids=old, seen=gone)
                what = f"epoch {len(state.plans)} {ids} is planned after {source}{old}"
                servers = state.servers
                if self.rules.gone_is_gone:
                    servers = tuple(
                        self.empty if home in bounds.gone else server
                        for home, server in zip(self.homes, servers, strict=True)
                    )
                plans = (*state.plans, plan)
                yield what, state._replace(servers=servers, plans=plans)

    def _prepare(
        self, state: State, at: int, epoch: int
    ) -> Iterator[tuple[str, State]]:
        """Let a new server execute PREPARE."""
        server, plan = state.servers[at], state.plans[epoch]
        free = server.phase == Phase.JOINED or (
            server.phase == Phase.CLOSED
            and server.epoch == NONE
            and server.aborted >> server.target & 1
        )
        if free and self._is_planned(server, plan, at, epoch):
            after = state.with_server(at, phase=Phase.CLOSED, target=epoch)
            yield f"server {at} is prepared for epoch {epoch}", after

    def _close(
        self, state: State, at: int, epoch: int, active: int
    ) -> Iterator[tuple[str, State]]:
        """Let an old member execute CLOSE, or say that it is closed and has waited."""
        server, plan = state.servers[at], state.plans[epoch]
        same = (server.epoch, server.ids) == (plan.source, plan.source_ids)
        if server.phase == Phase.VOTING and same and not server.aborted >> epoch & 1:
            closed = {"phase": Phase.CLOSED, "target": epoch, "waits": active}
            what = f"server {at} is closed for epoch {epoch}"
            yield what, state.with_server(at, **closed)
        if server.phase != Phase.CLOSED or server.epoch == NONE:
            return
        seen = plan.seen | 1 << self.homes[at]
        if server.target != epoch or seen == plan.seen or self._may_open(plan):
            return
        if not server.waits:
            what = f"server {at} says that it is closed for epoch {epoch}"
            yield what, state.with_plan(epoch, seen=seen)

    def _may_open(self, plan: Plan) -> bool:
        return plan.seen.bit_count() >= self.quorum(plan.source_ids)

    def _open(self, state: State, at: int, epoch: int) -> Iterator[tuple[str, State]]:
        """Let a server of the new view execute OPEN."""
        server, plan, home = state.servers[at], state.plans[epoch], self.homes[at]
        if plan.ids[home] == NONE or not self._may_open(plan):
            return
        if server.epoch >= epoch and server.phase == Phase.VOTING:
            return
        closed = server.phase == Phase.CLOSED and server.target == epoch
        planned = closed and self._is_planned(server, plan, at, epoch)
        wiped = server.phase == Phase.JOINED and not self.rules.open_compares
        if planned or wiped:
            after = state.with_server(
                at,
                ident=plan.ids[home],
                phase=Phase.VOTING,
                epoch=epoch,
                ids=plan.ids,
                target=NONE,
                waits=0,
            )
            opened = after.with_plan(epoch, opened=plan.opened | 1 << home)
            yield f"server {at} opens for epoch {epoch}", opened

    def _mark(self, state: State, at: int, epoch: int) -> Iterator[tuple[str, State]]:
        """Let a server of the new view execute MARK."""
        server, plan, home = state.servers[at], state.plans[epoch], self.homes[at]
        planned = self._is_planned(server, plan, at, epoch)
        if planned and server.epoch < epoch and not plan.marked >> home & 1:
            marked = state.with_server(at, aborted=server.aborted | 1 << epoch)
            marked = marked.with_plan(epoch, marked=plan.marked | 1 << home)
            yield f"server {at} is marked: epoch {epoch} is aborted", marked

    def _reopen(self, state: State, at: int, epoch: int) -> Iterator[tuple[str, State]]:
        """Let an old member execute REOPEN."""
        server, plan = state.servers[at], state.plans[epoch]
        rules = self.rules
        if server.phase != Phase.CLOSED or server.target != epoch:
            return
        need = self.quorum if rules.abort_majority else self.needed
        enough = plan.marked.bit_count() >= need(plan.ids) or not rules.abort_marks
        if server.epoch != NONE and enough:
            kept = server.aborted | 1 << epoch
            after = state.with_server(
                at, phase=Phase.VOTING, target=NONE, waits=0, aborted=kept
            )
            yield f"server {at} reopens in epoch {server.epoch}", after

    def _is_planned(self, server: Server, plan: Plan, at: int, epoch: int) -> bool:
        same = server.ident != NONE and server.ident == plan.ids[self.homes[at]]
        return same and not server.aborted >> epoch & 1
