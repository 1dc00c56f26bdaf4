"""Fences and the restart guard as a state machine, small enough to search.

The model has N nodes and some attempts, each at one key or at several. Every message
is a step of its own: it arrives at any time, or never. A client decides on any majority
of the votes for it; the other votes are still on their way.

A node                                  An attempt

    holders   the attempt of each key       IDLE ──► ASKING ──► RAISING ──► HOLDING
    counters  of fences, one a stripe          │        │          │           │
    status    whether it votes                 └────────┴──────────┴───► OVER ◄┘

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
from itertools import combinations, combinations_with_replacement, product
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

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
# Its vote on an attempt that holds: the lease rests on it, it was renewed there since
# the last renewal that counts, or the lease no longer rests on it:
RESTS, RENEWED, LEFT = 0, -4, -5
# The status of a node:
VOTING, QUARANTINED, UNSYNCED = "voting", "quarantined", "unsynced"


class Node(NamedTuple):
    """One node, and its vote on each attempt.

    The votes are kept with the node, so that two states are equal if they differ only
    in the order of the nodes.

    Attributes:
        counters: Its fence counters: one for each stripe.
        holders: For each key, the attempt that has it; -1 for none.
        status: Whether it votes.
        waits_for: Attempts that its quarantine outlives.
        read: The counters of the others that it has read while unsynced; () if none.
        votes: Its vote on each attempt.
    """

    counters: tuple[int, ...]
    holders: tuple[int, ...]
    status: str
    waits_for: tuple[int, ...]
    read: tuple[int, ...]
    votes: tuple[int, ...]

    def with_keys(self, keys: Iterable[int], holder: int) -> Node:
        """Return this node with these keys in the hands of one attempt, or of none."""
        holders = list(self.holders)
        for key in keys:
            holders[key] = holder
        return Node(self[0], tuple(holders), *self[2:])

    def with_vote(self, index: int, vote: int) -> Node:
        """Return this node with another vote on one attempt."""
        votes = (*self.votes[:index], vote, *self.votes[index + 1 :])
        return Node(*self[:5], votes)


class Attempt(NamedTuple):
    """One attempt at the lock.

    Attributes:
        phase: Its phase.
        fence: The number that it has decided on.
        before: The greatest fence of one of its keys when it began.
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
        grants: The fences that were granted, and for which keys, in their order.
        losses: How many losses of memory may still happen.
        bumps: How many raises by other keys may still happen.
    """

    nodes: tuple[Node, ...]
    attempts: tuple[Attempt, ...]
    grants: tuple[tuple[int, tuple[int, ...]], ...]
    losses: int
    bumps: int

    def __str__(self) -> str:
        return f"counters {[node.counters for node in self.nodes]}"

    def key(self) -> Hashable:
        """Return a name that is equal for states with another order of the nodes."""
        return (tuple(sorted(self.nodes)), *self[1:])

    def with_node(self, index: int, node: Node) -> State:
        """Return this state with one node changed."""
        nodes = (*self.nodes[:index], node, *self.nodes[index + 1 :])
        return State(nodes, *self[1:])

    def with_attempt(self, index: int, attempt: Attempt) -> State:
        """Return this state with one attempt changed."""
        attempts = (*self.attempts[:index], attempt, *self.attempts[index + 1 :])
        return self._replace(attempts=attempts)

    def with_votes(self, index: int, votes: tuple[int, ...]) -> State:
        """Return this state with other votes on one attempt, node by node."""
        nodes = tuple(
            node.with_vote(index, vote)
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
        keys: The keys of each attempt, as numbers from 0. Empty: each wants key 0.
        stripes: The number of the counter that each key uses.
        raise_needs_key: A raise acts only on a node with the attempt's key (rule 1).
        raise_needs_every_key: ... with each of its keys; else one of them will do.
        raise_needs_number: A raise counts only on a node whose own number was part of
            the maximum (rule 2).
        timely: The timing assumptions hold.
        quarantine: A node that lost its memory does not vote at first.
        recovery: When such a node recovers its counters.
        losses: How many times a node may lose its memory.
        bumps: How many times another key of the stripe may raise a counter.
        hints: The clock of each attempt's client; a counter jumps to it. Empty: none.
        restores: Whether a holder restores its keys on nodes that are without them.
        renews: Whether a holder renews: then its lease rests on the nodes that said yes
            to the renewal, and its keys may end on all others.
        restore_writes_every_key: A node that is without the keys gets all of them.
        release_ends_every_key: A node ends all keys of an attempt in one step.
    """

    keys: tuple[tuple[int, ...], ...] = ()
    stripes: tuple[int, ...] = (0,)
    raise_needs_key: bool = True
    raise_needs_every_key: bool = True
    raise_needs_number: bool = True
    timely: bool = True
    quarantine: bool = True
    recovery: Recovery = Recovery.LATE
    losses: int = 0
    bumps: int = 0
    hints: tuple[int, ...] = ()
    restores: bool = False
    renews: bool = False
    restore_writes_every_key: bool = True
    release_ends_every_key: bool = True


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
    free = (-1,) * len(rules.stripes)
    numbers = product(range(counters + 1), repeat=len(set(rules.stripes)))
    for chosen in combinations_with_replacement(tuple(numbers), nodes):
        fresh = tuple(
            Node(numbers, free, VOTING, (), (), (UNASKED,) * attempts)
            for numbers in chosen
        )
        yield State(fresh, (IDLE,) * attempts, (), rules.losses, rules.bumps)


