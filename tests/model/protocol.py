"""Fences and the restart guard as a state machine, small enough to search.

The model has N nodes and some attempts at one key. Every message is a step of its own:
it arrives at any time, or never. A client decides on any majority of the votes for it;
the other votes are still on their way.

A node                              An attempt

    holder   the attempt of its key     IDLE ──► ASKING ──► RAISING ──► HOLDING
    counter  of fences                     │        │          │           │
    status   whether it votes              └────────┴──────────┴───► OVER ◄┘

``steps`` yields every next step under `Rules`. A test takes one rule away, to show why
it is needed. ``violation`` states what must never happen.

The model has no clocks. With `Rules.timely`, a key outlives its attempt, and a
quarantine outlives all attempts that had begun before it. Validity and the length of
the quarantine ensure this while the stated assumptions hold. Without it, keys end at
any time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Protocol", "Recovery", "Rules", "State", "start_states"]


class Phase(enum.IntEnum):
    """The phase of an attempt. It only moves down this list."""

    IDLE = 0
    ASKING = 1
    RAISING = 2
    HOLDING = 3
    OVER = 4


# The vote of a node on an attempt that is asking: the number that it granted, or
UNASKED, REFUSED = 0, -1
# Its vote on an attempt that has decided on its fence:
APART, COUNTED, AGREED = 0, -2, -3
# The status of a node:
VOTING, QUARANTINED, UNSYNCED = "voting", "quarantined", "unsynced"


class Node(NamedTuple):
    """One node, and its vote on each attempt.

    The votes are kept with the node, so that two states are equal if they differ only
    in the order of the nodes.

    Attributes:
        counter: Its fence counter.
        holder: The attempt whose key it keeps; -1 for none.
        status: Whether it votes.
        waits_for: Attempts that its quarantine outlives.
        read: The counter of the others that it has read while unsynced, plus 1.
        votes: Its vote on each attempt.
    """

    counter: int
    holder: int
    status: str
    waits_for: tuple[int, ...]
    read: int
    votes: tuple[int, ...]


class Attempt(NamedTuple):
    """One attempt at the lock.

    Attributes:
        phase: Its phase.
        fence: The number that it has decided on.
        before: The greatest fence that had been granted when it began.
    """

    phase: Phase
    fence: int = 0
    before: int = 0


IDLE, OVER = Attempt(Phase.IDLE), Attempt(Phase.OVER)


class State(NamedTuple):
    """One state of the model.

    Attributes:
        nodes: The nodes.
        attempts: The attempts; they begin in this order.
        grants: The fences that were granted, in the order of the grants.
        losses: How many losses of memory may still happen.
        bumps: How many raises by other keys may still happen.
    """

    nodes: tuple[Node, ...]
    attempts: tuple[Attempt, ...]
    grants: tuple[int, ...]
    losses: int
    bumps: int

    def __str__(self) -> str:
        return f"counters {[node.counter for node in self.nodes]}"

    def key(self) -> Hashable:
        """Return a name that is equal for states with another order of the nodes."""
        return (tuple(sorted(self.nodes)), *self[1:])

    def with_node(self, index: int, **changes: object) -> State:
        """Return this state with one node changed."""
        node = self.nodes[index]._replace(**changes)  # type: ignore[arg-type]
        nodes = (*self.nodes[:index], node, *self.nodes[index + 1 :])
        return self._replace(nodes=nodes)

    def with_attempt(self, index: int, attempt: Attempt) -> State:
        """Return this state with one attempt changed."""
        attempts = (*self.attempts[:index], attempt, *self.attempts[index + 1 :])
        return self._replace(attempts=attempts)

    def with_votes(self, index: int, votes: tuple[int, ...]) -> State:
        """Return this state with other votes on one attempt, node by node."""
        nodes = tuple(
            node._replace(votes=(*node.votes[:index], vote, *node.votes[index + 1 :]))
            for node, vote in zip(self.nodes, votes, strict=True)
        )
        return self._replace(nodes=nodes)


class Recovery(enum.Enum):
    """When a node that lost its counters recovers them from others."""

    NEVER = "never"
    AT_ONCE = "at once"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the protocol, each of which a test can take away, and the faults.

    Attributes:
        raise_needs_key: A raise acts only on a node with the attempt's key (rule 1).
        raise_needs_number: A raise counts only on a node whose own number was part of
            the maximum (rule 2).
        timely: The timing assumptions hold.
        quarantine: A node that lost its memory does not vote at first.
        recovery: When such a node recovers its counters.
        losses: How many times a node may lose its memory.
        bumps: How many times another key of the stripe may raise a counter.
        hints: The clock of each attempt's client; a counter jumps to it. Empty: none.
        restores: Whether a holder restores its key on nodes that are without it.
    """

    raise_needs_key: bool = True
    raise_needs_number: bool = True
    timely: bool = True
    quarantine: bool = True
    recovery: Recovery = Recovery.LATE
    losses: int = 0
    bumps: int = 0
    hints: tuple[int, ...] = ()
    restores: bool = False


