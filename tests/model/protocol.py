"""Fences and the restart guard as a machine of states, small enough to search.

It has N nodes and some attempts at one key. Every message is a step of its own and
comes when it likes, or never. The client may have seen any majority of the votes
that were cast for it: the others are still on their way.

What a node has                     What an attempt goes through

    holder   whose key it keeps         IDLE ──► ASKING ──► RAISING ──► HOLDING
    counter  of fences                     │        │          │           │
    mood     voting, or not yet            └────────┴──────────┴───► OVER ◄┘

``steps`` gives everything that can happen next, under `Rules`; each rule can be
taken away, to see what it is there for. ``violation`` says what must never be.

Beyond the model are clocks. Where `Rules.timely`, keys outlive the attempt that
they are of, and a quarantine outlives all attempts that were under way when it
began. That is what validity and the length of the quarantine are for, while the
stated assumptions hold. Without it keys end at any time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING

from tests.model.states import (
    AGREED,
    APART,
    COUNTED,
    IDLE,
    OVER,
    QUARANTINED,
    REFUSED,
    UNASKED,
    UNSYNCED,
    VOTING,
    Attempt,
    Node,
    Phase,
    State,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Protocol", "Recovery", "Rules", "start_states"]


class Recovery(enum.Enum):
    """When a node that lost its counters gets them back from others."""

    NEVER = "never"
    AT_ONCE = "at once"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the protocol asks for, each of which can be taken away.

    Attributes:
        raise_needs_key: A raise acts only where the key is the attempt's (rule 1).
        raise_needs_number: It counts only where the node's own number was part of
            the maximum (rule 2).
        timely: The timing assumptions hold.
        quarantine: A node that lost its memory does not vote at first.
        recovery: When it gets counters back.
        losses: How many times a node may lose its memory.
        bumps: How many times a key of the same stripe may raise a counter.
        hints: Clock of each attempt's client; a counter jumps to it. Empty: none.
        restores: Whether a holder gives its key to nodes that are without.
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
    """Yield what there may be at first: nodes whose counters differ anyhow.

    Args:
        rules: How many losses and bumps there may be.
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
    """What can happen under some rules.

    Args:
        rules: The rules.
        nodes: How many nodes there are.
    """

    def __init__(self, rules: Rules, nodes: int) -> None:
        self._rules = rules
        self._quorum = nodes // 2 + 1
        self._sources = nodes - self._quorum + 1

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield everything that can happen next."""
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
                nothing = state.telling(index, (UNASKED,) * len(state.nodes))
                ended = nothing.with_attempt(index, OVER)
                yield f"{_name(index)} ends", ended
        for index in range(len(state.nodes)):
            yield from self._befall(state, index)

    def violation(self, state: State) -> str:
        """Say what must not be so, or ""."""
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

    # -- What attempts do --------------------------------------------------------

    def _ask(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let a node execute the attempt's ACQUIRE."""
        for at, node in enumerate(state.nodes):
            if node.told[index] != UNASKED:
                continue
            told = list(node.told)
            if node.mood != VOTING or node.holder >= 0:
                told[index] = REFUSED
                after = state.with_node(at, told=tuple(told))
                yield f"node {at} refuses {_name(index)}", after
                continue
            number = node.counter + 1
            if self._rules.hints:
                number = max(number, self._rules.hints[index])
            told[index] = number
            after = state.with_node(at, holder=index, counter=number, told=tuple(told))
            yield f"node {at} grants {number} to {_name(index)}", after

    def _decide(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let the client have seen some majority of the votes, and take their max."""
        numbers = [node.told[index] for node in state.nodes]
        granted = [at for at, number in enumerate(numbers) if number > 0]
        before = state.attempts[index].before
        for size in range(self._quorum, len(granted) + 1):
            for seen in combinations(granted, size):
                fence = max(numbers[at] for at in seen)
                told = [APART] * len(numbers)
                for at in seen:
                    told[at] = AGREED if numbers[at] == fence else COUNTED
                moved = Attempt(Phase.RAISING, fence, before)
                after = state.telling(index, tuple(told)).with_attempt(index, moved)
                where = ", ".join(map(str, seen))
                yield f"{_name(index)} decides on {fence} from nodes {where}", after

    def _raise(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let a node execute the attempt's RAISE_FENCE, and its answer arrive."""
        fence = state.attempts[index].fence
        for at, node in enumerate(state.nodes):
            if node.told[index] == AGREED or node.mood != VOTING:
                continue
            if self._rules.raise_needs_key and node.holder != index:
                continue
            counts = node.told[index] == COUNTED or not self._rules.raise_needs_number
            told = list(node.told)
            told[index] = AGREED if counts else node.told[index]
            counter = max(node.counter, fence)
            after = state.with_node(at, counter=counter, told=tuple(told))
            yield f"{_name(index)} raises node {at} to {counter}", after

    def _grant(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        if sum(node.told[index] == AGREED for node in state.nodes) >= self._quorum:
            attempt = state.attempts[index]._replace(phase=Phase.HOLDING)
            granted = state.telling(index, (UNASKED,) * len(state.nodes))
            granted = granted._replace(grants=(*state.grants, attempt.fence))
            what = f"{_name(index)} is granted fence {attempt.fence}"
            yield what, granted.with_attempt(index, attempt)

    def _hold(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Let what a holder has sent arrive: late raises, and RESTORE."""
        fence = state.attempts[index].fence
        for at, node in enumerate(state.nodes):
            counter = max(node.counter, fence)
            if node.holder == index and counter > node.counter:
                after = state.with_node(at, counter=counter)
                yield f"{_name(index)} raises node {at} to {counter}", after
            if self._rules.restores and node.holder < 0:
                after = state.with_node(at, holder=index, counter=counter)
                yield f"{_name(index)} restores its key on node {at}", after

    # -- What happens to nodes -----------------------------------------------------

    def _befall(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        node = state.nodes[at]
        if node.holder >= 0:
            over = state.attempts[node.holder].phase is Phase.OVER
            if over or not self._rules.timely:
                what = f"the key of {_name(node.holder)} ends on node {at}"
                yield what, state.with_node(at, holder=-1)
        if state.bumps:
            after = state.with_node(at, counter=node.counter + 1)
            yield f"another key raises node {at}", after._replace(bumps=state.bumps - 1)
        if node.mood == VOTING:
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
            lost = lost.with_node(at, mood=QUARANTINED, waits_for=waits_for)
        if self._rules.recovery is Recovery.AT_ONCE:
            for counter in self._counters_of_others(lost, at):
                again = f"{what}; others tell it {counter}"
                yield again, lost.with_node(at, counter=counter)
        else:
            yield what, lost

    def _come_back(self, state: State, at: int) -> Iterator[tuple[str, State]]:
        """Let a quarantine end, and the counters be read and then taken over."""
        node = state.nodes[at]
        if node.mood == QUARANTINED:
            if all(state.attempts[i].phase is Phase.OVER for i in node.waits_for):
                late = self._rules.recovery is Recovery.LATE
                mood = UNSYNCED if late else VOTING
                after = state.with_node(at, mood=mood, waits_for=())
                yield f"the quarantine of node {at} ends", after
        elif not node.read:
            for counter in self._counters_of_others(state, at):
                after = state.with_node(at, read=counter + 1)
                yield f"others tell node {at} of {counter}", after
        else:
            counter = max(node.counter, node.read - 1)
            after = state.with_node(at, mood=VOTING, counter=counter, read=0)
            yield f"node {at} votes again, from {counter}", after

    def _counters_of_others(self, state: State, at: int) -> set[int]:
        """Return what the greatest counter of enough others may be."""
        voting = [
            node.counter
            for other, node in enumerate(state.nodes)
            if other != at and node.mood == VOTING
        ]
        return {max(some) for some in combinations(voting, self._sources)}


def _name(index: int) -> str:
    return "ABCDE"[index]
