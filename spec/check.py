"""Run Spin on a model, and read what it says.

Spin translates a model into a C program, which a C compiler translates, and which then
visits all states. Safety without a rule is searched breadth first, so that a
counterexample is as short as possible.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spec.catalogue import Rule, Run

Item = TypeVar("Item")

FOLDER = Path(__file__).parent
_MEMORY_MB = 7500
_DEPTH = 3_000_000  # of a search in depth
_SHORT = 60  # the longest counterexample to an LTL formula that is looked for


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of one search.

    Attributes:
        errors: How many errors; a search ends with the first one.
        is_complete: Whether all states were visited: no limit was reached.
        states: How many states.
        depth: The length of the longest history that was searched.
        memory_mb: The memory that the search took, in MB.
        cpu: The processor time of the search, in seconds.
        history: The steps of the counterexample; empty without an error.
    """

    errors: int
    is_complete: bool
    states: int
    depth: int
    memory_mb: float
    cpu: float
    history: tuple[str, ...]


def missing() -> str:
    """Return the program that is missing to run a model, or ""."""
    return next((name for name in ("spin", "gcc") if not shutil.which(name)), "")


def check_run(run: Run) -> Result:
    """Visit all states of a model with all of its rules."""
    is_live = "LIVENESS" in run.defines
    options = ["-a"] if is_live else []
    options += [f"-m{_DEPTH}", "-w24"]
    return _search(run.model, run.defines, options, is_live=is_live)


def check_rule(rule: Rule) -> Result:
    """Look for a counterexample to a model that is without a rule."""
    is_live = "LIVENESS" in rule.all_defines
    options = ["-a", f"-m{_SHORT}"] if is_live else ["-w22"]
    if rule.depth:
        options = [f"-m{rule.depth}", "-w24"]
    return _search(
        rule.model,
        rule.all_defines,
        options,
        is_live=is_live,
        is_breadth_first=not is_live and not rule.depth,
    )


def in_parallel(
    check: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[Result]:
    """Yield the results of these checks, in order."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(check, items)


def _search(
    model: str,
    defines: Iterable[str],
    options: list[str],
    *,
    is_live: bool,
    is_breadth_first: bool = False,
) -> Result:
    with tempfile.TemporaryDirectory(prefix="redlock-spec-") as name:
        folder = Path(name)
        for source in FOLDER.glob("*.pml"):
            shutil.copy(source, folder)
        compiled = [] if is_live else ["-DSAFETY"]
        compiled += ["-DBFS"] if is_breadth_first else []
        said, cpu = search(
            folder, model, defines=defines, compiled=compiled, options=options
        )
        history: tuple[str, ...] = ()
        if (folder / f"{model}.pml.trail").exists():
            given = [f"-D{name}" for name in defines]
            trail = _run(["spin", "-t", *given, f"{model}.pml"], folder)
            history = tuple(_steps(trail))
    return result_of(said, cpu, history)


def search(
    folder: Path,
    model: str,
    *,
    defines: Iterable[str] = (),
    compiled: Iterable[str] = (),
    options: Iterable[str] = (),
) -> tuple[str, float]:
    """Have Spin search a model, and return what it says and its seconds of CPU.

    Args:
        folder: The folder with the model, for all that is written.
        model: The name of its file, without ``.pml``.
        defines: Names for the model.
        compiled: Options of the C compiler, such as ``-DSAFETY``.
        options: Options of the search.
    """
    build(folder, model, defines=defines, compiled=compiled)
    return visit(folder, options)


def build(
    folder: Path,
    model: str,
    *,
    defines: Iterable[str] = (),
    compiled: Iterable[str] = (),
) -> None:
    """Make the program that searches a model; arguments as for `search`."""
    given = [f"-D{name}" for name in defines]
    _run(["spin", "-a", *given, f"{model}.pml"], folder)
    kind = [*compiled, "-DCOLLAPSE", f"-DMEMLIM={_MEMORY_MB}"]
    _run(["gcc", "-O2", "-w", *kind, "-o", "pan", "pan.c"], folder)


def visit(folder: Path, options: Iterable[str] = ()) -> tuple[str, float]:
    """Search with the program in a folder; results and options as for `search`."""
    return _visit(["./pan", "-E", *options], folder)  # -E: a history may end


def _run(command: list[str], folder: Path) -> str:
    """Run a command to its end, and return what it writes."""
    done = subprocess.run(  # noqa: S603  (programs of this machine, our own models)
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        message = f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}"
        raise RuntimeError(message)
    return done.stdout


def _visit(command: list[str], folder: Path) -> tuple[str, float]:
    """Run a search, and return what it writes and its processor time in seconds."""
    output = folder / "output"
    with output.open("w") as file:
        search = subprocess.Popen(  # noqa: S603  (what was compiled just now)
            command, cwd=folder, stdout=file, stderr=file
        )
        try:
            used = os.wait4(search.pid, 0)[2]
            search.returncode = 0
        except BaseException:
            search.kill()
            search.wait()
            raise
    return output.read_text(), used.ru_utime + used.ru_stime


def _steps(trail: str) -> Iterator[str]:
    """Yield the sentences of a counterexample."""
    for line in trail.splitlines():
        if "STEP " in line:
            yield line.split("STEP ", 1)[1].strip()
        elif "START OF CYCLE" in line:
            yield "(from here on, the steps repeat for ever)"


def result_of(said: str, cpu: float, history: tuple[str, ...] = ()) -> Result:
    """Read what a search says.

    Raises:
        RuntimeError: The search did not end.
    """

    def number(pattern: str) -> float:
        found = re.search(pattern, said)
        if not found:
            message = f"The search did not end: {said[-500:]}"
            raise RuntimeError(message)
        return float(found[1])

    stopped = ("too small", "out of memory", "Search not completed")
    return Result(
        errors=int(number(r"errors: (\d+)")),
        is_complete=not any(word in said for word in stopped),
        states=int(number(r"([\d.e+]+) states, stored")),
        depth=int(number(r"depth reached (\d+)")),
        memory_mb=number(r"([\d.]+)\s+total actual memory usage"),
        cpu=cpu,
        history=history,
    )