class Protocol:
    """The steps of the state machine under some rules.

    A reduced protocol has fewer states. It leaves out a state if another one allows all
    of its steps, so that it leads to a violation if one of the others does:

    * A node never refuses. For the client, a refusal is a message that never arrives.
    * An attempt begins with its first vote. If it begins earlier, then more quarantines
      wait for it, and its fence must exceed fewer grants.
    * The keys of an attempt that is over end at once on all nodes. They only keep
      others out. So does a quarantine that waits for no attempt any more. This is not
      left out where a key can stay behind (`Rules.release_ends_every_key`).

    Args:
        rules: The rules.
        nodes: How many nodes there are.
        reduced: Whether to leave out these states.
    """

    def __init__(self, rules: Rules, nodes: int, *, reduced: bool = False) -> None:
        self._rules = rules
        self._reduced = reduced and rules.release_ends_every_key
        self._quorum = nodes // 2 + 1
        self._sources = nodes - self._quorum + 1

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step: a sentence, and the state after it."""
        if not self._reduced:
            yield from self._steps(state)
            return
        for what, after in self._steps(state):
            yield what, self._without_remains(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for index, attempt in enumerate(state.attempts):
            if attempt.phase is Phase.IDLE:
                if index == 0 or state.attempts[index - 1].phase is not Phase.IDLE:
                    before = max(self._fences_of(state, index), default=0)
                    begun = state.with_attempt(index, Attempt(Phase.ASKING, 0, before))
                    if self._reduced:
                        yield from self._ask(begun, index)
                        continue
                    yield f"{_name(index)} begins", begun
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
        holding = [
            index for index, a in enumerate(state.attempts) if a.phase is Phase.HOLDING
        ]
        if self._rules.timely:
            held = [key for index in holding for key in self._keys_of(index)]
            if len(set(held)) < len(held):
                return "two hold the lock"
            if alone := self._key_alone(state):
                return alone
        for key in range(len(self._rules.stripes)):
            fences = [fence for fence, keys in state.grants if key in keys]
            if len(set(fences)) < len(fences):
                return f"one fence was granted twice: {fences}"
            if self._rules.timely and fences != sorted(fences):
                return f"a lesser fence was granted after a greater one: {fences}"
        for index in holding:
            attempt = state.attempts[index]
            if attempt.fence <= attempt.before:
                return (
                    f"fence {attempt.fence} was granted to an attempt that began "
                    f"after {attempt.before} was granted"
                )
        return ""

    # -- Keys ------------------------------------------------------------

    def _keys_of(self, index: int) -> tuple[int, ...]:
        return self._rules.keys[index] if self._rules.keys else (0,)

    def _fences_of(self, state: State, index: int) -> list[int]:
        """Return the fences that were granted with a key of this attempt."""
        mine = set(self._keys_of(index))
        return [fence for fence, keys in state.grants if not mine.isdisjoint(keys)]

    def _key_alone(self, state: State) -> str:
        """Return where an attempt has a part of its keys, or ""."""
        for at, node in enumerate(state.nodes):
            for index in set(node.holders) - {-1}:
                if node.holders.count(index) < len(self._keys_of(index)):
                    return f"node {at} keeps a part of the keys of {_name(index)}"
        return ""

    def _has_keys(self, node: Node, index: int) -> bool:
        """Tell whether a node has the keys of an attempt, as its raise needs them."""
        mine = [node.holders[key] == index for key in self._keys_of(index)]
        return all(mine) if self._rules.raise_needs_every_key else any(mine)

    def _is_free_for(self, node: Node, index: int) -> bool:
        """Tell whether no key of an attempt has another holder on this node."""
        return {node.holders[key] for key in self._keys_of(index)} <= {-1, index}

    def _counters_of(self, node: Node, index: int) -> list[int]:
        return [node.counters[self._rules.stripes[k]] for k in self._keys_of(index)]

    def _raised(self, node: Node, index: int, number: int) -> Node:
        """Return the node with all counters of an attempt at this number at least."""
        counters = list(node.counters)
        for key in self._keys_of(index):
            stripe = self._rules.stripes[key]
            counters[stripe] = max(counters[stripe], number)
        return node._replace(counters=tuple(counters))

    # -- Attempts --------------------------------------------------------

    def _ask(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let a node execute the attempt's ACQUIRE: all keys or none."""
        for at, node in enumerate(state.nodes):
            if node.votes[index] != UNASKED:
                continue
            if node.status != VOTING or not self._is_free_for(node, index):
                if self._reduced:
                    continue
                after = state.with_node(at, node.with_vote(index, REFUSED))
                yield f"node {at} refuses {_name(index)}", after
                continue
            number = max(self._counters_of(node, index)) + 1
            if self._rules.hints:
                number = max(number, self._rules.hints[index])
            taken = node.with_keys(self._keys_of(index), index)
            taken = self._raised(taken, index, number).with_vote(index, number)
            after = state.with_node(at, taken)
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
            if self._rules.raise_needs_key and not self._has_keys(node, index):
                continue
            counts = node.votes[index] == COUNTED or not self._rules.raise_needs_number
            vote = AGREED if counts else node.votes[index]
            raised = self._raised(node, index, fence).with_vote(index, vote)
            counter = max(self._counters_of(raised, index))
            after = state.with_node(at, raised)
            yield f"{_name(index)} raises node {at} to {counter}", after

    def _grant(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        if sum(node.votes[index] == AGREED for node in state.nodes) >= self._quorum:
            attempt = state.attempts[index]._replace(phase=Phase.HOLDING)
            granted = state.with_votes(index, (RESTS,) * len(state.nodes))
            grant = (attempt.fence, self._keys_of(index))
            granted = granted._replace(grants=(*state.grants, grant))
            what = f"{_name(index)} is granted fence {attempt.fence}"
            yield what, granted.with_attempt(index, attempt)

    def _hold(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let messages of a holder arrive: late raises, RESTORE and renewals."""
        fence, keys = state.attempts[index].fence, self._keys_of(index)
        for at, node in enumerate(state.nodes):
            is_held = all(node.holders[key] == index for key in keys)
            if is_held:
                raised = self._raised(node, index, fence)
                if raised != node:
                    after = state.with_node(at, raised)
                    yield f"{_name(index)} raises node {at} to {fence}", after
                if self._rules.renews and node.votes[index] != RENEWED:
                    after = state.with_node(at, node.with_vote(index, RENEWED))
                    yield f"{_name(index)} extends its keys on node {at}", after
            elif self._rules.restores and self._is_free_for(node, index):
                if self._rules.renews and node.status != VOTING:
                    continue
                written = keys if self._rules.restore_writes_every_key else keys[:1]
                restored = self._raised(node.with_keys(written, index), index, fence)
                if self._rules.renews:
                    restored = restored.with_vote(index, RENEWED)
                after = state.with_node(at, restored)
                yield f"{_name(index)} restores its key on node {at}", after
        renewed = [node.votes[index] == RENEWED for node in state.nodes]
        if sum(renewed) >= self._quorum:
            votes = tuple(RESTS if yes else LEFT for yes in renewed)
            where = ", ".join(str(at) for at, yes in enumerate(renewed) if yes)
            yield f"{_name(index)} rests on {where}", state.with_votes(index, votes)

    # -- Nodes -----------------------------------------------------

    def _change_node(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        node = state.nodes[at]
        for index in sorted(set(node.holders) - {-1}):
            yield from self._end_keys(state, at, index)
        if state.bumps:
            for stripe, counter in enumerate(node.counters):
                counters = list(node.counters)
                counters[stripe] = counter + 1
                after = state.with_node(at, node._replace(counters=tuple(counters)))
                after = after._replace(bumps=state.bumps - 1)
                yield f"another key raises node {at}", after
        if node.status == VOTING:
            if state.losses:
                yield from self._lose(state, at)
        else:
            yield from self._come_back(state, at)

    def _without_remains(self, state: State) -> State:
        """Return this state without what remains of attempts that are over."""
        over = {i for i, a in enumerate(state.attempts) if a.phase is Phase.OVER}
        for at, node in enumerate(state.nodes):
            if not over.isdisjoint(node.holders):
                holders = tuple(-1 if one in over else one for one in node.holders)
                state = state.with_node(at, node._replace(holders=holders))
        for at, node in enumerate(state.nodes):
            if node.status == QUARANTINED:
                ended = next(self._end_quarantine(state, at), ("", state))
                state = ended[1]
        return state

    def _end_keys(
        self, state: State, at: int, index: int
    ) -> Iterator[tuple[str, State]]:
        """Let keys of an attempt end: by its release, or when their ttl is over."""
        rules, node = self._rules, state.nodes[at]
        if rules.timely and not self._is_over(state, at, index):
            return
        kept = [key for key, holder in enumerate(node.holders) if holder == index]
        if rules.release_ends_every_key:
            after = state.with_node(at, node.with_keys(kept, -1))
            yield f"the key of {_name(index)} ends on node {at}", after
        if len(kept) > 1 and not (rules.timely and rules.release_ends_every_key):
            for key in kept:
                after = state.with_node(at, node.with_keys([key], -1))
                yield f"key {key} of {_name(index)} ends on node {at}", after

    def _is_over(self, state: State, at: int, index: int) -> bool:
        """Tell whether an attempt needs this node no more."""
        phase, vote = state.attempts[index].phase, state.nodes[at].votes[index]
        return phase is Phase.OVER or (phase is Phase.HOLDING and vote == LEFT)

    def _lose(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a node lose its keys and counters."""
        node = state.nodes[at]
        free, zeros = (-1,) * len(node.holders), (0,) * len(node.counters)
        node = node._replace(holders=free, counters=zeros)
        what = f"node {at} loses its memory"
        if self._rules.quarantine:
            active = (Phase.ASKING, Phase.RAISING, Phase.HOLDING)
            waits_for = tuple(
                index for index, a in enumerate(state.attempts) if a.phase in active
            )
            node = node._replace(status=QUARANTINED, waits_for=waits_for)
        lost = state.with_node(at, node)._replace(losses=state.losses - 1)
        if self._rules.recovery is Recovery.AT_ONCE:
            for counters in self._counters_of_others(lost, at):
                again = f"{what}; others tell it {counters}"
                yield again, lost.with_node(at, node._replace(counters=counters))
        else:
            yield what, lost

    def _come_back(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a quarantine end, then read the counters of others, then adopt them."""
        node = state.nodes[at]
        if node.status == QUARANTINED:
            yield from self._end_quarantine(state, at)
        elif not node.read:
            for counters in self._counters_of_others(state, at):
                after = state.with_node(at, node._replace(read=counters))
                yield f"others tell node {at} of {counters}", after
        else:
            counters = tuple(map(max, node.counters, node.read))
            back = node._replace(status=VOTING, counters=counters, read=())
            yield f"node {at} votes again, from {counters}", state.with_node(at, back)

    def _end_quarantine(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        node = state.nodes[at]
        if all(self._is_over(state, at, index) for index in node.waits_for):
            late = self._rules.recovery is Recovery.LATE
            status = UNSYNCED if late else VOTING
            after = state.with_node(at, node._replace(status=status, waits_for=()))
            yield f"the quarantine of node {at} ends", after

    def _counters_of_others(self, state: State, at: int) -> set[tuple[int, ...]]:
        """Return all possible greatest counters of enough other nodes."""
        voting = [
            node.counters
            for other, node in enumerate(state.nodes)
            if other != at and node.status == VOTING
        ]
        return {
            tuple(max(numbers) for numbers in zip(*some, strict=True))
            for some in combinations(voting, self._sources)
        }


def _name(index: int) -> str:
    return "ABCDE"[index]
