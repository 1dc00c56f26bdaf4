"""What the jobs work on, for both sides."""

from __future__ import annotations

__all__ = ["CELLS", "COUNTERS", "SETS", "SETTINGS"]

SETTINGS = "TORTURE_SETTINGS"  # the variable with the app's settings
COUNTERS = [f"counter-{number}" for number in range(4)]
CELLS = [f"cell-{number}" for number in range(3)]
SETS = [f"set-{number}" for number in range(3)]
