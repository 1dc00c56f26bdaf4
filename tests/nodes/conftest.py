"""One node, where one is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_redlock.devnodes import DevNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node(redis_server: str) -> Iterator[DevNode]:
    """Give one running server, which nobody has declared a node of a deployment."""
    node = DevNode(binary=redis_server)
    node.start()
    yield node
    node.stop()
