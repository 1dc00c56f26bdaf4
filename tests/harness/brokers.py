"""A RabbitMQ for the tests that need one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import missing
from tests.harness.servers import RabbitMQ, find_rabbitmq


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
