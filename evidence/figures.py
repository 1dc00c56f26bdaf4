"""The results of the last run, in ``figures.json``: the page is made from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence.ways import Shown

FILE = Path(__file__).with_name("figures.json")


class Figures:
    """The results of all ways and of all counts.

    A run of a part replaces this part, and keeps the others.
    """

    def __init__(self) -> None:
        read: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
        self._shown: dict[str, dict[str, Any]] = read["shown"]
        self.counts: dict[str, str] = read["counts"]

    def shown(self, name: str) -> Shown | None:
        """Return the result of a way; None if it did not run yet."""
        found = self._shown.get(name)
        return Shown(**found) if found else None

    def add(self, name: str, shown: Shown) -> None:
        """Store the result of a way."""
        self._shown[name] = asdict(shown)

    def write(self, known: set[str]) -> None:
        """Write the file, without results of ways that are not there any more."""
        self._shown = {name: one for name, one in self._shown.items() if name in known}
        text = {"counts": self.counts, "shown": self._shown}
        FILE.write_text(
            json.dumps(text, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
