"""Run mutmut on one module, and compare what survives with the list.

mutmut runs in ``build/mutation/<module>/``, on a copy of the project. The mutants that
survive the fast tests, and are not in the list, are then judged by the slow ones. A
later run keeps what was killed, if its function is as it was: delete the folder to
begin anew. What took too long is judged again, since the machine may have been busy.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.mutation.modules import MODULES, ROOT, Module
from tests.mutation.selection import WITH_SERVERS
from tests.mutation.survivors import Change, listed, stripped

FIGURES = Path(__file__).with_name("figures.json")
_FAST = "--fast"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SURVIVED, _NO_TESTS = 0, 33  # exit codes of pytest, as mutmut records them
_TIMEOUTS = (24, 36, 152, 255, -24)
_HISTORIES = "150"  # of the simulator: a mutant pays for all of them
_CONFIGURATION = """
[tool.mutmut]
source_paths = ["celery_redlock"]
only_mutate = ["{path}"]
pytest_add_cli_args = [
    "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "tests.mutation.selection",
    "--hypothesis-seed=0",
]
pytest_add_cli_args_test_selection = {tests}
timeout_constant = 15.0
timeout_multiplier = 8.0
track_dependencies = false
use_git_change_detection = false
"""


def fingerprint(module: Module) -> str:
    """Return what tells whether the code is still the one that was judged."""
    code = "\n".join(code_of(module.source))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def code_of(source: str) -> list[str]:
    """Return the lines of a module without comments, docstrings and empty lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            for row in range(text.lineno, (text.end_lineno or text.lineno) + 1):
                lines[row - 1] = ""
    return [line.rstrip() for line in lines if line.strip()]


def main(words: list[str]) -> int:
    """Judge these modules, write the figures, and print what is not explained.

    With ``--fast`` the slow tests are left out.
    """
    names = [word for word in words if word != _FAST]
    unknown = sorted(set(names) - set(MODULES))
    if unknown or not names:
        print(f"Name modules, of: {', '.join(MODULES)}.", file=sys.stderr)  # noqa: T201
        return 2
    return max([judge(name, with_slow=_FAST not in words) for name in names])


def judge(name: str, *, with_slow: bool) -> int:
    """Judge one module. Return 0 if the list has all that survives, and no more."""
    module, folder = MODULES[name], ROOT / "build" / "mutation" / name
    _copy(folder)
    _mutmut(folder, module, module.fast)
    strange = set(_survivors(folder, module)) - set(_explained(name, folder, module))
    if strange and with_slow:
        _mutmut(folder, module, module.slow, sorted(strange), with_servers=True)
    results = _results(folder, module)
    if None in results.values():
        print(f"{name}: mutmut did not end its run.", file=sys.stderr)  # noqa: T201
        return 2
    survivors, known = _survivors(folder, module), _explained(name, folder, module)
    late = [key for key, code in results.items() if code in _TIMEOUTS]
    figures = {
        "source": fingerprint(module),
        "tests": "fast and slow" if with_slow else "fast",
        "mutants": len(results),
        "killed": len(results) - len(survivors) - len(late),
        "timeouts": len(late),
        "survived": len(survivors),
        "explained": len(known),
    }
    unexplained = {key: one for key, one in survivors.items() if key not in known}
    gone = listed(name) - set(known.values())
    _write(name, figures)
    _report(name, figures, unexplained, gone)
    return 1 if unexplained or gone else 0


def _survivors(folder: Path, module: Module) -> dict[str, Change]:
    """Return the mutants that no test has noticed, by mutmut's names."""
    codes = _results(folder, module).items()
    lived = [key for key, code in codes if code in (_SURVIVED, _NO_TESTS)]
    return {key: _change(folder, module, key) for key in sorted(lived)}


def _explained(name: str, folder: Path, module: Module) -> dict[str, Change]:
    """Return those of them that are in the list."""
    known, survivors = listed(name), _survivors(folder, module)
    return {key: change for key, change in survivors.items() if change in known}


