"""The line of one key, for calls with ``in_order``, as a state machine.

A publisher numbers a call on a majority of the nodes before it sends the message. A
worker asks a majority which calls are before the call, and runs it if none is::

                number (each node)        send           ask, lock
    new ──► asking ──► settling ──► sent ──────► waits ───────────► runs ──► ended
                (replies differ)                   │                          ▲
                                                   └── skipped, failed, ... ──┘

Messages to single nodes are late or lost: a step of a node may happen at any time, or
never. Nodes may lose their memory. Clocks of publishers differ.

The lock is not modelled: the next call runs when the one before it has ended or runs no
more, and the lock sees to the rest. What is searched for:

* **order**: a call runs although another one was sent before this one was published,
  and has neither run nor ended;
* **a place that outlives its call**: the call has left the line on a node, no message
  of it is on its way to that node, and the node has its place;
* **a circle**: calls wait for each other, and no message is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

ENDS = (  # of a call that waits, other than its run
    *("skipped", "failed", "revoked", "expired", "unknown", "killed", "not sent"),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of the line. Each of them can be broken, to see what it is for.

    Attributes:
        every_count: The highest count of calls that are before counts, of all replies.
        majority_tells: A call does not run if fewer nodes than a majority tell it that.
        greatest: A node gives a greater number than all that it has given.
        settles: Replies that differ are settled: all nodes get the greatest number.
        numbers_first: A call is sent when a majority has numbered it, not before.
        remembers: A node remembers which calls have left.
        leaves: The ends at which a call leaves the line.
    """

    every_count: bool = True
    majority_tells: bool = True
    greatest: bool = True
    settles: bool = True
    numbers_first: bool = True
    remembers: bool = True
    leaves: tuple[str, ...] = (*ENDS, "ran")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a search.

    Attributes:
        nodes: How many nodes there are.
        clocks: Of each call, what the clock of its publisher says.
        ends: The ends, other than a run, that calls may have.
        forgets: How many nodes may lose their memory.
        known: The greatest number that each node has given before, to other calls.
    """

    nodes: int = 3
    clocks: tuple[int, ...] = (2, 1)
    ends: tuple[str, ...] = ()
    forgets: int = 0
    known: tuple[int, ...] = (0, 0, 0)


class Node(NamedTuple):
    """The memory of one node: the greatest number, the places, and who has left."""

    greatest: int = 0
    places: tuple[tuple[int, int], ...] = ()  # (number, call), in their order
    left: frozenset[int] = frozenset()


class Call(NamedTuple):
    """One call.

    Attributes:
        phase: Where it is, as in the picture above; or how it has ended.
        number: What its publisher asks for, and in the end its number.
        replies: The number that each node has replied in this round.
        late: Nodes that the first message may still reach.
        leaving: Nodes that its leave may still reach.
        after: The calls that must run before it.
    """

    phase: str = "new"
    number: int = 0
    replies: tuple[tuple[int, int], ...] = ()
    late: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()


class State(NamedTuple):
    """The nodes, the calls, and how many nodes may still lose their memory."""

    nodes: tuple[Node, ...]
    calls: tuple[Call, ...]
    forgets: int


_PUBLISHING = ("asking", "settling")
_OVER = (*ENDS, "ran")


class Line:
    """The steps of the line under some rules, within bounds."""

    def __init__(self, rules: Rules, bounds: Bounds) -> None:
        self._rules, self._bounds = rules, bounds
        self._all = range(bounds.nodes)
        self._quorum = bounds.nodes // 2 + 1

    def start(self) -> State:
        """Return the first state: nothing is published."""
        nodes = tuple(map(Node, self._bounds.known[: self._bounds.nodes]))
        return State(nodes, (Call(),) * len(self._bounds.clocks), self._bounds.forgets)

    def key(self, state: State) -> str:
        """Return a name that is equal for states which differ in names of nodes."""
        nodes = sorted(
            (
                node.greatest,
                node.places,
                sorted(node.left),
                [dict(call.replies).get(index) or 0 for call in state.calls],
                [index in call.late for call in state.calls],
                [index in call.leaving for call in state.calls],
            )
            for index, node in enumerate(state.nodes)
        )
        calls = [(call.phase, call.number, call.after) for call in state.calls]
        return str((nodes, calls, state.forgets))

    # -- steps -----------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every next step of a state."""
        for which, call in enumerate(state.calls):
            yield from self._of_publisher(state, which, call)
            yield from self._of_messages(state, which, call)
            if call.phase == "waits":
                yield from self._of_worker(state, which, call)
            elif call.phase == "runs":
                yield f"call {which} ends its run", self._ended(state, which, "ran")
        if state.forgets:
            for index in self._all:
                after = _with_node(state, index, Node())
                yield f"node {index} forgets", after._replace(forgets=state.forgets - 1)

    def _of_publisher(
        self, state: State, which: int, call: Call
    ) -> Iterator[tuple[str, State]]:
        if call.phase == "new":
            sent = frozenset(
                other
                for other, one in enumerate(state.calls)
                if one.phase == "waits" and other != which
            )
            began = call._replace(
                phase="asking" if self._rules.numbers_first else "waits",
                number=self._bounds.clocks[which],
                late=frozenset(self._all),
                after=sent,
            )
            yield f"call {which} is published", _with_call(state, which, began)
        if call.phase in _PUBLISHING and len(call.replies) >= self._quorum:
            numbers = {number for _, number in call.replies}
            number = max(numbers)
            settled = len(numbers) == 1 or not self._rules.settles
            phase = "waits" if settled else "settling"
            known = call._replace(phase=phase, number=number, replies=())
            yield f"call {which} has {number}: {phase}", _with_call(state, which, known)
        if call.phase == "asking" and "not sent" in self._bounds.ends:
            yield f"call {which} is not sent", self._ended(state, which, "not sent")

    def _of_messages(
        self, state: State, which: int, call: Call
    ) -> Iterator[tuple[str, State]]:
        for index in call.late:
            node, number = self._numbered(
                state.nodes[index], which, self._bounds.clocks[which], is_given=False
            )
            after = call._replace(late=call.late - {index})
            if call.phase == "asking":
                after = after._replace(replies=_with(call.replies, index, number))
            changed = _with_call(_with_node(state, index, node), which, after)
            yield f"node {index} numbers call {which}: {number}", changed
        if call.phase == "settling":
            for index in {*self._all} - call.late - {n for n, _ in call.replies}:
                node, number = self._numbered(
                    state.nodes[index], which, call.number, is_given=True
                )
                after = call._replace(replies=_with(call.replies, index, number))
                changed = _with_call(_with_node(state, index, node), which, after)
                yield f"node {index} gives call {which} its {number}", changed
        for index in call.leaving:
            node = _without_place(state.nodes[index], which)
            if self._rules.remembers:
                node = node._replace(left=node.left | {which})
            after = call._replace(leaving=call.leaving - {index})
            changed = _with_call(_with_node(state, index, node), which, after)
            yield f"node {index} hears that call {which} has left", changed

    def _numbered(
        self, node: Node, which: int, least: int, *, is_given: bool
    ) -> tuple[Node, int]:
        """Run ``number_in_backlog``."""
        number = least
        if not is_given and self._rules.greatest:
            number = max(least, node.greatest + 1)
        if which in node.left:
            return node, number
        node = _with_place(node, which, number)
        return node._replace(greatest=max(number, node.greatest)), number

    def _of_worker(
        self, state: State, which: int, call: Call
    ) -> Iterator[tuple[str, State]]:
        """Ask each majority: ``join_backlog`` on its nodes, as one step."""
        needed = self._quorum if self._rules.majority_tells else 1
        for asked in combinations(self._all, needed):
            joined, counts = state, []
            for index in asked:
                node = _with_place(state.nodes[index], which, call.number)
                joined = _with_node(joined, index, node)
                counts.append(_before(node, which))
            before = max(counts) if self._rules.every_count else min(counts)
            if before:
                yield f"call {which} asks {asked}, and waits on", joined
                continue
            runs = _with_call(joined, which, call._replace(phase="runs"))
            left = self._leaves(runs, which, "ran")
            yield f"call {which} asks {asked}, and runs", left
        for end in self._bounds.ends:
            if end != "not sent":
                yield f"call {which} is {end}", self._ended(state, which, end)

    def _ended(self, state: State, which: int, end: str) -> State:
        ended = _with_call(state, which, state.calls[which]._replace(phase=end))
        return ended if end == "ran" else self._leaves(ended, which, end)

    def _leaves(self, state: State, which: int, end: str) -> State:
        """Tell all nodes that a call leaves, unless this end is forgotten."""
        if end not in self._rules.leaves:
            return state
        call = state.calls[which]
        return _with_call(state, which, call._replace(leaving=frozenset(self._all)))

    # -- what must not be ------------------------------------------------------------

    def violation(self, state: State) -> str:
        """Return what is wrong with a state; ``""`` if nothing is."""
        for which, call in enumerate(state.calls):
            if call.phase == "runs":
                for other in call.after:
                    if state.calls[other].phase == "waits":
                        return f"call {which} runs before call {other}"
            if call.phase in _OVER:
                for index in {*self._all} - call.leaving - call.late:
                    if any(one == which for _, one in state.nodes[index].places):
                        return f"the place of call {which} outlives it"
        return self._circle(state)

    def _circle(self, state: State) -> str:
        """Return that calls wait for each other, when no message is on its way."""
        waiting = [n for n, call in enumerate(state.calls) if call.phase == "waits"]
        if not waiting or any(
            call.late or call.leaving or call.phase not in ("waits", *_OVER)
            for call in state.calls
        ):
            return ""
        # Each of them joins everywhere, time after time.
        nodes = state.nodes
        for which in waiting:
            number = state.calls[which].number
            nodes = tuple(_with_place(node, which, number) for node in nodes)
        if all(any(_before(node, which) for node in nodes) for which in waiting):
            return "calls wait for each other"
        return ""


# -- changed copies ----------------------------------------------------------------


def _with_node(state: State, index: int, node: Node) -> State:
    nodes = state.nodes
    return state._replace(nodes=(*nodes[:index], node, *nodes[index + 1 :]))


def _with_call(state: State, which: int, call: Call) -> State:
    calls = state.calls
    return state._replace(calls=(*calls[:which], call, *calls[which + 1 :]))


def _without_place(node: Node, which: int) -> Node:
    return node._replace(places=tuple(one for one in node.places if one[1] != which))


def _with_place(node: Node, which: int, number: int) -> Node:
    others = _without_place(node, which).places
    return node._replace(places=tuple(sorted((*others, (number, which)))))


def _before(node: Node, which: int) -> int:
    return [call for _, call in node.places].index(which)


def _with(
    replies: tuple[tuple[int, int], ...], index: int, number: int
) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((*replies, (index, number))))
