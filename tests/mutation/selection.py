"""A pytest plugin: leave out what is long, or needs a server.

A mutant of a Python module cannot be noticed by a test that runs only on a server, and
starting a server for each of a thousand mutants takes hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_SERVERS = {"redis_server", "server", "shared_nodes", "start_nodes", "servers"}


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect these tests."""
    kept = [item for item in items if not _is_left_out(item)]
    left_out = [item for item in items if _is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _is_left_out(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    params = getattr(getattr(item, "callspec", None), "params", {})
    return bool(
        names & _SERVERS
        or item.get_closest_marker("long")
        or params.get("subject", "memory") != "memory"
        or "fork" in item.name
    )
