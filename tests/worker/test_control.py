"""The control: without a lock, the same calls do what the locks prevent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.waiting import until

if TYPE_CHECKING:
    from tests.harness.deployment import Deployment


def test_plain_tasks_overlap(any_pool: Deployment, key: str) -> None:
    """Two equal calls of a plain task run at once, and the record shows it."""
    stage = any_pool.stage
    first, second = any_pool.send("plain", key), any_pool.send("plain", key)
    until(lambda: len(stage.running(key)) == 2)

    stage.open(key)

    assert {first.get(timeout=10), second.get(timeout=10)} == {first.id, second.id}
    assert len(stage.overlaps(key)) == 1
