"""FastAPI and trio: one user of a lock at a time, by any way into its block.

A framework enters a block in a thread of a pool and works elsewhere; it copies
contexts; it leaves generators open. The sites are real: two processes of uvicorn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.devnodes import DevNodes
from celery_redlock.devnodes.processes import Process
from tests.conftest import with_long
from tests.harness.waiting import until
from tests.projects.sites import answers, ask, statuses, uvicorns

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

REQUESTS = 200
WAYS = [
    "dependency",
    "dependency-async-view",
    "async-dependency",
    "to-thread",
    "executor",
    "anyio",
    "block",
]


@pytest.fixture(scope="module")
def site(
    shared_nodes: DevNodes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Give the addresses of two processes of the site."""
    folder = tmp_path_factory.mktemp("site")
    environment = {
        "SITE_NODES": " ".join(shared_nodes.urls),
        "SITE_FOLDER": str(folder),
    }
    with uvicorns("tests.projects.site_fastapi:app", folder, environment) as urls:
        yield urls


@pytest.mark.parametrize("way", with_long(WAYS, *WAYS[1:]))
def test_one_request_at_a_time_is_inside(site: list[str], key: str, way: str) -> None:
    """Of 200 requests to two processes, each that is let in is alone."""
    urls = [f"{url}/{way}/{key}" for url in site]

    seen = answers(urls, REQUESTS)

    assert statuses(seen).keys() <= {200, 409}, seen
    fences = [fence for status, fence in seen if status == 200]
    assert len(fences) == len({*fences}) > 0
    until(lambda: ask(urls[0])[0] == 200, what="the release after the last answer")


@pytest.mark.long
def test_generator_that_a_request_leaves_open_keeps_all_others_out(
    site: list[str], key: str
) -> None:
    """Not one of 200 requests is inside, also in the thread that left it open."""
    assert ask(f"{site[0]}/leak/{key}")[0] == 200

    seen = answers([f"{url}/block/{key}" for url in site], REQUESTS)

    assert statuses(seen) == {409: REQUESTS}
    assert ask(f"{site[0]}/drop")[0] == 200
    until(lambda: ask(f"{site[1]}/block/{key}")[0] == 200)


@pytest.mark.long
def test_one_task_of_trio_at_a_time_is_inside(
    shared_nodes: DevNodes, key: str, tmp_path: Path
) -> None:
    """Of 200 tasks in each of two processes, each that is let in is alone."""
    programs = [
        Process(
            f"trio-{number}",
            [
                *(sys.executable, "-m", "tests.projects.program_trio", key),
                *(str(tmp_path), *shared_nodes.urls),
            ],
            log=tmp_path / f"trio-{number}.log",
        )
        for number in range(2)
    ]
    for program in programs:
        program.start()
    for program in programs:
        program.wait(60)

    logs = [program.logs() for program in programs]
    assert [program.returncode for program in programs] == [0, 0], logs
    assert sum(int(log) for log in logs) > 0
