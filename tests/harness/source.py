"""Names in the package's source that users and operators see."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import celery_redlock


def source_nodes(*words: str) -> Iterator[ast.AST]:
    """Yield all syntax nodes of the files of the package that have one of the words."""
    for path in sorted(Path(celery_redlock.__path__[0]).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            yield from ast.walk(ast.parse(text))


def texts_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the texts among these nodes."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _calls(*names: str) -> Iterator[tuple[str, ast.Call]]:
    for node in source_nodes(*names):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@functools.cache
def finding_codes() -> set[str]:
    """Return the codes of the doctor's findings."""
    return {
        code
        for name, call in _calls("Finding")
        if name == "Finding"
        for code in texts_in(ast.walk(call.args[0]))
    }


def log_events() -> dict[str, set[str]]:
    """Return the fields of each event of the log."""
    found: dict[str, set[str]] = {}
    for name, call in _calls("log_fields", "self._log(", "self._fields(", "_warn_once"):
        events = list(texts_in(call.args))
        fields = {keyword.arg for keyword in call.keywords if keyword.arg}
        if name == "self._log":  # of a `NodeLog`
            fields = {"node", "reason"} if len(call.args) > 3 else {"node"}
        elif name == "self._fields":  # of an `OutageLog`
            fields = {"calls", "tries", "seconds"}
        elif name == "self._warn_once":  # of a `Runtime`
            fields = {"task"}
        elif name.endswith(".log_fields"):  # a method of a call, which adds these
            fields |= {"task", "task_id", "key"}
        elif name != "log_fields":
            continue
        if events:
            found.setdefault(events[0], set()).update(fields)
    return found
