"""The tasks of ``tasks`` with one lock node, which is all that the peers use."""

from __future__ import annotations

from typing import Any

from benchmarks.groups import tasks


def measure(*, quick: bool) -> dict[str, Any]:
    """Return what ``tasks`` returns."""
    return tasks.measure(quick=quick, nodes=1)
