"""``redlock bench``: what a lock costs."""

from __future__ import annotations

from tests.cli.project import Project
from tests.nodes.support import until_nothing_is_left


def test_bench_measures_a_majority_and_each_node(project: Project) -> None:
    """It prints percentiles and a histogram, and leaves no lock behind."""
    run = project.redlock("bench", "--count", "20", "--json")

    assert run.code == 0
    for measured in ("acquire", "release", "acquire and release"):
        times = run.document["quorum"][measured]
        assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    assert len(run.document["nodes"]) == 3
    assert sum(bar["count"] for bar in run.document["histogram"]) == 20
    until_nothing_is_left(project.nodes, "bench")
