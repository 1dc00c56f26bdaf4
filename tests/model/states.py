"""One moment of the model: its nodes, its attempts, what was granted.

What an attempt has been told by each node is kept with the node, so that states
which differ in nothing but the order of the nodes are seen to be equal.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable


class Phase(enum.IntEnum):
    """Where an attempt is. It only moves down this list."""

    IDLE = 0
    ASKING = 1
    RAISING = 2
    HOLDING = 3
    OVER = 4


# What a node is to an attempt that is asking: the number that it granted, or:
UNASKED, REFUSED = 0, -1
# ... and to one that has decided on its fence:
APART, COUNTED, AGREED = 0, -2, -3
# Whether a node votes, or waits, or lacks its counters:
VOTING, QUARANTINED, UNSYNCED = "voting", "quarantined", "unsynced"


class Node(NamedTuple):
    """One node, and what it has told each attempt.

    Attributes:
        counter: Its fence counter.
        holder: Which attempt's key it keeps; -1 for none.
        mood: Whether it votes.
        waits_for: Attempts that its quarantine outlives.
        read: What it was told of the others' counters, while it is unsynced.
        told: Per attempt, what it is to it.
    """

    counter: int
    holder: int
    mood: str
    waits_for: tuple[int, ...]
    read: int
    told: tuple[int, ...]


class Attempt(NamedTuple):
    """One attempt at the lock.

    Attributes:
        phase: Where it is.
        fence: The number that it decided on.
        before: The greatest fence that had been granted when it began.
    """

    phase: Phase
    fence: int = 0
    before: int = 0


IDLE, OVER = Attempt(Phase.IDLE), Attempt(Phase.OVER)


class State(NamedTuple):
    """Everything at one moment.

    Attributes:
        nodes: The nodes.
        attempts: The attempts; they begin in this order.
        grants: The fences that were granted, in the order of the grants.
        losses: How many losses of memory are left to happen.
        bumps: How many bumps by other keys are left to happen.
    """

    nodes: tuple[Node, ...]
    attempts: tuple[Attempt, ...]
    grants: tuple[int, ...]
    losses: int
    bumps: int

    def __str__(self) -> str:
        return f"counters {[node.counter for node in self.nodes]}"

    def key(self) -> Hashable:
        """Return what is equal for states that differ in the order of the nodes."""
        return (tuple(sorted(self.nodes)), *self[1:])

    def with_node(self, index: int, **changes: object) -> State:
        """Return this state with something else in one node."""
        node = self.nodes[index]._replace(**changes)  # type: ignore[arg-type]
        nodes = (*self.nodes[:index], node, *self.nodes[index + 1 :])
        return self._replace(nodes=nodes)

    def with_attempt(self, index: int, attempt: Attempt) -> State:
        """Return this state with one attempt moved on."""
        attempts = (*self.attempts[:index], attempt, *self.attempts[index + 1 :])
        return self._replace(attempts=attempts)

    def telling(self, index: int, told: tuple[int, ...]) -> State:
        """Return this state with other things told to one attempt, node by node."""
        nodes = tuple(
            node._replace(told=(*node.told[:index], what, *node.told[index + 1 :]))
            for node, what in zip(self.nodes, told, strict=True)
        )
        return self._replace(nodes=nodes)
