"""Check that a recorded history is one of the specification's.

A recorder of the code's histories writes down `Step` objects. Each is a step of
``lock.pml``. Spin takes them one by one: where the model says that a step is not
possible, or that a lease is not valid for so long, the history is refused.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from spec.check import FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CLIENTS, MOST_NODES = 16, 5
_ARRAYS = ("op", "who", "where", "much")


class Kind(IntEnum):
    """The kinds of steps, with their numbers in ``trace.pml``."""

    PASS = 0
    START = 1
    ACQUIRE = 2
    GRANT = 3
    BEGIN_RENEWAL = 4
    EXTEND = 5
    RENEW = 6
    GIVE_UP = 7
    FINISH = 8
    TAKE_LATE = 9
    RELEASE = 10
    FORGET = 11
    RESTART = 12
    VOTE = 13
    GONE = 14
    JUMP = 15
    NO_VOTE = 16


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history.

    Attributes:
        kind: What happens.
        client: The number of the attempt.
        node: The number of the node.
        much: Microseconds: that pass, of a ttl, or for which a lease is valid.
    """

    kind: Kind
    client: int = 0
    node: int = 0
    much: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name} client {self.client} node {self.node} {self.much}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The history of one lock.

    Attributes:
        nodes: How many nodes, at most `MOST_NODES`.
        max_ttl: Microseconds; for so long a node without memory must not vote.
        steps: What happened, in order.
    """

    nodes: int
    max_ttl: int
    steps: Sequence[Step]


def refusal_of(trace: Trace, defines: Sequence[str] = ()) -> str:
    """Return why the specification refuses a history; "" if it accepts it.

    Args:
        trace: The history.
        defines: Rules to take away, such as ``NO_TTL``.

    Raises:
        RuntimeError: Spin cannot read the model.
    """
    with tempfile.TemporaryDirectory(prefix="redlock-trace-") as name:
        folder = Path(name)
        for source in (*FOLDER.glob("*.pml"), *FOLDER.glob("*.h")):
            shutil.copy(source, folder)
        (folder / "history.h").write_text(_as_promela(trace))
        given = [f"-D{one}" for one in ("TRACE", *defines)]
        done = subprocess.run(  # noqa: S603  (the found Spin, our own models)
            [str(shutil.which("spin")), "-T", *given, "lock.pml"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if "ACCEPTED" in done.stdout:
        return ""
    if "assertion violated" not in done.stdout:
        raise RuntimeError(f"Spin cannot read the model: {done.stdout}{done.stderr}")
    lines = [line.strip() for line in done.stdout.splitlines()]
    failed = next(line for line in lines if "assertion violated" in line)
    text = failed.partition("text of failed assertion: ")[2] or failed
    at = next((line.split("=")[1] for line in lines if line.startswith("at =")), "0")
    return f"step {int(at)}, {trace.steps[int(at)]}: {text}"


def _as_promela(trace: Trace) -> str:
    steps = trace.steps
    columns = (
        [step.kind.value for step in steps],
        [step.client for step in steps],
        [step.node for step in steps],
        [step.much for step in steps],
    )
    defines = {
        "N": trace.nodes,
        "CLIENTS": MOST_CLIENTS,
        "LENGTH": len(steps),
        "MAX_TTL": trace.max_ttl,
    }
    lines = [f"#define {name} {value}" for name, value in defines.items()]
    for name, column in zip(_ARRAYS, columns, strict=True):
        values = ", ".join(map(str, column))
        lines.append(f"int {name}[{max(1, len(steps))}] = {{ {values} }};")
    return "\n".join(lines) + "\n"
