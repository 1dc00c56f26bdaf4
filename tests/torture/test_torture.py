"""A minute of torture: all counts that must be zero are zero."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing
from tests.harness.servers import find_postgresql, find_rabbitmq
from tests.torture.broker import BROKERS
from tests.torture.report import Report
from tests.torture.session import torture
from tests.torture.site import WITH_STANDBY

SHORT = 10.0
SECONDS = float(os.environ.get("REDLOCK_TORTURE_SECONDS", "60"))
JOBS = 100
SEED = int(os.environ.get("REDLOCK_TORTURE_SEED", "1"))


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("broker", [*BROKERS])
def test_torture(redis_server: str, tmp_path: Path, broker: str) -> None:
    """Kills, pauses, cuts and revokes cause no overlap and lose no job."""
    if broker == "rabbitmq":
        try:
            find_rabbitmq()
        except FileNotFoundError as error:
            missing(str(error))

    assert_clean(torture(SECONDS, SEED, broker=broker, folder=tmp_path))


def assert_clean(report: Report) -> None:
    """Check that there were faults, and that all that must be zero is zero."""
    report.show()
    assert report.zero == dict.fromkeys(report.zero, 0), report.proofs()
    assert any(report.faults.values())
    assert report.is_clean, f"only {report.jobs} were sent"


@pytest.mark.timeout(SECONDS + 300)
def test_torture_of_permits(redis_server: str, tmp_path: Path) -> None:
    """Ten permits for many jobs: no eleventh, no job twice at once, and none left."""
    chosen: dict[str, Any] = {"kinds": ["limited"], "jobs": JOBS}

    assert_clean(torture(SECONDS, SEED, **chosen, folder=tmp_path))


@pytest.mark.timeout(SECONDS + 300)
def test_torture_of_promotions(redis_server: str, tmp_path: Path) -> None:
    """A PostgreSQL fails over to a standby, for which it does not wait."""
    if find_postgresql() is None:
        missing("PostgreSQL is not installed: on Debian, apt-get install postgresql")

    assert_clean(torture(SECONDS, SEED, store=WITH_STANDBY, folder=tmp_path))


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize(("kind", "is_exact"), [("once", True), ("often", False)])
def test_torture_of_effects(
    redis_server: str, tmp_path: Path, kind: str, is_exact: bool
) -> None:
    """Each effect is there once; without the option, some are there twice."""
    if find_postgresql() is None:
        missing("PostgreSQL is not installed: on Debian, apt-get install postgresql")

    report = torture(SECONDS, SEED, kinds=[kind], folder=tmp_path)

    report.show()
    twice = report.zero.pop("effects that are there twice")
    assert (twice == 0) is is_exact
    assert report.zero == dict.fromkeys(report.zero, 0), report.proofs()
    assert report.faults["database killed"]


@pytest.mark.timeout(SHORT + 300)
def test_torture_finds_a_planted_bug(redis_server: str, tmp_path: Path) -> None:
    """A torture of workers that lock on different nodes finds their overlaps."""
    report = torture(SHORT, SEED, plant="split", folder=tmp_path)

    assert report.zero["overlaps under valid leases"]
