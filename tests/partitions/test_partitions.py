"""Half a minute of partitions: all counts that must be zero are zero."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.harness.waiting import until
from tests.torture.network import missing_program, reason_against
from tests.torture.session import HISTORY, torture
from tests.torture.site import Site

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
@pytest.mark.timeout(SECONDS + 300)
def test_partitions(redis_server: str, tmp_path: Path) -> None:
    """Cuts, stalls, pauses and clock steps break no promise and no fence."""
    report = torture(SECONDS, SEED, network=True, folder=tmp_path)

    report.show()
    assert report.zero == dict.fromkeys(report.zero, 0), report.proofs()
    assert any(report.faults.values())
    assert report.is_clean, f"there were too few jobs: {report.jobs}"
    assert (tmp_path / HISTORY).stat().st_size


@pytest.mark.long
@pytest.mark.timeout(400)
def test_partitions_find_a_planted_bug(redis_server: str, tmp_path: Path) -> None:
    """Workers that lock on different nodes collide, and no order explains it."""
    report = torture(10, SEED, network=True, plant="split", folder=tmp_path)

    assert report.zero["overlaps under valid leases"]
    assert report.zero["locks without an order"]


@pytest.mark.long
def test_clock_of_one_node_is_stepped(redis_server: str, tmp_path: Path) -> None:
    """A stepped node is ahead of the machine, and the others are not."""
    site = Site(tmp_path, SEED, network=True)
    if not site.clocks:
        missing("no redis-server here starts with libfaketime")
    with site.nodes as nodes:
        site.clocks[0].set(100.0)

        def ahead(number: int) -> float:
            return float(nodes.nodes[number].command("TIME")[0]) - time.time()

        until(lambda: ahead(0) > 90)
        assert abs(ahead(1)) < 10
