"""The verdicts: counts that must be zero, and counts that may be more.

=============================  ===================================================
must be zero                   one is
=============================  ===================================================
beliefs that break the         two clients believed at one instant that they held
promise                        a lock, and no step of a clock explains it
fences repeated or too low     two grants of a key have the same fence; or a grant
                               that was requested after another one has a lower one
locks without an order         no order of the operations on a lock explains their
                               results (see ``linearizability``)
registers without an order     the same for a register
accepted writes with a lower   the store accepted a write with a lower fence than
fence                          that of the write before
acknowledged elements lost     an element was added under the fence and
with the fence                 acknowledged, and it is not in its list
keys that no client got        after the end of the faults, no client got the lock
processes that did not end     of a key; a worker or the store outlived SIGTERM
=============================  ===================================================

Promised is what ``docs/explanation/safety.md`` promises. A lock that g of the N nodes
granted survives forward steps of the clocks of g − (N − q) − 1 of them, so of g − 3 of
five. With one more, the promise of the lock ends at this step, and its belief may
collide. The promise of the fence does not depend on clocks: it has no such exception.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

from tests.partitions.faults import STEP, STEP_TAKES
from tests.partitions.history import Hold, Operation, by_key, holds, operations
from tests.partitions.linearizability import failure_of_mutex, failure_of_register
from tests.partitions.worker import FENCED, UNFENCED
from tests.torture.report import Counts

_NEEDED = 3  # nodes that granted, of five: with fewer, others are a majority


class Verdicts(Counts):
    """Counts what the history shows.

    Attributes:
        operations: The number of operations by function and outcome.
    """

    def __init__(self, lines: list[dict[str, Any]], store: dict[str, Any]) -> None:
        super().__init__()
        self._all = operations(lines)
        self._store = store
        self._steps: list[tuple[float, str]] = [
            (line["at"], line["node"])
            for line in lines
            if line["event"] == STEP and line["step"] > 0
        ]
        self.operations = Counter(f"{one.f} {_outcome(one)}" for one in self._all)

    def judge(self) -> None:
        """Count everything that the history shows."""
        by_lock: defaultdict[str, list[Hold]] = defaultdict(list)
        for hold in holds(self._all):
            hold.promised = self._promised(hold)
            by_lock[hold.key].append(hold)
        self._judge_locks(by_lock)
        failures = map(failure_of_mutex, by_lock.values())
        self.found("locks without an order", [str(one) for one in failures if one])
        registers = by_key(self._all, "read", "write").values()
        failures = map(failure_of_register, registers)
        self.found("registers without an order", [str(one) for one in failures if one])
        self._judge_store()
        self._judge_elements()

    def _promised(self, hold: Hold) -> float:
        """Return until when exclusion was promised: steps of clocks may end it."""
        stepped: set[str] = set()
        for at, node in self._steps:
            if hold.asked <= at + STEP_TAKES and at < hold.believed:
                stepped.add(node)
                if len(stepped) > hold.votes - _NEEDED:
                    return at
        return hold.believed

    def _judge_locks(self, by_lock: dict[str, list[Hold]]) -> None:
        broken, fences = [], []
        for all_holds in by_lock.values():
            for one, other in itertools.combinations(all_holds, 2):
                self.apart["overlaps of clients at work"] += one.overlaps(other)
                if one.breaks_the_promise(other):
                    broken.append(f"{one}; {other}")
                elif one.collides(other):
                    self.apart["beliefs at once after steps of clocks"] += 1
                if one.fence == other.fence:
                    fences.append(f"the same fence: {one}; {other}")
                elif one.began < other.asked and one.fence > other.fence:
                    fences.append(f"a lower fence: {one}; {other}")
        self.found("beliefs that break the promise", broken)
        self.found("fences repeated or too low", fences)

    def _judge_store(self) -> None:
        last: defaultdict[str, int] = defaultdict(int)
        lower = []
        for name, fence in self._store["accepted"]:
            if fence < last[name]:
                lower.append(f"{name}: {fence} after {last[name]}")
            last[name] = fence
        self.found("accepted writes with a lower fence", lower)

    def _judge_elements(self) -> None:
        lost: dict[str, list[str]] = {FENCED: [], UNFENCED: []}
        for one in self._all:
            if one.f != "add" or one.type != "ok":
                continue
            _, elements = self._store["objects"][one.key]
            if one.value not in elements:
                lost[one.key.split("/")[1]].append(str(one))
        self.found("acknowledged elements lost with the fence", lost[FENCED])
        self.apart["acknowledged elements lost without it"] = len(lost[UNFENCED])
        refused = sum(_outcome(one) == "refused" for one in self._all)
        self.apart["writes that the fence refused"] = refused
        unknown = sum(one.type == "info" for one in self._all)
        self.apart["operations without an answer"] = unknown


def _outcome(one: Operation) -> str:
    facts = one.facts or {}
    if facts.get("refused") or facts.get("error") == "refused":
        return "refused"
    return one.type
