"""A move to other nodes by a second deployment, as a state machine.

`reconfigure` closes the old nodes and opens the new ones, so no lock is granted for one
ttl. This is the design without that outage, which was not built. The new nodes are a
deployment of their own, and clients change by two deploys::

    OLD: a lock of the old nodes ──► BOTH: a lock of either ──► NEW: of the new nodes

A deployment is modelled as one lock and one counter; that a majority of its nodes
behaves so is shown by `membership`. A client that is deployed is ended, in the middle
of its body, too; its locks end later, by their ttl. Nothing makes all clients change:
one that was forgotten keeps its settings.

What is searched for:

* **two holders**: two clients run their bodies;
* **an old fence**: a grant whose fence is no greater than an earlier one.

The result: with the two deploys alone, a client that was forgotten makes two holders.
To be safe, the nodes have to close, wait and open, as in a reconfiguration: the old
ones refuse OLD clients (*close*), the locks of those end (*wait*), and the new ones
refuse NEW clients until then (*open*), and start above the old fences. Besides, a
client in BOTH needs each operation of the lock for two deployments. So it is
`reconfigure`, and a second mechanism.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FREE = -1
_MOST_GRANTS = 4  # of a history


class Phase(enum.IntEnum):
    """Of which nodes a client takes a lock."""

    OLD = 0
    BOTH = 1
    NEW = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the move. Each of them can be broken, to see what it is for.

    Attributes:
        closes: The old nodes refuse OLD clients from an operator's step on.
        waits: The new nodes open when no lock of an OLD client is left.
        opens: The new nodes refuse NEW clients until an operator opens them.
        starts_above: The new nodes open above the fences of the old ones.
        raises_both: A client in BOTH raises both counters to its fence.
    """

    closes: bool = True
    waits: bool = True
    opens: bool = True
    starts_above: bool = True
    raises_both: bool = True


class Client(NamedTuple):
    """One client.

    Attributes:
        phase: Of which nodes it takes a lock.
        runs: Whether it runs its body.
    """

    phase: Phase = Phase.OLD
    runs: bool = False


class Lock(NamedTuple):
    """The lock of one deployment.

    Attributes:
        owner: The number of the client; FREE if it is free.
        phase: The phase of its owner when it was granted.
        counter: The last fence.
    """

    owner: int = FREE
    phase: Phase = Phase.OLD
    counter: int = 0


class State(NamedTuple):
    """All clients, both deployments, and what the operator has done."""

    clients: tuple[Client, ...]
    old: Lock = Lock()
    new: Lock = Lock()
    is_closed: bool = False
    is_open: bool = False
    grants: int = 0
    greatest: int = 0  # fence that was given
    is_old_fence: bool = False

    def with_client(self, at: int, client: Client) -> State:
        """Return this state with another client at this place."""
        clients = (*self.clients[:at], client, *self.clients[at + 1 :])
        return self._replace(clients=clients)


class TwoDeployments:
    """The steps of clients and of the operator.

    Args:
        rules: The rules that hold.
        clients: How many clients there are.
    """

    def __init__(self, rules: Rules, clients: int = 2) -> None:
        self.rules = rules
        self._clients = clients

    def start(self) -> State:
        """Return the state before the move."""
        return State((Client(),) * self._clients)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step: a sentence, and the state after it."""
        yield from self._operator(state)
        for at, client in enumerate(state.clients):
            if client.phase != Phase.NEW:
                after = Client(Phase(client.phase + 1))
                yield (
                    f"client {at} starts as {after.phase.name}",
                    state.with_client(at, after),
                )
            if client.runs:
                yield f"client {at} ends", self._ended(state, at)
            else:
                yield from self._take(state, at, client)
        yield from self._expire(state)

    def violation(self, state: State) -> str:
        """Return what is wrong with a state; "" if nothing is."""
        if sum(client.runs for client in state.clients) > 1:
            return "two hold the lock"
        return "a grant has an old fence" if state.is_old_fence else ""

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        if self.rules.closes and not state.is_closed:
            yield "the old nodes refuse OLD clients", state._replace(is_closed=True)
        is_over = state.old.owner == FREE or state.old.phase != Phase.OLD
        may_open = state.is_closed and (is_over or not self.rules.waits)
        if self.rules.opens and may_open and not state.is_open:
            new = state.new
            if self.rules.starts_above:
                new = new._replace(counter=max(new.counter, state.old.counter))
            yield "the new nodes open", state._replace(is_open=True, new=new)

    def _take(
        self, state: State, at: int, client: Client
    ) -> Iterator[tuple[str, State]]:
        """Let a client take the next lock that it needs, or begin with all of them."""
        phase = client.phase
        needs_old, needs_new = phase != Phase.NEW, phase != Phase.OLD
        has_old = not needs_old or (state.old.owner, state.old.phase) == (at, phase)
        has_new = not needs_new or (state.new.owner, state.new.phase) == (at, phase)
        if needs_old and not has_old and state.old.owner == FREE:
            if not (phase == Phase.OLD and state.is_closed):
                old = state.old._replace(owner=at, phase=phase)
                yield f"client {at} takes the old lock", state._replace(old=old)
        elif has_old and not has_new and state.new.owner == FREE:
            if phase == Phase.BOTH or state.is_open or not self.rules.opens:
                new = state.new._replace(owner=at, phase=phase)
                yield f"client {at} takes the new lock", state._replace(new=new)
        elif has_old and has_new and state.grants < _MOST_GRANTS:
            yield f"client {at} runs", self._granted(state, at, client)

    def _granted(self, state: State, at: int, client: Client) -> State:
        used = [
            lock.counter
            for lock, phase in ((state.old, Phase.NEW), (state.new, Phase.OLD))
            if client.phase != phase
        ]
        fence = max(used) + 1
        old, new = state.old, state.new
        if client.phase == Phase.OLD or (
            client.phase == Phase.BOTH and self.rules.raises_both
        ):
            old = old._replace(counter=fence)
        if client.phase != Phase.OLD:
            new = new._replace(counter=fence)
        return state.with_client(at, client._replace(runs=True))._replace(
            old=old,
            new=new,
            grants=state.grants + 1,
            greatest=max(state.greatest, fence),
            is_old_fence=fence <= state.greatest,
        )

    def _ended(self, state: State, at: int) -> State:
        """Let the body end, and release its locks."""
        after = state.with_client(at, state.clients[at]._replace(runs=False))
        if after.old.owner == at:
            after = after._replace(old=after.old._replace(owner=FREE))
        if after.new.owner == at:
            after = after._replace(new=after.new._replace(owner=FREE))
        return after

    def _expire(self, state: State) -> Iterator[tuple[str, State]]:
        """Let the ttl of a lock end whose owner does not run: it renews the others."""
        if self._is_left(state, state.old):
            free = state.old._replace(owner=FREE)
            yield "the old lock expires", state._replace(old=free)
        if self._is_left(state, state.new):
            free = state.new._replace(owner=FREE)
            yield "the new lock expires", state._replace(new=free)

    def _is_left(self, state: State, lock: Lock) -> bool:
        return lock.owner != FREE and not state.clients[lock.owner].runs
