"""Half a minute of partitions: all counts that must be zero are zero."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.harness.waiting import until
from tests.partitions.network import missing_program, reason_against
from tests.partitions.session import HISTORY, partitions
from tests.partitions.site import KEYS, NODES, Site

SECONDS = float(os.environ.get("REDLOCK_PARTITIONS_SECONDS", "20"))
SEED = int(os.environ.get("REDLOCK_PARTITIONS_SEED", "1"))


@pytest.fixture(autouse=True)
def namespaces() -> None:
    """Skip a test where namespaces cannot be made; in CI, fail without programs."""
    if lack := missing_program():
        missing(lack)
    if reason := reason_against():
        pytest.skip(reason)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 200)
def test_partitions(redis_server: str, tmp_path: Path) -> None:
    """Cuts, stalls, pauses and clock steps break no promise and no fence."""
    report = partitions(SECONDS, SEED, folder=tmp_path)

    report.show()
    assert report.zero == dict.fromkeys(report.zero, 0), report.proofs()
    assert report.faults
    assert report.is_clean, f"there were too few operations: {report.jobs}"
    assert (tmp_path / HISTORY).stat().st_size


@pytest.mark.long
def test_partitions_find_a_planted_bug(redis_server: str, tmp_path: Path) -> None:
    """Clients that lock on different nodes collide, and no order explains it."""
    report = partitions(5, SEED, split=True, folder=tmp_path)

    assert report.zero["beliefs that break the promise"]
    assert report.zero["locks without an order"] == len(KEYS)


@pytest.mark.long
def test_clock_of_one_node_is_stepped(redis_server: str, tmp_path: Path) -> None:
    """A stepped node is ahead of the machine, and the others are not."""
    with Site(tmp_path, SEED) as site:
        if not site.has_clocks:
            missing("no redis-server here starts with libfaketime")
        site.set_clock(NODES[0], 100.0)

        until(lambda: site.time_of(NODES[0]) - time.time() > 99)
        assert abs(site.time_of(NODES[1]) - time.time()) < 1