def _copy(folder: Path) -> None:
    """Copy what the tests need. Times of files are kept: mutmut looks at them."""
    folder.mkdir(parents=True, exist_ok=True)
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("celery_redlock", "tests"):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    shutil.rmtree(folder / "mutants" / "tests", ignore_errors=True)


def _mutmut(
    folder: Path,
    module: Module,
    tests: tuple[str, ...],
    only: Sequence[str] = (),
    *,
    with_servers: bool = False,
) -> None:
    """Let these tests judge the mutants that no test has killed, or some of them."""
    settings = _CONFIGURATION.format(path=module.path, tests=json.dumps(list(tests)))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(project + settings, "utf-8")
    (folder / "mutants" / "mutmut-stats.json").unlink(missing_ok=True)
    meta = _meta(folder, module)
    if meta.exists():
        known = json.loads(meta.read_text("utf-8"))
        codes = known["exit_code_by_key"]
        undecided = {_SURVIVED, _NO_TESTS, *_TIMEOUTS}
        for key, code in codes.items():
            if code in undecided and (not only or key in only):
                codes[key] = None
        meta.write_text(json.dumps(known), "utf-8")
    environment = {**os.environ, "REDLOCK_HISTORIES": _HISTORIES}
    environment.pop("PYTHONPATH", None)
    at_once = os.cpu_count() or 1
    if with_servers:
        environment[WITH_SERVERS], at_once = "1", 1
    subprocess.run(  # noqa: S603  (all words are ours)
        [sys.executable, "-m", "mutmut", "run", "--max-children", str(at_once), *only],
        cwd=folder,
        env=environment,
        check=False,
    )


def _meta(folder: Path, module: Module) -> Path:
    return folder / "mutants" / f"{module.path}.meta"


def _results(folder: Path, module: Module) -> dict[str, int | None]:
    """Return for each mutant how pytest ended; None if it did not run."""
    meta: dict[str, Any] = json.loads(_meta(folder, module).read_text("utf-8"))
    return dict(meta["exit_code_by_key"])


def _change(folder: Path, module: Module, key: str) -> Change:
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # noqa: PLC0415
    from mutmut.utils.file_utils import change_cwd  # noqa: PLC0415

    with change_cwd(folder):
        diff = get_diff_for_mutant(key, path=module.path)
    return Change(function_of(key), *_sides(diff))


def function_of(key: str) -> str:
    """Return the name of the function: ``x_f__mutmut_1`` or ``xǁClassǁf__mutmut_1``."""
    name = key.rpartition(".")[2].partition("__mutmut_")[0]
    method = re.fullmatch("xǁ(.+)ǁ(.+)", name)
    return ".".join(method.groups()) if method else name.removeprefix("x_")


def _sides(diff: str) -> Iterator[str]:
    lines = [line for line in diff.splitlines() if line[:3] not in ("---", "+++")]
    for sign in "-+":
        yield stripped("\n".join(line[1:] for line in lines if line[:1] == sign))


def _write(name: str, figures: dict[str, Any]) -> None:
    known = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    known[name] = figures
    ordered = {module: known[module] for module in MODULES if module in known}
    FIGURES.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")


def _report(
    name: str, figures: dict[str, Any], strange: dict[str, Change], gone: set[Change]
) -> None:
    counts = ", ".join(f"{count} {word}" for word, count in list(figures.items())[2:])
    lines = [f"{name}: {counts}"]
    for key, change in strange.items():
        lines += [f"Survived, not explained: {key} in {change.function}"]
        lines += [f"  - {line}" for line in change.old.splitlines()]
        lines += [f"  + {line}" for line in change.new.splitlines()]
    for change in sorted(gone, key=str):
        lines += [f"Explained, but does not survive: {change}"]
    print("\n".join(lines))  # noqa: T201
