"""A RabbitMQ for the tests that need one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.conftest import missing
from tests.harness.servers import RabbitMQ, find_rabbitmq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def running_rabbitmq(folder: Path) -> Iterator[RabbitMQ]:
    """Run a RabbitMQ for a block; without one, skip here and fail in CI.

    Args:
        folder: The folder of its data and logs.
    """
    try:
        find_rabbitmq()
    except FileNotFoundError as error:
        missing(str(error))
    server = RabbitMQ(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
