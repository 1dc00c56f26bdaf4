"""Whether histories of a mutex and of a register are linearizable: Spin decides it.

A history is data for ``linearizability.pml``, and Spin searches for an order of its
operations that explains it. So the checker is not our own, and the model
is short enough to read. No index for Python, npm or Debian has one of the checkers that
this field knows: Knossos, Porcupine, Elle. They can read what `write_jepsen` writes.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from spec.check import build, result_of, visit
from tests.torture.histories import Run

_MODEL = Path(__file__).with_name("linearizability.pml")
_DEPTH = 2_000_000
_FREE, _HELD = 0, 1  # the values of a lock; 0 is also that of an empty register
NEVER = float("inf")


class Kind(IntEnum):
    """Kinds of operations, with their names in the model: see ``is_possible`` there."""

    ACQUIRE = 0
    RELEASE = 1
    READ = 2
    WRITE = 3
    REFUSED = 4
    MAYBE = 5


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a run; times are in monotonic seconds."""

    kind: Kind
    fence: int
    value: Any  # of a register; None while it is empty
    invoked: float
    returned: float
    run: str = ""


def mutexes(runs: Iterable[Run]) -> dict[str, list[Operation]]:
    """Return the operations on each lock without a limit.

    A run is an ``acquire`` between its request and its begin, and a ``release`` between
    the end of its proof and its own end, which one that was killed does not have.
    """
    found: defaultdict[str, list[Operation]] = defaultdict(list)
    for run in runs:
        if run.limits or run.proven <= run.began:
            continue  # a step of clocks, or a pause, has taken away all of its proof
        ended = NEVER if run.outcome is None else run.last
        for key in run.keys:
            facts = (run.fence, _HELD, run.asked, run.began, run.id)
            found[key].append(Operation(Kind.ACQUIRE, *facts))
            facts = (run.fence, _FREE, run.proven, ended, run.id)
            found[key].append(Operation(Kind.RELEASE, *facts))
    return dict(found)


def registers_of(runs: Iterable[Run]) -> dict[str, list[Operation]]:
    """Return the operations on each fenced cell, by the name of its lock."""
    found: defaultdict[str, list[Operation]] = defaultdict(list)
    ends = {"stored": Kind.WRITE, "refused": Kind.REFUSED}
    for run in runs:
        invoked = None
        for line in run.lines:
            if line["event"] == "found":
                value = next(iter(line["value"]), None)
                facts = (line["fence"], value, line["asked"], line["at"], run.id)
                found[run.key].append(Operation(Kind.READ, *facts))
            elif line["event"] == "writing":
                invoked = line["at"]
            elif invoked is not None and line["event"] in ends:
                facts = (run.fence, run.id, invoked, line["at"], run.id)
                found[run.key].append(Operation(ends[line["event"]], *facts))
                invoked = None
        if invoked is not None:  # perhaps it has written, perhaps not
            facts = (run.fence, run.id, invoked, NEVER, run.id)
            found[run.key].append(Operation(Kind.MAYBE, *facts))
    return dict(found)


def write_jepsen(histories: Mapping[str, Sequence[Operation]], path: Path) -> None:
    """Write histories as Jepsen does: one event a line, times in ns.

    Each operation has a process of its own. One without an end has no second line.
    """
    events, processes = [], itertools.count()
    for key, one in ((key, one) for key, found in histories.items() for one in found):
        is_write = one.kind in (Kind.WRITE, Kind.REFUSED, Kind.MAYBE)
        facts: dict[str, Any] = {
            "process": next(processes),
            "f": "write" if is_write else one.kind.name.lower(),
            "key": key,
            "value": [one.fence, one.value],
        }
        end = {**facts, "refused": True} if one.kind is Kind.REFUSED else facts
        events.append((one.invoked, {"type": "invoke", **facts}))
        if one.returned < NEVER:
            events.append((one.returned, {"type": "ok", **end}))
    events.sort(key=lambda event: event[0])
    with path.open("w", encoding="utf-8") as file:
        for index, (at, facts) in enumerate(events):
            line = {"index": index, **facts, "time": round(at * 1_000_000_000)}
            file.write(json.dumps(line) + "\n")


# -- The search ------------------------------------------------------------------------


def unexplained(
    histories: Mapping[str, Sequence[Operation]],
) -> dict[str, Operation]:
    """Return the first operation that no order explains, of each history with one.

    Raises:
        RuntimeError: Spin did not end a search.
    """
    found = {}
    parts = {name: _parts(operations) for name, operations in histories.items()}
    with tempfile.TemporaryDirectory(prefix="redlock-linearizability-") as name:
        folder = Path(name)
        shutil.copy(_MODEL, folder)
        slots = max(
            (slot for _, events in parts.values() for *_, slot in events), default=0
        )
        most = max(map(len, histories.values()), default=0)
        # One more: C reads the guards of the model also after the last event.
        defines = [f"SLOTS={slots + 1}", f"MOST={most + 1}"]
        build(folder, _MODEL.stem, defines=defines, compiled=["-DSAFETY"])
        for key, (operations, events) in parts.items():
            (folder / "history").write_text(_as_text(operations, events), "ascii")
            said, cpu = visit(folder, [f"-m{_DEPTH}", "-w22"])
            result = result_of(said, cpu)
            if not (result.errors or result.is_complete):
                raise RuntimeError(f"the search did not end: {said[-500:]}")
            if not result.errors:
                lines = [line for line in said.splitlines() if "EXPLAINED" in line]
                _, number, _ = events[int(lines[-1].split()[1]) + 1]
                found[key] = operations[number]
    return found


def _parts(
    history: Sequence[Operation],
) -> tuple[list[Operation], list[tuple[bool, int, int]]]:
    """Return operations, and their events: is it a return, operation and slot.

    A write without an answer may take effect later, or never. When the register has
    accepted a greater fence, it can have no effect any more. So it counts as returned
    then, which keeps the number of orders small.
    """
    operations = [*history]
    accepted = sorted(
        (one.returned, one.fence) for one in operations if one.kind is Kind.WRITE
    )
    for number, one in enumerate(operations):
        if one.kind is Kind.MAYBE:
            later = (at for at, fence in accepted if fence > one.fence)
            end = max(next(later, NEVER), one.invoked)
            operations[number] = dataclasses.replace(one, returned=end)
    # At one instant, invocations come first: such operations are concurrent.
    moments = [(one.invoked, False, number) for number, one in enumerate(operations)]
    moments += [(one.returned, True, number) for number, one in enumerate(operations)]
    events: list[tuple[bool, int, int]] = []
    free, slots = [*range(len(operations))], [0] * len(operations)
    for at, is_return, number in sorted(moments):
        if at == NEVER:
            break
        if is_return:
            heapq.heappush(free, slots[number])
        else:
            slots[number] = heapq.heappop(free)
        events.append((is_return, number, slots[number]))
    return operations, events


def _as_text(
    operations: Sequence[Operation], events: Sequence[tuple[bool, int, int]]
) -> str:
    # Numbers from 1 in their order, because an int of Spin has 32 bits.
    fences = sorted({one.fence for one in operations} - {0})
    ranks = {0: 0} | {fence: rank for rank, fence in enumerate(fences, start=1)}
    values = {None: _FREE, _FREE: _FREE, _HELD: _HELD}
    lines = [f"{len(operations)} {len(events)}"]
    for one in operations:
        value = values.setdefault(one.value, len(values))
        lines.append(f"{one.kind.value} {ranks[one.fence]} {value}")
    lines += [f"{is_return:d} {number} {slot}" for is_return, number, slot in events]
    return "\n".join(lines) + "\n"
