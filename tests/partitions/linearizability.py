"""Whether histories of a mutex and of a register are linearizable: Spin decides it.

A history is written as C arrays for ``linearizability.pml``, and Spin searches for an
order of its operations that explains it. So the checker is not our own, and the model
is short enough to read. No index for Python, npm or Debian has one of the checkers that
this field knows: Knossos, Porcupine, Elle. They can read ``history.jsonl``, which has
the form of Jepsen.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from spec.check import result_of, search
from tests.partitions.history import Hold, Operation

_MODEL = Path(__file__).with_name("linearizability.pml")
_DEPTH = 2_000_000
_FREE, _HELD = 0, 1  # the values of a lock; 0 is also that of an empty register
_NEVER = float("inf")


class _Kind(IntEnum):
    """Kinds of operations, with their names in the model: see ``is_possible`` there."""

    ACQUIRE = 0
    RELEASE = 1
    READ = 2
    WRITE = 3
    REFUSED = 4
    MAYBE = 5


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation as the model knows it."""

    kind: _Kind
    fence: int
    value: int
    source: Operation
    returned: float


# -- A mutex whose grants have growing fences ------------------------------------------


def failure_of_mutex(holds: Iterable[Hold]) -> Operation | None:
    """Return the operation on one lock that no order explains; None if there is one.

    A hold is an ``acquire`` between the request and the grant, and a ``release``
    between the last moment for which the belief is promised and its end.
    """
    steps = []
    for one in holds:
        if one.promised <= one.began:
            continue  # a step of clocks, or a pause, has taken away all of it
        got = _operation("acquire", one, one.asked, one.began)
        ended = _operation("release", one, one.promised, one.ended)
        steps += [
            _Step(_Kind.ACQUIRE, one.fence, _HELD, got, got.returned),
            _Step(_Kind.RELEASE, one.fence, _FREE, ended, ended.returned),
        ]
    return _failure(steps)


def _operation(f: str, hold: Hold, invoked: float, returned: float) -> Operation:
    facts = (hold.process, f, hold.key, invoked, hold.fence, returned)
    return Operation(*facts, "ok", hold.fence)


# -- A register that refuses a lower fence ---------------------------------------------


def failure_of_register(operations: Iterable[Operation]) -> Operation | None:
    """Return the operation on a register that no order explains; None if there is one.

    A write without an answer may take effect later, or never. When the register has
    accepted a greater fence, it can have no effect any more. So it counts as returned
    then, which keeps the number of orders small.
    """
    known = [one for one in operations if one.f == "write" or one.type == "ok"]
    accepted = sorted(
        (one.returned, one.value[0])
        for one in known
        if one.f == "write" and one.type == "ok" and not _is_refused(one)
    )
    numbers: dict[Any, int] = {None: _FREE}
    steps = []
    for one in known:
        if one.type == "fail":
            continue
        fence, text = one.result if one.f == "read" else one.value
        kind, returned = _Kind.READ, one.returned
        if one.f == "write":
            kind = _Kind.REFUSED if _is_refused(one) else _Kind.WRITE
        if one.type == "info":
            later = (at for at, accepts in accepted if accepts > fence)
            kind, returned = _Kind.MAYBE, next(later, _NEVER)
        if returned >= one.invoked:
            value = numbers.setdefault(text, len(numbers))
            steps.append(_Step(kind, fence, value, one, returned))
    return _failure(steps)


def _is_refused(one: Operation) -> bool:
    return bool((one.facts or {}).get("refused"))


# -- The search ------------------------------------------------------------------------


def _failure(steps: Sequence[_Step]) -> Operation | None:
    """Return the first operation whose return no order explains; None if there is one.

    Raises:
        RuntimeError: Spin did not end its search.
    """
    if not steps:
        return None
    events = sorted(
        # At one instant, invocations come first: such operations are concurrent.
        [(one.source.invoked, 0, number) for number, one in enumerate(steps)]
        + [
            (one.returned, 1, number)
            for number, one in enumerate(steps)
            if one.returned < _NEVER
        ]
    )
    with tempfile.TemporaryDirectory(prefix="redlock-linearizability-") as name:
        folder = Path(name)
        shutil.copy(_MODEL, folder)
        slots = _slots(events)
        (folder / "history.h").write_text(_as_c(steps, events, slots), "ascii")
        said, cpu = search(
            folder,
            _MODEL.stem,
            defines=[f"SLOTS={max(slots) + 1}"],
            compiled=["-DSAFETY"],
            options=[f"-m{_DEPTH}", "-w22"],
        )
    result = result_of(said, cpu)
    if result.errors:
        return None
    if not result.is_complete:
        raise RuntimeError(f"the search did not end: {said[-500:]}")
    explained = [line.split()[1] for line in said.splitlines() if "EXPLAINED" in line]
    _, _, number = events[int(explained[-1]) + 1]
    return steps[number].source


def _slots(events: Sequence[tuple[float, int, int]]) -> list[int]:
    """Return the slot of each event: the first that is free at the invocation."""
    free: list[int] = []
    taken: dict[int, int] = {}
    most, result = 0, []
    for _, is_return, number in events:
        if is_return:
            result.append(taken.pop(number))
            free.append(result[-1])
            free.sort()
            continue
        if not free:
            free.append(most)
            most += 1
        taken[number] = free.pop(0)
        result.append(taken[number])
    return result


def _as_c(
    steps: Sequence[_Step], events: Sequence[tuple[float, int, int]], slots: list[int]
) -> str:
    names = ", ".join(f"{kind.name} = {kind.value}" for kind in _Kind)
    # Numbers from 1 in the order of the fences, because an int of Spin has 32 bits.
    ranks = {fence: rank for rank, fence in enumerate(_fences(steps), start=1)}
    columns = {
        "kinds": [one.kind.value for one in steps],
        "fences": [ranks.get(one.fence, 0) for one in steps],
        "values": [one.value for one in steps],
        "returns": [is_return for _, is_return, _ in events],
        "operations": [number for _, _, number in events],
        "slots": slots,
    }
    lines = [
        f"enum {{ {names} }};",
        f"enum {{ FREE = {_FREE}, HELD = {_HELD}, EVENTS = {len(events)} }};",
    ]
    for name, column in columns.items():
        text = ", ".join(map(str, column))
        # One more: C reads the guards of the model also after the last event.
        lines.append(f"static const int {name}[] = {{ {text}, 0 }};")
    return "\n".join(lines) + "\n"


def _fences(steps: Sequence[_Step]) -> list[int]:
    """Return all fences in their order; 0, of a register that is empty, is none."""
    return sorted({one.fence for one in steps} - {0})
