"""Operations in the form of Jepsen: recorded by workers, read and written as JSON.

An operation begins with ``invoke``. It ends with ``ok`` (it happened), ``fail`` (it did
not happen) or ``info`` (not known). A line has the time, the process, the function
``f``, the key and the value. A process of a history does one operation at a time. After
``info``, its thread continues as another process, as in Jepsen: the operation may
still happen.

The functions:

===========  =========================================================================
acquire      take the lock of a key; the value is the fence
release      the client stops to believe that it holds the lock; see `Hold`
write        write the register of a key under a fence: ``[fence, value]``. ``ok`` with
             ``refused`` if the store has seen a greater fence
read         read the register of a key: ``[fence, value]``
add          add an element to a shared list; the key names the list
===========  =========================================================================
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.journal import Journal

OPERATION = "operation"  # the event in the journal
_NS = 1_000_000_000


class Recorder:
    """Records the operations of one thread in the journal.

    Args:
        journal: The journal of the run.
        number: The number of this thread among all threads of all workers.
        threads: How many threads there are.
    """

    def __init__(self, journal: Journal, number: int, threads: int) -> None:
        self._journal, self._threads = journal, threads
        self.process = number

    def invoke(self, f: str, key: str, value: Any = None, **facts: Any) -> None:
        """Record the begin of an operation."""
        self._note("invoke", f, key, value, **facts)

    def end(
        self, type_: str, f: str, key: str, value: Any = None, **facts: Any
    ) -> None:
        """Record the end of an operation: ``ok``, ``fail`` or ``info``."""
        self._note(type_, f, key, value, **facts)
        if type_ == "info":
            self.process += self._threads

    def _note(self, type_: str, f: str, key: str, value: Any, **facts: Any) -> None:
        self._journal.note(
            OPERATION,
            type=type_,
            process=self.process,
            f=f,
            key=key,
            value=value,
            **facts,
        )


@dataclass
class Operation:
    """One operation; times are in monotonic seconds."""

    process: int
    f: str
    key: str
    invoked: float
    value: Any  # of the invocation
    returned: float = float("inf")  # inf: never
    type: str = "info"
    result: Any = None  # the value of the end
    facts: dict[str, Any] | None = None

    def __str__(self) -> str:
        return (
            f"{self.f}({self.key}, {self.value}) by process {self.process}: "
            f"{self.type} {self.result} from {self.invoked:.3f} to {self.returned:.3f}"
        )


def operations(lines: Iterable[dict[str, Any]]) -> list[Operation]:
    """Return the operations of a journal by the time of their invocation."""
    found: list[Operation] = []
    running: dict[int, Operation] = {}
    events = [line for line in lines if line["event"] == OPERATION]
    # A stable sort: of two lines with one time, the earlier line comes first.
    for line in sorted(events, key=lambda line: float(line["at"])):
        process = line["process"]
        if line["type"] == "invoke":
            one = Operation(process, line["f"], line["key"], line["at"], line["value"])
            running[process] = one
            found.append(one)
        else:
            one = running.pop(process)
            one.type, one.result, one.facts = line["type"], line["value"], line
            one.returned = line["at"] if one.type != "info" else float("inf")
    return found


@dataclass
class Hold:
    """One lock of one client, and for how long it believed to hold it.

    The belief begins at the latest with the first ``lease.is_valid()`` that was true,
    and lasts at least until ``believed``: the last one that was true, or the end of
    the lease if that is later and the client found it to be over. It is over at
    ``ended``: the client released the lock, or its lease said that it is over.
    """

    key: str
    fence: int
    process: int
    asked: float
    began: float
    believed: float
    ended: float
    votes: int  # the fewest of the acquire and of the renewals
    promised: float = 0.0  # the belief, without what clock steps have taken away

    def overlaps(self, other: Hold) -> bool:
        """Tell whether both clients were at work at one instant."""
        return self.began < other.ended and other.began < self.ended

    def collides(self, other: Hold) -> bool:
        """Tell whether both clients believed at one instant that they held it."""
        return self.began < other.believed and other.began < self.believed

    def breaks_the_promise(self, other: Hold) -> bool:
        """Tell whether they collide, and no step of a clock explains it.

        A step may have ended a promise before the belief began: nothing breaks it.
        """
        began = max(self.began, other.began)
        return began < min(self.promised, other.promised)

    def __str__(self) -> str:
        return (
            f"{self.key}: process {self.process} asked at {self.asked:.3f}, got fence "
            f"{self.fence} at {self.began:.3f}, believed until {self.believed:.3f} and "
            f"ended at {self.ended:.3f} ({self.votes} votes)"
        )


def holds(found: Iterable[Operation]) -> list[Hold]:
    """Return the locks that clients believed to hold, by the time of the grant."""
    result = []
    open_: dict[tuple[str, int], Hold] = {}
    for one in found:
        if one.f == "acquire" and one.type == "ok":
            hold = Hold(
                *(one.key, one.result, one.process, one.invoked, one.returned),
                believed=one.returned,
                ended=float("inf"),
                votes=(one.facts or {})["votes"],
            )
            open_[one.key, hold.fence] = hold
            result.append(hold)
        elif one.f == "release":
            hold = open_[one.key, one.value]
            hold.believed, hold.ended = one.invoked, one.returned
            hold.votes = min(hold.votes, (one.facts or {})["votes"])
    return result


def by_key(found: Iterable[Operation], *functions: str) -> dict[str, list[Operation]]:
    """Return the operations with these functions, by key."""
    result: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in found:
        if one.f in functions:
            result[one.key].append(one)
    return dict(result)


def write_jepsen(lines: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the history as Jepsen does: one operation a line, times in ns."""
    events = [line for line in lines if line["event"] == OPERATION]
    names = ("type", "process", "f", "key", "value", "error", "refused", "votes")
    with path.open("w", encoding="utf-8") as file:
        ordered = sorted(events, key=lambda line: float(line["at"]))
        for index, line in enumerate(ordered):
            facts = {name: line[name] for name in names if name in line}
            time = round(line["at"] * _NS)
            file.write(json.dumps({"index": index, **facts, "time": time}) + "\n")
