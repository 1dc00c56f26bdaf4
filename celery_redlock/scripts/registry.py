"""Loads the Lua files and resolves their includes.

A line ``-- include shared/owned.lua`` is replaced by the content of that file, which
may include others. This happens once, when this process imports the package: a node
gets one text.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cache

GRANTED, TAKEN, FREE, QUARANTINED, UNSYNCED, MISCONFIGURED, EVICTS = range(1, 8)

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120  (to import pathlib takes 4 ms)
_INCLUDE = "-- include "


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: The name of its file, of its operation in Python, and in traces.
        source: The Lua, includes resolved.
        whole: Send the source, and not the SHA, to a node that may not know the
            script: for a script that must also run if no client reads the reply.
        sha: The SHA-1 of the source in hex, by which a node finds a loaded script.
    """

    name: str
    source: str
    whole: bool = False
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False)
        object.__setattr__(self, "sha", digest.hexdigest())


def load(name: str, *, whole: bool = False) -> Script:
    """Read a script.

    Args:
        name: Of the file in this folder, without ``.lua``.
        whole: See `Script`.

    Raises:
        OSError: There is no such file, or one that it includes.
    """
    return Script(name, _with_includes(f"{name}.lua", set()), whole)


def _with_includes(path: str, included: set[str]) -> str:
    """Return a file in which each include is replaced; the same one once."""
    lines = []
    for line in _read(path).splitlines(keepends=True):
        if not line.startswith(_INCLUDE):
            lines.append(line)
        elif (other := line.removeprefix(_INCLUDE).rstrip()) not in included:
            included.add(other)
            lines.append(_with_includes(other, included))
    return "".join(lines)


@cache
def _read(path: str) -> str:
    with open(f"{_FOLDER}/{path}", "rb") as file:  # noqa: PTH123  (as above)
        return file.read().decode()
