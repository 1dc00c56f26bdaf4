"""A task that updates one row, in a bare transaction and with ``exactly_once_in``.

From publishing to the result, through a real prefork worker. PostgreSQL does not wait
for the disk here: so the record costs the most in comparison.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.groups.tasks import PROCESSES, contender
from benchmarks.runner import interleave, median_cost, ratio
from benchmarks.workers import workers
from celery_redlock.devnodes import DevNodes
from tests.harness.servers import PostgreSQL, find_postgresql, sqlalchemy_url


def measure(*, quick: bool) -> dict[str, Any]:
    """Return tasks per second of both, and how much longer one with a record takes."""
    rounds, count = (1, 30) if quick else (15, 150)
    programs = find_postgresql()
    if programs is None:
        raise SystemExit("PostgreSQL is not installed (Debian: postgresql).")
    database = PostgreSQL(programs)
    database.start()
    try:
        with DevNodes(5) as locks, DevNodes(1, initialize=False) as broker:
            os.environ["BENCHMARK_SERVERS"] = " ".join([*broker.urls, *locks.urls])
            os.environ["BENCHMARK_DATABASE"] = sqlalchemy_url(database)
            from benchmarks.groups import records_app  # noqa: PLC0415  (reads these)

            records_app.create_rows()
            with workers(records_app, concurrency=PROCESSES):
                costs = interleave(
                    [
                        contender(name, task, count)
                        for name, task in records_app.TASKS.items()
                    ],
                    rounds=rounds,
                )
            records_app.app.close()
            records_app.engine.dispose()
    finally:
        database.remove()
    bare, once = costs["a transaction"], costs["exactly_once_in"]
    return {
        "per_second": {name: 1e6 / median_cost(c).wall for name, c in costs.items()},
        "to_bare": ratio(once, bare),
    }
