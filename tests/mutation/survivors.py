"""The survivors that are explained: mutants that no test needs to notice."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

LIST = Path(__file__).with_name("survivors.yaml")


@dataclass(frozen=True)
class Change:
    """A change that mutmut made in one function.

    Attributes:
        function: The name of the function; of a method, ``Class.method``.
        old: The lines that were taken out, without their indentation.
        new: The lines that took their place.
    """

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Survivor:
    """A mutant in the list.

    Attributes:
        module: A name of ``MODULES``.
        change: What was changed.
        why: Why no test has to notice it.
    """

    module: str
    change: Change
    why: str


def explained(path: Path = LIST) -> list[Survivor]:
    """Return the list. One reason may explain several changes of a module."""
    entries = yaml.safe_load(path.read_text("utf-8")) or {}
    return [
        Survivor(
            module, Change(one["function"], one["old"].strip(), one["new"].strip()), why
        )
        for module, reasons in entries.items()
        for reason in reasons
        for why in [" ".join(reason["why"].split())]
        for one in reason["changes"]
    ]


def listed(module: str) -> set[Change]:
    """Return the explained changes of one module."""
    return {one.change for one in explained() if one.module == module}


def functions_of(source: str) -> dict[str, str]:
    """Return the text of each function of a module, each line without indentation."""
    return dict(_functions_in(ast.parse(source), source, ""))


def _functions_in(node: ast.AST, source: str, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions_in(child, source, f"{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (
                f"{prefix}{child.name}",
                stripped(ast.get_source_segment(source, child)),
            )


def stripped(text: str | None) -> str:
    """Return the text with each line stripped, and no empty lines."""
    lines = [line.strip() for line in textwrap.dedent(text or "").splitlines()]
    return "\n".join(line for line in lines if line)
