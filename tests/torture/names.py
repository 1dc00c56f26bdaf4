"""The names that all processes of a torture share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.harness.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CELLS", "COUNTERS", "FOLDER", "SETS", "SETTINGS", "journal_in"]

FOLDER = "TORTURE_FOLDER"  # the variable with the folder of the torture
SETTINGS = "TORTURE_SETTINGS"  # the variable with the settings of the app
COUNTERS = [f"counter-{number}" for number in range(4)]
CELLS = [f"cell-{number}" for number in range(3)]
SETS = [f"set-{number}" for number in range(3)]


def journal_in(folder: Path | str) -> Journal:
    """Return the journal of the torture in this folder."""
    return Journal(os.path.join(folder, "journal.jsonl"))  # noqa: PTH118  (str or Path)