def start_states(
    rules: Rules, *, nodes: int, attempts: int, counters: int
) -> Iterator[State]:
    """Yield the first states: nodes with any counters.

    Args:
        rules: The faults that may happen.
        nodes: How many nodes.
        attempts: How many attempts.
        counters: The greatest counter.
    """
    for numbers in combinations_with_replacement(range(counters + 1), nodes):
        fresh = tuple(
            Node(number, -1, VOTING, (), 0, (UNASKED,) * attempts) for number in numbers
        )
        yield State(fresh, (IDLE,) * attempts, (), rules.losses, rules.bumps)


class Protocol:
    """The steps of the state machine under some rules.

    Args:
        rules: The rules.
        nodes: How many nodes there are.
    """

    def __init__(self, rules: Rules, nodes: int) -> None:
        self._rules = rules
        self._quorum = nodes // 2 + 1
        self._sources = nodes - self._quorum + 1

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step: a sentence, and the state after it."""
        for index, attempt in enumerate(state.attempts):
            if attempt.phase is Phase.IDLE:
                if index == 0 or state.attempts[index - 1].phase is not Phase.IDLE:
                    before = max(state.grants, default=0)
                    begun = Attempt(Phase.ASKING, 0, before)
                    yield f"{_name(index)} begins", state.with_attempt(index, begun)
            elif attempt.phase is Phase.ASKING:
                yield from self._ask(state, index)
                yield from self._decide(state, index)
            elif attempt.phase is Phase.RAISING:
                yield from self._raise(state, index)
                yield from self._grant(state, index)
            elif attempt.phase is Phase.HOLDING:
                yield from self._hold(state, index)
            if attempt.phase not in (Phase.IDLE, Phase.OVER):
                forgotten = state.with_votes(index, (UNASKED,) * len(state.nodes))
                ended = forgotten.with_attempt(index, OVER)
                yield f"{_name(index)} ends", ended
        for index in range(len(state.nodes)):
            yield from self._change_node(state, index)

    def violation(self, state: State) -> str:
        """Return what is wrong with a state, or ""."""
        grants = state.grants
        holding = [a for a in state.attempts if a.phase is Phase.HOLDING]
        if self._rules.timely and len(holding) > 1:
            return "two hold the lock"
        if len(set(grants)) < len(grants):
            return f"one fence was granted twice: {grants}"
        for attempt in holding:
            if attempt.fence <= attempt.before:
                return (
                    f"fence {attempt.fence} was granted to an attempt that began "
                    f"after {attempt.before} was granted"
                )
        if self._rules.timely and grants != tuple(sorted(grants)):
            return f"a lesser fence was granted after a greater one: {grants}"
        return ""

    # -- Attempts --------------------------------------------------------

    def _ask(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let a node execute the attempt's ACQUIRE."""
        for at, node in enumerate(state.nodes):
            if node.votes[index] != UNASKED:
                continue
            votes = list(node.votes)
            if node.status != VOTING or node.holder >= 0:
                votes[index] = REFUSED
                after = state.with_node(at, votes=tuple(votes))
                yield f"node {at} refuses {_name(index)}", after
                continue
            number = node.counter + 1
            if self._rules.hints:
                number = max(number, self._rules.hints[index])
            votes[index] = number
            after = state.with_node(
                at, holder=index, counter=number, votes=tuple(votes)
            )
            yield f"node {at} grants {number} to {_name(index)}", after

    def _decide(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let the client decide on the maximum of any majority of the votes."""
        numbers = [node.votes[index] for node in state.nodes]
        granted = [at for at, number in enumerate(numbers) if number > 0]
        before = state.attempts[index].before
        for size in range(self._quorum, len(granted) + 1):
            for seen in combinations(granted, size):
                fence = max(numbers[at] for at in seen)
                votes = [APART] * len(numbers)
                for at in seen:
                    votes[at] = AGREED if numbers[at] == fence else COUNTED
                moved = Attempt(Phase.RAISING, fence, before)
                after = state.with_votes(index, tuple(votes)).with_attempt(index, moved)
                where = ", ".join(map(str, seen))
                yield f"{_name(index)} decides on {fence} from nodes {where}", after

    def _raise(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let a node execute the attempt's RAISE_FENCE, and its reply arrive."""
        fence = state.attempts[index].fence
        for at, node in enumerate(state.nodes):
            if node.votes[index] == AGREED or node.status != VOTING:
                continue
            if self._rules.raise_needs_key and node.holder != index:
                continue
            counts = node.votes[index] == COUNTED or not self._rules.raise_needs_number
            votes = list(node.votes)
            votes[index] = AGREED if counts else node.votes[index]
            counter = max(node.counter, fence)
            after = state.with_node(at, counter=counter, votes=tuple(votes))
            yield f"{_name(index)} raises node {at} to {counter}", after

    def _grant(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        if sum(node.votes[index] == AGREED for node in state.nodes) >= self._quorum:
            attempt = state.attempts[index]._replace(phase=Phase.HOLDING)
            granted = state.with_votes(index, (UNASKED,) * len(state.nodes))
            granted = granted._replace(grants=(*state.grants, attempt.fence))
            what = f"{_name(index)} is granted fence {attempt.fence}"
            yield what, granted.with_attempt(index, attempt)

    def _hold(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let messages of a holder arrive: late raises, and RESTORE."""
        fence = state.attempts[index].fence
        for at, node in enumerate(state.nodes):
            counter = max(node.counter, fence)
            if node.holder == index and counter > node.counter:
                after = state.with_node(at, counter=counter)
                yield f"{_name(index)} raises node {at} to {counter}", after
            if self._rules.restores and node.holder < 0:
                after = state.with_node(at, holder=index, counter=counter)
                yield f"{_name(index)} restores its key on node {at}", after

    # -- Nodes -----------------------------------------------------

    def _change_node(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        node = state.nodes[at]
        if node.holder >= 0:
            over = state.attempts[node.holder].phase is Phase.OVER
            if over or not self._rules.timely:
                what = f"the key of {_name(node.holder)} ends on node {at}"
                yield what, state.with_node(at, holder=-1)
        if state.bumps:
            after = state.with_node(at, counter=node.counter + 1)
            yield f"another key raises node {at}", after._replace(bumps=state.bumps - 1)
        if node.status == VOTING:
            if state.losses:
                yield from self._lose(state, at)
        else:
            yield from self._come_back(state, at)

    def _lose(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a node lose its keys and counters."""
        lost = state.with_node(at, holder=-1, counter=0)
        lost = lost._replace(losses=state.losses - 1)
        what = f"node {at} loses its memory"
        if self._rules.quarantine:
            active = (Phase.ASKING, Phase.RAISING, Phase.HOLDING)
            waits_for = tuple(
                index for index, a in enumerate(state.attempts) if a.phase in active
            )
            lost = lost.with_node(at, status=QUARANTINED, waits_for=waits_for)
        if self._rules.recovery is Recovery.AT_ONCE:
            for counter in self._counters_of_others(lost, at):
                again = f"{what}; others tell it {counter}"
                yield again, lost.with_node(at, counter=counter)
        else:
            yield what, lost

    def _come_back(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a quarantine end, then read the counters of others, then adopt them."""
        node = state.nodes[at]
        if node.status == QUARANTINED:
            if all(state.attempts[i].phase is Phase.OVER for i in node.waits_for):
                late = self._rules.recovery is Recovery.LATE
                status = UNSYNCED if late else VOTING
                after = state.with_node(at, status=status, waits_for=())
                yield f"the quarantine of node {at} ends", after
        elif not node.read:
            for counter in self._counters_of_others(state, at):
                after = state.with_node(at, read=counter + 1)
                yield f"others tell node {at} of {counter}", after
        else:
            counter = max(node.counter, node.read - 1)
            after = state.with_node(at, status=VOTING, counter=counter, read=0)
            yield f"node {at} votes again, from {counter}", after

    def _counters_of_others(self, state: State, at: int) -> set[int]:
        """Return all possible greatest counters of enough other nodes."""
        voting = [
            node.counter
            for other, node in enumerate(state.nodes)
            if other != at and node.status == VOTING
        ]
        return {max(some) for some in combinations(voting, self._sources)}


def _name(index: int) -> str:
    return "ABCDE"[index]
