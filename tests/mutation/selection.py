"""A pytest plugin: leave out what is long, or needs a server.

Starting a server for each of a thousand mutants takes hours. So only the slow tests,
which judge the few mutants that the fast ones have left, may start one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

WITH_SERVERS = "REDLOCK_MUTATION_WITH_SERVERS"  # in the environment, if they may
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
    needs_server = names & _SERVERS or params.get("subject", "memory") != "memory"
    return bool(
        (needs_server and not os.environ.get(WITH_SERVERS))
        or item.get_closest_marker("long")
        or "fork" in item.name
    )
