"""Draw the packages of celery_redlock and their imports, as a Mermaid graph.

The picture is read from the source, so it is right for every layout. A *room* is a
module or a package directly in ``celery_redlock/``. An arrow from one room to another
means that the first imports the second. An arrow is left out where a longer way leads
to the same room.

``python docs/contributing/draw_house.py`` prints the graph and its measures.
``python docs/reference/generate.py`` writes it into ``architecture.md``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAME = "celery_redlock"
PACKAGE = Path(__file__).resolve().parents[2] / NAME
Imports = dict[str, set[str]]


def imports(package: Path = PACKAGE) -> Imports:
    """Return the rooms, each with the rooms that it imports while it runs.

    Imports for type checkers only are left out. The package itself is no room: it
    only hands out names of others.
    """
    rooms = {
        path.stem
        for path in package.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}
    found: Imports = {room: set() for room in sorted(rooms)}
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room in found:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[room] |= {other for other in _named(tree) if other in rooms} - {room}
    return found


def _named(tree: ast.AST) -> Iterator[str]:
    """Yield the rooms that a module names in its imports."""
    for node in _while_it_runs(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            top, _, rest = module.partition(".")
            if top == NAME and rest:
                yield rest.partition(".")[0]


def _while_it_runs(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree and leave out what only type checkers see."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield from _while_it_runs(child)


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return what can be reached from a room in one step or more."""
    found: set[str] = set()
    todo = [*graph[start]]
    while todo:
        room = todo.pop()
        if room not in found:
            found.add(room)
            todo += graph[room]
    return found


def storeys(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the rooms by height: each room is above all that it imports.

    Rooms that import each other in a circle share a storey.
    """
    reached = {room: _reached(graph, room) for room in graph}
    heights: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in heights:
            heights[room] = 0  # ends a circle
            below = {r for r in reached[room] if room not in reached[r]}
            heights[room] = 1 + max(map(height, below), default=-1)
        return heights[room]

    for room in graph:
        height(room)
    floors = range(max(heights.values(), default=0) + 1)
    return [sorted(r for r in graph if heights[r] == floor) for floor in floors]


def _needed(graph: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Yield the arrows that no longer way replaces."""
    reached = {room: _reached(graph, room) for room in graph}
    for room in graph:
        for other in sorted(graph[room]):
            ways = (
                over
                for over in graph[room] - {other}
                if other in reached[over] and room not in reached[over]
            )
            circle = room in reached[other]
            if circle or not any(over not in reached[other] for over in ways):
                yield room, other


def picture(package: Path = PACKAGE) -> str:
    """Return the graph: packages as boxes, public modules with round ends."""
    graph = imports(package)
    lines = ["flowchart TD"]
    for room in graph:
        is_package = (package / room).is_dir()
        shape = f'["{room}/"]' if is_package else f"([{room}])"
        lines.append(f"    {room}_{shape}")  # no word of Mermaid's own ends in _
    lines += [f"    {room}_ --> {other}_" for room, other in _needed(graph)]
    return "\n".join(lines)


if __name__ == "__main__":
    house = imports()
    arrows = sum(map(len, house.values()))
    print(picture())  # noqa: T201
    print(f"%% {len(house)} rooms, {arrows} arrows, {len(storeys(house))} storeys")  # noqa: T201
